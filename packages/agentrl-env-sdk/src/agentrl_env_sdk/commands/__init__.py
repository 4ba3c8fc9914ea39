"""The subcommands of `agentrl-env`, a module each; none loads what it does before it is called."""

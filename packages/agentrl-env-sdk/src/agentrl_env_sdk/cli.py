"""`agentrl-env`: serve a task, or play it by hand."""

from importlib.metadata import version

import click

from agentrl_env_sdk.commands.init import init
from agentrl_env_sdk.commands.play import play
from agentrl_env_sdk.commands.replay import replay
from agentrl_env_sdk.commands.serve import serve
from agentrl_env_sdk.commands.validate import validate


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(version("agentrl-env-sdk"), prog_name="agentrl-env")
def main() -> None:
    """Write, play and serve tasks for language-model agents."""


main.add_command(init)
main.add_command(play)
main.add_command(replay)
main.add_command(serve)
main.add_command(validate)


if __name__ == "__main__":
    main()

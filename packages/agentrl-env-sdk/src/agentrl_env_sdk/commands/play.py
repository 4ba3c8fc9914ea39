"""`agentrl-env play`."""

import asyncio

import click

from agentrl_env_sdk.commands.faults import Index, told


@click.command()
@click.argument("target")
@click.argument("entry", required=False)
@click.option("--index", type=Index(), help="Sample to play [the split's first].")
@click.option("--split", help="Split to take it from [the first].")
@click.option("--seed", type=int, help="Seed of the episode [the sample's own].")
@click.option(
    "--in-process", is_flag=True, help='Play tasks with `isolation = "process"` here, to see :state.'
)
def play(
    target: str,
    entry: str | None,
    index: int | str | None,
    split: str | None,
    seed: int | None,
    in_process: bool,
) -> None:
    """Play TARGET by hand: you are the agent.

    Type a call such as `guess number=5` or `guess {"number": 5}`, or any text to say it. Lines that begin
    with a colon look into the episode: :state, :rewards, :time, :back, :save FILE; :help tells them all.
    End with Ctrl-D.
    """
    from agentrl_env_sdk.play import play_by_hand
    from agentrl_env_sdk.target import load_task

    with told():
        task = load_task(target, entry)
        if in_process:
            task.isolation = "thread"
        asyncio.run(play_by_hand(task, index=index, split=split, seed=seed))

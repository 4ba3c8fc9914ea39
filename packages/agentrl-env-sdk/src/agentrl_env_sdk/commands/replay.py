"""`agentrl-env replay`."""

import asyncio
import sys
from pathlib import Path

import click

from agentrl_env_sdk.commands.faults import told


@click.command()
@click.argument("trajectory", type=click.Path(path_type=Path))
@click.argument("target")
@click.argument("entry", required=False)
@click.option("--seed", type=int, help="Seed for episodes whose own is not recorded [the sample's own].")
def replay(trajectory: Path, target: str, entry: str | None, seed: int | None) -> None:
    """Play the agent's part of TRAJECTORY against TARGET again and tell the first difference.

    TRAJECTORY is what `:save FILE` of `agentrl-env play` writes, or `conversations.jsonl` of an evaluation.
    Exits with 1 where the environment answers differently.
    """
    from agentrl_env_sdk.replay import read
    from agentrl_env_sdk.replay import replay as play_again
    from agentrl_env_sdk.target import load_task

    with told():
        recordings = [
            recording if recording.seed is not None else recording.model_copy(update={"seed": seed})
            for recording in read(trajectory)
        ]
        replays = asyncio.run(play_again(load_task(target, entry), recordings))
    for each in replays:
        name = f"{each.before.task}, sample {each.before.index!r}, seed {each.after.seed}"
        turns = len(each.after.actions)
        told_ = each.difference or f"the same, {turns} turns, return {each.after.reward:g}"
        click.echo(f"{name}: {told_}")
    sys.exit(any(each.difference for each in replays))

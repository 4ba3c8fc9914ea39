"""`agentrl-env validate`."""

import asyncio
import sys
from pathlib import Path

import click

from agentrl_env_sdk.commands.faults import told


@click.command()
@click.argument("target")
@click.argument("entry", required=False)
@click.option("--oracle", help="Plays TARGET best: module:function or file.py:function [its own `oracle`].")
@click.option("--only", multiple=True, metavar="CHECK", help="Run this check; may be repeated [all].")
@click.option("--skip", multiple=True, metavar="CHECK", help="Leave this check out; may be repeated.")
@click.option(
    "--samples", type=click.IntRange(1), default=8, show_default=True, help="Samples to play at most."
)
@click.option("--split", help="Split to take them from [all].")
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Write the report as JSON.")
@click.option("--junit", type=click.Path(path_type=Path), help="Write the report as JUnit XML.")
def validate(
    target: str,
    entry: str | None,
    oracle: str | None,
    only: tuple[str, ...],
    skip: tuple[str, ...],
    samples: int,
    split: str | None,
    json_file: Path | None,
    junit: Path | None,
) -> None:
    """Check that TARGET keeps what agents and trainers rely on.

    Exits with 1 where a check fails. The checks: errors, same-seed, different-seeds, no-leaks, oracle,
    do-nothing, random, rewards, prompt, schemas, payloads, blocking, cancellation, timeouts.
    """
    from agentrl_env_sdk.target import load_task
    from agentrl_env_sdk.validate import Settings
    from agentrl_env_sdk.validate import validate as check
    from agentrl_env_sdk.validate.loading import load_oracle

    with told():
        task = load_task(target, entry)
        found = load_oracle(oracle) if oracle else None
        settings = Settings(num_samples=samples, split=split)
        source = (target, entry) if entry else (target,)
        report = asyncio.run(
            check(task, target=target, oracle=found, only=only, skip=skip, settings=settings, source=source)
        )
        report.write(json_file=json_file, junit_file=junit)
    click.echo(report.table(), nl=False)
    sys.exit(not report.ok)

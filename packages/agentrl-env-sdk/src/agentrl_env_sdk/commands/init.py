"""`agentrl-env init`."""

from pathlib import Path

import click

from agentrl_env_sdk.commands.faults import told


@click.command()
@click.argument("name")
@click.option(
    "--dir",
    "folder",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path(),
    help="Where its folder is made [here].",
)
def init(name: str, folder: Path) -> None:
    """Make a package for a new task NAME (such as word-hunt): code, data, tests that pass."""
    from agentrl_env_sdk.scaffold import create

    with told():
        for path in create(name, folder=folder):
            click.echo(path)
    click.echo(f"\nNext: cd {folder / name} && pip install -e . pytest && pytest")

"""How a command tells what is wrong with what it was given."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import click

from agentrl_core import ConfigError


@contextmanager
def told(*, exit_code: int = 1) -> Iterator[None]:
    """Ends the program with a line in place of a traceback where the input is wrong."""
    try:
        yield
    except ConfigError as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(exit_code)


class Index(click.ParamType):
    """A sample's index: a number, or a name."""

    name = "index"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int | str:  # noqa: ARG002
        """Digits as a number, anything else as it is."""
        text = str(value)
        return int(text) if text.removeprefix("-").isdecimal() else text

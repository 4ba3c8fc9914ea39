"""What comes with an extra of this package, and what to install where it is missing."""

from collections.abc import Iterator
from contextlib import contextmanager

from agentrl_core import ConfigError


@contextmanager
def extra(name: str) -> Iterator[None]:
    """Imports in this block need the extra `name`.

    Raises:
        ConfigError: one of them is not installed.
    """
    try:
        yield
    except ModuleNotFoundError as missing:
        raise ConfigError(
            f"`{missing.name}` is not installed; it comes with `pip install 'agentrl-env-sdk[{name}]'`"
        ) from missing

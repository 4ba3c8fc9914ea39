"""Environments that run elsewhere already: addresses that you give."""

from collections.abc import Mapping, Sequence

from agentrl_core import ConfigError
from agentrl_env_sdk.drivers.base import EnvironmentFailedError, Subtype, Unable


class ManualDriver:
    """Hands out given addresses, each to one lease at a time; `Subtype.sharing` lets several use one.

    Args:
        urls: addresses by subtype.

    Raises:
        ConfigError: a subtype has no address.
    """

    kind = "manual"

    def __init__(self, urls: Mapping[str, Sequence[str]]) -> None:
        self._free = {subtype: list(given) for subtype, given in urls.items()}
        self._taken: dict[str, tuple[str, str]] = {}
        for subtype, given in urls.items():
            if not given:
                raise ConfigError(f"environment `{subtype}` has no address; give at least one")

    async def create(self, subtype: Subtype, name: str) -> "GivenEnvironment":
        """Take an address."""
        free = self._free.get(subtype.name)
        if free is None:
            raise ConfigError(f"there are no addresses for `{subtype.name}`, only for {sorted(self._free)}")
        if not free:
            message = f"all addresses of `{subtype.name}` are taken; lower its `concurrency` to their number"
            raise EnvironmentFailedError(message)
        url = free.pop(0)
        self._taken[name] = subtype.name, url
        return GivenEnvironment(name, url)

    async def destroy(self, name: str) -> None:
        """Give an address back."""
        if name in self._taken:
            subtype, url = self._taken.pop(name)
            self._free[subtype].append(url)

    async def close(self) -> None:
        """Nothing is held."""


class GivenEnvironment(Unable):
    """An address.

    Attributes:
        name: unique among all that share the leases.
    """

    _kind = "given address"

    def __init__(self, name: str, url: str) -> None:
        self.name = name
        self._url = url

    def url(self, port: int | None = None) -> str:
        """The address; it has no others."""
        return self._url if port is None else super().url(port)

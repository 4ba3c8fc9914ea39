"""What a task wants in an environment, read from how it describes a container."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Protocol

from agentrl_env_sdk.drivers import Driver, Environment, Subtype
from agentrl_env_sdk.published.environment.delegation import EnvironmentDelegation

EXCLUSIVE = ".exclusive"
"""Ends the name of a kind whose instances belong to one session each."""
_UNLIMITED = 2**31
_START_S = 600.0
"""How long an instance may take to be there; an image may have to be pulled first."""


@dataclass(frozen=True, slots=True)
class Made:
    """An instance that exists."""

    environment: Environment
    """The instance."""
    host: str
    """Where it answers."""
    env: Mapping[str, str]
    """Variables that it was made with."""


class DelegatedDriver(Driver, Protocol):
    """A driver that makes what a delegation describes, and knows what it has made."""

    def find(self, name: str) -> Made | None:
        """An instance."""
        ...


@dataclass(frozen=True, slots=True)
class Wish:
    """What one session asks for besides."""

    arguments: Mapping[str, Any] = field(default_factory=dict)
    """Keyword arguments for the delegation."""
    env: Mapping[str, str] = field(default_factory=dict)
    """Variables of the environment."""


_WISH: ContextVar[Wish | None] = ContextVar("wish", default=None)


@contextmanager
def wishing(wish: Wish) -> Iterator[None]:
    """Instances that are made in here, and by tasks started in here, are made to this wish."""
    token = _WISH.set(wish)
    try:
        yield
    finally:
        _WISH.reset(token)


def wish() -> Wish:
    """What is asked for here."""
    return _WISH.get() or Wish()


def kind_of(name: str) -> str:
    """The delegation's name of a kind."""
    return name.removesuffix(EXCLUSIVE)


def kinds_of(delegation: EnvironmentDelegation, *, instances: int | None = None) -> list[Subtype]:
    """The delegation's subtypes, each to be shared within its limits and to be had alone.

    Args:
        delegation: the task's part of the configuration.
        instances: most instances of a shared one; sessions beyond what they take wait. None sets no limit.
    """
    names = list(delegation.get_subtypes())
    if delegation.has_homepage() and delegation.get_homepage_subtype() not in names:
        names.append(delegation.get_homepage_subtype())
    kinds: list[Subtype] = []
    for name in names:
        sharing, reuse = delegation.get_concurrency_limit(name), delegation.get_reuse_limit(name)
        kinds.append(
            Subtype(
                name,
                concurrency=instances or _UNLIMITED,
                sharing=sharing or _UNLIMITED,
                reuse=reuse or _UNLIMITED,
                lifetime_s=_UNLIMITED,
                start_timeout_s=_START_S,
            )
        )
        longest = delegation.get_max_execution_time(name)
        kinds.append(
            Subtype(name + EXCLUSIVE, concurrency=_UNLIMITED, lifetime_s=longest, start_timeout_s=_START_S)
        )
    return kinds


def variant(delegation: EnvironmentDelegation, name: str, *, immutable: bool) -> str:
    """Which kind a session gets: one of its own where it leaves traces, unless those may stay."""
    reuse = delegation.get_reuse_limit(name)
    return name + EXCLUSIVE if reuse == 1 or (reuse != 0 and not immutable) else name


async def container_of(delegation: EnvironmentDelegation, subtype: str, name: str) -> dict[str, Any]:
    """The body of Docker's container creation as the delegation completes it; `Env` is a mapping."""
    asked = wish()
    attrs: dict[str, Any] = {
        "Name": name,
        "Env": {},
        "Labels": {},
        "HostConfig": {"AutoRemove": True, "Init": True},
    }
    attrs = await delegation.create_docker_container(attrs, subtype, **asked.arguments)
    if "Image" not in attrs:
        attrs["Image"] = delegation.get_container_images()[subtype]
    attrs["Env"] = {**(attrs.get("Env") or {}), **asked.env}
    return attrs


def ports_of(delegation: EnvironmentDelegation, subtype: str, attrs: Mapping[str, Any]) -> list[int]:
    """Ports of the service: the delegation's, else those that the container exposes."""
    port = delegation.get_service_port(subtype)
    if port is not None:
        return list(port) if isinstance(port, list | tuple) else [port]
    return [int(str(exposed).partition("/")[0]) for exposed in attrs.get("ExposedPorts") or {}]


def url_of(delegation: EnvironmentDelegation, subtype: str, host: str) -> str:
    """How a task is told of an environment: its bare host where the delegation names no port."""
    port = delegation.get_service_port(subtype)
    if not port:
        return host
    first = port[0] if isinstance(port, list | tuple) else port
    return f"http://{host}" if first == 80 else f"http://{host}:{first}"

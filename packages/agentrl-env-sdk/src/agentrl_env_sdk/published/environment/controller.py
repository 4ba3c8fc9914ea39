"""What a task calls to get environments for its sessions, from the loop or from a thread."""

import asyncio
import logging
import weakref
from collections.abc import Coroutine
from typing import Any, TypeVar

from agentrl_env_sdk.published.environment.delegation import EnvironmentDelegation

_log = logging.getLogger("agentrl_env_sdk")

Result = TypeVar("Result")

Started = tuple[str, dict[str, str], dict[str, str]]
"""A session's id, and its environments' ids and URLs by subtype."""

_CONTROLLERS: "weakref.WeakSet[EnvironmentController]" = weakref.WeakSet()


async def close_controllers() -> None:
    """Release every environment of every controller in this process."""
    closed = await asyncio.gather(*(each.close() for each in list(_CONTROLLERS)), return_exceptions=True)
    for fault in closed:
        if isinstance(fault, BaseException):
            _log.error("environments are left over", exc_info=fault)


def adopt_loop() -> None:
    """Let the `sync_` methods of controllers whose task has not said otherwise run on this loop."""
    loop = asyncio.get_running_loop()
    for controller in list(_CONTROLLERS):
        controller.offer_loop(loop)


class EnvironmentController:
    """Environments by session; drivers derive from it.

    Args:
        delegation: the task's part of the configuration.

    Attributes:
        delegation: the same.
    """

    def __init__(self, delegation: EnvironmentDelegation) -> None:
        self.delegation = delegation
        self._loop: asyncio.AbstractEventLoop | None = None
        delegation.controller = self
        _CONTROLLERS.add(self)

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """Where the `sync_` methods run; a task may set it, its first sample does otherwise."""
        if self._loop is None:
            raise RuntimeError(
                "set `loop` before any `sync_` method is called; nobody has played a sample yet"
            )
        return self._loop

    @loop.setter
    def loop(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def offer_loop(self, loop: asyncio.AbstractEventLoop) -> None:
        """Set `loop` unless the task has."""
        self._loop = self._loop or loop

    async def start_session(
        self, subtypes: list[str] | str, immutable: bool = True, **kwargs: Any
    ) -> Started:
        """Environments of some subtypes for a session.

        Args:
            subtypes: one or more of the delegation's.
            immutable: whether the session leaves no traces, so that it may share an environment.
            kwargs: passed on to the delegation's `create_` method.
        """
        raise NotImplementedError

    async def renew_session(self, session_id: str) -> None:
        """Keep a session from running out."""
        raise NotImplementedError

    async def end_session(self, session_id: str) -> None:
        """Release a session's environments."""
        raise NotImplementedError

    async def execute_command(
        self, environment_id: str, command: str | list[str], timeout: int = 30
    ) -> tuple[int, bytes, bytes]:
        """Run a command; returns its exit code, output and errors."""
        raise NotImplementedError

    async def create_shell(self, environment_id: str, shell: str = "/bin/bash --login") -> None:
        """Start the shell that `execute_shell` talks to."""
        raise NotImplementedError

    async def execute_shell(self, environment_id: str, command: str, timeout: int = 30) -> bytes:
        """Run a command in the environment's shell; returns what it printed."""
        raise NotImplementedError

    async def get_env_variables(self, environment_id: str) -> dict[str, str]:
        """Variables that the environment was made with."""
        raise NotImplementedError

    async def background_task(self) -> None:
        """Keep house until cancelled; drivers that do so without being asked return at once."""

    async def close(self) -> None:
        """Release every environment."""

    def sync_start_session(self, *args: Any, **kwargs: Any) -> Started:
        """`start_session` for code on a thread."""
        return self._wait(self.start_session(*args, **kwargs))

    def sync_renew_session(self, session_id: str) -> None:
        """`renew_session` for code on a thread."""
        self._wait(self.renew_session(session_id))

    def sync_end_session(self, session_id: str) -> None:
        """`end_session` for code on a thread."""
        self._wait(self.end_session(session_id))

    def sync_execute_command(self, *args: Any, **kwargs: Any) -> tuple[int, bytes, bytes]:
        """`execute_command` for code on a thread."""
        return self._wait(self.execute_command(*args, **kwargs))

    def sync_create_shell(self, *args: Any, **kwargs: Any) -> None:
        """`create_shell` for code on a thread."""
        self._wait(self.create_shell(*args, **kwargs))

    def sync_execute_shell(self, *args: Any, **kwargs: Any) -> bytes:
        """`execute_shell` for code on a thread."""
        return self._wait(self.execute_shell(*args, **kwargs))

    def sync_get_env_variables(self, environment_id: str) -> dict[str, str]:
        """`get_env_variables` for code on a thread."""
        return self._wait(self.get_env_variables(environment_id))

    def _wait(self, work: Coroutine[Any, Any, Result]) -> Result:
        try:
            loop = self.loop
        except RuntimeError:
            work.close()
            raise
        return asyncio.run_coroutine_threadsafe(work, loop).result()


class ManualController(EnvironmentController):
    """Environments that somebody else runs.

    Args:
        delegation: the task's part of the configuration.
        urls: where they are, by subtype.
    """

    def __init__(self, delegation: EnvironmentDelegation, urls: dict[str, str]) -> None:
        super().__init__(delegation)
        self._urls = dict(urls)

    async def start_session(
        self, subtypes: list[str] | str, immutable: bool = True, **kwargs: Any
    ) -> Started:
        """All of them, whatever is asked for."""
        del subtypes, immutable, kwargs
        return "manual", {}, dict(self._urls)

    async def renew_session(self, session_id: str) -> None:
        """Nothing runs out."""

    async def end_session(self, session_id: str) -> None:
        """Nothing is released."""

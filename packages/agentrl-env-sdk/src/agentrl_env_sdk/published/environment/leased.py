"""Environments of a published task from a driver of ours: leased, limited, ended with whoever held them."""

import asyncio
import shlex
import uuid
from contextlib import AsyncExitStack, nullcontext
from dataclasses import dataclass, field
from typing import Any

from agentrl_core import ConfigError
from agentrl_env_sdk.drivers import Environment, Environments, Leases, Shell, Subtype
from agentrl_env_sdk.drivers.base import EnvironmentFailedError
from agentrl_env_sdk.published.environment.container import (
    EXCLUSIVE,
    DelegatedDriver,
    Made,
    Wish,
    url_of,
    variant,
    wishing,
)
from agentrl_env_sdk.published.environment.controller import EnvironmentController, Started
from agentrl_env_sdk.published.environment.delegation import EnvironmentDelegation

_OUTPUT_BYTES = 16 << 20
"""Output of a command that is kept; published drivers have no limit."""


@dataclass(slots=True)
class _Held:
    """What a session holds."""

    stack: AsyncExitStack
    lifetime_s: float
    environments: dict[str, Environment] = field(default_factory=dict)
    timer: asyncio.TimerHandle | None = None


class LeasedController(EnvironmentController):
    """Environments by session.

    Args:
        delegation: the task's part of the configuration.
        driver: makes them.
        kinds: what may be asked for; see `kinds_of`.
        leases: where it is kept what exists.
    """

    def __init__(
        self,
        delegation: EnvironmentDelegation,
        driver: DelegatedDriver,
        kinds: list[Subtype],
        *,
        leases: Leases | None = None,
    ) -> None:
        super().__init__(delegation)
        self._driver = driver
        self._subtypes = list(delegation.get_subtypes())
        self._environments = Environments(driver, kinds, leases=leases)
        # One at a time, so that the second of two sessions finds what the first has made.
        self._turns = {kind.name: asyncio.Lock() for kind in kinds if kind.sharing > 1}
        self._held: dict[str, _Held] = {}
        self._shells: dict[str, Shell] = {}
        self._endings: set[asyncio.Task[None]] = set()

    async def start_session(
        self, subtypes: list[str] | str, immutable: bool = True, **kwargs: Any
    ) -> Started:
        """Environments of some subtypes for a session.

        Raises:
            ConfigError: the delegation has no such subtype.
            EnvironmentFailedError: one could not be made.
        """
        names = [subtypes] if isinstance(subtypes, str) else list(subtypes)
        for name in names:
            if name not in self._subtypes:
                raise ConfigError(
                    f"task `{self.delegation.get_name()}` has no subtype `{name}`, only {self._subtypes}"
                )
        longest = max(map(self.delegation.get_max_execution_time, names), default=0)
        async with AsyncExitStack() as stack:
            held = _Held(stack, longest)
            with wishing(Wish(kwargs)):
                for name in names:
                    kind = variant(self.delegation, name, immutable=immutable)
                    async with self._turns.get(kind) or nullcontext():
                        held.environments[name] = await stack.enter_async_context(
                            self._environments.lease(kind)
                        )
            urls = {name: self._url_of(name, each) for name, each in held.environments.items()}
            if self.delegation.has_homepage():
                await self._add_homepage(held, urls, kwargs)
            held.stack = stack.pop_all()
        session_id = str(uuid.uuid4())
        self._held[session_id] = held
        self._set_timer(session_id, held)
        return session_id, {name: each.name for name, each in held.environments.items()}, urls

    async def renew_session(self, session_id: str) -> None:
        """Keep a session for another of its environments' lifetimes; none of its own lives longer for it."""
        held = self._held.get(session_id)
        if held is not None:
            self._set_timer(session_id, held)

    async def end_session(self, session_id: str) -> None:
        """Release a session's environments; nothing happens where it has ended."""
        held = self._held.pop(session_id, None)
        if held is None:
            return
        if held.timer is not None:
            held.timer.cancel()
        ending = asyncio.create_task(held.stack.aclose())
        self._endings.add(ending)
        ending.add_done_callback(self._endings.discard)
        await asyncio.shield(ending)  # A task that is cut short here has nothing left to release.
        for name in [name for name in self._shells if self._driver.find(name) is None]:
            del self._shells[name]

    async def execute_command(
        self, environment_id: str, command: str | list[str], timeout: int = 30
    ) -> tuple[int, bytes, bytes]:
        """Run a command, its words taken as they are; returns its exit code, output and errors.

        Raises:
            TimeoutError: it did not end in time.
            EnvironmentFailedError: there is no such environment, or it runs no commands.
        """
        environment = self._find(environment_id).environment
        words = shlex.split(command) if isinstance(command, str) else [str(word) for word in command]
        done = await environment.run(shlex.join(words), timeout_s=timeout, output_bytes=_OUTPUT_BYTES)
        if done.timed_out:
            raise TimeoutError(f"`{shlex.join(words)[:200]}` did not end within {timeout} s")
        return done.code, done.stdout, done.stderr

    async def create_shell(self, environment_id: str, shell: str = "/bin/bash --login") -> None:
        """Start the shell that `execute_shell` talks to; which one is up to the driver."""
        del shell
        old = self._shells.pop(environment_id, None)
        if old is not None:
            await old.close()
        environment = self._find(environment_id).environment
        self._shells[environment_id] = await environment.shell()

    async def execute_shell(self, environment_id: str, command: str, timeout: int = 30) -> bytes:
        """Run a command in the environment's shell; returns its output and errors as they came.

        Raises:
            TimeoutError: it did not end in time; the shell is another one from then on.
            EnvironmentFailedError: there is no such environment, or it has no shell.
        """
        self._find(environment_id)
        if environment_id not in self._shells:
            await self.create_shell(environment_id)
        grouped = f"{{\n{command}\n}} 2>&1"
        done = await self._shells[environment_id].run(grouped, timeout_s=timeout, output_bytes=_OUTPUT_BYTES)
        if done.timed_out:
            raise TimeoutError(f"`{command[:200]}` did not end within {timeout} s")
        return done.stdout + done.stderr

    async def get_env_variables(self, environment_id: str) -> dict[str, str]:
        """Variables that the environment was made with."""
        return dict(self._find(environment_id).env)

    async def close(self) -> None:
        """Release every environment."""
        for session_id in list(self._held):
            await self.end_session(session_id)
        await self._environments.close()

    async def _add_homepage(self, held: _Held, urls: dict[str, str], arguments: dict[str, Any]) -> None:
        name = self.delegation.get_homepage_subtype()
        with wishing(Wish(arguments, self.delegation.get_homepage_envs(dict(urls)))):
            lease = self._environments.lease(name + EXCLUSIVE)
            held.environments[name] = await held.stack.enter_async_context(lease)
        urls[name] = self._url_of(name, held.environments[name])

    def _url_of(self, subtype: str, environment: Environment) -> str:
        return url_of(self.delegation, subtype, self._find(environment.name).host)

    def _set_timer(self, session_id: str, held: _Held) -> None:
        if held.timer is not None:
            held.timer.cancel()
        loop = asyncio.get_running_loop()
        held.timer = loop.call_later(held.lifetime_s, self._run_out, session_id)

    def _run_out(self, session_id: str) -> None:
        ending = asyncio.create_task(self.end_session(session_id))
        self._endings.add(ending)
        ending.add_done_callback(self._endings.discard)

    def _find(self, environment_id: str) -> Made:
        found = self._driver.find(environment_id)
        if found is None:
            raise EnvironmentFailedError(f"environment {environment_id} does not exist, or has ended")
        return found

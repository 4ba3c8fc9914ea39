"""Leases of environments: waiting in line, reuse, lifetimes, and an end for everything that was made."""

import asyncio
import contextlib
import logging
import secrets
import time
from collections import deque
from collections.abc import AsyncIterator, Coroutine, Iterable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from agentrl_core import ConfigError
from agentrl_env_sdk.drivers.base import Driver, Environment, EnvironmentFailedError, Subtype
from agentrl_env_sdk.drivers.leases import (
    Lease,
    Leases,
    LocalLeases,
    is_abandoned,
    is_of_this_machine,
    this_process,
)

Result = TypeVar("Result")

_log = logging.getLogger("agentrl_env_sdk")

_PROMISE_S = 60.0
"""How long a lease that is not renewed is believed."""
_RENEWAL_S = 15.0
_OF_ONE_MACHINE = frozenset({"process", "mariadb", "redis", "manual"})
"""Kinds whose instances only the machine that made them can end."""


@dataclass(slots=True, eq=False)
class _Instance:
    """An environment and its seats."""

    subtype: Subtype
    environment: Environment
    num_users: int = 1
    num_served: int = 1
    """Leases so far, those that run included."""
    is_spent: bool = False
    """Whether it takes no more leases."""


_Seat = _Instance | None
"""A place in an instance; None stands for one that is to be made."""


@dataclass(slots=True)
class _Kind:
    """The instances of a subtype."""

    subtype: Subtype
    instances: list[_Instance] = field(default_factory=list)
    num_starting: int = 0
    waiting: "deque[asyncio.Future[_Seat]]" = field(default_factory=deque)
    """First come, first served."""

    def reserve(self) -> "asyncio.Future[_Seat]":
        """A seat, now or when it is one's turn."""
        waiter = asyncio.get_running_loop().create_future()
        self.waiting.append(waiter)
        self.wake()
        return waiter

    def wake(self) -> None:
        """Give the seats that are free to the first in line."""
        while self.waiting:
            if self.waiting[0].done():  # It has gone away.
                self.waiting.popleft()
                continue
            free = next((one for one in self.instances if self._has_seat(one)), None)
            if free is not None:
                free.num_users += 1
                free.num_served += 1
            elif len(self.instances) + self.num_starting < self.subtype.concurrency:
                self.num_starting += 1
            else:
                return
            self.waiting.popleft().set_result(free)

    def _has_seat(self, instance: _Instance) -> bool:
        subtype = self.subtype
        is_full = instance.num_users >= subtype.sharing or instance.num_served >= subtype.reuse
        return not (instance.is_spent or is_full)


class Environments:
    """Makes environments for those who ask, and ends them.

    Use it as a context manager: at its end everything is ended.

    Args:
        driver: makes the instances.
        subtypes: what may be asked for.
        leases: where it is kept what exists; a file of this user where it is absent.
    """

    def __init__(self, driver: Driver, subtypes: Iterable[Subtype], *, leases: Leases | None = None) -> None:
        self._driver = driver
        self._kinds = {subtype.name: _Kind(subtype) for subtype in subtypes}
        self._leases = leases or LocalLeases()
        self._owner = this_process()
        self._names: set[str] = set()
        self._works: set[asyncio.Task[object]] = set()
        self._caring: asyncio.Task[None] | None = None
        self._is_closed = False

    async def __aenter__(self) -> "Environments":
        self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def start(self) -> None:
        """Look after the leases from now on, those that dead owners left among them."""
        if self._caring is None:
            self._caring = asyncio.create_task(self._care())

    async def close(self) -> None:
        """End everything."""
        self._is_closed = True
        for kind in self._kinds.values():
            for waiter in kind.waiting:
                if not waiter.done():
                    waiter.set_exception(EnvironmentFailedError("the environments have been closed"))
            kind.waiting.clear()
            for instance in list(kind.instances):
                self._end(kind, instance)
        while self._works:
            await asyncio.wait(self._works)
        if self._caring is not None:
            self._caring.cancel()
            await asyncio.wait([self._caring])
        await self._driver.close()
        await self._leases.close()

    @property
    def num_instances(self) -> int:
        """Instances that exist."""
        return len(self._names)

    @contextlib.asynccontextmanager
    async def lease(self, subtype: str, *, lifetime_s: float | None = None) -> AsyncIterator[Environment]:
        """An environment for as long as the block lasts.

        Args:
            subtype: which kind.
            lifetime_s: seconds until it is taken away; at most the subtype's, which is the default.

        Raises:
            ConfigError: there is no such kind.
            EnvironmentFailedError: none could be made.
        """
        kind = self._kinds.get(subtype)
        if kind is None:
            raise ConfigError(f"there is no environment `{subtype}`; known are {sorted(self._kinds)}")
        instance = await self._take(kind)
        longest = kind.subtype.lifetime_s
        span_s = min(lifetime_s or longest, longest)
        timer = asyncio.get_running_loop().call_later(span_s, self._expire, kind, instance)
        try:
            yield instance.environment
        finally:
            timer.cancel()
            ending = self._give_back(kind, instance)
            if ending is not None:
                await asyncio.shield(ending)

    async def _take(self, kind: _Kind) -> _Instance:
        self.start()
        if self._is_closed:
            raise EnvironmentFailedError("the environments have been closed")
        waiter = kind.reserve()
        try:
            seat = await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled():
                self._return(kind, waiter.result())
            raise
        if seat is not None:
            return seat
        making = self._work(self._make(kind))
        try:
            return await asyncio.shield(making)
        except asyncio.CancelledError:
            # It comes to be all the same, and is not forgotten.
            making.add_done_callback(lambda made: self._unwanted(kind, made))
            raise

    def _return(self, kind: _Kind, seat: _Seat) -> None:
        """Give back a seat that was never taken."""
        if seat is not None:
            self._give_back(kind, seat)
        else:
            kind.num_starting -= 1
            kind.wake()

    def _unwanted(self, kind: _Kind, made: "asyncio.Task[_Instance]") -> None:
        if not made.cancelled() and made.exception() is None:
            self._give_back(kind, made.result())

    async def _make(self, kind: _Kind) -> _Instance:
        """An instance; where it cannot be made, nothing of it stays."""
        subtype = kind.subtype
        name = f"agentrl-{subtype.name.lower().replace('_', '-')}-{secrets.token_hex(6)}"
        self._names.add(name)
        try:
            await self._leases.write([self._lease(name)])
            async with asyncio.timeout(subtype.start_timeout_s):
                environment = await self._driver.create(subtype, name)
        except BaseException as error:
            await self._destroy(name)
            kind.num_starting -= 1
            kind.wake()
            if isinstance(error, TimeoutError):
                message = f"`{subtype.name}` was not there within {subtype.start_timeout_s:g} s"
                raise EnvironmentFailedError(message) from error
            raise
        kind.num_starting -= 1
        instance = _Instance(subtype, environment)
        kind.instances.append(instance)
        if self._is_closed:
            self._end(kind, instance)
        return instance

    def _give_back(self, kind: _Kind, instance: _Instance) -> "asyncio.Task[None] | None":
        instance.num_users -= 1
        is_used_up = instance.num_served >= kind.subtype.reuse
        if instance.num_users == 0 and (is_used_up or instance.is_spent):
            return self._end(kind, instance)
        kind.wake()
        return None

    def _expire(self, kind: _Kind, instance: _Instance) -> None:
        _log.warning("environment %s has reached the end of its lease", instance.environment.name)
        self._end(kind, instance)

    def _end(self, kind: _Kind, instance: _Instance) -> "asyncio.Task[None] | None":
        """End an instance once; its place is free when it is gone."""
        instance.is_spent = True
        if instance not in kind.instances:
            return None

        async def work() -> None:
            await self._destroy(instance.environment.name)
            kind.instances.remove(instance)
            kind.wake()

        if instance.environment.name in self._names:
            self._names.discard(instance.environment.name)
            return self._work(work())
        return None

    async def _destroy(self, name: str) -> None:
        try:
            await self._driver.destroy(name)
            await self._leases.remove(name)
        except Exception as error:  # The lease stays, so the next owner tries again.
            _log.error("environment %s could not be ended: %s", name, error, exc_info=error)
        finally:
            self._names.discard(name)

    async def _care(self) -> None:
        """End what dead owners left, then renew what is ours, again and again."""
        while True:
            await reap(self._driver, self._leases)
            await asyncio.sleep(_RENEWAL_S)
            try:
                await self._leases.write([self._lease(name) for name in self._names])
            except Exception as error:
                _log.warning("leases of environments could not be renewed: %s", error)

    def _lease(self, name: str) -> Lease:
        return Lease(name, self._driver.kind, self._owner, time.time() + _PROMISE_S)

    def _work(self, coroutine: Coroutine[Any, Any, Result]) -> "asyncio.Task[Result]":
        task = asyncio.create_task(coroutine)
        self._works.add(task)
        task.add_done_callback(self._works.discard)
        return task


async def reap(driver: Driver, leases: Leases) -> list[str]:
    """End what owners have left that died, or lost touch; returns the names.

    Directories and servers of another machine are left to that machine.
    """
    ended: list[str] = []
    try:
        found = await leases.all()
    except Exception as error:
        _log.warning("leases of environments cannot be read: %s", error)
        return ended
    for lease in found:
        is_within_reach = lease.kind not in _OF_ONE_MACHINE or is_of_this_machine(lease)
        if lease.kind == driver.kind and is_within_reach and is_abandoned(lease):
            try:
                await driver.destroy(lease.name)
                await leases.remove(lease.name)
                ended.append(lease.name)
            except Exception as error:
                _log.warning("what %s left could not be ended: %s", lease.name, error)
    return ended

"""Threads for what may block: a call that never comes back holds up neither the others nor the exit."""

import asyncio
import functools
import inspect
import queue
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

_LIMIT = 64
"""Calls that block at the same time; more wait for their turn."""


class _Job:
    """A call, and the future that waits for it."""

    __slots__ = ("function", "future", "is_abandoned", "is_running", "loop")

    def __init__(self, function: Callable[[], Any], loop: asyncio.AbstractEventLoop) -> None:
        self.function = function
        self.loop = loop
        self.future: asyncio.Future[Any] = loop.create_future()
        self.is_running = False
        self.is_abandoned = False

    def perform(self) -> None:
        try:
            settle, value = _succeed, self.function()
        except StopIteration as error:  # which no future takes
            settle, value = _fail, RuntimeError(f"StopIteration: {error}")
        except BaseException as error:
            settle, value = _fail, error
        with suppress(RuntimeError):  # The loop was closed in the meantime; nobody waits.
            self.loop.call_soon_threadsafe(settle, self.future, value)


class ThreadPool:
    """Daemon threads, made as they are needed.

    `concurrent.futures` would wait for a hung call at the exit of the process, and would keep its place
    in the pool for ever; here a call that nobody waits for any more gives its place to a new thread.

    Args:
        limit: calls at the same time.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._jobs: queue.SimpleQueue[_Job] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._threads = 0
        self._unclaimed = 0
        """Threads that wait for a job, less the jobs that wait for a thread."""

    async def run(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call a function on a thread; a cancelled caller leaves it behind."""
        job = _Job(functools.partial(function, *args, **kwargs), asyncio.get_running_loop())
        with self._lock:
            self._unclaimed -= 1
            self._hire()
        self._jobs.put(job)
        try:
            return await job.future
        except asyncio.CancelledError:
            self._abandon(job)
            raise

    def _hire(self) -> None:
        if self._unclaimed < 0 and self._threads < self._limit:
            self._threads += 1
            self._unclaimed += 1
            threading.Thread(target=self._work, name="task", daemon=True).start()

    def _abandon(self, job: _Job) -> None:
        with self._lock:
            job.is_abandoned = True
            if job.is_running:
                self._threads -= 1
                self._hire()

    def _work(self) -> None:
        # The job lives in another frame, so that an idle thread keeps nothing of its last one alive.
        while self._work_on(self._jobs.get()):
            pass

    def _work_on(self, job: _Job) -> bool:
        """Do a job; returns whether the thread is still one of the pool."""
        with self._lock:
            job.is_running = not job.is_abandoned
        if job.is_running:
            job.perform()
        with self._lock:
            if job.is_running and job.is_abandoned:
                return False  # Another thread has this one's place.
            job.is_running = False
            self._unclaimed += 1
        return True


_POOL = ThreadPool(_LIMIT)


async def call(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call a task's method: async on the loop, sync on a thread, so that it cannot block the others."""
    if inspect.iscoroutinefunction(function):
        return await function(*args, **kwargs)
    result = await _POOL.run(function, *args, **kwargs)
    return await result if inspect.isawaitable(result) else result


def _succeed(future: "asyncio.Future[Any]", value: Any) -> None:
    if not future.done():
        future.set_result(value)


def _fail(future: "asyncio.Future[Any]", error: BaseException) -> None:
    if not future.done():
        future.set_exception(error)

"""Threads for what may block: a call that never comes back holds up neither the others nor the exit.

A session keeps one thread for all its calls, since database connections and environments of other
libraries belong to the thread that made them.
"""

import asyncio
import functools
import inspect
import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import Any

_LIMIT = 64


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


class _Lane:
    """One thread's work in order; the thread is made with the first job."""

    __slots__ = ("_jobs", "_lock", "num_users")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._jobs: queue.SimpleQueue[_Job] | None = None
        self.num_users = 0

    async def run(self, function: Callable[[], Any]) -> Any:
        job = _Job(function, asyncio.get_running_loop())
        with self._lock:
            jobs = self._jobs or self._hire()
            jobs.put(job)
        try:
            return await job.future
        except asyncio.CancelledError:
            self._abandon(job)
            raise

    def _hire(self) -> "queue.SimpleQueue[_Job]":
        jobs = self._jobs = queue.SimpleQueue()
        threading.Thread(target=self._work, args=(jobs,), name="task", daemon=True).start()
        return jobs

    def _abandon(self, job: _Job) -> None:
        """Leave a call alone; where it hangs, those behind it get a new thread."""
        with self._lock:
            job.is_abandoned = True
            old = self._jobs
            if not job.is_running or old is None:
                return
            self._jobs = None
            with suppress(queue.Empty):
                while True:
                    waiting = old.get_nowait()
                    (self._jobs or self._hire()).put(waiting)

    def _work(self, jobs: "queue.SimpleQueue[_Job]") -> None:
        # The job lives in another frame, so that an idle thread keeps nothing of its last one alive.
        while self._work_on(jobs.get()):
            pass

    def _work_on(self, job: _Job) -> bool:
        """Do a job; returns whether the thread is still the lane's."""
        with self._lock:
            job.is_running = not job.is_abandoned
        if not job.is_running:
            return True
        job.perform()
        with self._lock:
            job.is_running = False
            return not job.is_abandoned


class ThreadPool:
    """Daemon threads, made as they are needed.

    `concurrent.futures` would wait for a hung call at the exit of the process, and would keep its place
    in the pool for ever; here a call that nobody waits for any more gives its place to a new thread.

    Args:
        limit: calls that block at the same time.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._lock = threading.Lock()
        self._idle: list[_Lane] = []
        self._busy: list[_Lane] = []

    async def run(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call a function on any thread; a cancelled caller leaves it behind."""
        thread = SessionThread(self)
        try:
            return await thread.run(functools.partial(function, *args, **kwargs))
        finally:
            thread.release()

    def take(self) -> _Lane:
        """A thread of one's own where one is free, else the one with the fewest users."""
        with self._lock:
            if self._idle:
                lane = self._idle.pop()
            elif len(self._busy) < self._limit:
                lane = _Lane()
            else:
                lane = min(self._busy, key=lambda lane: lane.num_users)
            if lane.num_users == 0:
                self._busy.append(lane)
            lane.num_users += 1
            return lane

    def give_back(self, lane: _Lane) -> None:
        """Take leave of a thread."""
        with self._lock:
            lane.num_users -= 1
            if lane.num_users == 0:
                self._busy.remove(lane)
                self._idle.append(lane)


class SessionThread:
    """The thread of one session; taken with its first blocking call and kept until the session ends.

    Args:
        pool: where it comes from.
    """

    __slots__ = ("_lane", "_pool")

    def __init__(self, pool: ThreadPool) -> None:
        self._pool = pool
        self._lane: _Lane | None = None

    async def run(self, function: Callable[[], Any]) -> Any:
        """Call a function on the thread; a cancelled caller leaves it behind."""
        if self._lane is None:
            self._lane = self._pool.take()
        return await self._lane.run(function)

    def release(self) -> None:
        """Give the thread back."""
        if self._lane is not None:
            self._pool.give_back(self._lane)
            self._lane = None

    @contextmanager
    def entered(self) -> Iterator[None]:
        """What `call` is given in here, and in tasks started in here, runs on this thread."""
        token = _CURRENT.set(self)
        try:
            yield
        finally:
            _CURRENT.reset(token)


_POOL = ThreadPool(_LIMIT)
_CURRENT: ContextVar[SessionThread | None] = ContextVar("thread", default=None)


async def call(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call a task's method: async on the loop, sync on the session's thread, so as to block nobody."""
    if inspect.iscoroutinefunction(function):
        return await function(*args, **kwargs)
    thread = _CURRENT.get() or _POOL
    result = await thread.run(functools.partial(function, *args, **kwargs))
    return await result if inspect.isawaitable(result) else result


def _succeed(future: "asyncio.Future[Any]", value: Any) -> None:
    if not future.done():
        future.set_result(value)


def _fail(future: "asyncio.Future[Any]", error: BaseException) -> None:
    if not future.done():
        future.set_exception(error)

"""The session table of one task: starts, exchanges and ends, whatever the transport.

start -> Session + a task that runs Task.run -> Exchange ... interact -> Exchange ... -> teardown
"""

import asyncio
import contextlib
import functools
import inspect
import logging
import secrets
import time
import zlib
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from agentrl_core import (
    CUSTOM_INDEX,
    ConfigError,
    ErrorCode,
    Message,
    SampleIndex,
    SampleStatus,
    SessionError,
)
from agentrl_env_sdk.rewards import grade
from agentrl_env_sdk.samples import Samples
from agentrl_env_sdk.session import EpisodeOver, Exchange, Session, TaskFailedError
from agentrl_env_sdk.task import Task
from agentrl_env_sdk.threads import SessionThread, ThreadPool, call

_log = logging.getLogger("agentrl_env_sdk")

SessionId = int | str
Play = Callable[..., Awaitable[None]]
"""Takes a session and plays its episode."""

_KEPT_FINISHED = 4096
_MAX_THREADS = 256
_MAX_SESSION_ID = 2**53
_GRACE_S = 5.0
"""How long a cancelled task may go on before its slot is taken from it."""


@dataclass(slots=True, eq=False)
class _Live:
    """An episode that holds a slot."""

    session: Session
    playing: asyncio.Task[None]
    """Runs the task's own code; it alone is ever cancelled."""
    over: asyncio.Future[None]
    """Done once `playing` is, or is given up."""
    ended: asyncio.Event
    """Set once the slot is free."""
    answer: asyncio.Future[Exchange]
    last_used: float
    request_id: str | None
    thread: SessionThread
    """Where the task's sync code runs."""
    num_waiting: int = 0
    """Callers that wait for the answer."""
    is_copied: bool = False
    """Whether a snapshot is being made; until then nothing may happen in it."""
    is_stopping: bool = False
    fault: str | None = None


@dataclass(frozen=True, slots=True)
class _Ended:
    """What is remembered of an episode, so that a last answer can be asked for again."""

    status: SampleStatus
    request_id: str | None
    answer: Exchange


class Runner:
    """Plays the episodes of a task.

    Args:
        task: the task.
        concurrency: episodes at the same time; the task's own where it is absent.
        idle_timeout_s: an episode that nobody talks to for this long is cancelled.

    Attributes:
        is_draining: whether new episodes are refused.
        num_ended: episodes that have ended, by status.

    Raises:
        ConfigError: the task's samples or tools are wrong.
    """

    def __init__(self, task: Task, *, concurrency: int | None = None, idle_timeout_s: float = 1800.0) -> None:
        if task.isolation == "process":
            from agentrl_env_sdk.isolation import IsolatedTask  # which has runners of its own

            task = IsolatedTask(task)
        self.task = task
        self.concurrency = task.concurrency if concurrency is None else concurrency
        if not isinstance(self.concurrency, int) or self.concurrency < 1:
            rule = "must be a whole number of at least 1"
            raise ConfigError(f"`concurrency` of `{task.task_name}` {rule}, got {self.concurrency!r}")
        self.samples = Samples(task)
        self.tools = task.bound_tools
        self.is_draining = False
        self.num_ended: Counter[SampleStatus] = Counter()
        self._idle_timeout_s = idle_timeout_s
        self._live: dict[SessionId, _Live] = {}
        self._ended: OrderedDict[SessionId, _Ended] = OrderedDict()
        self._starts: OrderedDict[str, SessionId] = OrderedDict()
        self._threads = ThreadPool(min(self.concurrency, _MAX_THREADS))
        self._supervisors: set[asyncio.Task[None]] = set()

    @property
    def sessions(self) -> dict[SessionId, SampleIndex]:
        """Index of each episode that is being played."""
        return {session_id: live.session.index for session_id, live in self._live.items()}

    async def start(
        self,
        index: SampleIndex,
        *,
        session_id: SessionId | None = None,
        custom_task: Any = None,
        seed: int | None = None,
        request_id: str | None = None,
        deadline_s: float | None = None,
    ) -> tuple[SessionId, Exchange]:
        """Begin an episode; returns its id and the first exchange.

        A request id that has begun one gives the same answer again.

        Raises:
            SessionError: the sample is unknown, the id is in use, or no slot is free.
            TimeoutError: the deadline passed; the episode, of which nobody knows, is cancelled.
        """
        if request_id is not None and request_id in self._starts:
            session_id = self._starts[request_id]
            return session_id, await self._again(session_id, request_id, deadline_s)
        session_id = secrets.randbelow(_MAX_SESSION_ID) if session_id is None else session_id
        session = self._session(session_id, index, custom_task, seed)
        self._admit(session_id)
        live = self._begin(session, self.task.run, request_id)
        return session_id, await self._opening(live, deadline_s)

    async def fork(
        self,
        session_id: SessionId,
        *,
        fork_id: SessionId | None = None,
        request_id: str | None = None,
        deadline_s: float | None = None,
    ) -> tuple[SessionId, Exchange]:
        """Begin another episode where one stands; returns its id and an exchange without messages.

        Raises:
            SessionError: the session is unknown, has ended or is answering a request, its task makes no
                snapshots, or no slot is free.
            TimeoutError: the deadline passed; the fork, of which nobody knows, is cancelled.
        """
        if request_id is not None and request_id in self._starts:
            fork_id = self._starts[request_id]
            return fork_id, await self._again(fork_id, request_id, deadline_s)
        live = self._at_rest(session_id)
        if not self.task.can_snapshot:
            message = f"task `{self.task.task_name}` cannot be forked: it has no `snapshot`"
            raise SessionError(message, code=ErrorCode.BAD_REQUEST)
        fork_id = secrets.randbelow(_MAX_SESSION_ID) if fork_id is None else fork_id
        self._admit(fork_id)
        live.is_copied = True
        try:
            with live.thread.entered():
                snapshot = await call(self.task.snapshot, live.session)
        finally:
            live.is_copied = False
        self._admit(fork_id)
        resume = functools.partial(self.task.resume, snapshot=snapshot)
        fork = self._begin(live.session.twin(fork_id), resume, request_id)
        return fork_id, await self._opening(fork, deadline_s)

    async def interact(
        self,
        session_id: SessionId,
        messages: Sequence[Message],
        *,
        request_id: str | None = None,
        deadline_s: float | None = None,
    ) -> Exchange:
        """Hand the agent's messages to an episode and return its answer.

        Raises:
            SessionError: the session is unknown, has ended, or is answering another request.
            TimeoutError: the deadline passed; the episode goes on, ask again with the same request id.
        """
        live = self._live.get(session_id)
        if live is None or (request_id is not None and request_id == live.request_id):
            return await self._again(session_id, request_id, deadline_s)
        self._at_rest(session_id)
        live.request_id = request_id
        self._expect(live)
        live.session.resume(messages)
        return await self._wait(live, deadline_s)

    async def cancel(self, session_id: SessionId) -> None:
        """End an episode and wait until its slot is free; nothing happens to one that has ended.

        Raises:
            SessionError: the session is unknown.
        """
        self.status(session_id)
        live = self._live.get(session_id)
        if live is not None:
            self._stop(live)
            await live.ended.wait()

    async def cancel_all(self) -> None:
        """End every episode."""
        await asyncio.gather(*(self.cancel(session_id) for session_id in list(self._live)))

    async def close(self) -> None:
        """End every episode, and let go of what the task holds."""
        await self.cancel_all()
        await call(self.task.close)

    async def wait_until_empty(self) -> None:
        """Wait until no episode is being played."""
        while self._live:
            await next(iter(self._live.values())).ended.wait()

    def status(self, session_id: SessionId) -> SampleStatus:
        """State of an episode.

        Raises:
            SessionError: the session is unknown.
        """
        if session_id in self._live:
            return self._live[session_id].session.status or SampleStatus.RUNNING
        if session_id in self._ended:
            return self._ended[session_id].status
        raise SessionError(f"session {session_id} is unknown here", code=ErrorCode.UNKNOWN_SESSION)

    def session(self, session_id: SessionId) -> Session:
        """An episode that is being played, as its task sees it; for debuggers and tests.

        Raises:
            SessionError: the session is unknown or has ended.
        """
        if session_id not in self._live:
            raise _has_ended(session_id, self.status(session_id))
        return self._live[session_id].session

    async def on_thread(self, session_id: SessionId, function: Callable[..., Any], *args: Any) -> Any:
        """Call a function where the code of an episode's task runs: async on the loop, sync on its thread.

        Raises:
            SessionError: the session is unknown or has ended.
        """
        self.session(session_id)
        with self._live[session_id].thread.entered():
            return await call(function, *args)

    def expire(self) -> None:
        """Cancel episodes that nobody has talked to for too long; to be called now and then."""
        limit = time.monotonic() - self._idle_timeout_s
        for live in list(self._live.values()):
            if live.answer.done() and live.last_used < limit:
                self._stop(live)

    def _at_rest(self, session_id: SessionId) -> _Live:
        """An episode that waits for its agent."""
        live = self._live.get(session_id)
        if live is None:
            raise _has_ended(session_id, self.status(session_id))
        if live.session.finished or live.is_stopping:
            raise _has_ended(session_id, live.session.status or SampleStatus.CANCELLED)
        if live.is_copied or not live.answer.done():
            message = f"session {session_id} is answering another request"
            raise SessionError(message, code=ErrorCode.SESSION_BUSY)
        return live

    def _admit(self, session_id: SessionId) -> None:
        if session_id in self._live:
            raise SessionError(f"session {session_id} exists already", code=ErrorCode.BAD_REQUEST)
        if self.is_draining:
            raise SessionError("the worker is about to stop", code=ErrorCode.NO_CAPACITY)
        if len(self._live) >= self.concurrency:
            raise SessionError(f"all {self.concurrency} slots are taken", code=ErrorCode.NO_CAPACITY)

    def _session(
        self, session_id: SessionId, index: SampleIndex, custom_task: Any, seed: int | None
    ) -> Session:
        name = self.task.task_name
        found = self.samples.find(index)
        if index == CUSTOM_INDEX:
            if custom_task is None:
                message = f"index {CUSTOM_INDEX} stands for a custom task, but `custom_task` is missing"
                raise SessionError(message, code=ErrorCode.BAD_REQUEST)
            found = (None, custom_task)
        if found is None:
            message = f"task `{name}` has {self.samples.count} samples, none is {index!r}"
            raise SessionError(message, code=ErrorCode.UNKNOWN_INDEX)
        return Session(
            session_id,
            task=name,
            index=index,
            split=found[0],
            sample=found[1],
            seed=zlib.crc32(f"{name}/{index}".encode()) if seed is None else seed,
            max_turns=self.task.max_turns,
            tools=self.tools,
            timeout_s=self.task.episode_timeout_s,
        )

    def _begin(self, session: Session, play: Play, request_id: str | None) -> _Live:
        """Take a slot and start to play, all before anybody else has a turn."""
        thread = SessionThread(self._threads)
        with thread.entered():
            playing = asyncio.create_task(_contained(self._play, play, session))
        over = asyncio.get_running_loop().create_future()
        playing.add_done_callback(lambda _: _resolve(over))
        now = time.monotonic()
        live = _Live(session, playing, over, asyncio.Event(), session.expect(), now, request_id, thread)
        self._live[session.id] = live
        self._ended.pop(session.id, None)  # A controller that began anew counts from 1 again.
        if request_id is not None:
            self._starts[request_id] = session.id
            _trim(self._starts)
        self._limit(live)
        supervisor = asyncio.create_task(self._supervise(live))
        self._supervisors.add(supervisor)
        supervisor.add_done_callback(self._supervisors.discard)
        return live

    async def _opening(self, live: _Live, deadline_s: float | None) -> Exchange:
        """The first answer of an episode; one that nobody waited for is cancelled, since nobody knows it."""
        try:
            return await self._wait(live, deadline_s)
        except TimeoutError:
            if live.num_waiting == 0:
                self._stop(live)
            raise

    async def _play(self, play: Play, session: Session) -> None:
        """The task's own part of an episode."""
        with contextlib.suppress(EpisodeOver):
            result = play(session)
            if not inspect.isawaitable(result):
                raise TypeError(f"`{type(self.task).__name__}.run` must be `async def`")
            await result
        await grade(self.task, session)

    def _expect(self, live: _Live) -> None:
        """Give the turn to the task."""
        live.answer = live.session.expect()
        self._limit(live)

    def _limit(self, live: _Live) -> None:
        answer = live.answer
        timer = asyncio.get_running_loop().call_later(self.task.turn_timeout_s, self._time_out, live, answer)
        answer.add_done_callback(lambda _: timer.cancel())

    def _time_out(self, live: _Live, answer: "asyncio.Future[Exchange]") -> None:
        if not (answer.done() or live.is_stopping or live.over.done()):
            live.fault = f"no answer within `turn_timeout_s` = {self.task.turn_timeout_s:g} s"
            self._stop(live)

    def _stop(self, live: _Live) -> None:
        """Cancel an episode once; a second time would cut its clean-up short."""
        if not (live.is_stopping or live.over.done()):
            live.is_stopping = True
            live.session.close()
            live.playing.cancel()
            asyncio.get_running_loop().call_later(_GRACE_S, _resolve, live.over)

    async def _again(
        self, session_id: SessionId, request_id: str | None, deadline_s: float | None
    ) -> Exchange:
        """The answer to the session's last request, for who repeats that request."""
        live, ended = self._live.get(session_id), self._ended.get(session_id)
        if live is not None and request_id == live.request_id:
            return await self._wait(live, deadline_s)
        if live is not None:
            message = f"session {session_id} has gone on since request {request_id}"
            raise SessionError(message, code=ErrorCode.BAD_REQUEST)
        if ended is None:
            raise SessionError(f"session {session_id} is unknown here", code=ErrorCode.UNKNOWN_SESSION)
        if request_id is None or request_id != ended.request_id:
            raise _has_ended(session_id, ended.status)
        return ended.answer

    async def _wait(self, live: _Live, deadline_s: float | None) -> Exchange:
        """Wait for the answer; a caller that goes away takes nothing with it."""
        live.last_used = time.monotonic()
        live.num_waiting += 1
        try:
            async with asyncio.timeout(deadline_s):
                return await asyncio.shield(live.answer)
        finally:
            live.num_waiting -= 1
            live.last_used = time.monotonic()

    async def _supervise(self, live: _Live) -> None:
        """See an episode through to its end, whatever the task does; nobody cancels this."""
        session = live.session
        await live.over
        self._judge(live)
        with live.thread.entered():
            await self._tear_down(session)
        live.thread.release()
        if live.fault is not None:
            session.status = SampleStatus.TASK_ERROR
            session.metrics |= {"error": live.fault, "score": 0.0}
        elif live.is_stopping:
            session.status = SampleStatus.CANCELLED
        session.conclude()
        del self._live[session.id]
        status = session.status or SampleStatus.COMPLETED
        self.num_ended[status] += 1
        self._ended[session.id] = _Ended(status, live.request_id, live.answer.result())
        _trim(self._ended)
        live.ended.set()

    def _judge(self, live: _Live) -> None:
        """Find out what was wrong, if anything was."""
        name, session_id, playing = self.task.task_name, live.session.id, live.playing
        if not playing.done():
            _log.error("task `%s` ignores its cancellation in session %s", name, session_id)
            playing.add_done_callback(lambda late: late.cancelled() or late.exception())
            return
        error = _raised(playing)
        if live.is_stopping:  # Then how it ended says nothing.
            error = None
        if error is not None:
            live.fault = (
                str(error) if isinstance(error, TaskFailedError) else f"{type(error).__name__}: {error}"
            )
        if live.fault is not None:
            _log.error("task `%s` failed in session %s: %s", name, session_id, live.fault, exc_info=error)

    async def _tear_down(self, session: Session) -> None:
        name = self.task.task_name
        work = asyncio.create_task(_contained(call, self.task.teardown, session))
        await asyncio.wait([work], timeout=self.task.turn_timeout_s)
        if not work.done():
            work.cancel()
            _log.error("teardown of `%s` does not end in session %s", name, session.id)
        elif error := _raised(work):
            _log.error("teardown of `%s` failed in session %s", name, session.id, exc_info=error)


async def _contained(function: Play, *arguments: Any) -> None:
    """Run a task's code so that what it raises stays in it."""
    try:
        await function(*arguments)
    except EpisodeOver:
        return
    except SystemExit as error:  # which would stop the worker with all its episodes
        raise RuntimeError(f"SystemExit: {error}") from error


def _raised(work: "asyncio.Task[None]") -> BaseException | None:
    return asyncio.CancelledError("the task cancelled itself") if work.cancelled() else work.exception()


def _resolve(future: "asyncio.Future[None]") -> None:
    if not future.done():
        future.set_result(None)


def _has_ended(session_id: SessionId, status: SampleStatus) -> SessionError:
    return SessionError(f"session {session_id} has ended as `{status}`", code=ErrorCode.SESSION_FINISHED)


def _trim(kept: OrderedDict[Any, Any]) -> None:
    while len(kept) > _KEPT_FINISHED:
        kept.popitem(last=False)

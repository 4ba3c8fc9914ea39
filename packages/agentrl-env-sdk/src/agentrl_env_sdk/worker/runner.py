"""The session table of one task: starts, exchanges and ends, whatever the transport.

start -> Session + a task that runs Task.run -> Exchange ... interact -> Exchange ... -> teardown
"""

import asyncio
import logging
import secrets
import time
import zlib
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from agentrl_core import CUSTOM_INDEX, Message, SampleIndex, SampleStatus
from agentrl_env_sdk.session import Exchange, Session
from agentrl_env_sdk.task import Samples, Task, call

_log = logging.getLogger("agentrl_env_sdk")

SessionId = int | str

_KEPT_FINISHED = 4096
_MAX_SESSION_ID = 2**53
_GRACE_S = 5.0
"""How long a cancelled task may go on before its slot is taken from it."""


class RunnerError(Exception):
    """A request that the session table refuses.

    Attributes:
        http_status: the code that the published wire gives it.
    """

    def __init__(self, message: str, *, http_status: int = 400) -> None:
        super().__init__(message)
        self.http_status = http_status


@dataclass(slots=True, eq=False)
class _Live:
    session: Session
    runner: asyncio.Task[None] | None = None
    request_id: str | None = None
    answer: "asyncio.Future[Exchange] | None" = None
    last_used: float = 0.0
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    is_stopping: bool = False
    fault: str | None = None

    @property
    def is_busy(self) -> bool:
        return self.answer is not None and not self.answer.done()


class Runner:
    """Plays the episodes of a task.

    Args:
        task: the task.
        concurrency: episodes at the same time; the task's own where it is absent.
        idle_timeout_s: an episode that nobody talks to for this long is cancelled.
    """

    def __init__(self, task: Task, *, concurrency: int | None = None, idle_timeout_s: float = 1800.0) -> None:
        self.task = task
        self.samples = Samples(task)
        self.concurrency = concurrency or task.concurrency
        self._idle_timeout_s = idle_timeout_s
        self._live: dict[SessionId, _Live] = {}
        self._finished: OrderedDict[SessionId, _Live] = OrderedDict()
        self._starts: OrderedDict[str, SessionId] = OrderedDict()

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
            RunnerError: the sample is unknown, the id is in use, or no slot is free.
            TimeoutError: the deadline passed; the episode goes on, ask again with the same request id.
        """
        if request_id is not None and request_id in self._starts:
            session_id = self._starts[request_id]
            return session_id, await self._answer(self._find(session_id), deadline_s)
        session_id = secrets.randbelow(_MAX_SESSION_ID) if session_id is None else session_id
        if session_id in self._live or session_id in self._finished:
            raise RunnerError(f"session {session_id} exists already")
        if len(self._live) >= self.concurrency:
            raise RunnerError(f"all {self.concurrency} slots are taken", http_status=406)
        live = _Live(self._session(session_id, index, custom_task, seed), last_used=time.monotonic())
        self._live[session_id] = live
        if request_id is not None:
            self._starts[request_id] = session_id
            _trim(self._starts)
        self._expect(live, request_id)
        live.runner = asyncio.create_task(self._play(live))
        return session_id, await self._answer(live, deadline_s)

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
            RunnerError: the session is unknown, has ended, or is answering another request.
            TimeoutError: the deadline passed; the episode goes on, ask again with the same request id.
        """
        live = self._find(session_id)
        if request_id is None or request_id != live.request_id:
            if live.is_busy:
                raise RunnerError(f"session {session_id} is answering another request", http_status=409)
            if live.ended.is_set() or live.session.finished:
                raise RunnerError(f"session {session_id} has ended as `{live.session.status}`")
            self._expect(live, request_id)
            live.session.resume(messages)
        return await self._answer(live, deadline_s)

    async def cancel(self, session_id: SessionId) -> None:
        """End an episode and wait until its slot is free; nothing happens to one that has ended.

        Raises:
            RunnerError: the session is unknown.
        """
        live = self._find(session_id)
        self._stop(live)
        await live.ended.wait()

    async def cancel_all(self) -> None:
        """End every episode."""
        await asyncio.gather(*(self.cancel(session_id) for session_id in list(self._live)))

    def status(self, session_id: SessionId) -> SampleStatus:
        """State of an episode.

        Raises:
            RunnerError: the session is unknown.
        """
        return self._find(session_id).session.status or SampleStatus.RUNNING

    def _session(
        self, session_id: SessionId, index: SampleIndex, custom_task: Any, seed: int | None
    ) -> Session:
        found = self.samples.find(index)
        if index == CUSTOM_INDEX:
            if custom_task is None:
                raise RunnerError(
                    f"index {CUSTOM_INDEX} stands for a custom task, but `custom_task` is missing"
                )
            found = (None, custom_task)
        if found is None:
            raise RunnerError(
                f"task `{self.task.task_name}` has {self.samples.count} samples, none is {index!r}"
            )
        name = self.task.task_name
        return Session(
            session_id,
            task=name,
            index=index,
            split=found[0],
            sample=found[1],
            seed=zlib.crc32(f"{name}/{index}".encode()) if seed is None else seed,
            max_turns=self.task.max_turns,
            tools=[bound.spec for bound in self.task.bound_tools.values()] or None,
        )

    def _find(self, session_id: SessionId) -> _Live:
        live = self._live.get(session_id) or self._finished.get(session_id)
        if live is None:
            raise RunnerError(f"session {session_id} is unknown here")
        return live

    def _expect(self, live: _Live, request_id: str | None) -> None:
        """Give the turn to the task, for a limited time."""
        live.request_id = request_id
        live.answer = answer = live.session.expect()
        timer = asyncio.get_running_loop().call_later(self.task.turn_timeout_s, self._time_out, live, answer)
        answer.add_done_callback(lambda _: timer.cancel())

    def _time_out(self, live: _Live, answer: "asyncio.Future[Exchange]") -> None:
        if not answer.done() and not live.is_stopping:
            live.fault = f"no answer within `turn_timeout_s` = {self.task.turn_timeout_s:g} s"
            self._stop(live)

    def _stop(self, live: _Live) -> None:
        """Cancel an episode once; a second time would cut its clean-up short."""
        if live.runner is not None and not live.is_stopping:
            live.is_stopping = True
            live.session.close()
            live.runner.cancel()

    async def _answer(self, live: _Live, deadline_s: float | None) -> Exchange:
        """Wait for the answer; a caller that goes away takes nothing with it."""
        answer = live.answer
        assert answer is not None
        live.last_used = time.monotonic()
        try:
            async with asyncio.timeout(deadline_s):
                return await asyncio.shield(answer)
        finally:
            live.last_used = time.monotonic()

    async def _play(self, live: _Live) -> None:
        session = live.session
        playing = asyncio.create_task(self.task.run(session))
        status = SampleStatus.COMPLETED
        try:
            await asyncio.wait([playing])
            playing.result()
        except asyncio.CancelledError:
            status = SampleStatus.CANCELLED
            playing.cancel()
            await asyncio.wait([playing], timeout=_GRACE_S)
            if not playing.done():
                _log.error(
                    "task `%s` ignores its cancellation in session %s", self.task.task_name, session.id
                )
        except Exception as error:
            status = SampleStatus.TASK_ERROR
            live.fault = live.fault or f"{type(error).__name__}: {error}"
            _log.exception("task `%s` failed in session %s", self.task.task_name, session.id)
        await self._tear_down(session)
        if live.fault is not None:
            status = session.status = SampleStatus.TASK_ERROR
            session.metrics |= {"error": live.fault, "score": 0.0}
        elif status is SampleStatus.CANCELLED:
            session.status = status
        del self._live[session.id]
        self._finished[session.id] = live
        _trim(self._finished)
        session.conclude(status)
        live.ended.set()

    async def _tear_down(self, session: Session) -> None:
        try:
            await call(self.task.teardown, session)
        except Exception:
            _log.exception("teardown of `%s` failed in session %s", self.task.task_name, session.id)

    def expire(self) -> None:
        """Cancel episodes that nobody has talked to for too long; to be called now and then."""
        limit = time.monotonic() - self._idle_timeout_s
        for live in list(self._live.values()):
            if not live.is_busy and live.last_used < limit:
                self._stop(live)


def _trim(kept: OrderedDict[Any, Any]) -> None:
    while len(kept) > _KEPT_FINISHED:
        kept.popitem(last=False)

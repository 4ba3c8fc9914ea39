"""Sessions and the states they go through.

STARTING -> IDLE <-> BUSY -> FINISHED
    |        |        |
    +--------+--------+--> CANCELLING -> CANCELLED
    +--------+--------+--------+-------> LOST
"""

import asyncio
import secrets
import time
from collections import Counter, OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from agentrl_controller.registry import Worker
from agentrl_core import ErrorCode, SampleIndex, SessionError

_MAX_ID = 2**53


class SessionState(StrEnum):
    """Where a session is in its life."""

    STARTING = "starting"
    IDLE = "idle"
    BUSY = "busy"
    CANCELLING = "cancelling"
    FINISHED = "finished"
    CANCELLED = "cancelled"
    LOST = "lost"

    @property
    def is_cancellable(self) -> bool:
        """Whether there is something to cancel."""
        return SessionState.CANCELLING in _NEXT.get(self, ())

    @property
    def has_ended(self) -> bool:
        """Whether nothing more happens to it."""
        return self in (SessionState.FINISHED, SessionState.CANCELLED, SessionState.LOST)


_ALWAYS = {SessionState.CANCELLING, SessionState.LOST}
_NEXT = {
    SessionState.STARTING: {SessionState.IDLE, SessionState.FINISHED, *_ALWAYS},
    SessionState.IDLE: {SessionState.BUSY, *_ALWAYS},
    SessionState.BUSY: {SessionState.IDLE, SessionState.FINISHED, *_ALWAYS},
    SessionState.CANCELLING: {SessionState.CANCELLED, SessionState.LOST},
}


@dataclass(slots=True, eq=False)
class Session:
    """An episode on a worker."""

    id: int
    """Random, so that a restart gives no id twice."""
    task: str
    """Task name."""
    index: SampleIndex
    """Sample."""
    custom_task: Any
    """The caller's own sample, where it brought one."""
    worker: Worker
    """Who plays it."""
    started: float
    """Wall-clock time of the start."""
    last_used: float
    """Monotonic time of the last request."""
    state: SessionState = SessionState.STARTING
    """Where it is in its life."""
    reason: str = ""
    """Why it ended, where nobody wanted it to."""
    request_id: str | None = None
    """Id of the newest request."""
    answer: "asyncio.Future[bytes] | None" = None
    """Answer to the newest request, kept so that it can be asked for again."""
    num_exchanges: int = 0
    """Requests that went to the worker after the start."""
    is_open: bool = False
    """Whether the worker has confirmed the start."""
    released: asyncio.Event | None = None
    """Set when the worker says that a cancelled session has ended there."""

    def fail(self, error: SessionError) -> None:
        """Tell whoever waits for the answer that none will come."""
        if self.answer is not None and not self.answer.done():
            self.answer.set_exception(error)

    def move(self, state: SessionState, *, reason: str = "") -> None:
        """Go on to a state.

        Raises:
            ValueError: the state does not follow; a fault of the controller.
        """
        if state not in _NEXT.get(self.state, ()):
            raise ValueError(f"session {self.id} cannot go from {self.state} to {state}")
        self.state = state
        self.reason = reason or self.reason


class Sessions:
    """The table of live and of lately ended sessions.

    Args:
        max_finished: ended sessions that are known at most.
    """

    def __init__(self, *, max_finished: int) -> None:
        self._max_finished = max_finished
        self.live: dict[int, Session] = {}
        self._ended: OrderedDict[int, tuple[float, Session]] = OrderedDict()
        self.ended_count: Counter[SessionState] = Counter()

    def add(self, *, task: str, index: SampleIndex, custom_task: Any, worker: Worker) -> Session:
        """A new session that takes a slot of a worker."""
        session_id = secrets.randbelow(_MAX_ID)
        while session_id in self.live or session_id in self._ended:
            session_id = secrets.randbelow(_MAX_ID)
        session = Session(
            session_id, task, index, custom_task, worker, started=time.time(), last_used=time.monotonic()
        )
        self.live[session_id] = session
        worker.sessions.add(session_id)
        return session

    def find(self, session_id: int) -> Session:
        """A session, live or lately ended.

        Raises:
            SessionError: it never was, or is no longer known.
        """
        session = self.live.get(session_id) or self.recall(session_id)
        if session is None:
            raise SessionError(f"session {session_id} is unknown", code=ErrorCode.UNKNOWN_SESSION)
        return session

    def recall(self, session_id: int) -> Session | None:
        """A session that ended lately."""
        return self._ended[session_id][1] if session_id in self._ended else None

    def end(self, session: Session, state: SessionState, *, reason: str = "") -> bool:
        """End a session; its slot comes free. One that has ended stays as it is.

        Returns:
            Whether it ended now.
        """
        if session.state.has_ended:
            return False
        session.move(state, reason=reason)
        session.worker.sessions.discard(session.id)
        self.live.pop(session.id, None)
        self.ended_count[state] += 1
        self._ended[session.id] = (time.monotonic(), session)
        while len(self._ended) > self._max_finished:
            self._ended.popitem(last=False)
        return True

    def forget(self, *, older_than_s: float) -> None:
        """Drop sessions that ended long ago."""
        limit = time.monotonic() - older_than_s
        while self._ended and next(iter(self._ended.values()))[0] < limit:
            self._ended.popitem(last=False)

    def idle(self, *, longer_than_s: float) -> Iterator[Session]:
        """Live sessions that wait for their agent and have done so for too long."""
        limit = time.monotonic() - longer_than_s
        waiting = [s for s in self.live.values() if s.state is SessionState.IDLE and s.last_used < limit]
        yield from waiting

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
    client: str = ""
    """Who started it."""
    start_id: str | None = None
    """Request id of the start."""
    state: SessionState = SessionState.STARTING
    """Where it is in its life."""
    reason: str = ""
    """Why it ended, where nobody wanted it to."""
    request_id: str | None = None
    """Id of the newest request."""
    answer: "asyncio.Future[bytes] | None" = None
    """Answer to the newest request, kept so that it can be asked for again."""
    job: "asyncio.Task[None] | None" = None
    """The exchange under way."""
    num_exchanges: int = 0
    """Requests that went to the worker after the start."""
    began: float = 0.0
    """Monotonic time of the newest one."""
    is_open: bool = False
    """Whether the worker has confirmed the start."""
    released: asyncio.Event | None = None
    """Set when the worker says that a cancelled session has ended there."""

    @property
    def about(self) -> dict[str, object]:
        """What a line of the log says of it."""
        return {"session": self.id, **self.worker.about}

    def fail(self, error: SessionError) -> None:
        """Tell whoever waits for the answer that none will come."""
        if self.answer is not None and not self.answer.done():
            self.answer.set_exception(error)
            self.answer.exception()  # So that asyncio does not report it where its reader went away.

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

    Attributes:
        live: sessions that hold a slot, by id.
        by_task: how many of them a task has.
        by_client: how many of them a client has.
        ended_count: sessions that ended since the start, by how.
    """

    def __init__(self, *, max_finished: int) -> None:
        self._max_finished = max_finished
        self.live: dict[int, Session] = {}
        self.by_task: Counter[str] = Counter()
        self.by_client: Counter[str] = Counter()
        self._ended: OrderedDict[int, tuple[float, Session]] = OrderedDict()
        self.ended_count: Counter[SessionState] = Counter()

    def new_id(self) -> int:
        """A session id that is in no use."""
        session_id = secrets.randbelow(_MAX_ID)
        while session_id in self.live or session_id in self._ended:
            session_id = secrets.randbelow(_MAX_ID)
        return session_id

    def add(self, session: Session) -> None:
        """Let a session take a slot of its worker."""
        self.live[session.id] = session
        self.by_task[session.task] += 1
        self.by_client[session.client] += 1
        session.worker.sessions.add(session.id)

    def keep(self, session: Session) -> None:
        """Know a session that has ended."""
        self._ended[session.id] = (time.monotonic(), session)

    def find(self, session_id: int) -> Session:
        """A session, live or lately ended.

        Raises:
            SessionError: it never was, or is no longer known.
        """
        session = self.live.get(session_id) or self.recall(session_id)
        if session is None:
            raise SessionError(f"session {session_id} is unknown", code=ErrorCode.UNKNOWN_SESSION)
        return session

    def knows(self, session_id: int) -> bool:
        """Whether a session is live or ended lately."""
        return session_id in self.live or session_id in self._ended

    def remove(self, session: Session) -> None:
        """Let go of a live session that goes on elsewhere."""
        session.worker.sessions.discard(session.id)
        del self.live[session.id]
        for counter, name in ((self.by_task, session.task), (self.by_client, session.client)):
            counter[name] -= 1
            if not counter[name]:
                del counter[name]

    def recall(self, session_id: int) -> Session | None:
        """A session that ended lately."""
        ended = self._ended.get(session_id)
        return ended[1] if ended else None

    def end(self, session: Session, state: SessionState, *, reason: str = "") -> bool:
        """End a session; its slot comes free. One that has ended stays as it is.

        Returns:
            Whether it ended now.
        """
        if session.state.has_ended:
            return False
        session.move(state, reason=reason)
        self.remove(session)
        self.ended_count[state] += 1
        self.keep(session)
        return True

    def forget(self, *, older_than_s: float) -> list[Session]:
        """Drop sessions that ended long ago, and the oldest of too many; returns them."""
        limit = time.monotonic() - older_than_s
        dropped: list[Session] = []
        while self._ended:
            ended, session = next(iter(self._ended.values()))
            if ended >= limit and len(self._ended) <= self._max_finished:
                break
            del self._ended[session.id]
            dropped.append(session)
        return dropped

    def idle(self, *, longer_than_s: float) -> Iterator[Session]:
        """Live sessions that wait for their agent and have done so for too long."""
        limit = time.monotonic() - longer_than_s
        waiting = [s for s in self.live.values() if s.state is SessionState.IDLE and s.last_used < limit]
        yield from waiting

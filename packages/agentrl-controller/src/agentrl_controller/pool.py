"""The slots of all workers: handed out in line, each freed exactly once."""

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable

from agentrl_controller.addresses import AllowList
from agentrl_controller.admission import RETRY_AFTER_S, Admission, NoSlotError, Ticket
from agentrl_controller.config import ControllerConfig
from agentrl_controller.journal import Journal
from agentrl_controller.placement import place
from agentrl_controller.registry import Registry, Worker
from agentrl_controller.sessions import Session, Sessions, SessionState
from agentrl_controller.statistics import Statistics
from agentrl_core import ErrorCode, Heartbeat, SampleIndex, SessionError, WorkerStatus

_log = logging.getLogger("agentrl_controller")

_FULL_PAUSE_S = 1.0
_KEPT_HOMES = 20_000
_NAMED_WORKERS = 3


class Pool:
    """Workers, the sessions that hold their slots, and the lines of those who wait for one.

    Attributes:
        registry: workers by task.
        sessions: live and lately ended sessions.
        admission: who waits.
        changed: called with a worker whose taken slots have changed.
    """

    def __init__(self, config: ControllerConfig, journal: Journal, statistics: Statistics) -> None:
        self._config = config
        self._journal = journal
        self._statistics = statistics
        self.registry = Registry(AllowList(config.allow_workers))
        self.sessions = Sessions(max_finished=config.max_finished)
        self.admission = Admission(
            max_queue=config.max_queue,
            task_weights=config.task_weights,
            client_weights=config.client_weights,
        )
        self._homes: OrderedDict[tuple[str, str], int] = OrderedDict()
        self.changed: Callable[[Worker], None] = lambda _: None

    async def take(self, ticket: Ticket, *, end: float, again: bool = False) -> Session:
        """A session on a worker with a free slot, after those whose turn is before.

        Args:
            ticket: what is to be started, and for whom.
            end: how long to wait, on the monotonic clock.
            again: whether the caller had its turn and the worker did not take it.

        Raises:
            SessionError: no slot came free in time, or too many wait already.
        """
        task = ticket.request.name
        is_free = self.admission.depth(task) == 0 and self._is_within_limits(task, ticket.client)
        session = self._seat(ticket) if again or is_free else None
        if session is not None:
            self._statistics.wait_s.observe(0.0)
            return session
        began = time.monotonic()
        self.admission.enter(ticket, first=again)
        self.admit(task)  # Those before may be held up by limits that are not this one's.
        try:
            async with asyncio.timeout(max(0.0, end - began)):
                session = await ticket.granted
            self._statistics.wait_s.observe(time.monotonic() - began)
            return session
        except BaseException as error:
            if _was_granted(ticket):  # The turn came too late for a caller that had left.
                self.end(ticket.granted.result(), SessionState.LOST, reason="its starter went away")
            elif isinstance(error, TimeoutError):
                raise self._no_slot(ticket, end - began) from error
            raise
        finally:
            self.admission.leave(ticket)

    def admit(self, task: str) -> None:
        """Give free slots of a task to those in line; where limits are shared, those of other tasks, too."""
        config = self._config
        is_shared = config.max_sessions is not None or bool(config.max_client_sessions)
        while True:
            chosen = self.admission.task_in_turn(
                lambda name: (is_shared or name == task) and self._can_start(name)
            )
            if chosen is None:
                return
            ticket = self.admission.next(
                chosen, lambda client, name=chosen: self._is_within_limits(name, client)
            )
            session = self._seat(ticket) if ticket else None
            if ticket is None or session is None:
                return
            ticket.granted.set_result(session)

    def _can_start(self, task: str) -> bool:
        record = self.registry.tasks.get(task)
        now = time.monotonic()
        has_slot = record is not None and any(w.slots(now=now).free for w in record.workers.values())
        return has_slot and any(self._is_within_limits(task, c) for c in self.admission.clients(task))

    def _is_within_limits(self, task: str, client: str) -> bool:
        config, sessions = self._config, self.sessions
        if config.max_sessions is not None and len(sessions.live) >= config.max_sessions:
            return False
        limit = config.max_task_sessions.get(task)
        if limit is not None and sessions.by_task[task] >= limit:
            return False
        limits = config.max_client_sessions
        limit = limits.get(client, limits.get("*"))
        return limit is None or sessions.by_client[client] < limit

    def _seat(self, ticket: Ticket) -> Session | None:
        request = ticket.request
        record = self.registry.tasks.get(request.name)
        if record is None:
            return None
        now = time.monotonic()
        group = (request.name, request.group_id) if request.group_id else None
        home = self._homes.get(group) if group else None
        chosen = place((worker.slots(now=now) for worker in record.workers.values()), home=home)
        if chosen is None:
            return None
        if group:
            self._homes[group] = chosen
            self._homes.move_to_end(group)
            if len(self._homes) > _KEPT_HOMES:
                self._homes.popitem(last=False)
        session = Session(
            self.sessions.new_id(),
            request.name,
            ticket.index,
            request.custom_task,
            record.workers[chosen],
            started=time.time(),
            last_used=now,
            client=ticket.client,
            start_id=ticket.start_id,
        )
        self.sessions.add(session)
        self._journal.session(session)
        self.changed(session.worker)
        return session

    def adopt(self, session_id: int, index: SampleIndex, worker: Worker) -> None:
        """Know a session that a worker plays and the store has no record of."""
        now = time.monotonic()
        session = Session(session_id, worker.task, index, None, worker, started=time.time(), last_used=now)
        session.is_open = True
        session.state = SessionState.IDLE
        self.sessions.add(session)
        self._journal.session(session)
        _log.info("session %d of %s is adopted", session_id, worker, extra=session.about)

    def _no_slot(self, ticket: Ticket, waited_s: float) -> SessionError:
        task = ticket.request.name
        record = self.registry.tasks.get(task)
        workers = list(record.workers.values()) if record else []
        states = [
            f"worker {w.id} {w.status} with {w.num_taken} of {w.capacity} slots taken"
            + (" (drained)" if w.stale else "")
            + (f": {w.reason}" if w.reason else "")
            for w in workers[:_NAMED_WORKERS]
        ]
        more = [f"{len(workers) - _NAMED_WORKERS} more"] if len(workers) > _NAMED_WORKERS else []
        if not self._is_within_limits(task, ticket.client):
            more.append(f"the limits of task `{task}` or client `{ticket.client}` are reached")
        position, depth = self.admission.position(ticket), self.admission.depth(task)
        message = f"no slot of `{task}` came free within {waited_s:.1f} s at place {position} of {depth}; "
        return NoSlotError(message + "; ".join(states + more), position=position)

    def settle(self, session: Session, *, finished: bool) -> None:
        """Book an answer; a session that was cancelled or lost meanwhile stays so."""
        session.last_used = session.worker.heard = time.monotonic()
        was_starting = session.state is SessionState.STARTING
        if not was_starting and session.state is not SessionState.BUSY:
            return
        if finished:
            self.end(session, SessionState.FINISHED)
            return
        session.move(SessionState.IDLE)
        # A native worker gives a lost answer again; a published one cannot.
        if was_starting or not session.worker.native:
            self._journal.session(session)

    def abandon(self, sessions: Iterable[Session] | None = None) -> None:
        """Let go of sessions, or of all, that another replica has now; who waits is told to ask again."""
        for session in list(self.sessions.live.values() if sessions is None else sessions):
            message = f"session {session.id} moved to another replica; ask again with the same request id"
            session.fail(SessionError(message, code=ErrorCode.NO_CAPACITY, retry_after_s=RETRY_AFTER_S))
            self.sessions.remove(session)
            session.state = SessionState.LOST  # Whatever still comes for this object changes nothing.
            self.changed(session.worker)

    async def safe(self) -> None:
        """Return when everything so far outlives the controller."""
        await self._journal.flush()

    def note(self, session: Session) -> None:
        """Keep what a session does now."""
        self._journal.session(session)

    def end(self, session: Session, state: SessionState, *, reason: str = "") -> None:
        """End a session and give its slot to the next in line; nothing happens to one that has ended."""
        if self.sessions.end(session, state, reason=reason):
            self._journal.session(session)
            self.changed(session.worker)
            if session.is_open:
                session.worker.full_until = 0.0  # Now it has room for certain.
            self.admit(session.task)

    def lose(self, session: Session, error: SessionError) -> None:
        """End a session that its worker failed, and tell who waits for it."""
        _log.info("%s", error, extra=session.about)
        self.end(session, SessionState.LOST, reason=str(error))
        session.fail(error)
        if session.released is not None:
            session.released.set()

    def heartbeat(self, beat: Heartbeat, *, peer: str | None = None) -> Worker:
        """Take in a worker's heartbeat.

        Raises:
            SessionError: it makes no sense, the worker may not be there, or its indices differ from those of
                the task's other workers.
        """
        self.registry.check(beat, peer=peer)
        known = self.registry.at(beat.name, beat.address)
        if known is not None and known.instance is not None and beat.instance != known.instance:
            # It began anew. Which sessions ended with it, it must be asked: some may have begun since.
            known.is_known = False
        before = (known, known and known.capacity, self.registry.tasks.get(beat.name))
        worker = self.registry.heartbeat(beat, now=time.monotonic())
        record = self.registry.tasks[beat.name]
        if before != (worker, worker.capacity, record):
            self._journal.worker(worker)
            self._journal.task(beat.name, record)
        self.admit(worker.task)
        return worker

    def drain(self, worker: Worker, *, stale: bool) -> None:
        """Give a worker no new session, or end its draining."""
        worker.stale = stale
        self._journal.worker(worker)
        self.admit(worker.task)

    def give_up(self, worker: Worker, reason: str, *, asked: float) -> bool:
        """Lose a worker that could not be reached, unless it has said something since it was asked.

        One that ended and began anew within a moment plays other sessions by then.

        Args:
            worker: who did not answer.
            reason: why.
            asked: when the question was first put, on the monotonic clock.

        Returns:
            Whether it is lost.
        """
        if worker.heard > asked:
            return False
        self.lose_worker(worker, WorkerStatus.DEAD, reason)
        return True

    def lose_worker(self, worker: Worker, status: WorkerStatus, reason: str) -> None:
        """Give a worker up: its sessions end, and whoever waits for them is told."""
        if not worker.is_alive:
            return
        worker.status, worker.reason = status, reason
        self._journal.drop_worker(worker)
        message = "%s is lost with %d sessions: %s"
        _log.warning(message, worker, len(worker.sessions), reason, extra=worker.about)
        for session_id in list(worker.sessions):
            message = f"session {session_id} is lost with {worker}: {reason}"
            self.lose(self.sessions.live[session_id], SessionError(message, code=ErrorCode.WORKER_LOST))

    def mark_full(self, worker: Worker) -> None:
        """Ask a worker for nothing more for a while, since it holds more sessions than we know of."""
        worker.full_until = time.monotonic() + _FULL_PAUSE_S
        asyncio.get_running_loop().call_later(_FULL_PAUSE_S, self.admit, worker.task)

    def forget(self, config: ControllerConfig) -> None:
        """Drop what ended long ago."""
        for task in self.registry.forget(now=time.monotonic(), forget_s=config.forget_s):
            self._journal.drop_task(task)
            message = f"no worker serves task `{task}` any more"
            self.admission.refuse(task, SessionError(message, code=ErrorCode.UNKNOWN_TASK))
        for session in self.sessions.forget(older_than_s=config.keep_finished_s):
            self._journal.drop_session(session)


def _was_granted(ticket: Ticket) -> bool:
    granted = ticket.granted
    return granted.done() and not granted.cancelled() and granted.exception() is None

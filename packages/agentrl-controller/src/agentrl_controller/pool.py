"""The slots of all workers: handed out in line, each freed exactly once."""

import asyncio
import logging
import time
from collections import OrderedDict

from agentrl_controller.admission import RETRY_AFTER_S, Admission, Ticket
from agentrl_controller.config import ControllerConfig
from agentrl_controller.placement import place
from agentrl_controller.registry import Registry, Worker
from agentrl_controller.sessions import Session, Sessions, SessionState
from agentrl_core import ErrorCode, Heartbeat, SampleIndex, SessionError, StartRequest, WorkerStatus

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
    """

    def __init__(self, config: ControllerConfig) -> None:
        self.registry = Registry()
        self.sessions = Sessions(max_finished=config.max_finished)
        self.admission = Admission(max_queue=config.max_queue)
        self._homes: OrderedDict[tuple[str, str], int] = OrderedDict()

    async def take(
        self, request: StartRequest, *, index: SampleIndex, end: float, again: bool = False
    ) -> Session:
        """A session on a worker with a free slot, after those who came before.

        Args:
            request: what is to be started.
            index: the sample as the workers know it.
            end: how long to wait, on the monotonic clock.
            again: whether the caller had its turn and the worker did not take it.

        Raises:
            SessionError: no slot came free in time, or too many wait already.
        """
        ticket = Ticket(request, index)
        if again or self.admission.depth(request.name) == 0:
            session = self._seat(ticket)
            if session is not None:
                return session
        began = time.monotonic()
        self.admission.enter(ticket, first=again)
        try:
            async with asyncio.timeout(max(0.0, end - began)):
                return await ticket.granted
        except BaseException as error:
            if _was_granted(ticket):  # The turn came too late for a caller that had left.
                self.end(ticket.granted.result(), SessionState.LOST, reason="its starter went away")
            if isinstance(error, TimeoutError):
                raise self._no_capacity(request.name, end - began) from error
            raise
        finally:
            self.admission.leave(ticket)

    def admit(self, task: str) -> None:
        """Give free slots to those in line."""
        while (ticket := self.admission.head(task)) is not None:
            session = self._seat(ticket)
            if session is None:
                return
            self.admission.leave(ticket)
            ticket.granted.set_result(session)

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
        return self.sessions.add(
            task=request.name,
            index=ticket.index,
            custom_task=request.custom_task,
            worker=record.workers[chosen],
        )

    def _no_capacity(self, task: str, waited_s: float) -> SessionError:
        record = self.registry.tasks.get(task)
        workers = list(record.workers.values()) if record else []
        states = [
            f"worker {w.id} {w.status} with {len(w.sessions)} of {w.capacity} slots taken"
            + (" (drained)" if w.stale else "")
            + (f": {w.reason}" if w.reason else "")
            for w in workers[:_NAMED_WORKERS]
        ]
        more = [f"{len(workers) - _NAMED_WORKERS} more"] if len(workers) > _NAMED_WORKERS else []
        return SessionError(
            f"no slot of `{task}` came free within {waited_s:.1f} s; {'; '.join(states + more)}",
            code=ErrorCode.NO_CAPACITY,
            retry_after_s=RETRY_AFTER_S,
        )

    def settle(self, session: Session, *, finished: bool) -> None:
        """Book an answer; a session that was cancelled or lost meanwhile stays so."""
        session.last_used = time.monotonic()
        if session.state not in (SessionState.STARTING, SessionState.BUSY):
            return
        if finished:
            self.end(session, SessionState.FINISHED)
        else:
            session.move(SessionState.IDLE)

    def end(self, session: Session, state: SessionState, *, reason: str = "") -> None:
        """End a session and give its slot to the next in line; nothing happens to one that has ended."""
        if self.sessions.end(session, state, reason=reason):
            if session.is_open:
                session.worker.full_until = 0.0  # Now it has room for certain.
            self.admit(session.task)

    def lose(self, session: Session, error: SessionError) -> None:
        """End a session that its worker failed, and tell who waits for it."""
        self.end(session, SessionState.LOST, reason=str(error))
        session.fail(error)
        if session.released is not None:
            session.released.set()

    def heartbeat(self, beat: Heartbeat) -> Worker:
        """Take in a worker's heartbeat.

        Raises:
            SessionError: it makes no sense, or its indices differ from those of the task's other workers.
        """
        worker = self.registry.heartbeat(beat, now=time.monotonic())
        self.admit(worker.task)
        return worker

    def lose_worker(self, worker: Worker, status: WorkerStatus, reason: str) -> None:
        """Give a worker up: its sessions end, and whoever waits for them is told."""
        if worker.status is not WorkerStatus.ALIVE:
            return
        worker.status, worker.reason = status, reason
        _log.warning("%s is lost with %d sessions: %s", worker, len(worker.sessions), reason)
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
            message = f"no worker serves task `{task}` any more"
            self.admission.refuse(task, SessionError(message, code=ErrorCode.UNKNOWN_TASK))
        self.sessions.forget(older_than_s=config.keep_finished_s)


def _was_granted(ticket: Ticket) -> bool:
    granted = ticket.granted
    return granted.done() and not granted.cancelled() and granted.exception() is None

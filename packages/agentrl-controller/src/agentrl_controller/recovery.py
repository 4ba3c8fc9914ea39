"""Carries on with the sessions of an earlier life of the controller, or of a replica that died."""

import asyncio
import time
from collections.abc import Iterable, Mapping

import msgspec

from agentrl_controller import registry
from agentrl_controller.cancellations import Cancellations
from agentrl_controller.pool import Pool
from agentrl_controller.registry import Worker
from agentrl_controller.sessions import Session, SessionState
from agentrl_controller.starts import Starts
from agentrl_controller.store import Record, SessionRecord, TaskRecord, WorkerRecord
from agentrl_core import ErrorCode, SessionError

_LOST_ANSWER = "the controller ended while the worker answered, and the worker gives an answer only once"


class Recovery:
    """Makes sessions and workers of records."""

    def __init__(self, pool: Pool, starts: Starts, cancellations: Cancellations) -> None:
        self._pool = pool
        self._starts = starts
        self._cancellations = cancellations

    def restore(self, kept: Mapping[str, Mapping[str, Record]]) -> int:
        """Take up everything that a store has kept; returns how many sessions live.

        Workers count as living until their lease runs out.
        """
        for task in kept.get("task", {}).values():
            assert isinstance(task, TaskRecord)
            self.task(task)
        for worker in kept.get("worker", {}).values():
            assert isinstance(worker, WorkerRecord)
            self.worker(worker)
        records = [record for record in kept.get("session", {}).values() if isinstance(record, SessionRecord)]
        return self.sessions(records)

    def task(self, record: TaskRecord) -> None:
        """Take up a task."""
        tasks = self._pool.registry.tasks
        if record.name not in tasks:
            tasks[record.name] = registry.TaskRecord(record.indices, record.splits, {})

    def worker(self, record: WorkerRecord) -> Worker | None:
        """Take up a worker, unless it is known or its task is not."""
        workers = self._pool.registry
        if record.task not in workers.tasks or workers.at(record.task, record.address) is not None:
            return None
        now = time.monotonic()
        return workers.add(
            Worker(
                record.id,
                record.task,
                record.address,
                record.capacity,
                last_visit=now,
                native=record.native,
                instance=record.instance,
                stale=record.stale,
                heard=now,
            )
        )

    def sessions(self, records: Iterable[SessionRecord], *, others: bool = False) -> int:
        """Take up sessions; returns how many live.

        Args:
            records: what is known of them.
            others: whether they were another replica's, so that the store must learn whose they are now.
        """
        num_live = 0
        for record in sorted(records, key=lambda each: each.updated):
            worker = self._pool.registry.at(record.task, record.worker)
            if worker is None:
                worker = Worker(0, record.task, record.worker, 0, last_visit=0.0)
            session = _session(record, worker)
            if session.state.has_ended:
                self._pool.sessions.keep(session)
                self._starts.resume(session)
                if others:
                    self._pool.note(session)
            elif worker.id == 0:
                self._pool.sessions.add(session)
                self._lose(session, f"session {session.id} is lost: its worker {record.worker} is gone")
            else:
                num_live += 1
                self._carry_on(session)
                if others:
                    self._pool.note(session)
        return num_live

    def _carry_on(self, session: Session) -> None:
        state, session.state = session.state, SessionState.IDLE
        self._pool.sessions.add(session)
        if state is SessionState.CANCELLING or state is SessionState.STARTING:
            # Nobody knows the id of a session that was starting; who asks again gets another.
            session.is_open = state is SessionState.CANCELLING
            self._cancellations.begin(session)
        elif state is SessionState.BUSY and not session.worker.native:
            self._lose(session, f"session {session.id} is lost: {_LOST_ANSWER}")
            self._cancellations.disown(session)
        else:
            self._starts.resume(session)

    def _lose(self, session: Session, reason: str) -> None:
        self._pool.lose(session, SessionError(reason, code=ErrorCode.WORKER_LOST))


def _session(record: SessionRecord, worker: Worker) -> Session:
    custom_task = None if record.custom_task is None else msgspec.json.decode(record.custom_task)
    session = Session(
        record.id,
        record.task,
        record.index,
        custom_task,
        worker,
        started=record.started,
        last_used=time.monotonic(),
        client=record.client,
        start_id=record.start_id,
        state=SessionState(record.state),
        reason=record.reason,
        is_open=True,
    )
    if record.answer is not None:
        session.request_id = record.request_id
        session.answer = asyncio.get_running_loop().create_future()
        session.answer.set_result(record.answer)
    return session

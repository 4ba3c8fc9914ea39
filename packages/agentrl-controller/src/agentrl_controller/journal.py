"""Writes what must outlive the controller to its store."""

import logging
import time

from agentrl_controller import registry
from agentrl_controller.sessions import Session
from agentrl_controller.store import Record, SessionRecord, Store, TaskRecord, WorkerRecord
from agentrl_controller.wire import encode

_log = logging.getLogger("agentrl_controller")


class Journal:
    """Turns what the controller knows into records. A write never fails its caller."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def session(self, session: Session) -> None:
        """Keep a session as it is now."""
        answer = session.answer
        body = None
        if answer is not None and answer.done() and not answer.cancelled() and answer.exception() is None:
            body = answer.result()
        custom_task = session.custom_task
        record = SessionRecord(
            session.id,
            session.task,
            session.index,
            session.worker.address,
            session.state.value,
            session.started,
            time.time(),
            custom_task=None if custom_task is None else encode(custom_task),
            client=session.client,
            start_id=session.start_id,
            reason=session.reason,
            request_id=session.request_id,
            answer=body,
            owner=self._store.replica,
        )
        self._put("session", str(session.id), record)

    def drop_session(self, session: Session) -> None:
        """Forget a session."""
        self._store.drop("session", str(session.id))

    def worker(self, worker: "registry.Worker") -> None:
        """Keep a worker as it is now."""
        record = WorkerRecord(
            worker.id,
            worker.task,
            worker.address,
            worker.capacity,
            native=worker.native,
            instance=worker.instance,
            stale=worker.stale,
            owner=worker.via,
        )
        self._put("worker", _key(worker), record)

    def drop_worker(self, worker: "registry.Worker") -> None:
        """Forget a worker."""
        self._store.drop("worker", _key(worker))

    def task(self, name: str, record: "registry.TaskRecord") -> None:
        """Keep a task's samples."""
        self._put("task", name, TaskRecord(name, record.indices, record.splits))

    def drop_task(self, name: str) -> None:
        """Forget a task."""
        self._store.drop("task", name)

    async def flush(self) -> None:
        """Return when everything so far outlives the controller."""
        await self._store.flush()

    def _put(self, kind: str, key: str, record: Record) -> None:
        try:
            self._store.put(kind, key, record)
        except (OverflowError, ValueError) as error:  # An index beyond 64 bits, for example.
            _log.error("%s %s is not kept: %s", kind, key, error)


def _key(worker: "registry.Worker") -> str:
    return f"{worker.task} {worker.address}"

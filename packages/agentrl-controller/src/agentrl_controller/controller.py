"""Routes sessions to workers: what the API offers, and the housekeeping behind it."""

import asyncio
import functools
import hashlib
import logging
import time
from typing import TYPE_CHECKING, Any

from agentrl_controller.admission import RETRY_AFTER_S
from agentrl_controller.audit import Audit
from agentrl_controller.background import Background
from agentrl_controller.cancellations import Cancellations
from agentrl_controller.config import ControllerConfig
from agentrl_controller.exchanges import Exchanges
from agentrl_controller.pool import Pool
from agentrl_controller.registry import Worker
from agentrl_controller.starts import Started, Starts
from agentrl_controller.transports import HttpTransport
from agentrl_controller.wire import decode
from agentrl_core import ErrorCode, Heartbeat, SessionError, StartRequest, WorkerStatus

if TYPE_CHECKING:
    from fastapi import FastAPI

_log = logging.getLogger("agentrl_controller")

_ROUND_S = 0.5
_STOP_S = 1.0


class Controller:
    """A controller; enter it to let it work, leave it to end its sessions.

    Attributes:
        config: its settings.
        registry: workers by task.
        sessions: live and lately ended sessions.
        admission: starts that wait.
        is_running: whether it has been entered and not been stopped.
    """

    def __init__(self, config: ControllerConfig | None = None) -> None:
        self.config = config or ControllerConfig()
        pool = self._pool = Pool(self.config)
        self.registry, self.sessions, self.admission = pool.registry, pool.sessions, pool.admission
        self.is_running = False
        self._background = background = Background()
        self._transport = transport = HttpTransport(token=self.config.token)
        self._cancellations = Cancellations(pool, transport, background)
        self._audit = Audit(pool, transport, self._cancellations, background)
        self._starts = Starts(self.config, pool, transport, self._cancellations, background)
        self._exchanges = Exchanges(
            self.config, pool, transport, self._cancellations, self._audit, background
        )
        self._beats: dict[bytes, Worker] = {}

    @functools.cached_property
    def app(self) -> "FastAPI":
        """The HTTP API. Its lifespan runs the controller; a host that mounts the app enters it itself."""
        from agentrl_controller.api import create_app

        return create_app(self)

    async def __aenter__(self) -> "Controller":
        self.is_running = True
        self._background.spawn(self._keep_house())
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()
        await self._background.close()
        await self._transport.close()

    async def stop(self) -> None:
        """Answer everybody who waits, and tell the workers within a second that the sessions are over."""
        self.is_running = False
        self.admission.refuse_all(_stopping(ErrorCode.NO_CAPACITY))
        live = list(self.sessions.live.values())
        begun = [self._cancellations.begin(s, error=_stopping(ErrorCode.WORKER_LOST)) for s in live]
        told = [asyncio.ensure_future(event.wait()) for event in begun if event is not None]
        if told:
            _, late = await asyncio.wait(told, timeout=_STOP_S)
            for waiting in late:
                waiting.cancel()

    async def start(
        self, request: StartRequest, *, request_id: str | None = None, deadline_s: float | None = None
    ) -> Started:
        """Open a session, waiting in line for a slot; returns its id and the body of the first answer.

        A request id that has opened one gives the same answer again. A caller that is cancelled leaves the
        line, and no session behind that it could not ask for.

        Raises:
            SessionError: unknown task or sample, no slot in time, or the worker failed.
        """
        self._check_running()
        return await self._starts.start(request, request_id=request_id, deadline_s=deadline_s)

    async def interact(
        self,
        session_id: int,
        body: dict[str, Any],
        *,
        request_id: str | None = None,
        deadline_s: float | None = None,
    ) -> bytes:
        """Hand messages to a session and return the body of the worker's answer.

        Args:
            session_id: the session.
            body: `{"messages": [...]}`, as the agent sent it.
            request_id: a repeated one gets the same answer.
            deadline_s: longest wait.

        Raises:
            SessionError: the session is unknown, busy, over or lost, or the deadline passed; after a deadline
                the answer can be asked for with the same request id.
        """
        self._check_running()
        return await self._exchanges.interact(session_id, body, request_id=request_id, deadline_s=deadline_s)

    async def cancel(self, session_id: int) -> None:
        """End a session; returns when its worker has been told. Nothing happens to one that has ended.

        Raises:
            SessionError: the session is unknown.
        """
        await self._cancellations.cancel(session_id)

    async def cancel_all(self, task: str | None = None, *, worker: Worker | None = None) -> None:
        """End every session, or those of one task or worker."""
        chosen = [
            session.id
            for session in self.sessions.live.values()
            if task in (None, session.task) and worker in (None, session.worker)
        ]
        await asyncio.gather(*(self.cancel(session_id) for session_id in chosen))

    def cancel_notice(self, session_id: int) -> None:
        """A worker says that a cancelled session has ended there."""
        self._cancellations.note(session_id)

    def receive_heartbeat(self, body: bytes) -> Worker:
        """Take in a heartbeat as it came.

        Raises:
            SessionError: it is no JSON or makes no sense.
            pydantic.ValidationError: a field is missing or wrong.
        """
        self._check_running()
        # Most repeat the last one; 100,000 indices are not read anew every few seconds.
        digest = hashlib.blake2b(body).digest()
        worker = self._beats.get(digest)
        if worker is not None and worker.status is WorkerStatus.ALIVE:
            worker.last_visit = time.monotonic()
            return worker
        try:
            fields = decode(body)
        except ValueError as error:
            raise SessionError(f"the body is no JSON: {error}", code=ErrorCode.BAD_REQUEST) from error
        worker = self.heartbeat(Heartbeat.model_validate(fields))
        others = {key: known for key, known in self._beats.items() if known is not worker}
        self._beats = {key: known for key, known in others.items() if known.status is WorkerStatus.ALIVE}
        self._beats[digest] = worker
        return worker

    def heartbeat(self, beat: Heartbeat) -> Worker:
        """Take in a worker's heartbeat.

        Raises:
            SessionError: it makes no sense, or its indices differ from those of the task's other workers.
        """
        worker = self._pool.heartbeat(beat)
        if worker.has_returned:
            worker.has_returned = False
            self._audit.begin(worker)
        return worker

    def mark_stale(self, worker: Worker, *, stale: bool) -> None:
        """Drain a worker, which keeps its sessions and gets no new one, or end its draining."""
        worker.stale = stale
        self._pool.admit(worker.task)

    async def sync_all(self) -> None:
        """Compare with every worker which sessions it knows; those it has forgotten are lost."""
        await self._audit.all()

    def _check_running(self) -> None:
        if not self.is_running:
            raise _stopping(ErrorCode.NO_CAPACITY)

    async def _keep_house(self) -> None:
        config = self.config
        audited = time.monotonic()
        while True:
            now = time.monotonic()
            for worker in self.registry.silent(now=now, lease_s=config.lease_s):
                self._pool.lose_worker(worker, WorkerStatus.COMA, f"no heartbeat for {config.lease_s:g} s")
            for session in self.sessions.idle(longer_than_s=config.idle_timeout_s):
                _log.info("session %s is idle for %g s; cancelled", session.id, config.idle_timeout_s)
                self._cancellations.begin(session)
            if now - audited > config.audit_s:
                audited = now
                self._background.spawn(self._audit.all())
            self._pool.forget(config)
            self._starts.forget()
            await asyncio.sleep(min(_ROUND_S, config.lease_s / 2))


def _stopping(code: ErrorCode) -> SessionError:
    return SessionError("the controller is not running or stops", code=code, retry_after_s=RETRY_AFTER_S)

"""Routes sessions to workers: what the API offers, and the housekeeping behind it."""

import asyncio
import functools
import hashlib
import logging
import math
import ssl
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from agentrl_controller.admission import RETRY_AFTER_S
from agentrl_controller.audit import Audit
from agentrl_controller.background import Background
from agentrl_controller.cancellations import Cancellations
from agentrl_controller.config import ControllerConfig, Scope
from agentrl_controller.exchanges import Exchanges
from agentrl_controller.guard import Guard
from agentrl_controller.journal import Journal
from agentrl_controller.peers import Peers
from agentrl_controller.pool import Pool
from agentrl_controller.recovery import Recovery
from agentrl_controller.registry import Worker
from agentrl_controller.starts import Started, Starts
from agentrl_controller.statistics import Statistics
from agentrl_controller.store import MemoryStore, RedisStore, Store
from agentrl_controller.tracing import Tracing
from agentrl_controller.transcripts import Transcripts
from agentrl_controller.transports import Gateway, HttpTransport, Transport
from agentrl_controller.wire import decode, encode
from agentrl_core import ErrorCode, Heartbeat, SessionError, StartRequest, WorkerStatus

if TYPE_CHECKING:
    import grpc
    from fastapi import FastAPI

_log = logging.getLogger("agentrl_controller")

_ROUND_S = 0.5
_STOP_S = 1.0
_MAX_ID_LENGTH = 200


class Controller:
    """A controller; enter it to let it work, leave it to end.

    Args:
        config: its settings; the defaults where it is absent.
        store: where sessions outlive it; they do not where it is absent.

    Attributes:
        config: its settings.
        registry: workers by task.
        sessions: live and lately ended sessions.
        admission: starts that wait.
        statistics: counts and durations since the start.
        transcripts: what was said of late.
        guard: who may do what.
        peers: the other replicas; None where there can be none.
        is_running: whether it has been entered and not been stopped.
    """

    def __init__(self, config: ControllerConfig | None = None, *, store: Store | None = None) -> None:
        self.config = config = config or ControllerConfig()
        self._store = store or MemoryStore()
        self.statistics = Statistics()
        self.transcripts = Transcripts(max_bytes=config.max_transcript_bytes)
        pool = self._pool = Pool(config, Journal(self._store), self.statistics)
        self.registry, self.sessions, self.admission = pool.registry, pool.sessions, pool.admission
        self.guard = Guard(config)
        self.is_running = False
        self._background = background = Background()
        self._http = http = HttpTransport(token=config.token_for_workers, tls=_trust(config))
        self._transports: dict[str, Transport] = {"http": http, "https": http}
        gateway = self._gateway = Gateway(self._transports)
        self._cancellations = cancellations = Cancellations(pool, gateway, background)
        # Where controllers share a store, a session that this one has no record of is another one's.
        is_shared = isinstance(self._store, RedisStore)
        self._audit = Audit(pool, gateway, cancellations, background, adopts=not is_shared)
        self._tracing = Tracing(config.otlp_endpoint)
        shown = (self.statistics, self.transcripts, self._tracing)
        self._starts = Starts(config, pool, gateway, cancellations, background, *shown)
        self._exchanges = Exchanges(config, pool, gateway, cancellations, self._audit, *shown)
        self._recovery = Recovery(pool, self._starts, cancellations)
        self.peers = (
            Peers(self._store, pool, self._recovery, background, self._told)
            if isinstance(self._store, RedisStore)
            else None
        )
        self._audited = 0.0
        self._beats: dict[bytes, Worker] = {}
        self._streamed: dict[str, tuple[dict[str, Any], Worker]] = {}

    @functools.cached_property
    def app(self) -> "FastAPI":
        """The HTTP API. Its lifespan runs the controller; a host that mounts the app enters it itself."""
        from agentrl_controller.api import create_app

        return create_app(self)

    async def __aenter__(self) -> "Controller":
        num_live = self._recovery.restore(await self._store.open())
        if num_live:
            _log.info("carries on with %d sessions", num_live)
        self.is_running = True
        self._background.spawn(self._keep_house())
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()
        await self._exchanges.close()
        await self._background.close()
        await self._gateway.close()
        if self.peers is not None:
            await self.peers.close()
        self._tracing.close()
        await self._store.close()

    @property
    def num_in_flight(self) -> int:
        """Exchanges under way."""
        return self._exchanges.num_running

    async def join(self, url: str) -> None:
        """Join the replicas that share the store, if it can be shared.

        Args:
            url: where they reach the API of this one.
        """
        if self.peers is not None:
            await self.peers.open(url)

    def _tell(self, kind: str, **content: Any) -> None:
        if self.peers is not None:
            self.peers.tell(kind, **content)

    def _told(self, message: dict[str, Any]) -> None:
        """Another replica tells what happened there."""
        kind = message["kind"]
        if kind == "beat":
            worker = self._pool.heartbeat(Heartbeat.model_validate(decode(message["body"])))
            worker.via = message["via"]
            if worker.via:
                assert self.peers is not None
                self.peers.hand_over(worker)
            return
        if kind == "notice":
            self._cancellations.note(message["session"])
            return
        if kind == "cancel_all":
            self._background.spawn(self._cancel_all(message["task"], None))
            return
        worker = self.registry.at(message["task"], message["address"])
        if worker is None:
            return
        if kind == "seen":
            worker.last_visit = time.monotonic()
        elif kind == "stale":
            self._pool.drain(worker, stale=message["stale"])
        elif kind == "clean":
            self._background.spawn(self._cancel_all(None, worker))

    async def serve_grpc(self, host: str, port: int, *, tls: "grpc.ServerCredentials | None" = None) -> int:
        """Take the streams of task workers; returns the port, a free one for 0.

        Raises:
            ConfigError: the port is taken or the host is none.
        """
        from agentrl_controller.transports.grpc import GrpcTransport

        transport = GrpcTransport(
            heartbeat=self._streamed_heartbeat,
            cancel_notice=self.cancel_notice,
            lost=self._stream_lost,
            check=self._check_stream,
        )
        self._transports["grpc"] = transport
        return await transport.listen(host, port, tls=tls)

    def _check_stream(self, metadata: Mapping[str, str | bytes]) -> None:
        given = metadata.get("authorization", "")
        self.guard.check_token(given.encode() if isinstance(given, str) else given, Scope.WORKER)

    def _streamed_heartbeat(self, fields: dict[str, Any]) -> None:
        known, worker = self._streamed.get(fields["address"], (None, None))
        if known is fields and worker is not None and worker.is_alive:
            worker.last_visit = worker.heard = time.monotonic()
            self._tell("seen", task=worker.task, address=worker.address)
        else:
            worker = self.heartbeat(Heartbeat.model_validate(fields))
            worker.via = ""
            self._streamed[fields["address"]] = (fields, worker)
            self._tell("beat", body=encode(fields), via=self._store.replica)
        if worker.full_until == math.inf:
            worker.full_until = 0.0
            self._pool.admit(worker.task)

    def _stream_lost(self, address: str, reason: str) -> None:
        """Its sessions wait for it until its lease runs out; new ones go elsewhere."""
        _, worker = self._streamed.pop(address, (None, None))
        if worker is not None and worker.is_alive:
            _log.warning("%s has no stream any more: %s", worker, reason, extra=worker.about)
            worker.full_until = math.inf

    async def stop(self) -> None:
        """Answer everybody who waits.

        Sessions that outlive the controller go on; of others the workers are told within a second that they
        are over.
        """
        self.is_running = False
        self.admission.refuse_all(_stopping(ErrorCode.NO_CAPACITY))
        live = list(self.sessions.live.values())
        if self._store.is_lasting:
            for session in live:
                session.fail(_stopping(ErrorCode.NO_CAPACITY))
            return
        begun = [self._cancellations.begin(s, error=_stopping(ErrorCode.WORKER_LOST)) for s in live]
        told = [asyncio.ensure_future(event.wait()) for event in begun if event is not None]
        if told:
            _, late = await asyncio.wait(told, timeout=_STOP_S)
            for waiting in late:
                waiting.cancel()

    async def start(
        self,
        request: StartRequest,
        *,
        client: str = "",
        request_id: str | None = None,
        deadline_s: float | None = None,
        trace: str | None = None,
    ) -> Started:
        """Open a session, waiting in line for a slot; returns its id and the body of the first answer.

        A caller that is cancelled leaves the line, and no session behind that it could not ask for.

        Args:
            request: what is to be started.
            client: who asks; clients in a line take turns.
            request_id: one that has opened a session gives the same answer again.
            deadline_s: longest wait.
            trace: the caller's `traceparent`, of OpenTelemetry.

        Raises:
            SessionError: unknown task or sample, no slot in time, or the worker failed.
        """
        self._check_running()
        if request_id is not None:
            _check_id(request_id)
        self.statistics.requests["start_sample"] += 1
        return await self._starts.start(
            request, client=client, request_id=request_id, deadline_s=deadline_s, trace=trace
        )

    async def interact(
        self,
        session_id: int,
        body: bytes,
        *,
        request_id: str | None = None,
        deadline_s: float | None = None,
        cancels: bool = False,
    ) -> bytes:
        """Hand messages to a session and return the body of the worker's answer.

        Args:
            session_id: the session.
            body: `{"messages": [...]}` as JSON, as the agent sent it.
            request_id: a repeated one gets the same answer.
            deadline_s: longest wait.
            cancels: whether the session ends when the deadline passes.

        Raises:
            SessionError: the session is unknown, busy, over or lost, or the deadline passed; after a deadline
                the answer can be asked for with the same request id.
        """
        answer, limit_s = self.begin_interact(session_id, body, request_id=request_id, deadline_s=deadline_s)
        try:
            async with asyncio.timeout(limit_s):
                return await asyncio.shield(answer)
        except TimeoutError as error:
            raise self.expire(session_id, limit_s, cancels=cancels) from error

    def begin_interact(
        self,
        session_id: int,
        body: bytes,
        *,
        request_id: str | None,
        deadline_s: float | None,
        trace: str | None = None,
    ) -> "tuple[asyncio.Future[bytes], float]":
        """Hand messages to a session without waiting.

        Returns:
            The body of the worker's answer, shared by all who ask and not theirs to cancel, and for how many
            seconds the caller should wait for it; after that it calls `expire`.

        Raises:
            SessionError: the session is unknown, busy, over or lost.
        """
        self._check_running()
        if request_id is not None:
            _check_id(request_id)
        self.statistics.requests["interact"] += 1
        limit_s = self.config.interact_timeout_s if deadline_s is None else deadline_s
        answer = self._exchanges.begin(session_id, body, request_id=request_id, limit_s=limit_s, trace=trace)
        session = self.sessions.live.get(session_id)
        if session is not None and session.num_exchanges == 1:
            self._starts.went_on(session)
        return answer, limit_s

    def expire(self, session_id: int, limit_s: float, *, cancels: bool) -> SessionError:
        """The deadline of a caller passed; returns what it is told.

        Args:
            session_id: the session.
            limit_s: how long it waited.
            cancels: whether the session ends with it.
        """
        return self._exchanges.expire(session_id, limit_s, cancels=cancels)

    async def cancel(self, session_id: int) -> None:
        """End a session; returns when its worker has been told. Nothing happens to one that has ended.

        Raises:
            SessionError: the session is unknown.
        """
        await self._cancellations.cancel(session_id)

    async def cancel_all(self, task: str | None = None, *, worker: Worker | None = None) -> None:
        """End every session, or those of one task or worker, on every replica."""
        if worker is None:
            self._tell("cancel_all", task=task)
        else:
            self._tell("clean", task=worker.task, address=worker.address)
        await self._cancel_all(task, worker)

    async def _cancel_all(self, task: str | None, worker: Worker | None) -> None:
        chosen = [
            session.id
            for session in self.sessions.live.values()
            if task in (None, session.task) and worker in (None, session.worker)
        ]
        await asyncio.gather(*(self.cancel(session_id) for session_id in chosen))

    def cancel_notice(self, session_id: int) -> None:
        """A worker says that a cancelled session has ended there."""
        if session_id not in self.sessions.live:
            self._tell("notice", session=session_id)
        self._cancellations.note(session_id)

    def receive_heartbeat(self, body: bytes, *, peer: str | None = None) -> Worker:
        """Take in a heartbeat as it came.

        Args:
            body: JSON.
            peer: the host that it comes from; None where it is this program itself.

        Raises:
            SessionError: it is no JSON, makes no sense, or the worker may not be there.
            pydantic.ValidationError: a field is missing or wrong.
        """
        self._check_running()
        # Most repeat the last one; 100,000 indices are not read anew every few seconds.
        digest = hashlib.blake2b(body, person=(peer or "").encode()[:16]).digest()
        worker = self._beats.get(digest)
        if worker is not None and worker.is_alive:
            worker.last_visit = worker.heard = time.monotonic()
            self._tell("seen", task=worker.task, address=worker.address)
            return worker
        try:
            fields = decode(body)
        except ValueError as error:
            raise SessionError(f"the body is no JSON: {error}", code=ErrorCode.BAD_REQUEST) from error
        worker = self.heartbeat(Heartbeat.model_validate(fields), peer=peer)
        self._beats = {
            key: known for key, known in self._beats.items() if known is not worker and known.is_alive
        }
        self._beats[digest] = worker
        self._tell("beat", body=body, via="")
        return worker

    def heartbeat(self, beat: Heartbeat, *, peer: str | None = None) -> Worker:
        """Take in a worker's heartbeat.

        Raises:
            SessionError: it makes no sense, the worker may not be there, or its indices differ from those of
                the task's other workers.
        """
        worker = self._pool.heartbeat(beat, peer=peer)
        if not worker.is_known:  # It may play what ended here, or what an earlier controller began.
            self._audit.begin(worker)
        return worker

    def mark_stale(self, worker: Worker, *, stale: bool) -> None:
        """Drain a worker, which keeps its sessions and gets no new one, or end its draining."""
        self._pool.drain(worker, stale=stale)
        self._tell("stale", task=worker.task, address=worker.address, stale=stale)

    async def sync_all(self) -> None:
        """Compare with every worker which sessions it knows; those it has forgotten are lost."""
        await self._audit.all()

    def _check_running(self) -> None:
        if not self.is_running:
            raise _stopping(ErrorCode.NO_CAPACITY)

    async def _keep_house(self) -> None:
        self._audited = time.monotonic()
        pause_s = min(_ROUND_S, self.config.lease_s / 2)
        while True:
            try:
                self._see_to_what_is_due()
            except Exception:  # Leases must go on running out.
                _log.exception("a round of the housekeeping failed")
            due = time.monotonic() + pause_s
            await asyncio.sleep(pause_s)
            self.statistics.lag_s.observe(max(0.0, time.monotonic() - due))

    def _see_to_what_is_due(self) -> None:
        config, now = self.config, time.monotonic()
        for worker in self.registry.silent(now=now, lease_s=config.lease_s):
            self._pool.lose_worker(worker, WorkerStatus.COMA, f"no heartbeat for {config.lease_s:g} s")
        for session in self.sessions.idle(longer_than_s=config.idle_timeout_s):
            message = "session %s is idle for %g s; cancelled"
            _log.info(message, session.id, config.idle_timeout_s, extra=session.about)
            self._cancellations.begin(session)
        if now - self._audited > config.audit_s:
            self._audited = now
            self._background.spawn(self._audit.all())
        for worker in self.registry.workers():
            is_quiet = worker.is_alive and now - worker.heard > config.probe_s
            if worker.sessions and is_quiet:
                self._audit.begin(worker)
        self._pool.forget(config)
        self._starts.forget()
        self._http.expire()


def _stopping(code: ErrorCode) -> SessionError:
    message = "the controller is not running; ask again with the same request id when it is back"
    return SessionError(message, code=code, retry_after_s=RETRY_AFTER_S)


def _check_id(request_id: str) -> None:
    """Whether a request id can go on to a worker.

    Raises:
        SessionError: it cannot.
    """
    if not (0 < len(request_id) <= _MAX_ID_LENGTH and request_id.isascii() and request_id.isprintable()):
        message = (
            f"a request id has 1 to {_MAX_ID_LENGTH} printable ASCII characters, got {request_id[:50]!r}"
        )
        raise SessionError(message, code=ErrorCode.BAD_REQUEST)


def _trust(config: ControllerConfig) -> ssl.SSLContext | None:
    if config.tls is None or config.tls.worker_ca is None:
        return None
    return ssl.create_default_context(cafile=str(config.tls.worker_ca))

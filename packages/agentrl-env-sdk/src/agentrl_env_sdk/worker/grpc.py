"""A worker on a stream that it opens to its controller, and so behind any firewall: `agentbench.Controller`.

    controller --REQUEST--> reader -> Routes -> outbox -> writer --RESPONSE--> controller
                                      Beats, notices  -/         --HEARTBEAT, cancel notice-->

What is not sent when a stream breaks is sent on the next one; heartbeats are made when they are due and
never wait in line.
"""

import asyncio
import contextlib
import json
import logging
import secrets
import time
from collections import deque
from collections.abc import Awaitable
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit

import grpc
import grpc.aio

from agentrl_core import ConfigError, ErrorCode
from agentrl_core.rpc import ADDRESS_SCHEME, MAX_MESSAGE_BYTES
from agentrl_core.rpc.worker_stream_pb2 import (
    ReceiveHeartbeatRequest,
    SessionCancelNotice,
    TaskIndex,
    WorkerStreamEnvelope,
)
from agentrl_core.rpc.worker_stream_pb2_grpc import ControllerStub
from agentrl_env_sdk.worker.link import Beats, Outage, Pause
from agentrl_env_sdk.worker.routes import Answer, Ask, Routes, refusal
from agentrl_env_sdk.worker.runner import Runner, SessionId

_log = logging.getLogger("agentrl_env_sdk")

_FIRST_PAUSE_S = 0.2
_LONGEST_PAUSE_S = 5.0
"""A controller waits about ten seconds for a worker to come back."""
_STABLE_S = 5.0
_LET_IN_S = 0.5
"""How long to wait for the controller to open its side; some do so with their first message alone."""
_FLUSH_S = 2.0
_ENVELOPE_BYTES = 512
"""Room for what surrounds a body."""
_UNREAD_MS = 20_000
"""How long what has been sent may stay unconfirmed by the other machine; heartbeats are sent all the time."""
_PROBE_MS = 310_000
"""Controllers written in Go close connections that are probed more often than every five minutes."""
_OPTIONS = (
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES + _ENVELOPE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.keepalive_time_ms", _PROBE_MS),
    ("grpc.keepalive_timeout_ms", _UNREAD_MS),
    ("grpc.use_local_subchannel_pool", 1),  # Else a new channel would wait as long as the last one has to.
)

Call = grpc.aio.StreamStreamCall[WorkerStreamEnvelope, WorkerStreamEnvelope]


class StreamLink:
    """A link that carries requests, too.

    Args:
        controller: where it listens: `grpc://host:port`, or `grpcs://host:port` with TLS.
        runner: plays the episodes.
        routes: answer what is asked.
        token: bearer token that the controller is given.
        ca: file with the certificates to trust, in PEM; the machine's own roots where it is absent.
        heartbeat_s: seconds between heartbeats.

    Attributes:
        address: the worker's, `grpc://<id>`.

    Raises:
        ConfigError: the address is none, or the file cannot be read.
    """

    def __init__(
        self,
        controller: str,
        runner: Runner,
        routes: Routes,
        *,
        token: str | None = None,
        ca: Path | None = None,
        heartbeat_s: float = 2.0,
    ) -> None:
        self._target = _target(controller)
        self._credentials = _credentials(ca) if controller.startswith("grpcs:") else None
        self._routes = routes
        self._metadata = (("authorization", f"Bearer {token}"),) if token else ()
        self._heartbeat_s = heartbeat_s
        self._id = f"{runner.task.task_name}-{secrets.token_hex(6)}"
        self.address = f"{ADDRESS_SCHEME}{self._id}"
        self._beats = Beats(runner, self.address)
        # Made once, since a task may have many samples.
        self._messages = {draining: _heartbeat(self._beats, self._id, draining) for draining in (False, True)}
        self._outbox: deque[WorkerStreamEnvelope] = deque()
        self._notices: dict[str, WorkerStreamEnvelope] = {}
        self._requests: set[asyncio.Task[None]] = set()
        self._wake = asyncio.Event()
        self._is_connected = False
        self._empty = asyncio.Event()
        self._empty.set()

    async def run(self) -> None:
        """Keep a stream open until this is cancelled."""
        pause, log = Pause(_FIRST_PAUSE_S, _LONGEST_PAUSE_S), Outage("has no stream to this worker")
        while True:
            began = time.monotonic()
            reason = await self._stream(log)
            log.tell(reason)
            if time.monotonic() - began > _STABLE_S:
                pause.reset()
            await asyncio.sleep(pause.next_s())

    async def notice(self, session_id: SessionId) -> None:
        """Tell that a cancelled session has ended, until the controller confirms it."""
        if isinstance(session_id, int) and abs(session_id) < 2**63:  # No other can be named.
            envelope = _envelope(f"notice-{secrets.token_hex(6)}", WorkerStreamEnvelope.REQUEST)
            envelope.session_cancel_notice.CopyFrom(SessionCancelNotice(session_id=session_id))
            self._notices[envelope.id] = envelope
            self._put(envelope)

    async def flush(self) -> None:
        """Send what is still to be sent, if a stream is open."""
        if self._is_connected:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_FLUSH_S):
                    await self._empty.wait()

    async def close(self) -> None:
        """Give up on what nobody can be answered any more."""
        for request in self._requests:
            request.cancel()

    async def _stream(self, log: Outage) -> str:
        """Serve one stream until it ends; returns why it did."""
        async with self._channel() as channel:
            call: Call = ControllerStub(channel).WorkerStream(metadata=self._metadata or None)
            try:
                await call.wait_for_connection()
                await _be_let_in(call)
                self._resume()
                await _first(self._read(call, log), self._write(call, log))
            except (grpc.RpcError, asyncio.InvalidStateError, grpc.aio.UsageError):
                pass  # What was the matter with the stream is told below.
            finally:
                self._is_connected = False
                call.cancel()
            return f"{(await call.code()).name}, {await call.details() or 'the stream has ended'}"

    def _channel(self) -> grpc.aio.Channel:
        if self._credentials is None:
            return grpc.aio.insecure_channel(self._target, options=_OPTIONS)
        return grpc.aio.secure_channel(self._target, self._credentials, options=_OPTIONS)

    def _resume(self) -> None:
        """Begin a stream; what the controller has not confirmed is told again."""
        self._is_connected = True
        waiting = {envelope.id for envelope in self._outbox}
        for envelope_id, envelope in self._notices.items():
            if envelope_id not in waiting:
                self._put(envelope)

    async def _read(self, call: Call, log: Outage) -> None:
        async for envelope in call:
            log.tell(None)
            if envelope.type == WorkerStreamEnvelope.REQUEST:
                request = asyncio.create_task(self._serve(envelope))
                self._requests.add(request)
                request.add_done_callback(self._requests.discard)
            elif envelope.type == WorkerStreamEnvelope.RESPONSE:
                self._notices.pop(envelope.id, None)

    async def _write(self, call: Call, log: Outage) -> None:
        due = 0.0
        while True:
            now = time.monotonic()
            if now >= due:
                await call.write(self._heartbeat())
                if due:  # The one before was not refused.
                    log.tell(None)
                due = now + self._heartbeat_s
            self._wake.clear()
            while self._outbox and time.monotonic() < due:
                await call.write(self._outbox[0])
                self._outbox.popleft()  # Only now: what was not taken goes on the next stream.
            if not self._outbox:
                self._empty.set()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(due - time.monotonic()):
                        await self._wake.wait()

    def _heartbeat(self) -> WorkerStreamEnvelope:
        envelope = _envelope(secrets.token_hex(6), WorkerStreamEnvelope.HEARTBEAT)
        envelope.receive_heartbeat_request.CopyFrom(self._messages[self._beats.is_draining])
        return envelope

    async def _serve(self, envelope: WorkerStreamEnvelope) -> None:
        asked = envelope.worker_request
        route, _, query = asked.endpoint.partition("?")
        ask = Ask(
            body=asked.json,
            session_id=asked.session_id or None,
            request_id=asked.request_id or None,
            deadline_s=asked.deadline_ms / 1000 if asked.deadline_ms else None,
            query=dict(parse_qsl(query)),
            address=self.address,
        )
        answer = await self._routes.answer(route, ask)
        if len(answer.body) > MAX_MESSAGE_BYTES - _ENVELOPE_BYTES:  # It would break every stream.
            message = f"the answer has {len(answer.body)} bytes, more than a stream carries at once"
            answer = refusal(message, ErrorCode.WORKER_FAILED, 500)
        self._put(_response(envelope.id, answer))

    def _put(self, envelope: WorkerStreamEnvelope) -> None:
        self._outbox.append(envelope)
        self._empty.clear()
        self._wake.set()


def _target(controller: str) -> str:
    parts = urlsplit(controller)
    try:
        port = parts.port
    except ValueError:
        port = None
    if not parts.hostname or port is None:
        raise ConfigError(f"a controller's stream is at grpc://HOST:PORT, got `{controller}`")
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return f"{host}:{port}"


def _credentials(ca: Path | None) -> grpc.ChannelCredentials:
    try:
        roots = None if ca is None else ca.read_bytes()
    except OSError as error:
        raise ConfigError(f"the certificates of `{ca}` cannot be read: {error.strerror}") from error
    return grpc.ssl_channel_credentials(roots)


def _heartbeat(beats: Beats, worker_id: str, draining: bool) -> ReceiveHeartbeatRequest:
    beat = beats.beat(draining=draining)
    return ReceiveHeartbeatRequest(
        id=worker_id,
        name=beat.name,
        concurrency=beat.concurrency,
        indices=[
            TaskIndex(int_value=index) if isinstance(index, int) else TaskIndex(string_value=index)
            for index in beat.indices
        ],
        native=beat.native,
        instance=beat.instance or "",
        splits_json=json.dumps(beat.splits),
    )


def _envelope(envelope_id: str, kind: WorkerStreamEnvelope.MessageType) -> WorkerStreamEnvelope:
    envelope = WorkerStreamEnvelope(id=envelope_id, type=kind)
    envelope.timestamp.GetCurrentTime()
    return envelope


def _response(envelope_id: str, answer: Answer) -> WorkerStreamEnvelope:
    envelope = _envelope(envelope_id, WorkerStreamEnvelope.RESPONSE)
    response = envelope.worker_response
    response.code, response.message, response.json = answer.http_status, answer.detail, answer.body
    if answer.finish is not None:
        response.finish = answer.finish
    return envelope


async def _be_let_in(call: Call) -> None:
    """Wait for the controller's answer before anything is written, or a refusal could not be read."""
    opened = asyncio.ensure_future(call.initial_metadata())
    opened.add_done_callback(lambda done: done.cancelled() or done.exception())
    await asyncio.wait([opened], timeout=_LET_IN_S)


async def _first(*works: Awaitable[None]) -> None:
    """Run works until the first ends, and cancel the others; what it raised is raised."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    for task in done:
        task.result()

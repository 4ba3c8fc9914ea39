"""Requests to task workers over the streams that they open: `agentbench.Controller/WorkerStream`.

    send(call) -> waiter by id, queue -> writer --REQUEST--> worker
    caller <----- waiter by id <-------- reader <-RESPONSE-- worker
    heartbeat(), cancel_notice() <------ reader <-HEARTBEAT, cancel notice-- worker

A stream has one reader and one writer however many requests it carries; a request has no task of its own.
"""

import asyncio
import hashlib
import itertools
import json
import logging
import secrets
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

import grpc
from google.protobuf.message import DecodeError
from grpc import StatusCode

from agentrl_controller.transports.base import Call, WorkerError, WorkerReply
from agentrl_core import AgentRLError, ConfigError, ErrorCode, SampleIndex, SessionError
from agentrl_core.rpc import ADDRESS_SCHEME, MAX_MESSAGE_BYTES
from agentrl_core.rpc.worker_stream_pb2 import DESCRIPTOR, ReceiveHeartbeatRequest, WorkerStreamEnvelope

_log = logging.getLogger("agentrl_controller")

_KEEPALIVE_MS = 5_000
"""How long until a silent connection is probed, and how long it has to answer: a dead one shows then."""
_SHORTEST_PROBE_MS = 1_000
"""How often a worker may probe us."""
_FIRST_BEAT_S = 30.0
"""A stream that has not said by then whose it is ends; published workers say so every 8 s."""
_STOP_S = 0.5
_ENVELOPE_BYTES = 512
"""Room for what surrounds a body."""
_MAX_DEADLINE_MS = 2**32 - 1
_OPTIONS = (
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.keepalive_time_ms", _KEEPALIVE_MS),
    ("grpc.keepalive_timeout_ms", _KEEPALIVE_MS),
    (
        "grpc.http2.ping_timeout_ms",
        _KEEPALIVE_MS,
    ),  # Else a probe of the bandwidth holds back this one for 60 s.
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.http2.min_ping_interval_without_data_ms", _SHORTEST_PROBE_MS),
    ("grpc.so_reuseport", 0),  # Else a second controller would take the same port and half of the workers.
)

Waiter = asyncio.Future[WorkerReply]
Context = grpc.aio.ServicerContext[WorkerStreamEnvelope, WorkerStreamEnvelope]


class GrpcTransport:
    """Serves the streams of workers, and carries calls to them.

    Args:
        heartbeat: takes the fields of a JSON heartbeat; the same object as before where nothing in them has
            changed. A `SessionError` or `ValueError` ends the stream with its message.
        cancel_notice: takes the id of a session that has ended at its worker; may raise a `SessionError`.
        lost: takes a worker's address and why it has no stream any more. It may open another one.
        check: takes the metadata of a new stream and raises an `AgentRLError` to refuse it.
        max_queued_bytes: what a worker that reads too slowly may leave unsent.
    """

    def __init__(
        self,
        *,
        heartbeat: Callable[[dict[str, Any]], None],
        cancel_notice: Callable[[int], None],
        lost: Callable[[str, str], None],
        check: Callable[[Mapping[str, str | bytes]], None],
        max_queued_bytes: int = 128 * 1024 * 1024,
    ) -> None:
        self._heartbeat = heartbeat
        self._cancel_notice = cancel_notice
        self._lost = lost
        self._check = check
        self._max_queued_bytes = max_queued_bytes
        self._server: grpc.aio.Server | None = None
        self._streams: dict[str, _Stream] = {}
        self._open: set[_Stream] = set()
        self._is_closing = False
        # A worker may answer over its next stream, and to the next controller even: no id comes twice.
        self._prefix = secrets.token_hex(6)
        self._count = itertools.count()

    async def listen(self, host: str, port: int, *, tls: grpc.ServerCredentials | None = None) -> int:
        """Take streams from now on; returns the port, a free one for 0.

        Raises:
            ConfigError: the port is taken or the host is none.
        """
        service = DESCRIPTOR.services_by_name["Controller"]
        method = grpc.stream_stream_rpc_method_handler(
            self._serve, WorkerStreamEnvelope.FromString, WorkerStreamEnvelope.SerializeToString
        )
        handler = grpc.method_handlers_generic_handler(service.full_name, {"WorkerStream": method})
        server = grpc.aio.server(handlers=[handler], options=_OPTIONS)
        address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        try:
            bound = server.add_secure_port(address, tls) if tls else server.add_insecure_port(address)
        except RuntimeError as error:
            message = f"cannot serve gRPC at {address}: it is in use or not this machine's; choose another"
            raise ConfigError(message) from error
        await server.start()
        self._server = server
        return bound

    async def send(self, call: Call) -> WorkerReply:
        """Make a call once and return what the worker answered, a refusal too.

        Raises:
            WorkerError: it has no stream open, or the stream broke off, so no answer came.
            SessionError: the worker reads too slowly for what is to be sent to it.
            TimeoutError: no answer in time.
        """
        stream = self._streams.get(call.address)
        if stream is None:
            raise WorkerError(f"{call.address} has no stream open", unreachable=True)
        return await stream.ask(call, f"{self._prefix}-{next(self._count):x}")

    def try_send(self, call: Call) -> None:
        """A stream is always waited for."""

    async def close(self) -> None:
        """End every stream; who waits for an answer is told."""
        self._is_closing = True
        for stream in list(self._open):
            stream.end(StatusCode.UNAVAILABLE, "the controller stops")
        if self._server is not None:
            await self._server.stop(_STOP_S)

    async def _serve(self, envelopes: AsyncIterator[WorkerStreamEnvelope], context: Context) -> None:
        try:
            self._check(dict(context.invocation_metadata() or ()))
        except AgentRLError as error:
            await context.abort(StatusCode.UNAUTHENTICATED, str(error))
        if self._is_closing:
            await context.abort(StatusCode.UNAVAILABLE, "the controller stops")
        await context.send_initial_metadata(())  # It is let in, and may know.
        stream = _Stream(context, self._take, self._leave, max_queued_bytes=self._max_queued_bytes)
        self._open.add(stream)
        try:
            code, reason = await stream.run(envelopes)
        finally:
            stream.end(StatusCode.OK, "its connection broke")
            self._open.discard(stream)
        if code is not StatusCode.OK:
            await context.abort(code, reason)

    def _leave(self, stream: "_Stream", reason: str) -> None:
        """Forget a stream that has ended, unless it has been replaced already."""
        address = stream.address
        if address is not None and self._streams.get(address) is stream:
            del self._streams[address]
            if not self._is_closing:
                self._lost(address, reason)

    def _take(self, stream: "_Stream", envelope: WorkerStreamEnvelope) -> None:
        """Deal with what a worker sends of its own accord."""
        kind = envelope.WhichOneof("body")
        if kind == "receive_heartbeat_request":
            self._beat(stream, envelope.receive_heartbeat_request)
        elif kind == "session_cancel_notice":
            try:
                self._cancel_notice(envelope.session_cancel_notice.session_id)
            except SessionError as error:
                stream.answer(envelope.id, 400, message=str(error))
            else:
                stream.answer(envelope.id, 200, body=b"null")
        else:
            stream.answer(envelope.id, 404, message="the controller takes heartbeats and cancel notices")

    def _beat(self, stream: "_Stream", beat: ReceiveHeartbeatRequest) -> None:
        try:
            fields = stream.fields(beat, share=self._share)
            self._heartbeat(fields)
        except (SessionError, ValueError) as error:
            stream.end(StatusCode.INVALID_ARGUMENT, str(error))
            return
        address = fields["address"]
        other = self._streams.get(address)
        if other is stream:
            return
        self._streams[address] = stream
        stream.belong(address)
        if other is not None:
            other.end(StatusCode.ABORTED, "another stream of the same worker took its place")

    def _share(self, indices: list[SampleIndex]) -> list[SampleIndex]:
        """The same list as another worker has it, so that a hundred of them do not hold it each."""
        return next((known for s in self._streams.values() if (known := s.indices) == indices), indices)


class _Stream:
    """One worker's stream.

    Args:
        context: writes to it.
        take: deals with what the worker sends of its own accord.
        leave: called once, when it has ended, with the reason.
        max_queued_bytes: what may wait to be sent.

    Attributes:
        address: the worker's; None before its first heartbeat.
    """

    def __init__(
        self,
        context: Context,
        take: "Callable[[_Stream, WorkerStreamEnvelope], None]",
        leave: "Callable[[_Stream, str], None]",
        *,
        max_queued_bytes: int,
    ) -> None:
        self._context = context
        self._take = take
        self._leave = leave
        self._max_queued_bytes = max_queued_bytes
        self._loop = loop = asyncio.get_running_loop()
        self._waiters: dict[str, Waiter] = {}
        self._queue: deque[tuple[WorkerStreamEnvelope, int, Waiter | None]] = deque()
        self._queued_bytes = 0
        self._wake: asyncio.Future[None] | None = None
        self._beat_digest = b""
        self._fields: dict[str, Any] = {}
        self._ended: asyncio.Future[tuple[StatusCode, str]] = loop.create_future()
        self.address: str | None = None
        message = f"no heartbeat within {_FIRST_BEAT_S:g} s"
        self._patience = loop.call_later(_FIRST_BEAT_S, self.end, StatusCode.DEADLINE_EXCEEDED, message)

    async def run(self, envelopes: AsyncIterator[WorkerStreamEnvelope]) -> tuple[StatusCode, str]:
        """Carry messages until the stream ends; returns how it did."""
        tasks = [asyncio.create_task(self._read(envelopes)), asyncio.create_task(self._write())]
        try:
            return await asyncio.shield(self._ended)
        finally:
            for task in tasks:
                task.cancel()

    def belong(self, address: str) -> None:
        """Say whose it is, which stays so."""
        self.address = address
        self._patience.cancel()

    async def ask(self, call: Call, envelope_id: str) -> WorkerReply:
        """Send a request and wait for its answer.

        Raises:
            WorkerError: the stream ended first, or the body is too large for it.
            SessionError: too much waits to be sent.
            TimeoutError: no answer in time.
        """
        size = len(call.body) + len(call.request_id or "") + _ENVELOPE_BYTES
        self._check_room(size)
        envelope = _request(call, envelope_id)
        waiter: Waiter = self._loop.create_future()
        timer = self._loop.call_later(call.timeout_s, self._expire, waiter)
        self._waiters[envelope_id] = waiter
        self._put(envelope, size, waiter)
        try:
            return await waiter
        finally:
            timer.cancel()
            self._waiters.pop(envelope_id, None)

    def answer(self, envelope_id: str, code: int, *, message: str = "", body: bytes = b"") -> None:
        """Answer a request of the worker, unless it lets answers pile up."""
        if self._queued_bytes < self._max_queued_bytes:
            envelope = WorkerStreamEnvelope(id=envelope_id, type=WorkerStreamEnvelope.RESPONSE)
            envelope.timestamp.GetCurrentTime()
            response = envelope.worker_response
            response.code, response.message, response.json = code, message, body
            self._put(envelope, _ENVELOPE_BYTES, None)

    def end(self, code: StatusCode, reason: str) -> None:
        """End it and tell who waits; the first reason stands."""
        if self._ended.done():
            return
        self._ended.set_result((code, reason))
        self._patience.cancel()
        name = self.address or "a worker"
        for _, _, waiter in self._queue:
            _fail(waiter, WorkerError(f"{name} has no stream any more: {reason}", unreachable=True))
        self._queue.clear()
        for waiter in self._waiters.values():
            _fail(waiter, WorkerError(f"{name} broke off: {reason}"))
        self._leave(self, reason)

    @property
    def indices(self) -> list[SampleIndex]:
        """What its last heartbeat listed."""
        return self._fields.get("indices", [])

    def fields(
        self,
        beat: ReceiveHeartbeatRequest,
        *,
        share: Callable[[list[SampleIndex]], list[SampleIndex]],
    ) -> dict[str, Any]:
        """The fields of a JSON heartbeat; 100,000 indices are not read anew every few seconds.

        Raises:
            ValueError: it names no worker, another one than before, or splits that are no JSON.
        """
        digest = hashlib.blake2b(beat.SerializeToString()).digest()
        if digest != self._beat_digest:
            if not beat.id or self.address not in (None, ADDRESS_SCHEME + beat.id):
                raise ValueError(f"`id` must name one worker for the whole stream, got {beat.id[:100]!r}")
            fields = _fields(beat)
            fields["indices"] = share(fields["indices"])
            self._fields, self._beat_digest = fields, digest
        return self._fields

    def _check_room(self, size: int) -> None:
        if size > MAX_MESSAGE_BYTES:
            message = f"{self.address} takes at most {MAX_MESSAGE_BYTES} bytes at once, got about {size}"
            raise WorkerError(message, http_status=413)
        if self._queue and self._queued_bytes + size > self._max_queued_bytes:
            message = f"{self.address} reads too slowly: {self._queued_bytes} bytes wait to be sent to it"
            raise SessionError(message, code=ErrorCode.NO_CAPACITY, retry_after_s=1.0)

    def _put(self, envelope: WorkerStreamEnvelope, size: int, waiter: Waiter | None) -> None:
        self._queue.append((envelope, size, waiter))
        self._queued_bytes += size
        if self._wake is not None:
            self._wake.set_result(None)
            self._wake = None

    def _expire(self, waiter: Waiter) -> None:
        _fail(waiter, TimeoutError(f"{self.address} gave no answer in time"))

    async def _write(self) -> None:
        try:
            while True:
                while self._queue:
                    envelope, size, waiter = self._queue.popleft()
                    self._queued_bytes -= size
                    if waiter is None or not waiter.done():  # What its caller has given up is not acted on.
                        await self._context.write(envelope)
                self._wake = self._loop.create_future()
                await self._wake
        except Exception as error:
            self.end(StatusCode.UNAVAILABLE, f"it takes no more: {error!r}")

    async def _read(self, envelopes: AsyncIterator[WorkerStreamEnvelope]) -> None:
        try:
            async for envelope in envelopes:
                if self._ended.done():
                    return
                if envelope.type == WorkerStreamEnvelope.RESPONSE:
                    waiter = self._waiters.get(envelope.id)
                    if waiter is not None and not waiter.done():
                        waiter.set_result(_reply(envelope.worker_response))
                else:
                    self._take(self, envelope)
        except DecodeError as error:
            self.end(StatusCode.INVALID_ARGUMENT, f"it sent what is no envelope: {error}")
        except Exception as error:
            _log.exception("the stream of %s ends by a fault of the controller", self.address or "a worker")
            self.end(StatusCode.INTERNAL, f"a fault of the controller: {type(error).__name__}")
        else:
            self.end(StatusCode.OK, "its stream ended")


def _request(call: Call, envelope_id: str) -> WorkerStreamEnvelope:
    envelope = WorkerStreamEnvelope()  # Filled field by field, which takes half the time of arguments.
    envelope.id = envelope_id
    envelope.type = WorkerStreamEnvelope.REQUEST
    envelope.timestamp.seconds, envelope.timestamp.nanos = divmod(time.time_ns(), 1_000_000_000)
    request = envelope.worker_request
    request.method, request.endpoint, request.json = call.method, call.route, call.body
    deadline_s = call.timeout_s if call.deadline_s is None else call.deadline_s
    request.deadline_ms = int(min(max(1.0, deadline_s * 1000), _MAX_DEADLINE_MS))
    if call.request_id is not None:
        request.request_id = call.request_id
    if call.session_id is not None:
        request.session_id = call.session_id
    return envelope


def _reply(response: WorkerStreamEnvelope.WorkerResponse) -> WorkerReply:
    code = response.code
    finish = response.finish if response.HasField("finish") else None
    if not 200 <= code < 600:
        detail = f"the worker answered with {code}, which is no HTTP status"
        return WorkerReply(500, json.dumps({"detail": detail}).encode())
    if response.json:
        return WorkerReply(code, response.json, finish)
    if code < 300:
        return WorkerReply(code, b"null", finish)
    return WorkerReply(code, json.dumps({"detail": response.message}).encode(), finish)


def _fields(beat: ReceiveHeartbeatRequest) -> dict[str, Any]:
    try:
        splits = json.loads(beat.splits_json) if beat.splits_json else None
    except (ValueError, RecursionError) as error:
        raise ValueError(f"`splits_json` is no JSON: {error}") from error
    return {
        "name": beat.name,
        "address": ADDRESS_SCHEME + beat.id,
        "concurrency": beat.concurrency,
        "indices": [
            index.string_value if index.HasField("string_value") else index.int_value
            for index in beat.indices
        ],
        "native": beat.native,
        "instance": beat.instance or None,
        "splits": splits,
    }


def _fail(waiter: Waiter | None, error: Exception) -> None:
    if waiter is not None and not waiter.done():
        waiter.set_exception(error)

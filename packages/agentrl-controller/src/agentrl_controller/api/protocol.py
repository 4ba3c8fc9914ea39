"""A short way for the busiest routes: uvicorn's HTTP protocol, less what they do not need.

Start, interact and cancel are read, answered and written here as bytes. Every other request, and those that
are pipelined behind an unanswered one, go the usual way through ASGI; both ways give the same answers.
"""

import asyncio
import logging
import math
import time
from collections import deque
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import Any, ClassVar

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from agentrl_controller.api.errors import Answer, BodyTooLargeError
from agentrl_controller.api.front import Front, Handler
from agentrl_controller.api.sessions import Exchange
from agentrl_core import ErrorCode, SessionError

_log = logging.getLogger("agentrl_controller")

_MAX_HEAD_BYTES = 64 * 1024
_HEAD_TIMEOUT_S = 30.0
_BODY_TIMEOUT_S = 300.0
_MAX_BUFFERED_BYTES = 2**30
_PRECISE_S = 30.0
_JSON = b"content-type: application/json\r\n"
_STATUS_LINES = {
    status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in HTTPStatus
}


class _Quiet:
    """Stands for the event that uvicorn sets when a slow request goes on; nobody waits for it here."""

    def set(self) -> None:
        pass


_QUIET = _Quiet()
_NO_HEADERS: dict[bytes, bytes] = {}


class Buffered:
    """Bytes of bodies that are being read, over all connections."""

    num_bytes = 0


class FastRequest:
    """A request on the short way, from its headers to its answer.

    Has what uvicorn's protocol looks at in the requests of its own.
    """

    __slots__ = (
        "_protocol",
        "answer",
        "body",
        "deadline",
        "disconnected",
        "exchange",
        "headers",
        "keep_alive",
        "message_event",
        "more_body",
        "path",
        "response_complete",
        "size",
        "task",
        "timer",
    )

    def __init__(self, protocol: "FastProtocol", path: bytes, headers: dict[bytes, bytes]) -> None:
        self._protocol = protocol
        self.path = path
        self.headers = headers
        self.body: list[bytes] = []
        self.size = 0
        self.more_body = True
        self.keep_alive = True
        self.response_complete = False
        self.disconnected = False
        self.message_event = _QUIET
        self.exchange: Exchange | None = None
        self.timer: asyncio.TimerHandle | None = None
        self.deadline = math.inf
        self.task: asyncio.Task[Any] | None = None

    def add(self, data: bytes) -> None:
        """Take in a part of the body."""
        self.size += len(data)
        Buffered.num_bytes += len(data)
        if self.size > self._protocol.front.max_body_bytes:
            self.refuse(BodyTooLargeError(self._protocol.front.max_body_bytes), closes=True)
        elif Buffered.num_bytes > _MAX_BUFFERED_BYTES:
            message = "too many large bodies are being read"
            error = SessionError(message, code=ErrorCode.NO_CAPACITY, retry_after_s=1.0)
            self.refuse(error, closes=True)
        else:
            self.body.append(data)

    def run(self) -> None:
        """Answer it, now that it is here in full."""
        self.more_body = False
        Buffered.num_bytes -= self.size
        body = self.body[0] if len(self.body) == 1 else b"".join(self.body)
        self.size, self.body = 0, []
        sessions = self._protocol.front.sessions
        if self.path == b"/api/interact":
            self._interact(body)
            return
        self._spawn(sessions.start_sample if self.path == b"/api/start_sample" else sessions.cancel, body)

    def _spawn(self, route: Handler, body: bytes) -> None:
        work = self._finish(route(self.headers, body, self._protocol.peer))
        self.task = self._protocol.loop.create_task(work)
        self._protocol.tasks.add(self.task)
        self.task.add_done_callback(self._protocol.tasks.discard)

    def _interact(self, body: bytes) -> None:
        sessions = self._protocol.front.sessions
        try:
            exchange = sessions.begin_interact(self.headers, body)
        except Exception as error:
            if isinstance(error, SessionError) and sessions.may_be_elsewhere(error):
                self._spawn(sessions.interact, body)
            else:
                self.refuse(error)
            return
        self.exchange = exchange
        if exchange.answer.done():
            self._answered(exchange.answer)
        else:
            exchange.answer.add_done_callback(self._answered)
            if exchange.limit_s < _PRECISE_S:
                self.timer = self._protocol.loop.call_later(exchange.limit_s, self.expire)
            else:  # The server looks at long deadlines now and then; timers cost more.
                self.deadline = time.monotonic() + exchange.limit_s

    async def _finish(self, work: Awaitable[Answer]) -> None:
        try:
            answer = await work
        except Exception as error:
            self.refuse(error)
        else:
            self.write(answer)

    def _answered(self, answer: "asyncio.Future[bytes]") -> None:
        if self.timer is not None:
            self.timer.cancel()
        if self.response_complete:
            return
        error = answer.exception()
        if error is None:
            self.write(Answer(answer.result()))
        else:
            self.refuse(error)

    def expire(self) -> None:
        """The caller's deadline has passed."""
        exchange = self.exchange
        assert exchange is not None
        exchange.answer.remove_done_callback(self._answered)
        if not self.response_complete:
            self.refuse(
                self._protocol.front.expire(exchange.session_id, exchange.limit_s, cancels=exchange.cancels)
            )

    def refuse(self, error: BaseException, *, closes: bool = False) -> None:
        """Answer that it ended in an error."""
        if not isinstance(error, SessionError | ValueError):
            _log.error("a request of %s failed", self.path.decode("latin-1"), exc_info=error)
        if closes:
            self.keep_alive = False
        if self.more_body:
            Buffered.num_bytes -= self.size
            self.size, self.body = 0, []
        assert isinstance(error, Exception)
        answer = self._protocol.front.refusal(error)
        self.write(answer)

    def write(self, answer: Answer) -> None:
        """Write the answer in one piece."""
        self.response_complete = True
        transport = self._protocol.transport
        if transport is None or transport.is_closing():
            return
        parts = [_STATUS_LINES[answer.http_status], self._protocol.default_head()]
        request_id = self.headers.get(b"x-request-id")
        if request_id is not None:
            parts += (b"x-request-id: ", request_id, b"\r\n")
        for name, value in answer.headers.items():
            parts.append(f"{name.lower()}: {value}\r\n".encode("latin-1"))
        if not self.keep_alive:
            parts.append(b"connection: close\r\n")
        parts += (b"content-length: %d\r\n\r\n" % len(answer.body), answer.body)
        self.headers, self.exchange, self.timer = _NO_HEADERS, None, None  # The connection keeps this object.
        transport.write(b"".join(parts))
        if not self.keep_alive:
            transport.close()
        self._protocol.on_response_complete()

    def leave(self) -> None:
        """The client has gone."""
        self.disconnected = True
        if self.more_body:
            Buffered.num_bytes -= self.size
            self.size = 0
        if self.timer is not None:
            self.timer.cancel()
        if self.exchange is not None:
            # The exchange goes on; its answer can be asked for again.
            self.exchange.answer.remove_done_callback(self._answered)
        if self.task is not None:
            self.task.cancel()


class FastProtocol(HttpToolsProtocol):
    """uvicorn's protocol with a short way for the session routes.

    Attributes:
        front: what all requests of the app pass; its routes are served here, too.
    """

    # Few attributes fit into the dictionary that instances share; ten thousand of them should.
    __slots__ = ("_fast", "_has_head", "_head_bytes", "_is_over", "idle_since", "peer", "reading_since")

    front: ClassVar[Front]
    max_connections: ClassVar[int]
    head_of_answers: ClassVar[tuple[Any, bytes]] = (None, b"")
    cycle: Any
    pipeline: Any

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)  # type: ignore[arg-type]
        self.pipeline = ()  # Few clients send ahead; for them it becomes a queue.
        self.peer = self.client[0] if self.client else ""
        self.reading_since: float | None = None
        self.idle_since = time.monotonic()
        self._fast: FastRequest | None = None
        self._has_head = False
        self._head_bytes = 0
        self._is_over = len(self.connections) > self.max_connections

    def connection_lost(self, exc: Exception | None) -> None:
        fast = self._fast
        if fast is not None and not fast.response_complete:
            fast.leave()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.reading_since is not None and not self._has_head:
            self._head_bytes += len(data)
            if self._head_bytes > _MAX_HEAD_BYTES:
                self._refuse_head(431, f"the headers have more than {_MAX_HEAD_BYTES} bytes")

    def check_patience(self, now: float) -> None:
        """Give up on a client that does not finish its request or begins none, and on a late answer."""
        is_answered = self.cycle is None or self.cycle.response_complete
        if self.reading_since is None:
            if is_answered and now - self.idle_since > self.timeout_keep_alive:
                self.transport.close()
            elif type(self.cycle) is FastRequest and not is_answered and self.cycle.deadline < now:
                self.cycle.expire()
        else:
            limit_s = _BODY_TIMEOUT_S if self._has_head else _HEAD_TIMEOUT_S
            if now - self.reading_since > limit_s:
                self._refuse_head(408, f"the request was not finished within {limit_s:g} s")

    def _refuse_head(self, http_status: int, message: str) -> None:
        answer = self.front.refusal(SessionError(message, code=ErrorCode.BAD_REQUEST))
        request = FastRequest(self, b"", {})
        request.keep_alive = False
        self.reading_since = None
        request.write(answer._replace(http_status=http_status))

    def on_response_complete(self) -> None:
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            return
        self.flow.resume_reading()
        if self.pipeline:
            cycle, app = self.pipeline.pop()
            self._start_asgi_task(cycle, app)
        else:
            self.idle_since = time.monotonic()

    def default_head(self) -> bytes:
        """The headers that every answer has; they change once a second."""
        source = self.server_state.default_headers
        cls = FastProtocol
        if cls.head_of_answers[0] is not source:
            lines = [_JSON, *(name + b": " + value + b"\r\n" for name, value in source)]
            cls.head_of_answers = (source, b"".join(lines))
        return cls.head_of_answers[1]

    # What the parser calls.

    def on_message_begin(self) -> None:
        self.url = b""
        self.headers = []
        self.expect_100_continue = False
        self.reading_since = time.monotonic()
        self._has_head = False
        self._head_bytes = 0

    def on_headers_complete(self) -> None:
        self._has_head = True
        path = self.url
        is_free = self.cycle is None or self.cycle.response_complete
        parser: Any = self.parser
        is_fast = is_free and path in self.front.fast_paths and parser.get_method() == b"POST"
        if not (is_fast or (self._is_over and is_free)) or parser.should_upgrade():
            self._go_slow()
            return
        request = FastRequest(self, path, dict(self.headers))
        request.keep_alive = parser.should_keep_alive()
        self.cycle = self._fast = request
        if self._is_over:
            message = f"{self.max_connections} connections are open, which is the limit"
            error = SessionError(message, code=ErrorCode.NO_CAPACITY, retry_after_s=1.0)
            request.refuse(error, closes=True)
            return
        length = request.headers.get(b"content-length", b"0")
        if len(length) > 15 or int(length) > self.front.max_body_bytes:
            request.refuse(BodyTooLargeError(self.front.max_body_bytes), closes=True)
        elif self.expect_100_continue:
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def _go_slow(self) -> None:
        if not self.pipeline:
            self.pipeline = deque()
        url, headers, expects = self.url, self.headers, self.expect_100_continue
        super().on_message_begin()
        self.url, self.expect_100_continue = url, expects
        self.headers.extend(headers)
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        cycle = self.cycle
        if type(cycle) is not FastRequest:
            super().on_body(body)
        elif not cycle.response_complete:
            cycle.add(body)

    def on_message_complete(self) -> None:
        self.reading_since = None
        cycle = self.cycle
        if type(cycle) is not FastRequest:
            super().on_message_complete()
        elif not cycle.response_complete:
            cycle.run()


def fast_protocol(front: Front, *, max_connections: int) -> Callable[..., FastProtocol]:
    """The protocol for an app's front.

    Args:
        front: the app's.
        max_connections: connections at most; more get 503.
    """
    members = {"__slots__": (), "front": front, "max_connections": max_connections}
    return type("FastProtocol", (FastProtocol,), members)

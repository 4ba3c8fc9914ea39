"""A kept HTTP/1.1 connection to a worker: one request at a time, the answer as bytes."""

import asyncio
import math
import time
from typing import Protocol, cast

import httptools

from agentrl_controller.transports.base import WorkerError, WorkerReply

FINISH_HEADER = b"x-session-finish"
"""Response header by which a worker says whether an answer is its session's last."""


_MAX_DIGITS = 16
_PRECISE_S = 30.0


class Holder(Protocol):
    """Who keeps a connection, and is told what becomes of it."""

    def answered(self, connection: "Connection") -> None:
        """It has an answer and is free again, if it is open."""
        ...

    def failed(self, connection: "Connection", error: Exception) -> None:
        """Its request has no answer."""
        ...

    def left(self, connection: "Connection") -> None:
        """The worker closed it while it was idle."""
        ...


class Connection(asyncio.Protocol):
    """Carries one request after the other.

    Attributes:
        idle_since: when it last came free, on the monotonic clock.
        is_fresh: whether it has carried nothing yet.
        deadline: when to give up waiting, on the monotonic clock, where that is far.
        keep_alive_s: how long the worker says that it keeps an idle connection; None where it does not say.
    """

    __slots__ = (
        "_body",
        "_finish",
        "_has_length",
        "_holder",
        "_loop",
        "_max_bytes",
        "_name",
        "_parser",
        "_session_id",
        "_size",
        "_timer",
        "_transport",
        "_until_end",
        "_waiter",
        "deadline",
        "idle_since",
        "is_fresh",
        "keep_alive_s",
    )

    def __init__(self, name: str, loop: asyncio.AbstractEventLoop, holder: Holder, *, max_bytes: int) -> None:
        self._name = name
        self._holder = holder
        self._loop = loop
        self._max_bytes = max_bytes
        self._parser = httptools.HttpResponseParser(self)
        self._transport: asyncio.Transport | None = None
        self._waiter: asyncio.Future[WorkerReply] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self.idle_since = 0.0
        self.is_fresh = True
        self.keep_alive_s: float | None = None
        self.deadline = math.inf
        self._reset()

    def _reset(self) -> None:
        self._body: list[bytes] = []
        self._size = 0
        self._finish: bool | None = None
        self._session_id: int | None = None
        self._has_length = False
        self._until_end = False

    @property
    def is_open(self) -> bool:
        """Whether a request can be sent."""
        return self._transport is not None and not self._transport.is_closing()

    def request(self, data: bytes, *, timeout_s: float) -> "asyncio.Future[WorkerReply]":
        """Send a request; the future holds its answer, or why there is none."""
        assert self._transport is not None
        self._reset()
        waiter = self._waiter = self._loop.create_future()
        if timeout_s < _PRECISE_S:
            self._timer = self._loop.call_later(timeout_s, self.expire)
        else:  # Whoever holds the connection looks at long deadlines now and then; timers cost more.
            self.deadline = time.monotonic() + timeout_s
        self._transport.write(data)
        return waiter

    def abort(self) -> None:
        """Close it at once; what was under way has no answer."""
        if self._transport is not None:
            self._transport.abort()

    # What asyncio calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is none by class.

    def data_received(self, data: bytes) -> None:
        if self._waiter is None:
            self.abort()  # Nobody asked.
            return
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._fail(WorkerError(f"{self._name} answered what is no HTTP: {error}", http_status=500))
            self.abort()

    def eof_received(self) -> None:
        if self._until_end and self._waiter is not None:
            self._finish_message()
            self.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if self._waiter is None:
            self._holder.left(self)
        self._fail(
            WorkerError(f"{self._name} broke off: {exc or 'it closed the connection before its answer'}")
        )

    # What the parser calls.

    def on_header(self, name: bytes, value: bytes) -> None:
        length = len(name)
        if length == 16 and name.lower() == FINISH_HEADER:
            self._finish = value == b"1"
        elif length == 10:
            self._on_header_of_ten(name.lower(), value)
        elif length == 14 and name.lower() == b"content-length":
            self._has_length = True
            if len(value) > 15 or int(value) > self._max_bytes:
                self._too_large()
        elif length == 17 and name.lower() == b"transfer-encoding":
            self._has_length = True

    def _on_header_of_ten(self, name: bytes, value: bytes) -> None:
        if name == b"keep-alive":
            self.keep_alive_s = _keep_alive_s(value)
        elif name == b"session_id" and value.isdigit() and len(value) <= _MAX_DIGITS:
            self._session_id = int(value)

    def on_message_begin(self) -> None:
        self._has_length = False
        if self._waiter is None:
            self.abort()  # Nobody asked for more.

    def on_headers_complete(self) -> None:
        self._until_end = not self._has_length

    def on_body(self, body: bytes) -> None:
        self._size += len(body)
        if self._size > self._max_bytes:
            self._too_large()
            return
        self._body.append(body)

    def on_message_complete(self) -> None:
        if self._parser.get_status_code() >= 200:
            self._finish_message()

    def _finish_message(self) -> None:
        keeps = self._parser.should_keep_alive()
        body = self._body[0] if len(self._body) == 1 else b"".join(self._body)
        waiter, self._waiter = self._waiter, None
        self._stop_timer()
        self.is_fresh = False
        self._body = []
        status = self._parser.get_status_code()
        # A server that failed may be about to close the connection, uvicorn without saying so.
        if not keeps or status >= 500:
            self.abort()
        self._holder.answered(self)
        if waiter is not None and not waiter.done():
            waiter.set_result(WorkerReply(status, body, self._finish, self._session_id))

    def _too_large(self) -> None:
        message = f"{self._name} answered more than {self._max_bytes} bytes"
        self._fail(WorkerError(message, http_status=500))
        self.abort()

    def expire(self) -> None:
        """Give up waiting for the answer."""
        self.abort()
        self._fail(TimeoutError(f"{self._name} gave no answer in time"))

    def _fail(self, error: Exception) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is None:
            return
        self._stop_timer()
        self._holder.failed(self, error)
        if not waiter.done():
            waiter.set_exception(error)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.deadline = math.inf


def _keep_alive_s(value: bytes) -> float | None:
    for part in value.split(b","):
        key, _, seconds = part.strip().partition(b"=")
        if key.lower() == b"timeout" and seconds.isdigit() and len(seconds) < 10:
            return float(seconds)
    return None

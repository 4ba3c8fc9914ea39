"""Requests to task workers over HTTP, on kept connections.

Small on purpose: it speaks to workers alone, and a general client costs several times what all else does that
the controller spends on an exchange.
"""

import asyncio
import errno
import ssl
import time
from urllib.parse import urlsplit

from agentrl_controller.transports.base import Call, WorkerError, WorkerReply
from agentrl_controller.transports.connection import Connection
from agentrl_core import ErrorCode, SessionError

_CONNECT_TIMEOUT_S = 5.0
_KEEP_S = 4.0
"""Shorter than the 5 s after which uvicorn, which published workers run on, closes an idle connection."""
_SHORTEST_KEEP_S = 0.02
_RECOVERY_S = 60.0
_OWN_LIMITS = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.EADDRNOTAVAIL)
_MAX_BYTES = 100 * 2**20


class _Origin:
    """A worker's address: the idle connections to it, and how long it is thought to keep them."""

    __slots__ = ("_learned_at", "busy", "heads", "host", "idle", "keep_s", "name", "path", "port", "tls")

    def __init__(self, address: str) -> None:
        parts = urlsplit(address)
        self.name = address
        self.tls = parts.scheme == "https"
        self.host = parts.hostname or ""
        self.port = parts.port or (443 if self.tls else 80)
        self.path = parts.path.rstrip("/")
        self.idle: list[Connection] = []
        self.busy: set[Connection] = set()
        self.keep_s = _KEEP_S
        self._learned_at = 0.0
        self.heads: dict[tuple[str, str], bytes] = {}

    def take(self) -> Connection | None:
        """The connection that was used last, since it is kept longest; None where all are too old."""
        if self.idle:
            now = time.monotonic()
            connection = self.idle.pop()
            if connection.is_open and now - connection.idle_since < self.keep_s:
                return connection
            connection.abort()
            self.expire(now)
        return None

    def expire(self, now: float) -> None:
        """Close what the worker is about to close; forget what was learned long ago."""
        if self.keep_s < _KEEP_S and now - self._learned_at > _RECOVERY_S:
            self.keep_s, self._learned_at = min(_KEEP_S, 2 * self.keep_s), now
        limit = now - self.keep_s
        num_old = 0
        while num_old < len(self.idle) and self.idle[num_old].idle_since < limit:
            num_old += 1
        old, self.idle[:num_old] = self.idle[:num_old], []
        for connection in old:
            connection.abort()

    def answered(self, connection: Connection) -> None:
        """Keep a connection for the next request."""
        self.busy.discard(connection)
        if connection.keep_alive_s is not None:
            self.learn(1.6 * connection.keep_alive_s)
        if connection.is_open:
            connection.idle_since = time.monotonic()
            self.idle.append(connection)

    def failed(self, connection: Connection, error: Exception) -> None:
        """Learn from a connection that broke, if it had been idle before."""
        self.busy.discard(connection)
        if not connection.is_fresh and isinstance(error, WorkerError) and error.http_status is None:
            self.learn(time.monotonic() - connection.idle_since)

    def left(self, connection: Connection) -> None:
        """Learn from a connection that the worker closed while it was idle."""
        if connection in self.idle:
            self.idle.remove(connection)
            self.learn(time.monotonic() - connection.idle_since)

    def learn(self, kept_s: float) -> None:
        """The worker closed a connection after this much idle time, or promised to."""
        if kept_s / 2 < self.keep_s:
            self.keep_s, self._learned_at = max(_SHORTEST_KEEP_S, kept_s / 2), time.monotonic()


class HttpTransport:
    """Asks workers over HTTP; as many at once as sessions need.

    Args:
        token: bearer token that workers are given.
        tls: how to trust the workers that have an https address; the machine's own roots where it is absent.
    """

    def __init__(self, *, token: str | None = None, tls: ssl.SSLContext | None = None) -> None:
        self._authorization = f"authorization: Bearer {token}\r\n" if token else ""
        self._tls = tls
        self._origins: dict[str, _Origin] = {}

    async def send(self, call: Call) -> WorkerReply:
        """Make a call once and return what the worker answered, a refusal too.

        Raises:
            WorkerError: it is unreachable or broke off, so no answer came.
            SessionError: this machine has no descriptors left.
            TimeoutError: no answer in time.
        """
        origin = self._origins.get(call.address)
        if origin is None:
            origin = self._origins[call.address] = _Origin(call.address)
        connection = origin.take() or await self._connect(origin)
        try:
            return await self._request(origin, connection, call)
        except asyncio.CancelledError:
            connection.abort()  # Half read, it is of no more use.
            raise

    def try_send(self, call: Call) -> "asyncio.Future[WorkerReply] | None":
        """Make a call if a connection is free; the future holds what `send` returns or raises."""
        origin = self._origins.get(call.address)
        connection = origin.take() if origin is not None else None
        if origin is None or connection is None:
            return None
        return self._request(origin, connection, call)

    def _request(self, origin: _Origin, connection: Connection, call: Call) -> "asyncio.Future[WorkerReply]":
        origin.busy.add(connection)
        return connection.request(self._data(origin, call), timeout_s=call.timeout_s)

    def expire(self) -> None:
        """Close connections that have been idle for too long, and give up on answers that are overdue."""
        now = time.monotonic()
        for address, origin in list(self._origins.items()):
            origin.expire(now)
            for connection in [each for each in origin.busy if each.deadline < now]:
                connection.expire()
            if origin.idle or origin.busy:
                continue
            if origin.heads:
                origin.heads.clear()  # Gone by the next round unless it is used.
            else:
                del self._origins[address]

    async def close(self) -> None:
        """Let go of every connection."""
        for origin in self._origins.values():
            for connection in (*origin.idle, *origin.busy):
                connection.abort()
            origin.idle.clear()

    def _data(self, origin: _Origin, call: Call) -> bytes:
        head = origin.heads.get((call.method, call.route)) or self._head(origin, call)
        deadline_s = call.timeout_s if call.deadline_s is None else call.deadline_s
        session = "" if call.session_id is None else f"session_id: {call.session_id}\r\n"
        request = "" if call.request_id is None else f"x-request-id: {call.request_id}\r\n"
        more = "".join(f"{name}: {value}\r\n" for name, value in call.headers)
        deadline_ms = max(1, int(deadline_s * 1000))
        length = f"content-length: {len(call.body)}\r\n\r\n"
        rest = f"{session}{request}{more}x-deadline-ms: {deadline_ms}\r\n{length}"
        return b"".join((head, rest.encode("latin-1"), call.body))

    def _head(self, origin: _Origin, call: Call) -> bytes:
        host = f"[{origin.host}]" if ":" in origin.host else origin.host
        head = origin.heads[call.method, call.route] = (
            f"{call.method} {origin.path}/{call.route} HTTP/1.1\r\nhost: {host}:{origin.port}\r\n"
            f"{self._authorization}content-type: application/json\r\n"
        ).encode("latin-1")
        return head

    async def _connect(self, origin: _Origin) -> Connection:
        loop = asyncio.get_running_loop()
        tls = (self._tls or ssl.create_default_context()) if origin.tls else None
        try:
            async with asyncio.timeout(_CONNECT_TIMEOUT_S):
                _, connection = await loop.create_connection(
                    lambda: Connection(origin.name, loop, origin, max_bytes=_MAX_BYTES),
                    *(origin.host, origin.port),
                    ssl=tls,
                )
        except TimeoutError as error:
            message = f"{origin.name} took no connection within {_CONNECT_TIMEOUT_S:g} s"
            raise WorkerError(message, unreachable=True) from error
        except OSError as error:
            if error.errno in _OWN_LIMITS:  # It says nothing about the worker.
                message = f"the controller cannot open more connections: {error.strerror}"
                raise SessionError(message, code=ErrorCode.NO_CAPACITY, retry_after_s=1.0) from error
            raise WorkerError(f"{origin.name} is unreachable: {error}", unreachable=True) from error
        return connection

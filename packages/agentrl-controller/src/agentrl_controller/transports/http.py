"""Requests to task workers over HTTP, on kept connections."""

import asyncio
import errno
from typing import Any

import aiohttp

from agentrl_controller.wire import decode, encode
from agentrl_core import DEADLINE_HEADER, REQUEST_ID_HEADER, AgentRLError, ErrorCode, SessionError

_CONNECT_TIMEOUT_S = 5.0
_ATTEMPTS = 3
_PAUSE_S = 0.1
_KEEP_ALIVE_S = 4.0
"""Shorter than the 5 s after which uvicorn, which published workers run on, closes an idle connection."""
_OWN_LIMITS = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.EADDRNOTAVAIL)
_NOT_CONNECTED = (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError)


class WorkerError(AgentRLError):
    """A worker did not do what it was asked.

    Attributes:
        http_status: what it answered; None where no answer came.
        code: the class of failure that it named, if it did.
        unreachable: whether it takes no connections.
    """

    def __init__(
        self,
        message: str,
        *,
        http_status: int | None = None,
        code: str | None = None,
        unreachable: bool = False,
    ) -> None:
        super().__init__(message)
        self.http_status = http_status
        self.code = code
        self.unreachable = unreachable


class HttpTransport:
    """Asks workers; as many at once as sessions need."""

    def __init__(self, *, token: str | None = None) -> None:
        self._headers = {"Content-Type": "application/json"}
        if token:
            self._headers["Authorization"] = f"Bearer {token}"
        self._http: aiohttp.ClientSession | None = None
        self._replaying: set[str] = set()

    def replays(self, address: str) -> bool:
        """Whether a worker gives a repeated request id the same answer again."""
        return address in self._replaying

    async def post(
        self,
        address: str,
        route: str,
        body: Any,
        *,
        timeout_s: float,
        deadline_s: float | None = None,
        request_id: str | None = None,
    ) -> Any:
        """Post to a worker and return its parsed answer.

        What may have arrived is sent again only to a worker that replays answers by request id.

        Args:
            address: the worker's.
            route: name of the route.
            body: what is sent, as JSON.
            timeout_s: longest wait.
            deadline_s: longest wait that the worker is told; the same where it is absent.
            request_id: identity of the request.

        Raises:
            WorkerError: it is unreachable, refused, broke off, or answered what is no JSON.
            SessionError: the body is no JSON, or this machine has no descriptors left.
            TimeoutError: no answer in time.
        """
        told_s = timeout_s if deadline_s is None else deadline_s
        headers = {DEADLINE_HEADER: str(max(1, int(told_s * 1000)))}
        if request_id is not None:
            headers[REQUEST_ID_HEADER] = request_id
        try:
            data = encode(body)
        except ValueError as error:
            raise SessionError(f"the body is no JSON: {error}", code=ErrorCode.BAD_REQUEST) from error
        return await self._request("POST", address, route, data=data, headers=headers, timeout_s=timeout_s)

    async def get(self, address: str, route: str, *, timeout_s: float) -> Any:
        """Get from a worker and return its parsed answer; raises what `post` does."""
        return await self._request("GET", address, route, timeout_s=timeout_s)

    async def _request(
        self,
        method: str,
        address: str,
        route: str,
        *,
        data: bytes | None = None,
        headers: dict[str, str] | None = None,
        timeout_s: float,
    ) -> Any:
        loop = asyncio.get_running_loop()
        end = loop.time() + timeout_s
        attempt = 0
        while True:
            attempt += 1
            left_s = max(0.001, end - loop.time())  # aiohttp takes 0 for "no limit"
            timeout = aiohttp.ClientTimeout(total=left_s, sock_connect=_CONNECT_TIMEOUT_S)
            try:
                async with self._connect().request(
                    method,
                    f"{address.rstrip('/')}/{route}",
                    data=data,
                    headers=headers,
                    timeout=timeout,
                    allow_redirects=False,
                ) as response:
                    if REQUEST_ID_HEADER in response.headers:
                        self._replaying.add(address)
                    return _parse(await response.read(), address=address, http_status=response.status)
            except aiohttp.ClientError as error:
                is_safe = isinstance(error, _NOT_CONNECTED) or self.replays(address)
                if attempt >= _ATTEMPTS or not is_safe or isinstance(error, aiohttp.ConnectionTimeoutError):
                    raise _translate(error, address) from error
            await asyncio.sleep(_PAUSE_S * attempt)

    async def close(self) -> None:
        """Close the connections."""
        if self._http is not None:
            await self._http.close()
            self._http = None

    def _connect(self) -> aiohttp.ClientSession:
        if self._http is None:
            connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=_KEEP_ALIVE_S)
            self._http = aiohttp.ClientSession(
                connector=connector, headers=self._headers, cookie_jar=aiohttp.DummyCookieJar()
            )
        return self._http


def _parse(text: bytes, *, address: str, http_status: int) -> Any:
    try:
        answer = decode(text)
    except ValueError as error:
        raise WorkerError(
            f"{address} answered HTTP {http_status} with what is no JSON: {error}",
            http_status=http_status if http_status >= 300 else 500,
        ) from error
    if http_status >= 300:
        fields = answer if isinstance(answer, dict) else {}
        message = fields.get("detail") or fields.get("message") or answer
        raise WorkerError(
            f"{address} refused: {message} (HTTP {http_status})",
            http_status=http_status,
            code=fields.get("code"),
        )
    return answer


def _translate(error: aiohttp.ClientError, address: str) -> AgentRLError:
    if isinstance(error, aiohttp.ClientConnectorError) and error.os_error.errno in _OWN_LIMITS:
        # It says nothing about the worker.
        message = f"the controller cannot open more connections: {error.os_error.strerror}"
        return SessionError(message, code=ErrorCode.NO_CAPACITY, retry_after_s=1.0)
    if isinstance(error, _NOT_CONNECTED):
        return WorkerError(f"{address} is unreachable: {error}", unreachable=True)
    return WorkerError(f"{address} broke off: {error or type(error).__name__}")

"""Requests to task workers over HTTP, on kept connections."""

from typing import Any

import aiohttp

from agentrl_core import DEADLINE_HEADER, REQUEST_ID_HEADER, AgentRLError

_CONNECT_TIMEOUT_S = 5.0


class WorkerError(AgentRLError):
    """A worker did not do what it was asked.

    Attributes:
        http_status: what it answered; None where no answer came.
        unreachable: whether it could not even be asked.
    """

    def __init__(self, message: str, *, http_status: int | None = None, unreachable: bool = False) -> None:
        super().__init__(message)
        self.http_status = http_status
        self.unreachable = unreachable


class HttpTransport:
    """Posts to workers; as many at once as sessions ask for."""

    def __init__(self, *, token: str | None = None) -> None:
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._http: aiohttp.ClientSession | None = None

    async def post(
        self, address: str, route: str, body: Any, *, timeout_s: float, request_id: str | None = None
    ) -> Any:
        """Post to a worker and return its parsed answer.

        Raises:
            WorkerError: it is unreachable, refused, or answered what is no JSON.
            TimeoutError: no answer within the deadline.
        """
        headers = {DEADLINE_HEADER: str(max(1, int(timeout_s * 1000)))}
        if request_id is not None:
            headers[REQUEST_ID_HEADER] = request_id
        timeout = aiohttp.ClientTimeout(total=max(timeout_s, 0.001), sock_connect=_CONNECT_TIMEOUT_S)
        try:
            async with self._connect().post(
                f"{address.rstrip('/')}/{route}", json=body, headers=headers, timeout=timeout
            ) as response:
                answer = await response.json(content_type=None)
                if response.status >= 300:
                    detail = answer.get("detail", answer) if isinstance(answer, dict) else answer
                    raise WorkerError(str(detail), http_status=response.status)
                return answer
        except (aiohttp.ConnectionTimeoutError, aiohttp.ClientConnectorError) as error:
            raise WorkerError(f"{address} is unreachable: {error}", unreachable=True) from error
        except aiohttp.ClientError as error:
            raise WorkerError(f"{address} broke off: {error}", unreachable=True) from error
        except ValueError as error:
            raise WorkerError(f"{address} answered what is no JSON: {error}", http_status=500) from error

    async def close(self) -> None:
        """Close the connections."""
        if self._http is not None:
            await self._http.close()
            self._http = None

    def _connect(self) -> aiohttp.ClientSession:
        if self._http is None:
            connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=30.0)
            self._http = aiohttp.ClientSession(connector=connector, headers=self._headers)
        return self._http

"""Requests to one server: JSON in, JSON out, each with a name and a deadline."""

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from typing import Any

import aiohttp

from agentrl_workers.engines.base import EngineError
from agentrl_workers.engines.sglang.wire import error_text

_KEEP_ALIVE_S = 2.0
"""The server closes an idle connection after 5 s; one that is about to be closed must not be used."""
_CONNECT_TIMEOUT_S = 10.0
_LINE_BYTES = 2**26
"""Longest line of a stream; a server that repeats all tokens in each piece writes long ones."""


class RefusedError(EngineError):
    """The server is there and said no."""


class Client:
    """One pool of connections to one server.

    Args:
        url: of the server.
        api_key: sent as a bearer token.
        obituary: asked for the reason when the connection breaks.
    """

    def __init__(self, url: str, api_key: str | None, obituary: Callable[[], Awaitable[str]]) -> None:
        self.url = url.rstrip("/")
        self._headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._obituary = obituary
        self._session: aiohttp.ClientSession | None = None

    async def ask(
        self, path: str, body: Mapping[str, Any] | None, *, stage: str, timeout_s: float | None
    ) -> Any:
        """POST a body, or GET where there is none; returns the JSON of the answer, or its text.

        Raises:
            RefusedError: the answer is an error.
            EngineError: there was none in time, or the server is gone.
        """
        try:
            async with asyncio.timeout(timeout_s), self._request(path, body) as response:
                return _content(await response.read(), response.status, stage)
        except TimeoutError as error:
            raise EngineError(
                f"{stage}: no answer of {self.url}{path} within {timeout_s or _CONNECT_TIMEOUT_S:g} s"
            ) from error
        except (aiohttp.ClientError, ConnectionError) as error:
            raise await self._gone(stage, error) from error

    async def stream(self, path: str, body: Mapping[str, Any], *, stage: str) -> AsyncGenerator[Any, None]:
        """POST a body and read the events of the answer.

        Raises:
            RefusedError: the answer is an error.
            EngineError: the server is gone.
        """
        try:
            async with self._request(path, body) as response:
                if response.status != 200:
                    _content(await response.read(), response.status, stage)
                async for line in response.content:
                    data = line.strip().removeprefix(b"data:").strip()
                    if data == b"[DONE]":
                        return
                    if data:
                        yield json.loads(data)
        except (aiohttp.ClientError, ConnectionError, TimeoutError) as error:
            raise await self._gone(stage, error) from error

    async def close(self) -> None:
        """Close the connections; whoever waits for an answer gets an error."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    def _request(self, path: str, body: Mapping[str, Any] | None) -> Any:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=_KEEP_ALIVE_S),
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_TIMEOUT_S),
                headers=self._headers,
                read_bufsize=_LINE_BYTES,
            )
        method = "GET" if body is None else "POST"
        return self._session.request(method, f"{self.url}{path}", json=body)

    async def _gone(self, stage: str, error: Exception) -> EngineError:
        reason = str(error) or type(error).__name__
        return EngineError(f"{stage}: {self.url} is gone ({reason}); {await self._obituary()}")


def _content(data: bytes, status: int, stage: str) -> Any:
    try:
        content = json.loads(data)
    except ValueError:
        content = data.decode(errors="replace")
    if status != 200:
        raise RefusedError(f"{stage}: the server answered {status}: {error_text(content)}")
    return content

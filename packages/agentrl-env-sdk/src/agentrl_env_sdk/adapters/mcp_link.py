"""A connection to an MCP server, in a task of its own: whoever opens it need not be who closes it."""

import asyncio
import contextlib
import os
import sys
import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any, TextIO

from agentrl_core import ConfigError
from agentrl_env_sdk.adapters.mcp_results import content_of_result
from agentrl_env_sdk.content import Part, plain
from agentrl_env_sdk.extras import extra
from agentrl_env_sdk.session import TaskFailedError

_KEEPER = Path(__file__).with_name("mcp_keeper.py")
_KEPT_BYTES = 4096
"""Of what a server writes to its standard error."""
_KEPT_LINES = 10
_LAST_WORDS_S = 2.0
_CLOSE_S = 8.0
_MOST_PAGES = 1000
_CONNECT_S = 30.0
_STREAM_S = 300.0
"""How long a stream may say nothing; the client's own default."""


@dataclass(frozen=True, kw_only=True)
class McpServer:
    """How an MCP server is reached; make one with `stdio` or `http`."""

    command: tuple[str, ...] = ()
    """Command line of a server that is started; empty for one that is reached over HTTP."""
    env: Mapping[str, str] = field(default_factory=dict)
    """Its variables, beside our `HOME`, `LOGNAME`, `PATH`, `SHELL`, `TERM` and `USER`; it gets no others."""
    cwd: str | None = None
    """Where it starts; our directory where it is absent."""
    url: str = ""
    """Address of a server that is reached over HTTP."""
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Sent with each request, such as `Authorization`."""
    prefix: str = ""
    """Before the names of its tools, so that several servers may have tools of the same name."""
    only: frozenset[str] | None = None
    """Names, as the server tells them, of the tools that are offered; all where it is absent."""
    start_timeout_s: float = 60.0
    """Seconds until it must have said what it is."""
    call_timeout_s: float = 30.0
    """Seconds that a call may take, whatever progress it reports; a late one is cancelled, the agent told."""

    @classmethod
    def stdio(cls, command: str | Path, *arguments: str | Path, **options: Any) -> "McpServer":
        """A server that is started, and spoken to over its standard input and output.

        Args:
            command: its program.
            arguments: of the program.
            options: fields of this class.
        """
        cwd = options.pop("cwd", None)
        words = (str(command), *map(str, arguments))
        return cls(command=words, cwd=None if cwd is None else str(cwd), **options)

    @classmethod
    def http(cls, url: str, **options: Any) -> "McpServer":
        """A server that runs somewhere and speaks streamable HTTP.

        Args:
            url: its address, such as `http://127.0.0.1:8000/mcp`.
            options: fields of this class.
        """
        return cls(url=url, **options)

    def __post_init__(self) -> None:
        """Check what was given.

        Raises:
            ConfigError: there is not exactly one way to reach it, or a time is not positive.
        """
        if bool(self.command) == bool(self.url):
            raise ConfigError("an MCP server has a `command` or a `url`; use `McpServer.stdio` or `.http`")
        if self.url and not self.url.startswith(("http://", "https://")):
            raise ConfigError(f"`url` must start with http:// or https://, got {self.url!r}")
        for name in ("start_timeout_s", "call_timeout_s"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"`{name}` must be > 0, got {getattr(self, name)}")

    @property
    def label(self) -> str:
        """What it is called in errors."""
        return self.url or " ".join(self.command)


class Link:
    """A connection to a server.

    Args:
        server: how it is reached.

    Attributes:
        server: the same.
        revision: grows when the server says that its tools have changed.
    """

    def __init__(self, server: McpServer) -> None:
        self.server = server
        self.revision = 0
        self._client: Any = None
        self._living: asyncio.Task[None] | None = None
        self._closing = asyncio.Event()
        self._is_lost = False
        self._words = _LastWords()
        self._listed: tuple[int, list[Any]] | None = None

    async def open(self) -> None:
        """Connect.

        Raises:
            ConfigError: the package `mcp` is missing or too old.
            TaskFailedError: the server does not start or does not answer.
        """
        _require()
        ready = asyncio.get_running_loop().create_future()
        self._living = asyncio.create_task(self._live(ready))
        try:
            async with asyncio.timeout(self.server.start_timeout_s):
                self._client = await ready
        except TimeoutError as error:
            await self.close()
            late = TimeoutError(f"no answer within `start_timeout_s` = {self.server.start_timeout_s:g} s")
            raise await self._failure("does not start", late) from error
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """Disconnect; a server that we have started ends with all that it has started."""
        living = self._living
        if living is None:
            return
        if self._client is None:
            living.cancel()
        self._closing.set()
        await asyncio.wait([living], timeout=_CLOSE_S)
        living.cancel()
        await asyncio.wait([living])

    @property
    def has_ended(self) -> bool:
        """Whether it cannot be used any more."""
        return self._is_lost or self._living is None or self._living.done() or self._words.have_ended

    async def tools(self) -> list[Any]:
        """The server's tools, all pages of them, without those that are not wanted.

        Raises:
            TaskFailedError: the connection is lost, or the server's list is none.
        """
        revision = self.revision
        if self._listed is None or self._listed[0] != revision:
            try:
                self._listed = revision, await self._list()
            except Exception as error:
                raise await self._failure("lists no tools", error) from error
        return self._listed[1]

    async def call(self, name: str, arguments: dict[str, Any]) -> str | list[Part]:
        """Call a tool; what it answers, or that it failed or took too long, for the agent to read.

        Raises:
            TaskFailedError: the connection is lost, or the answer is not what the server's own schema says.
        """
        limit = self.server.call_timeout_s
        given = plain(arguments)  # Half a character, which a model may write, would end the connection.
        began = time.monotonic()
        try:
            result = await self._client.call_tool(name, given, read_timeout_seconds=limit)
            return content_of_result(result)
        except Exception as error:
            told = _told(error, took_s=time.monotonic() - began, limit_s=limit)
            if told is None:
                raise await self._failure(f"fails at `{name}`", error) from error
            return told

    async def _list(self) -> list[Any]:
        found: dict[str, Any] = {}
        cursor: str | None = None
        for _ in range(_MOST_PAGES):
            page = await self._client.list_tools(cursor=cursor)
            found |= {tool.name: tool for tool in page.tools}
            if page.next_cursor is None:
                return self._wanted(found)
            cursor = page.next_cursor
        raise RuntimeError(f"its list of tools goes on after {_MOST_PAGES} pages")

    def _wanted(self, found: Mapping[str, Any]) -> list[Any]:
        only = self.server.only
        if only is None:
            return list(found.values())
        if lacking := sorted(only - set(found)):
            raise ConfigError(f"`only` names {lacking}; it has {sorted(found)}")
        return [tool for name, tool in found.items() if name in only]

    async def _live(self, ready: "asyncio.Future[Any]") -> None:
        try:
            async with AsyncExitStack() as stack:
                client = await self._connected(stack)
                if not ready.done():
                    ready.set_result(client)
                await self._closing.wait()
        except Exception as error:
            # After its end there is nobody to be told; before, whoever waits for it.
            if not ready.done():
                ready.set_exception(await self._failure("does not start", error))
                ready.exception()
        finally:
            self._words.close()
            if not ready.done():
                ready.cancel()

    async def _connected(self, stack: AsyncExitStack) -> Any:
        from mcp import Client

        transport = self._started() if self.server.command else self._reached()
        client = Client(
            transport,
            read_timeout_seconds=self.server.start_timeout_s,
            message_handler=self._hear,
            cache=None,
        )
        await stack.enter_async_context(client)
        offered = client.server_capabilities.tools
        if offered is not None and offered.list_changed:
            listening = asyncio.create_task(self._listen(client))
            stack.callback(listening.cancel)
        return client

    @asynccontextmanager
    async def _started(self) -> AsyncGenerator[Any, None]:
        from mcp import StdioServerParameters, stdio_client

        words = [*_keeper(), *self.server.command]
        parameters = StdioServerParameters(
            command=words[0], args=words[1:], env=dict(self.server.env), cwd=self.server.cwd
        )
        sink = await self._words.open()
        try:
            async with stdio_client(parameters, errlog=sink) as streams:
                sink.close()  # So that the server's end is the stream's.
                yield streams
        finally:
            sink.close()

    @asynccontextmanager
    async def _reached(self) -> AsyncGenerator[Any, None]:
        import httpx2
        from mcp.client.streamable_http import streamable_http_client

        read_s = max(_STREAM_S, self.server.call_timeout_s + _CONNECT_S)
        timeout = httpx2.Timeout(_CONNECT_S, read=read_s)

        async with (
            httpx2.AsyncClient(headers=dict(self.server.headers), timeout=timeout) as http,
            streamable_http_client(self.server.url, http_client=http) as streams,
        ):
            yield streams

    async def _hear(self, message: Any) -> None:
        from mcp.types import ToolListChangedNotification

        if isinstance(message, ToolListChangedNotification):
            self.revision += 1

    async def _listen(self, client: Any) -> None:
        """Hear of changes from servers that tell them on a stream of their own, since 2026."""
        # Older servers lack it, and a stream that is lost is no lost connection.
        with contextlib.suppress(Exception):
            async with client.listen(tools_list_changed=True) as changes:
                async for _ in changes:
                    self.revision += 1

    async def _failure(self, what: str, error: BaseException) -> TaskFailedError:
        """An error that names the server, with what it has said last."""
        reason = f": {_reason(error)}"
        self._is_lost = self._is_lost or _is_lost(error)
        if _is_closed(error):
            what, reason = (what if self._client is None else "has ended"), ""
            await self._words.end()
        said = self._words.text
        told = f"; its last words: {said}" if said else ""
        return TaskFailedError(f"MCP server `{self.server.label}` {what}{reason}{told}")


class _LastWords:
    """The end of what a server writes to its standard error."""

    def __init__(self) -> None:
        self._kept = b""
        self._reading: asyncio.Task[None] | None = None

    async def open(self) -> TextIO:
        """A file to write to; its last copy to be closed ends the stream."""
        reader = asyncio.StreamReader()
        out, into = os.pipe()
        sink = os.fdopen(into, "w")
        try:
            transport, _ = await asyncio.get_running_loop().connect_read_pipe(
                lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(out, "rb")
            )
        except BaseException:
            sink.close()
            raise
        self._reading = asyncio.create_task(self._keep(reader))
        self._reading.add_done_callback(lambda _: transport.close())
        return sink

    @property
    def have_ended(self) -> bool:
        """Whether nobody can write any more."""
        return self._reading is not None and self._reading.done()

    async def end(self) -> None:
        """Wait for the rest of what a server says that has ended."""
        if self._reading is not None:
            await asyncio.wait([self._reading], timeout=_LAST_WORDS_S)

    @property
    def text(self) -> str:
        """What is kept: the last lines."""
        return "\n".join(self._kept.decode(errors="replace").strip().splitlines()[-_KEPT_LINES:])

    def close(self) -> None:
        """Read no more."""
        if self._reading is not None:
            self._reading.cancel()

    async def _keep(self, reader: asyncio.StreamReader) -> None:
        while data := await reader.read(_KEPT_BYTES):
            self._kept = (self._kept + data)[-_KEPT_BYTES:]


def _keeper() -> list[str]:
    if sys.platform == "win32":
        return []
    return [sys.executable, "-I", "-S", str(_KEEPER), str(os.getpid())]


def _told(error: Exception, *, took_s: float, limit_s: float) -> str | None:
    """What the agent reads of a call that failed; None where no answer of the server is to be had."""
    from mcp import MCPError
    from mcp.types import REQUEST_TIMEOUT

    if not isinstance(error, MCPError):
        return None
    if error.code == REQUEST_TIMEOUT and took_s >= limit_s:  # Servers use the code, too, for lost sessions.
        return f"error: no answer within {limit_s:g} s; the call was cancelled"
    return None if _is_lost(error) else f"error: {error.message}"


def _is_lost(error: BaseException) -> bool:
    """Whether an error is of the connection; the transport makes some up, with codes tools hardly use."""
    from mcp import MCPError, types

    broken = {
        *(types.CONNECTION_CLOSED, types.REQUEST_TIMEOUT, types.PARSE_ERROR),
        *(types.INVALID_REQUEST, types.METHOD_NOT_FOUND),
    }
    if not isinstance(error, MCPError):
        return False
    return error.code in broken or error.message == "Server returned an error response"


def _is_closed(error: BaseException) -> bool:
    from mcp import MCPError

    return isinstance(error, MCPError) and error.message == "Connection closed"


def _reason(error: BaseException) -> str:
    """What went wrong, out of the groups that task groups wrap it in."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return f"{type(error).__name__}: {error}"


def _require() -> None:
    with extra("mcp"):
        import mcp
    if not hasattr(mcp, "Client"):
        found = metadata.version("mcp")
        raise ConfigError(f"`mcp` must be >= 2, got {found}; `pip install -U 'agentrl-env-sdk[mcp]'`")

"""MCP servers as providers of tools, for any task, over stdio or streamable HTTP.

    agent -- session -- tools --> McpTools -- Link -- mcp.Client --> server (its own process, or elsewhere)

`McpTask` is a task whose sessions have the tools of servers; other tasks open `McpTools` where they like.
"""

import asyncio
from collections.abc import Sequence
from typing import Any, Self

from agentrl_core import ConfigError
from agentrl_env_sdk.adapters.mcp_link import Link, McpServer
from agentrl_env_sdk.adapters.mcp_names import shown_names
from agentrl_env_sdk.content import Part
from agentrl_env_sdk.session import Session
from agentrl_env_sdk.task import Task
from agentrl_env_sdk.threads import call
from agentrl_env_sdk.tools import BoundTool, described

__all__ = ["McpServer", "McpTask", "McpTools"]


class McpTools:
    """Connections to MCP servers, and their tools for sessions.

    async with McpTools(McpServer.stdio("my-server")) as tools:
        await tools.offer(session)

    Open and close it in the same event loop, in any tasks of it.

    Args:
        servers: how they are reached.
    """

    def __init__(self, *servers: McpServer) -> None:
        self._links = [Link(server) for server in servers]

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def open(self) -> None:
        """Connect to all servers at once.

        Raises:
            ConfigError: the package `mcp` is missing.
            TaskFailedError: a server does not start or does not answer.
        """
        opening = [asyncio.create_task(link.open()) for link in self._links]
        try:
            await asyncio.gather(*opening)
        except BaseException:
            for each in opening:
                each.cancel()
            await asyncio.gather(*opening, return_exceptions=True)
            await self.close()
            raise

    async def close(self) -> None:
        """Disconnect; servers that were started end with all that they have started."""
        await asyncio.gather(*(link.close() for link in self._links))

    @property
    def has_ended(self) -> bool:
        """Whether a connection is lost for good."""
        return any(link.has_ended for link in self._links)

    async def offer(self, session: Session) -> None:
        """Give a session the servers' tools beside those it has.

        Where a server says that its tools have changed, the session gets the new ones with the answer to the
        call after which that is known.

        Raises:
            ConfigError: two tools have the same name, or a schema is none.
            TaskFailedError: a server lists no tools.
        """
        await _Offer(self._links, session).make()


class _Offer:
    """The tools of servers in one session."""

    def __init__(self, links: Sequence[Link], session: Session) -> None:
        self._links = links
        self._session = session
        self._revisions: list[int] = []
        self._names: set[str] = set()

    async def make(self) -> None:
        """Set the session's tools to what the servers offer now."""
        self._revisions = [link.revision for link in self._links]
        listed = [(link, tool) for link in self._links for tool in await link.tools()]
        kept = {name: found for name, found in self._session.tools.items() if name not in self._names}
        names = shown_names((f"{link.server.prefix}{tool.name}" for link, tool in listed), taken=kept)
        made = [
            self._bound(name, link, tool) for name, (link, tool) in zip(names.values(), listed, strict=True)
        ]
        self._names = {found.name for found in made}
        self._session.set_tools([*kept.values(), *made])

    def _bound(self, name: str, link: Link, tool: Any) -> BoundTool:
        async def answer(**arguments: Any) -> str | list[Part]:
            content = await link.call(tool.name, arguments)
            if self._revisions != [each.revision for each in self._links]:
                await self.make()
            return content

        return described(name, tool.description or tool.title or "", tool.input_schema, answer)


class McpTask(Task):
    """A task whose sessions have the tools of MCP servers beside its own.

    `setup` returns the first message, as ever; the tools are there when it is called. With a method `grade`
    the agent also has a tool `submit(answer)`, which ends the episode with the reward that `grade` finds.
    """

    servers: Sequence[McpServer] = ()
    """How they are reached."""
    shared: bool = False
    """Whether all sessions of a worker use the same connections; else each has its own, and its own processes
    of servers that are started."""
    submit_text: str = "Give your final answer."
    """What the agent reads of the tool `submit`."""
    turn_timeout_s: float = 120.0
    """Seconds for all calls of a reply together; the first answer waits for the servers."""

    def grade(self, session: Session, answer: str) -> float:
        """The reward of an answer; sync or async. Without this method there is no tool `submit`."""
        raise NotImplementedError(f"`{type(self).__name__}` grades nothing")

    async def run(self, session: Session) -> None:
        """Play an episode with the servers' tools."""
        if not self.servers:
            raise ConfigError(f"`{type(self).__name__}.servers` is empty; name an `McpServer`")
        if type(self).grade is not McpTask.grade:
            session.set_tools([*session.tools.values(), self._submit(session)])
        if self.shared:
            common: _Common = vars(self).setdefault("_common", _Common(self.servers))
            await (await common.tools()).offer(session)
            await super().run(session)
        else:
            async with McpTools(*self.servers) as tools:
                await tools.offer(session)
                await super().run(session)

    async def close(self) -> None:
        """Disconnect from shared servers."""
        common: _Common | None = vars(self).pop("_common", None)
        if common is not None:
            await common.close()

    def _submit(self, session: Session) -> BoundTool:
        async def submit(answer: str) -> str:
            session.finish(reward=float(await call(self.grade, session, answer)))
            return "submitted"

        answer = {"type": "string"}
        schema = {"type": "object", "properties": {"answer": answer}, "required": ["answer"]}
        return described("submit", self.submit_text, {**schema, "additionalProperties": False}, submit)


class _Common:
    """Connections that all sessions of an event loop share; lost ones are made anew for the next session."""

    def __init__(self, servers: Sequence[McpServer]) -> None:
        self._servers = servers
        self._loop: asyncio.AbstractEventLoop | None = None
        self._opening: asyncio.Task[McpTools] | None = None

    async def tools(self) -> McpTools:
        """The tools, connected."""
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            self._loop, self._opening = loop, None
        if self._opening is None or self._has_failed(self._opening):
            lost, self._opening = self._opening, asyncio.create_task(self._open())
            await self._let_go(lost)
        return await asyncio.shield(self._opening)

    async def close(self) -> None:
        """Disconnect."""
        if self._loop is asyncio.get_running_loop():
            opening, self._opening = self._opening, None
            await self._let_go(opening)

    async def _open(self) -> McpTools:
        tools = McpTools(*self._servers)
        await tools.open()
        return tools

    @staticmethod
    async def _let_go(opening: "asyncio.Task[McpTools] | None") -> None:
        if opening is None:
            return
        if not opening.done():
            opening.cancel()
        await asyncio.wait([opening])
        if not opening.cancelled() and opening.exception() is None:
            await opening.result().close()

    @staticmethod
    def _has_failed(opening: "asyncio.Task[McpTools]") -> bool:
        if not opening.done():
            return False
        return opening.cancelled() or opening.exception() is not None or opening.result().has_ended

"""OpenEnv both ways: a server of theirs as a task, and our tasks as a server that their clients talk to.

agent -- session -- OpenEnvTask -- WebSocket --> an OpenEnv server
an OpenEnv client -- WebSocket --> create_app(task) -- runner -- task
"""

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

import aiohttp

from agentrl_core import ConfigError
from agentrl_env_sdk.adapters.openenv_server import create_app
from agentrl_env_sdk.session import Said, Session, TaskFailedError
from agentrl_env_sdk.task import Task
from agentrl_env_sdk.tools import BoundTool, described

__all__ = ["OpenEnvTask", "create_app", "text_of"]

_EPISODE = "openenv"
_INVALID = "VALIDATION_ERROR"
_LONGEST_MESSAGE = 100 * 2**20
"""Bytes; what OpenEnv's own client allows."""


class OpenEnvTask(Task):
    """An OpenEnv server as a task; every episode has a connection, and so an environment, of its own.

    An action of the environment is a call of one tool whose schema is the server's; where the server offers
    MCP tools, each of them is a tool.

    Args:
        url: the server's address, such as `http://127.0.0.1:8000`.
        name: the task's name.
        splits: samples; a mapping as a sample is handed to the environment's `reset` beside the seed.
        instructions: said before the first observation.
        step_tool: name of the tool that acts, where there are no MCP tools.
        render: an observation as text or messages.
        concurrency: episodes at the same time; a server allows 1 unless it is told otherwise.

    Raises:
        ConfigError: the address is none that HTTP can reach.
    """

    def __init__(
        self,
        url: str,
        *,
        name: str = "openenv",
        splits: Mapping[str, int | Sequence[Any] | Mapping[Any, Any]] | None = None,
        instructions: str = "",
        step_tool: str = "step",
        render: "Callable[[Mapping[str, Any]], str] | None" = None,
        concurrency: int = 1,
    ) -> None:
        if not url.startswith(("http://", "https://")):
            raise ConfigError(f"`url` must start with http:// or https://, got {url!r}")
        self.url = url.rstrip("/")
        self.splits = {"train": 1} if splits is None else splits
        self.concurrency = concurrency
        self._name = name
        self._instructions = instructions
        self._step_tool = step_tool
        self._render = render or text_of

    @property
    def task_name(self) -> str:
        """The name on the wire."""
        return self._name

    async def setup(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, session: Session
    ) -> Said:
        """Connect, reset, and show the first observation."""
        connection = await _Connection.open(self.url)
        session.state[_EPISODE] = connection
        given = session.sample if isinstance(session.sample, Mapping) else {}
        first = await connection.ask("reset", {"seed": session.seed, "episode_id": str(session.id), **given})
        session.set_tools(await self._tools(session, connection))
        text = self._observe(session, first)
        return (
            f"{self._instructions}\n\n{text}" if self._instructions and text else self._instructions or text
        )

    async def teardown(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, session: Session
    ) -> None:
        """Close the connection, which ends the environment."""
        connection: _Connection | None = session.state.get(_EPISODE)
        if connection is not None:
            await connection.close()

    async def _tools(self, session: Session, connection: "_Connection") -> list[BoundTool]:
        schema = await connection.action_schema()
        if "call_tool" in _kinds(schema):
            listed = await connection.ask("step", {"type": "list_tools"})
            found = (listed.get("observation") or {}).get("tools")
            if found:
                return [self._mcp_tool(session, connection, each) for each in found]
        shown = {name: each for name, each in schema.get("properties", {}).items() if name != "metadata"}

        async def step(**action: Any) -> str:
            return self._observe(session, await connection.ask("step", action))

        text = schema.get("description") or "act in the environment"
        return [described(self._step_tool, text, {**schema, "properties": shown}, step)]

    def _mcp_tool(self, session: Session, connection: "_Connection", spec: Mapping[str, Any]) -> BoundTool:
        name = spec["name"]

        async def call(**arguments: Any) -> str:
            action = {"type": "call_tool", "tool_name": name, "arguments": arguments}
            return self._observe(session, await connection.ask("step", action))

        schema = spec.get("input_schema") or spec.get("inputSchema") or {}
        return described(name, spec.get("description") or "", schema, call)

    def _observe(self, session: Session, result: Mapping[str, Any]) -> str:
        """Count a result's reward, end the episode where it is done, and say what the agent sees."""
        if result.get("invalid"):
            return f"error: {result['invalid']}"
        if (reward := result.get("reward")) is not None:
            session.reward(float(reward))
        if result.get("done"):
            session.finish()
        return self._render(result.get("observation") or {})


def text_of(observation: Mapping[str, Any]) -> str:
    """An observation as text: what an MCP tool answered, a field that is the only text, else the JSON."""
    if "tool_name" in observation:
        return _answer_of(observation)
    told = {key: value for key, value in observation.items() if value not in (None, "", {}, [])}
    if len(told) == 1 and isinstance(only := next(iter(told.values())), str):
        return only
    return json.dumps(told, ensure_ascii=False)


def _answer_of(observation: Mapping[str, Any]) -> str:
    error, result = observation.get("error"), observation.get("result")
    if error:
        return f"error: {error.get('message', error) if isinstance(error, Mapping) else error}"
    parts = result.get("content") if isinstance(result, Mapping) else None
    if parts and all(isinstance(part, Mapping) and "text" in part for part in parts):
        return "\n".join(str(part["text"]) for part in parts)
    return result if isinstance(result, str) else json.dumps(result, ensure_ascii=False)


def _kinds(schema: Mapping[str, Any]) -> Sequence[Any]:
    """What an action's `type` may be."""
    kind = schema.get("properties", {}).get("type", {})
    return kind.get("enum") or [kind.get("const")]


class _Connection:
    """A WebSocket to an OpenEnv server: a question, then its answer."""

    def __init__(
        self, url: str, http: aiohttp.ClientSession, socket: aiohttp.ClientWebSocketResponse
    ) -> None:
        self._url = url
        self._http = http
        self._socket = socket

    @classmethod
    async def open(cls, url: str) -> Self:
        """Connect.

        Raises:
            TaskFailedError: the server is not reachable.
        """
        http = aiohttp.ClientSession()
        try:
            return cls(url, http, await http.ws_connect(f"{url}/ws", max_msg_size=_LONGEST_MESSAGE))
        except (aiohttp.ClientError, OSError) as error:
            await http.close()
            raise TaskFailedError(f"no OpenEnv server answers at {url}: {error}") from error
        except BaseException:
            await http.close()
            raise

    async def action_schema(self) -> dict[str, Any]:
        """The JSON schema of the environment's actions."""
        try:
            async with self._http.get(f"{self._url}/schema") as response:
                response.raise_for_status()
                return (await response.json(content_type=None))["action"]
        except (aiohttp.ClientError, ValueError, KeyError, TypeError) as error:
            raise TaskFailedError(f"{self._url}/schema tells no action schema: {error!r}") from error

    async def ask(self, kind: str, data: Mapping[str, Any]) -> dict[str, Any]:
        """Send a message and return its answer's data; an action that the server finds invalid comes back
        with `invalid`.

        Raises:
            TaskFailedError: the environment failed, refused, or the connection was lost.
        """
        try:
            await self._socket.send_json({"type": kind, "data": data})
            answer = await self._socket.receive_json()
        except (aiohttp.ClientError, TypeError, ValueError, ConnectionError) as error:
            raise TaskFailedError(f"{self._url} ended the connection during `{kind}`: {error}") from error
        found = answer.get("data") or {}
        if answer.get("type") != "error":
            return found
        if found.get("code") == _INVALID:
            return {"invalid": _faults(found)}
        raise TaskFailedError(f"{self._url} failed at `{kind}`: {found.get('code')}: {found.get('message')}")

    async def close(self) -> None:
        """Say that the episode is over, and disconnect."""
        try:
            async with asyncio.timeout(2.0):
                await self._socket.send_json({"type": "close"})
                await self._socket.close()
        except (aiohttp.ClientError, ConnectionError, TimeoutError):
            pass  # The server ends the environment of a lost connection itself.
        finally:
            await self._http.close()


def _faults(found: Mapping[str, Any]) -> str:
    faults = found.get("errors") or []
    told = [f"`{'.'.join(map(str, each.get('loc', ())))}`: {each.get('msg', '')}" for each in faults]
    return "; ".join(told) or str(found.get("message", "the action is invalid"))

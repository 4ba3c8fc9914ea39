"""Our tasks as an OpenEnv server: each WebSocket plays episodes, one after the other.

reset {seed, index}  ->  observation {text, messages}
step {type: call_tool, tool_name, arguments}  ->  observation {tool_name, result}
step {type: message, content}  ->  observation {text, messages}
step {type: list_tools}  ->  observation {tools}
"""

import contextlib
import json
import random
import uuid
from collections.abc import AsyncIterator, Mapping
from typing import Any

from fastapi import FastAPI, Request, WebSocket, WebSocketDisconnect

from agentrl_core import ErrorCode, FunctionCall, Message, SampleIndex, SessionError, Tool, ToolCall
from agentrl_env_sdk.session import Exchange
from agentrl_env_sdk.task import Task
from agentrl_env_sdk.worker.runner import Runner, SessionId

_ACTION_SCHEMA: dict[str, Any] = {
    "title": "AgentAction",
    "description": "call a tool, say something, or list the tools",
    "type": "object",
    "properties": {
        "type": {"type": "string", "enum": ["call_tool", "message", "list_tools"], "default": "call_tool"},
        "tool_name": {"type": "string", "description": "the tool to call"},
        "arguments": {"type": "object", "description": "its arguments"},
        "content": {"type": "string", "description": "what to say"},
        "metadata": {"type": "object"},
    },
    "additionalProperties": False,
}
_OBSERVATION_SCHEMA: dict[str, Any] = {
    "title": "TaskObservation",
    "type": "object",
    "properties": {
        "text": {"type": "string", "description": "the text of the new messages"},
        "messages": {"type": "array", "items": {"type": "object"}, "description": "in the OpenAI shape"},
        "metadata": {"type": "object", "description": "status and metrics of the episode"},
    },
}
_STATE_SCHEMA: dict[str, Any] = {
    "title": "TaskState",
    "type": "object",
    "properties": {
        "episode_id": {"type": ["string", "null"]},
        "step_count": {"type": "integer"},
        "task": {"type": "string"},
        "index": {"type": ["integer", "string", "null"]},
    },
}
_NO_METHOD = -32601


def create_app(task: Task, *, concurrency: int | None = None) -> FastAPI:
    """An ASGI application that OpenEnv clients can use; serve it with uvicorn.

    `reset` takes `seed` and `index`; without an index, the seed chooses among the samples of the first split.
    Routes: `/ws`, `/health`, `/metadata`, `/schema`, `/mcp` (`tools/list`).

    Args:
        task: what is played.
        concurrency: episodes at the same time; the task's own where it is absent.

    Raises:
        ConfigError: the task's samples or tools are wrong.
    """
    runner = Runner(task, concurrency=concurrency)

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        await runner.cancel_all()

    app = FastAPI(title=task.task_name, version="1.0.0", lifespan=lifespan)

    @app.get("/health")
    async def health() -> dict[str, str]:
        return {"status": "healthy"}

    @app.get("/metadata")
    async def metadata() -> dict[str, str]:
        about = (type(task).__doc__ or "").strip()
        return {"name": task.task_name, "description": about.partition("\n")[0] or task.task_name}

    @app.get("/schema")
    async def schema() -> dict[str, Any]:
        return {"action": _ACTION_SCHEMA, "observation": _OBSERVATION_SCHEMA, "state": _STATE_SCHEMA}

    @app.post("/mcp")
    async def mcp(request: Request) -> dict[str, Any]:
        tools = [bound.spec for bound in runner.tools.values()]
        return _remote_call(await request.body(), tools)

    @app.websocket("/ws")
    async def play(socket: WebSocket) -> None:
        await socket.accept()
        episode = _Episode(runner)
        try:
            while (answer := await episode.answer(await socket.receive_text())) is not None:
                await socket.send_text(json.dumps(answer))
            await socket.close()
        except WebSocketDisconnect:
            pass
        finally:
            await episode.close()

    return app


class _FaultError(Exception):
    """What is wrong with a message, with OpenEnv's code."""

    def __init__(self, message: str, code: str) -> None:
        super().__init__(message)
        self.code = code


class _Episode:
    """What a connection plays at the moment."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self._session_id: SessionId | None = None
        self._episode_id: str | None = None
        self._index: SampleIndex | None = None
        self._tools: list[Tool] = [bound.spec for bound in runner.tools.values()]
        self._num_steps = 0

    async def answer(self, text: str) -> dict[str, Any] | None:
        """The answer to a message; None to the one that says goodbye."""
        try:
            message = _parsed(text)
            kind, data = message.get("type"), message.get("data") or {}
            if kind == "close":
                return None
            if kind == "state":
                return {"type": "state", "data": self._state()}
            if not isinstance(data, Mapping):
                raise _FaultError("`data` must be an object", "VALIDATION_ERROR")
            if kind == "reset":
                return await self._reset(data)
            if kind == "step":
                return await self._step(data)
            raise _FaultError(
                f"unknown message type: {kind}; use reset, step, state or close", "UNKNOWN_TYPE"
            )
        except _FaultError as fault:
            return {"type": "error", "data": {"message": str(fault), "code": fault.code}}
        except SessionError as error:
            code = "CAPACITY_REACHED" if error.code is ErrorCode.NO_CAPACITY else "EXECUTION_ERROR"
            return {"type": "error", "data": {"message": str(error), "code": code}}

    async def close(self) -> None:
        """End the episode that is being played, if one is."""
        if self._session_id is not None:
            session_id, self._session_id = self._session_id, None
            await self._runner.cancel(session_id)

    def _state(self) -> dict[str, Any]:
        return {
            "episode_id": self._episode_id,
            "step_count": self._num_steps,
            "task": self._runner.task.task_name,
            "index": self._index,
        }

    async def _reset(self, data: Mapping[str, Any]) -> dict[str, Any]:
        await self.close()
        seed = data.get("seed")
        if seed is not None and (not isinstance(seed, int) or isinstance(seed, bool)):
            raise _FaultError(f"`seed` must be an integer, got {seed!r}", "VALIDATION_ERROR")
        index = data.get("index")
        if index is None:
            split = next(indices for indices in self._runner.samples.splits.values() if indices)
            index = random.choice(split) if seed is None else split[seed % len(split)]
        if not isinstance(index, int | str):
            raise _FaultError(f"`index` must be an integer or a string, got {index!r}", "VALIDATION_ERROR")
        self._session_id, exchange = await self._runner.start(index, seed=seed)
        self._episode_id = str(data.get("episode_id") or uuid.uuid4())
        self._index, self._num_steps = index, 0
        return self._observed(exchange, {})

    async def _step(self, data: Mapping[str, Any]) -> dict[str, Any]:
        kind = data.get("type", "call_tool")
        if kind == "list_tools":
            tools = [_listed(tool) for tool in self._tools]
            return _observation({"tools": tools}, reward=None, done=False)
        reply = _reply_of(kind, data)
        if self._session_id is None:
            raise _FaultError("no episode is being played; send a reset first", "EXECUTION_ERROR")
        self._num_steps += 1
        exchange = await self._runner.interact(self._session_id, [reply])
        if kind == "message":
            return self._observed(exchange, {})
        answered = "\n".join(message.text for message in exchange.messages if message.role == "tool")
        return self._observed(exchange, {"tool_name": data["tool_name"], "result": answered, "error": None})

    def _observed(self, exchange: Exchange, more: Mapping[str, Any]) -> dict[str, Any]:
        if exchange.tools is not None:
            self._tools = exchange.tools
        if exchange.finish:
            self._session_id = None
        observation = {
            "text": "\n".join(message.text for message in exchange.messages),
            "messages": [message.to_wire() for message in exchange.messages],
            "metadata": {"status": exchange.status.value, "metrics": exchange.metrics},
            **more,
        }
        return _observation(observation, reward=exchange.reward, done=exchange.finish)


def _observation(observation: Mapping[str, Any], *, reward: float | None, done: bool) -> dict[str, Any]:
    return {"type": "observation", "data": {"observation": observation, "reward": reward, "done": done}}


def _parsed(text: str) -> dict[str, Any]:
    try:
        message = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _FaultError(f"invalid JSON: {error}", "INVALID_JSON") from error
    if not isinstance(message, dict):
        raise _FaultError(f"a message must be an object, got {type(message).__name__}", "VALIDATION_ERROR")
    return message


def _reply_of(kind: Any, data: Mapping[str, Any]) -> Message:
    """What an action says as the agent's message."""
    content = data.get("content")
    if kind == "message" and isinstance(content, str):
        return Message(role="assistant", content=content)
    name, arguments = data.get("tool_name"), data.get("arguments") or {}
    if kind == "call_tool" and isinstance(name, str) and isinstance(arguments, dict):
        call = ToolCall(
            id=f"call_{uuid.uuid4().hex[:8]}", function=FunctionCall(name=name, arguments=arguments)
        )
        return Message(role="assistant", content="", tool_calls=[call])
    rule = (
        "an action is {type: call_tool, tool_name, arguments}, {type: message, content} or {type: list_tools}"
    )
    raise _FaultError(rule, "VALIDATION_ERROR")


def _listed(tool: Tool) -> dict[str, Any]:
    spec = tool.function
    return {"name": spec.name, "description": spec.description or "", "input_schema": spec.parameters}


def _remote_call(body: bytes, tools: list[Tool]) -> dict[str, Any]:
    """The answer to a JSON-RPC request; only an episode can call tools."""
    try:
        request = json.loads(body)
    except (ValueError, RecursionError):
        return {"jsonrpc": "2.0", "id": None, "error": {"code": -32700, "message": "the body is no JSON"}}
    asked = request if isinstance(request, dict) else {}
    if asked.get("method") == "tools/list":
        return {
            "jsonrpc": "2.0",
            "id": asked.get("id"),
            "result": {"tools": [_listed(each) for each in tools]},
        }
    message = f"unknown method {asked.get('method')!r}; tools are called in an episode, over /ws"
    return {"jsonrpc": "2.0", "id": asked.get("id"), "error": {"code": _NO_METHOD, "message": message}}

"""Both sides of the OpenEnv wire, against each other; `tests/interop` has the real package."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest
import uvicorn
from fastapi import FastAPI, WebSocket

from agentrl_core import ConfigError, Message, SampleStatus
from agentrl_core.sockets import listen, url_of
from agentrl_env_sdk import Session, Task
from agentrl_env_sdk.adapters.openenv import OpenEnvTask, create_app, text_of
from agentrl_env_sdk.worker.runner import Runner

pytest.importorskip("websockets", reason="uvicorn needs the extra `openenv` to serve WebSockets")

DEADLINE_S = 10.0


@asynccontextmanager
async def served(app: FastAPI) -> AsyncIterator[str]:
    listener = listen("127.0.0.1", 0)
    server = uvicorn.Server(uvicorn.Config(app, log_level="error"))
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        yield url_of(listener, path="")
    finally:
        server.should_exit = True
        async with asyncio.timeout(DEADLINE_S):
            await serving


@asynccontextmanager
async def connected(app: FastAPI) -> AsyncIterator[Callable[..., Any]]:
    async with served(app) as url, aiohttp.ClientSession() as http, http.ws_connect(f"{url}/ws") as socket:

        async def ask(kind: str, **data: Any) -> dict[str, Any]:
            await socket.send_json({"type": kind, "data": data})
            return await socket.receive_json(timeout=DEADLINE_S)

        yield ask


async def test_an_episode_goes_through_both_sides(counter: Any, call: Callable[..., Message]):
    async with served(create_app(counter)) as url:
        runner = Runner(OpenEnvTask(url))
        session_id, opening = await runner.start(0, seed=4)
        assert [tool.function.name for tool in opening.tools or []] == ["add"]
        assert "count to three, sample 1" in opening.messages[0].text
        first = await runner.interact(session_id, [call("add", number=2)])
        assert (first.messages[0].text, first.reward, first.finish) == ("2", pytest.approx(0.1), False)
        last = await runner.interact(session_id, [call("add", number=1)])
        assert (last.reward, last.finish, last.status) == (pytest.approx(0.6), True, SampleStatus.COMPLETED)
        await runner.wait_until_empty()
    assert len(counter.torn_down) == 1


async def test_a_typed_action_is_one_tool(call: Callable[..., Message]):
    async with served(_typed_environment()) as url:
        task = OpenEnvTask(url, name="echo", splits={"test": [{"level": 3}]}, instructions="Echo.")
        assert task.task_name == "echo"
        runner = Runner(task)
        session_id, opening = await runner.start(0)
        assert opening.messages[0].text == "Echo.\n\nlevel 3"
        (tool,) = opening.tools or []
        assert (tool.function.name, list(tool.function.parameters["properties"])) == ("step", ["text"])
        missing = await runner.interact(session_id, [call("step")])
        assert missing.messages[0].text.startswith("error: argument `text` is missing")
        refused = await runner.interact(session_id, [call("step", text="bad")])
        assert refused.messages[0].text == "error: `text`: not bad"
        done = await runner.interact(session_id, [call("step", text="hello")])
        assert (done.messages[0].text, done.reward, done.finish) == ("hello", 0.25, True)


async def test_the_seed_chooses_the_sample_and_an_index_names_it(counter: Any):
    async with connected(create_app(counter)) as ask:
        seen = [(await ask("reset", seed=seed))["data"]["observation"]["text"] for seed in (0, 1, 2, 3)]
        assert [text[-1] for text in seen] == ["0", "1", "2", "0"]
        named = await ask("reset", index=4, episode_id="mine")
        assert named["data"]["observation"]["text"].endswith("sample b")
        state = await ask("state")
        assert state["data"] == {"episode_id": "mine", "step_count": 0, "task": "counter", "index": 4}


async def test_a_lost_connection_ends_its_episode(counter: Any):
    app = create_app(counter, concurrency=1)
    async with served(app) as url, aiohttp.ClientSession() as http:
        for _ in range(3):  # a slot that stayed taken would refuse the second
            async with http.ws_connect(f"{url}/ws") as socket:
                await socket.send_json({"type": "reset", "data": {}})
                answer = await socket.receive_json(timeout=DEADLINE_S)
                while answer["type"] == "error":  # until the server has seen the last one go
                    await socket.send_json({"type": "reset", "data": {}})
                    answer = await socket.receive_json(timeout=DEADLINE_S)
                assert answer["data"]["done"] is False
    assert len(counter.torn_down) == 3


@pytest.mark.parametrize(
    ("kind", "data", "code"),
    [
        ("step", {"type": "call_tool", "tool_name": "add"}, "EXECUTION_ERROR"),
        ("step", {"type": "jump"}, "VALIDATION_ERROR"),
        ("step", {"type": "call_tool", "tool_name": 3}, "VALIDATION_ERROR"),
        ("reset", {"seed": "one"}, "VALIDATION_ERROR"),
        ("reset", {"index": 99}, "EXECUTION_ERROR"),
        ("dance", {}, "UNKNOWN_TYPE"),
    ],
)
async def test_a_wrong_message_is_answered_and_the_connection_lives(
    counter: Any, kind: str, data: dict[str, Any], code: str
):
    async with connected(create_app(counter)) as ask:
        answer = await ask(kind, **data)
        assert (answer["type"], answer["data"]["code"]) == ("error", code)
        assert (await ask("reset"))["type"] == "observation"


async def test_a_full_server_says_so(counter: Any):
    async with served(create_app(counter, concurrency=1)) as url:
        runner = Runner(OpenEnvTask(url, concurrency=2))
        await runner.start(0)
        _, refused = await runner.start(0)
        assert refused.status is SampleStatus.TASK_ERROR
        assert "CAPACITY_REACHED" in refused.metrics["error"]
        await runner.cancel_all()


async def test_a_server_that_is_gone_is_a_task_error():
    listener = listen("127.0.0.1", 0)
    url = url_of(listener, path="")
    listener.close()
    _, failed = await Runner(OpenEnvTask(url)).start(0)
    assert (failed.status, failed.reward) == (SampleStatus.TASK_ERROR, 0.0)
    assert url in failed.metrics["error"]


async def test_mcp_tools_are_tools_and_a_failed_one_is_told(call: Callable[..., Message]):
    async with served(_mcp_environment()) as url:
        runner = Runner(OpenEnvTask(url))
        session_id, opening = await runner.start(0, seed=7)
        assert [tool.function.name for tool in opening.tools or []] == ["add"]
        assert opening.messages[0].text == "seed 7"
        wrong = await runner.interact(session_id, [call("add", a="x", b=1)])
        assert wrong.messages[0].text.startswith("error: argument `a`")
        answered = await runner.interact(session_id, [call("add", a=2, b=3)])
        assert (answered.messages[0].text, answered.reward) == ("5", 1.0)
        await runner.cancel_all()


def _typed_environment() -> FastAPI:
    app = FastAPI()
    properties = {"metadata": {"type": "object"}, "text": {"type": "string"}}

    @app.get("/schema")
    async def schemas() -> dict[str, Any]:
        return {"action": {"type": "object", "properties": properties, "required": ["text"]}}

    @app.websocket("/ws")
    async def play(socket: WebSocket) -> None:
        await socket.accept()
        while (message := json.loads(await socket.receive_text()))["type"] != "close":
            data = message["data"]
            text = f"level {data['level']}" if message["type"] == "reset" else data["text"]
            answer: dict[str, Any] = {"type": "observation"}
            answer["data"] = {"observation": {"text": text}, "reward": 0.25, "done": text == "hello"}
            if message["type"] == "reset":
                answer["data"]["reward"] = None
            if text == "bad":
                faults = [{"loc": ["text"], "msg": "not bad"}]
                answer = {"type": "error", "data": {"code": "VALIDATION_ERROR", "errors": faults}}
            await socket.send_text(json.dumps(answer))
        await socket.close()

    return app


def _mcp_environment() -> FastAPI:
    app = FastAPI()
    number = {"type": "integer"}
    schema = {"type": "object", "properties": {"a": number, "b": number}, "required": ["a", "b"]}
    tool = {"name": "add", "description": "add", "input_schema": schema}

    @app.get("/schema")
    async def schemas() -> dict[str, Any]:
        return {"action": {"properties": {"type": {"const": "call_tool"}}}}

    @app.websocket("/ws")
    async def play(socket: WebSocket) -> None:
        await socket.accept()
        while (message := json.loads(await socket.receive_text()))["type"] != "close":
            data = message["data"]
            if message["type"] == "reset":
                answer = {"observation": {"text": f"seed {data['seed']}"}, "reward": None, "done": False}
            elif data["type"] == "list_tools":
                answer = {"observation": {"tools": [tool]}, "reward": None, "done": False}
            else:
                total = sum(data["arguments"].values())
                result = {"content": [{"type": "text", "text": str(total)}], "data": total}
                observation = {"tool_name": "add", "result": result, "error": None}
                answer = {"observation": observation, "reward": 1.0, "done": False}
            await socket.send_text(json.dumps({"type": "observation", "data": answer}))
        await socket.close()

    return app


@pytest.mark.parametrize(
    ("observation", "text"),
    [
        ({"echo": "hello", "note": None}, "hello"),
        ({"board": [1, 2], "turn": "x"}, '{"board": [1, 2], "turn": "x"}'),
        ({"tool_name": "t", "result": {"data": 4}}, '{"data": 4}'),
        ({"tool_name": "t", "error": {"error_type": "timeout", "message": "late"}}, "error: late"),
    ],
)
def test_observations_are_told_as_text(observation: dict[str, Any], text: str):
    assert text_of(observation) == text


def test_an_address_must_be_one():
    with pytest.raises(ConfigError, match="http://"):
        OpenEnvTask("localhost:8000")


async def test_what_an_agent_says_reaches_a_task_that_talks():
    class Echo(Task):
        async def run(self, session: Session) -> None:
            reply = await session.action("say something")
            session.finish(reward=1.0 if reply.text == "hello" else 0.0)

    async with connected(create_app(Echo())) as ask:
        assert (await ask("reset"))["data"]["observation"]["text"] == "say something"
        said = await ask("step", type="message", content="hello")
        assert (said["data"]["reward"], said["data"]["done"]) == (1.0, True)
        late = await ask("step", type="message", content="again")
        assert late["data"]["code"] == "EXECUTION_ERROR"

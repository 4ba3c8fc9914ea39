"""AgentGym's wire: servers of our own with the routes and fields that AgentGym documents, since none of its
servers is on PyPI."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import uvicorn
from fastapi import FastAPI, HTTPException, Response
from pydantic import BaseModel

from agentrl_core import ConfigError, Message, SampleStatus
from agentrl_core.sockets import listen, url_of
from agentrl_env_sdk.adapters.agentgym import AgentGymTask, Wire
from agentrl_env_sdk.worker.runner import Runner

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


class Step(BaseModel):
    id: int
    action: str


class Reset(BaseModel):
    id: int
    data_idx: int = 0


def countdown(*, total: bool = False) -> FastAPI:
    """Counts down from the sample's number; as in AgentGym, a failure is an `error` with status 200."""
    app = FastAPI()
    left: dict[int, int] = {}
    size: dict[int, int] = {}
    app.state.left = left

    @app.post("/create")
    def create() -> dict[str, Any]:
        number = len(size)
        size[number] = 0
        return {"id": number, "observation": "made", "done": False, "reward": 0}

    @app.post("/reset")
    def reset(body: Reset) -> dict[str, Any]:
        left[body.id] = size[body.id] = body.data_idx + 1
        return {"id": body.id, "observation": f"{left[body.id]} left", "task_description": "Count down."}

    @app.post("/step")
    def step(body: Step) -> Any:
        if body.action == "break":
            return {"error": "the counter broke"}
        if body.action == "infinite":
            return Response('{"observation": "", "reward": Infinity, "done": false}')
        if body.action == "nothing":
            return {"observation": "", "done": False}
        left[body.id] -= body.action == "down"
        share = 1 / size[body.id]
        done = left[body.id] == 0
        answer = {"observation": f"{left[body.id]} left", "reward": share, "done": done}
        if total:
            answer |= {"score": 100 * (1 - left[body.id] * share), "reward": -5}
        return answer

    return app


async def test_an_episode_with_the_reward_of_each_step(call: Callable[..., Message]):
    async with served(countdown()) as url:
        task = AgentGymTask(url, name="count", splits={"train": 4}, instructions="Say down.")
        runner = Runner(task)
        session_id, opening = await runner.start(1)
        assert task.task_name == "count"
        assert opening.messages[0].text == "Say down.\n\nCount down.\n\n2 left"
        first = await runner.interact(session_id, [call("act", action="down")])
        assert (first.messages[0].text, first.reward, first.finish) == ("1 left", 0.5, False)
        last = await runner.interact(session_id, [call("act", action="down")])
        assert (last.reward, last.status, last.metrics["score"]) == (0.5, SampleStatus.COMPLETED, 1.0)


async def test_a_total_is_paid_out_in_steps(call: Callable[..., Message]):
    async with served(countdown(total=True)) as url:
        runner = Runner(AgentGymTask(url, wire="sciworld", splits={"test": [3]}))
        session_id, _ = await runner.start(0)
        rewards = []
        for action in ("down", "wait", "down", "down", "down"):
            answer = await runner.interact(session_id, [call("act", action=action)])
            rewards.append(answer.reward)
        assert rewards == pytest.approx([0.25, 0.0, 0.25, 0.25, 0.25])
        assert answer.finish


async def test_a_server_with_other_names_and_a_close(call: Callable[..., Message]):
    """The names of WebShop's server: a bare number from `/create`, `env_idx`, `session_id` and `state`."""
    app = FastAPI()
    seen: list[Any] = []

    @app.post("/create")
    def create() -> int:
        return 7

    @app.post("/reset")
    def reset(body: dict[str, Any]) -> list[Any]:
        seen.append(body)
        return ["ignored", None]

    @app.get("/observation")
    def observation(env_idx: int) -> str:
        return f"page of {env_idx}"

    @app.post("/step")
    def step(body: dict[str, Any]) -> dict[str, Any]:
        seen.append(body)
        return {"state": "bought", "reward": 0.75, "done": True, "info": None}

    @app.post("/close")
    def close(body: dict[str, Any]) -> dict[str, Any]:
        seen.append(body)
        return {"closed": True}

    async with served(app) as url:
        runner = Runner(AgentGymTask(url, wire="webshop", splits={"train": 3}))
        session_id, opening = await runner.start(2)
        assert opening.messages[0].text == "page of 7"
        last = await runner.interact(session_id, [call("act", action="click[buy now]")])
        assert (last.messages[0].text, last.reward, last.finish) == ("bought", 0.75, True)
        await runner.wait_until_empty()
    action = {"env_idx": 7, "action": "click[buy now]"}
    assert seen == [{"env_idx": 7, "session_id": 2}, action, {"env_idx": 7}]


@pytest.mark.parametrize(
    ("action", "told"), [("break", "the counter broke"), ("infinite", "inf"), ("nothing", "`reward`")]
)
async def test_a_failure_of_the_server_is_no_result(call: Callable[..., Message], action: str, told: str):
    async with served(countdown()) as url:
        runner = Runner(AgentGymTask(url))
        session_id, _ = await runner.start(0)
        failed = await runner.interact(session_id, [call("act", action=action)])
        assert (failed.status, failed.reward) == (SampleStatus.TASK_ERROR, 0.0)
        assert told in failed.metrics["error"]


async def test_a_refusal_and_an_absence_are_told():
    app = FastAPI()

    @app.post("/create")
    def create() -> None:
        raise HTTPException(503, "no more environments")

    async with served(app) as url:
        _, refused = await Runner(AgentGymTask(url)).start(0)
        assert "HTTP 503" in refused.metrics["error"]
    _, gone = await Runner(AgentGymTask(url)).start(0)
    assert (gone.status, url in gone.metrics["error"]) == (SampleStatus.TASK_ERROR, True)


def test_what_cannot_be_is_a_config_error():
    with pytest.raises(ConfigError, match="http://"):
        AgentGymTask("localhost:1")
    with pytest.raises(ConfigError, match="textcraft, babyai, sciworld, webshop"):
        AgentGymTask("http://localhost:1", wire="chess")
    assert AgentGymTask("http://localhost:1/", wire=Wire(id_key="n")).url == "http://localhost:1"

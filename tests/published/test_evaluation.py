"""The published `agentrl-eval` command plays through our controller, and its results are what tasks say."""

import asyncio
import json
import os
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

pytestmark = pytest.mark.timeout(300)

WRONG = {"harp": "31"}


class Model:
    """An OpenAI-compatible endpoint that looks prices up and says them, the harp's not as it is.

    Attributes:
        url: its base URL.
        tools: names of the tools that it was offered, for each request.
        may_play: it says nothing to what offers tools until this is set.
    """

    def __init__(self) -> None:
        self.url = ""
        self.may_play = asyncio.Event()
        self.may_play.set()
        self.tools: list[list[str]] = []

    async def models(self, request: web.Request) -> web.Response:
        """The one model."""
        model = {"id": "scripted", "object": "model", "created": 0, "owned_by": "tests"}
        return web.json_response({"object": "list", "data": [model]})

    async def complete(self, request: web.Request) -> web.Response:
        """What the model says next."""
        asked = await request.json()
        self.tools.append([tool["function"]["name"] for tool in asked.get("tools") or ()])
        if self.tools[-1]:
            await self.may_play.wait()
        message = {"role": "assistant", **_reply(asked["messages"])}
        choice = {"index": 0, "finish_reason": "stop", "message": message}
        answer = {"id": "c", "object": "chat.completion", "created": 0, "model": "scripted"}
        return web.json_response({**answer, "choices": [choice]})


def _reply(messages: list[dict]) -> dict:
    asked = [re.search(r"price of the (\w+)", str(message["content"])) for message in messages]
    thing = next((match[1] for match in asked if match), None)
    if thing is None:
        return {"content": "Hi."}
    if messages[-1]["role"] == "tool":
        return {"content": WRONG.get(thing, messages[-1]["content"])}
    function = {"name": "price", "arguments": json.dumps({"thing": thing})}
    return {"content": None, "tool_calls": [{"id": "call_1", "type": "function", "function": function}]}


@pytest.fixture
async def model() -> AsyncIterator[Model]:
    model = Model()
    app = web.Application()
    app.add_routes([web.get("/v1/models", model.models), web.post("/v1/chat/completions", model.complete)])
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host, port = runner.addresses[0][:2]
    model.url = f"http://{host}:{port}/v1"
    yield model
    await runner.cleanup()


@pytest.fixture
def evaluate(published, controller, model, tmp_path) -> Any:
    """Run the command: `await evaluate(*words)`; returns the folder of its results."""

    async def run(*words: str) -> Path:
        command = [str(Path(published).parent / "agentrl-eval"), *words, "--controller", controller.url]
        command += ["--base-url", model.url, "--chat-completions", "--output", str(tmp_path / "results")]
        kept = {key: value for key, value in os.environ.items() if not key.lower().endswith("_proxy")}
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            cwd=tmp_path,
            env=kept,
        )
        try:
            said, _ = await asyncio.wait_for(process.communicate(), 90)
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        assert process.returncode == 0, said.decode()
        (folder,) = (tmp_path / "results").iterdir()
        return folder

    return run


def results(folder: Path) -> list[dict]:
    """The rows, with plain indices and metrics."""
    rows = [json.loads(line) for line in (folder / "results.jsonl").read_text().splitlines()]
    for row in rows:
        index = row["index"]
        row["index"] = index["str_value"] if index["int_value"] is None else index["int_value"]
        row["metrics"] = row["metrics"] and json.loads(row["metrics"])
    return rows


def outcomes(rows: list[dict], *names: str) -> dict:
    """How each sample ended, and the values of some columns."""
    return {row["index"]: (row["status"], *(row[name] for name in names)) for row in rows}


async def test_results_are_what_tasks_say(evaluate, model, client, shop, script):
    folder = await evaluate(shop.name, script.name)
    rows = results(folder)
    columns = ("metric_reward", "metric_score", "metric_success_rate", "metrics")
    assert outcomes([row for row in rows if row["task"] == shop.name], *columns) == {
        0: ("completed", 1.0, 1.0, 1.0, {"lookups": 1}),
        1: ("completed", 1.0, 1.0, 1.0, {"lookups": 1}),
        2: ("completed", 0.0, 0.5, 0.0, {"lookups": 1}),
    }
    # The first ends at its start, the second fails there.
    assert outcomes([row for row in rows if row["task"] == script.name], *columns) == {
        0: ("task limit reached", -0.5, 0.1, 0.0, {}),
        1: ("task error", -0.5, 0.1, 0.0, {}),
    }
    assert {tuple(tools) for tools in model.tools} == {(), ("price",)}
    harp = next(row for row in rows if row["task"] == shop.name and row["index"] == 2)
    assert [(said["role"], said["content"]) for said in _trace(folder, harp, "raw_trace")] == [
        ("system", "Look prices up."),
        ("user", "What is the price of the harp?"),
        ("assistant", None),
        ("tool", "30"),
        ("assistant", "31"),
        ("user", "Wrong."),
    ]
    assert _trace(folder, harp, "task_trace") == [{"kind": "judged", "right": False}]
    assert await client.is_idle(shop)
    assert await client.is_idle(script)


def _trace(folder: Path, row: dict, kind: str) -> Any:
    return json.loads((folder / row[kind]).read_text())


async def test_more_sessions_than_slots_and_names_for_indices(evaluate, client, shared):
    worker = await shared("Shop", 2, by_name=True)
    rows = results(await evaluate(worker.name, "--runs", "5"))
    assert sorted((row["index"], row["run"], row["metric_reward"]) for row in rows) == [
        (thing, run, float(thing != "harp")) for thing in ("drum", "flute", "harp") for run in range(5)
    ]
    assert {row["status"] for row in rows} == {"completed"}
    assert await client.is_idle(worker)


async def test_custom_parameters(evaluate, client, shop):
    rows = results(await evaluate(shop.name, "--custom-params", '{"price": 31}'))
    assert outcomes(rows, "metric_reward") == dict.fromkeys(range(3), ("completed", 1.0))
    assert await client.is_idle(shop)


async def test_starts_alone(evaluate, client, shop, eventually):
    rows = results(await evaluate(shop.name, "--start-sample"))
    assert outcomes(rows) == dict.fromkeys(range(3), ("completed",))
    await eventually(lambda: client.is_idle(shop), within_s=5)


@pytest.mark.parametrize("over", ["http"])
async def test_an_evaluation_goes_on_past_a_dead_worker(evaluate, model, client, serve, over, eventually):
    dying = serve(over, "Shop", 1)
    staying = serve(over, "Shop", 1, name=dying.name)
    await client.until_served(dying, staying)
    model.may_play.clear()
    evaluating = asyncio.create_task(evaluate(dying.name))

    async def are_full() -> bool:
        listed = (await client.get("list_sessions")).values()
        return [each["locked"] for each in listed if each["name"] == dying.name] == [False, False]

    await eventually(are_full)
    dying.kill()
    model.may_play.set()
    rows = results(await evaluating)
    assert sorted(row["status"] for row in rows) == ["completed", "completed", "server error"]
    (lost,) = (row for row in rows if row["status"] == "server error")
    assert (lost["metric_reward"], str(lost["session_id"]) in lost["result"]) == (None, True)
    assert await client.is_idle(staying)

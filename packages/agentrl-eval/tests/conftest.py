"""A controller and a model endpoint on loopback, both in this process and both able to misbehave."""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from aiohttp import web

from agentrl_core.client import SessionClient
from agentrl_eval.models.openai import OpenAIModel

TOOLS = [
    {
        "type": "function",
        "function": {"name": "say", "description": "Say a number.", "parameters": {"type": "object"}},
    }
]


class FakeController:
    """Serves the task `count`: the agent must call `say` with the number asked for, twice.

    Samples whose index divides by three score 0 all the same.
    """

    def __init__(self) -> None:
        self.url = ""
        self.splits: dict[str, dict[str, list[int | str]]] = {
            "count": {"test": list(range(12)), "train": [99]}
        }
        self.starts: Counter[tuple[str, Any]] = Counter()
        self.seeds: dict[Any, int] = {}
        self.live: dict[str, tuple[Any, int]] = {}
        self.cancelled: list[str] = []
        self.on_indices: Callable[[], Awaitable[None]] | None = None
        self.on_start: Callable[[Any], Awaitable[web.Response | None]] | None = None
        self.on_interact: Callable[[Any, list[dict[str, Any]]], Awaitable[web.Response | None]] | None = None
        self.on_cancel: Callable[[], Awaitable[None]] | None = None
        self._next = 0

    def app(self) -> web.Application:
        app = web.Application()
        app.router.add_get("/api/get_indices", self._indices)
        app.router.add_get("/api/list_workers", self._workers)
        app.router.add_post("/api/start_sample", self._start)
        app.router.add_post("/api/interact", self._interact)
        app.router.add_post("/api/cancel", self._cancel)
        return app

    async def _indices(self, request: web.Request) -> web.Response:
        if self.on_indices is not None:
            await self.on_indices()
        splits = self.splits.get(request.query["name"])
        if splits is None:
            return refusal(400, "unknown task", code="unknown_task")
        split = request.query.get("split")
        if split is None:
            return web.json_response([index for indices in splits.values() for index in indices])
        if split not in splits:
            return refusal(400, f"no split `{split}`; it has: {', '.join(splits)}", code="unknown_index")
        return web.json_response(splits[split])

    async def _workers(self, request: web.Request) -> web.Response:
        return web.json_response({name: {"indices": [], "workers": {}} for name in self.splits})

    async def _start(self, request: web.Request) -> web.Response:
        body = await request.json()
        index = body["index"]
        self.starts[body["name"], index] += 1
        self.seeds[index] = body["seed"]
        if self.on_start is not None and (answer := await self.on_start(index)) is not None:
            return answer
        self._next += 1
        session = str(self._next)
        self.live[session] = (index, 0)
        opening = {"messages": [{"role": "user", "content": f"say {index}"}], "tools": TOOLS}
        return web.json_response(opening, headers={"session_id": session})

    async def _interact(self, request: web.Request) -> web.Response:
        session = request.headers["session_id"]
        messages = (await request.json())["messages"]
        index, turns = self.live[session]
        if self.on_interact is not None and (answer := await self.on_interact(index, messages)) is not None:
            return answer
        call = messages[0]["tool_calls"][0]
        assert json.loads(call["function"]["arguments"]) == {"number": str(index)}
        answer = {"role": "tool", "tool_call_id": call["id"], "content": f"good, say {index}"}
        if turns == 0:
            self.live[session] = (index, 1)
            return web.json_response(
                {"messages": [answer], "finish": False, "status": "running", "reward": 0.25}
            )
        del self.live[session]
        score = 0.0 if index % 3 == 0 else 1.0
        return web.json_response(
            {
                "messages": [],
                "finish": True,
                "status": "completed",
                "reward": 0.5,
                "metrics": {"score": score},
            }
        )

    async def _cancel(self, request: web.Request) -> web.Response:
        session = request.headers["session_id"]
        if self.on_cancel is not None:
            await self.on_cancel()
        self.cancelled.append(session)
        self.live.pop(session, None)
        return web.json_response(None)


class FakeEndpoint:
    """Answers chat completions: it says what the last message asks for.

    `faults` holds answers for the first requests; `on_request` may answer any.
    """

    def __init__(self) -> None:
        self.url = ""
        self.requests: list[dict[str, Any]] = []
        self.faults: list[web.Response] = []
        self.on_request: Callable[[dict[str, Any]], Awaitable[web.Response | None]] | None = None

    def app(self) -> web.Application:
        app = web.Application()
        app.router.add_post("/v1/chat/completions", self._complete)
        return app

    async def _complete(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.requests.append(body)
        if self.faults:
            return self.faults.pop(0)
        if self.on_request is not None and (answer := await self.on_request(body)) is not None:
            return answer
        number = body["messages"][-1]["content"].rpartition("say ")[2]
        call = {
            "id": f"call_{len(body['messages'])}",
            "type": "function",
            "function": {"name": "say", "arguments": json.dumps({"number": number})},
        }
        return completion({"role": "assistant", "content": None, "tool_calls": [call], "refusal": None})


def completion(message: dict[str, Any], *, finish_reason: str = "stop") -> web.Response:
    """A chat completion in the API's shape."""
    return web.json_response(
        {
            "id": "chatcmpl-1",
            "object": "chat.completion",
            "created": 1,
            "model": "m",
            "choices": [{"index": 0, "message": message, "finish_reason": finish_reason, "logprobs": None}],
            "usage": {"prompt_tokens": 11, "completion_tokens": 7, "total_tokens": 18},
        }
    )


def refusal(
    status: int, message: str, *, headers: dict[str, str] | None = None, **fields: str
) -> web.Response:
    """An error, in the controller's shape and in OpenAI's at once."""
    body = {"message": message, **fields, "error": {"message": message, **fields}}
    return web.json_response(body, status=status, headers=headers)


async def _serving(fake: Any, path: str) -> AsyncIterator[Any]:
    runner = web.AppRunner(fake.app(), shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host, port = runner.addresses[0][:2]
    fake.url = f"http://{host}:{port}{path}"
    yield fake
    await runner.cleanup()


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agentrl_eval.runner._PAUSES_S", (0.01, 0.05))


@pytest.fixture
async def controller() -> AsyncIterator[FakeController]:
    async for fake in _serving(FakeController(), "/api"):
        yield fake


@pytest.fixture
async def endpoint() -> AsyncIterator[FakeEndpoint]:
    async for fake in _serving(FakeEndpoint(), "/v1"):
        yield fake


@pytest.fixture
async def client(controller: FakeController) -> AsyncIterator[SessionClient]:
    async with SessionClient(controller.url, start_timeout_s=10, interact_timeout_s=10) as client:
        yield client


@pytest.fixture
async def model(endpoint: FakeEndpoint) -> AsyncIterator[OpenAIModel]:
    model = OpenAIModel(
        "m",
        base_url=endpoint.url,
        api_key="k",
        temperature=0.5,
        max_tokens=64,
        timeout_s=2,
        first_pause_s=0.01,
    )
    yield model
    await model.close()


@pytest.fixture(name="completion")
def _completion() -> Callable[..., web.Response]:
    return completion


@pytest.fixture(name="refusal")
def _refusal() -> Callable[..., web.Response]:
    return refusal


@pytest.fixture
def forever() -> asyncio.Event:
    """Never set: what waits for it hangs until its caller gives up."""
    return asyncio.Event()

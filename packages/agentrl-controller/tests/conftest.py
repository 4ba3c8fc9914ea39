import asyncio
import contextlib
import itertools
import json
import os
import resource
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from aiohttp import web

from agentrl_controller import Controller, ControllerConfig
from agentrl_core import Heartbeat, StartRequest


class FakeWorker:
    """A task worker in this process that does as it is told.

    Attributes:
        live: sessions that hold a slot.
        seen: route, body with its session and headers of each request.
        bodies: the bodies as they came.
        gate: interactions wait for it.
        start_gate: starts wait for it.
        fail: route to (HTTP status, detail) that it answers.
        notice: called with each cancelled session; None keeps quiet.
        finish_at: the turn that ends a session.
        replays: whether it is native: takes the controller's bodies, answers repeated request ids as before.
        broken: route to how many of its next requests are read and then cut off.
        replies: route to the raw body that it answers.
        late: route to how many of its next requests pass their deadline.
        hidden: live sessions that it does not list.
        list_gate: lists of sessions wait for it.
        num_opened: how many sessions it has begun.
        num_lists: how often it was asked for one.
        dies_at: a request of this route is its last.
        closes: whether it keeps no connection open.
    """

    def __init__(self, *, capacity: int = 2, name: str = "task", replays: bool = False) -> None:
        self.capacity = capacity
        self.name = name
        self.live: set[int] = set()
        self.seen: list[tuple[str, Any, Any]] = []
        self.bodies: list[str] = []
        self.gate = asyncio.Event()
        self.start_gate = asyncio.Event()
        self._open = asyncio.Event()
        self._open.set()
        self.gate.set()
        self.start_gate.set()
        self.fail: dict[str, tuple[int, str]] = {}
        self.notice: Any = None
        self.turns = itertools.count(1)
        self.finish_at = 10**9
        self.replays = replays
        self.broken: dict[str, int] = {}
        self.replies: dict[str, str] = {}
        self.late: dict[str, int] = {}
        self.hidden: set[int] = set()
        self.dies_at = ""
        self.list_gate = asyncio.Event()
        self.list_gate.set()
        self.num_lists = 0
        self.num_opened = 0
        self.closes = False
        self._known: dict[str, web.Response] = {}
        self._runner: web.AppRunner | None = None
        self._site: web.TCPSite | None = None
        self.address = ""
        self.port = 0

    async def open(self) -> None:
        app = web.Application()
        for route in ("start_sample", "interact", "cancel_with_notice"):
            app.router.add_post(f"/api/{route}", self._wrap(route))
        app.router.add_get("/api/get_sessions", self.get_sessions)
        self._runner = web.AppRunner(app, shutdown_timeout=0.01)
        await self._runner.setup()
        self._site = web.TCPSite(self._runner, "127.0.0.1", self.port)
        await self._site.start()
        self.port = self._runner.addresses[0][1]
        self.address = f"http://127.0.0.1:{self.port}/api"

    async def close(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    def _wrap(self, route: str) -> Any:
        async def handle(request: web.Request) -> web.StreamResponse:
            body = await request.json()
            self.bodies.append(await request.text())
            if "session_id" in request.headers:
                body["session_id"] = int(request.headers["session_id"])
            self.seen.append((route, body, request.headers))
            if route == self.dies_at:
                await self.die(request)
            request_id = request.headers.get("X-Request-Id")
            response = self._known.get(f"{route} {request_id}") if self.replays else None
            if response is None:
                response = await self._handle(route, body)
                if self.replays and request_id is not None and response.status == 200:
                    self._known[f"{route} {request_id}"] = response
            if self.broken.get(route, 0) > 0:
                self.broken[route] -= 1
                assert request.transport is not None
                request.transport.abort()
            headers = {"X-Request-Id": request_id} if self.replays and request_id else {}
            answer = web.Response(
                body=response.body, status=response.status, headers=headers, content_type="application/json"
            )
            if self.closes:
                answer.force_close()
            return answer

        return handle

    async def _handle(self, route: str, body: Any) -> web.Response:
        await {"start_sample": self.start_gate, "interact": self.gate}.get(route, self._open).wait()
        if self.late.get(route, 0) > 0:
            self.late[route] -= 1
            answer = {"detail": "the deadline passed", "code": "deadline_exceeded"}
            return web.json_response(answer, status=504)
        if route in self.fail:
            status, detail = self.fail[route]
            return web.json_response({"detail": detail}, status=status)
        if route in self.replies:
            return web.Response(text=self.replies[route])
        return await getattr(self, route)(body)

    async def get_sessions(self, request: web.Request) -> web.Response:
        self.num_lists += 1
        await self.list_gate.wait()
        if "get_sessions" in self.replies:
            return web.Response(text=self.replies["get_sessions"])
        return web.json_response({str(session_id): 0 for session_id in self.live - self.hidden})

    async def die(self, request: web.Request) -> None:
        """Stop listening, then cut the connection, as a killed process does."""
        assert self._site is not None
        await self._site.stop()
        for connection in self._connections():
            connection.transport.abort()

    def _connections(self) -> list[Any]:
        assert self._runner is not None
        assert self._runner.server is not None
        return [each for each in self._runner.server.connections if each.transport is not None]

    async def start_sample(self, body: Any) -> web.Response:
        if len(self.live) >= self.capacity:
            return web.json_response({"detail": "full"}, status=406)
        self.live.add(body["session_id"])
        self.num_opened += 1
        return web.json_response(
            {"messages": [{"role": "user", "content": "go", "odd": [1]}], "tools": [], "status": "running"}
        )

    async def interact(self, body: Any) -> web.Response:
        if body["session_id"] not in self.live:
            return web.json_response({"detail": "unknown session"}, status=400)
        turn = next(self.turns)
        finish = turn >= self.finish_at
        if finish:
            self.live.discard(body["session_id"])
        reply = {
            "messages": [{"role": "tool", "content": f"answer {turn}", "reasoning": {"kept": True}}],
            "status": "completed" if finish else "running",
            "finish": finish,
            "reward": 0.5,
            "metric": {"score": 1.0},
        }
        return web.json_response(
            reply if self.replays else {"session_id": body["session_id"], "env_out": reply}
        )

    async def cancel_with_notice(self, body: Any) -> web.Response:
        if body["session_id"] not in self.live:
            return web.json_response({"detail": "unknown session"}, status=400)
        self.live.discard(body["session_id"])
        if self.notice is not None:
            self.notice(body["session_id"])
        return web.json_response(None)

    def count(self, route: str) -> int:
        """How many requests of a route came."""
        return sum(seen == route for seen, *_ in self.seen)

    def beat(self, controller: Controller, **changes: Any) -> Any:
        """Send a heartbeat."""
        fields = {
            "name": self.name,
            "address": self.address,
            "concurrency": self.capacity,
            "indices": [0, 1, 2, 3],
            "splits": {"train": [0, 1], "test": [2, 3]},
            "native": self.replays,
        }
        return controller.heartbeat(Heartbeat.model_validate(fields | changes))


class Agent:
    """Plays sessions of the task `task` on a controller in this process."""

    SAID = [{"role": "assistant", "content": "hi", "odd": {"kept": 1}}]

    def __init__(self, controller: Controller) -> None:
        self._controller = controller

    async def start(
        self, *, request_id: Any = None, deadline_s: Any = None, trace: Any = None, **fields: Any
    ) -> Any:
        """Returns the session's id and the parsed first answer."""
        request = StartRequest.model_validate({"name": "task", "index": 0} | fields)
        session_id, body = await self._controller.start(
            request, request_id=request_id, deadline_s=deadline_s, trace=trace
        )
        return session_id, json.loads(body)

    async def interact(self, session_id: int, **options: Any) -> Any:
        """Returns the parsed answer."""
        body = json.dumps({"messages": self.SAID}).encode()
        return json.loads(await self._controller.interact(session_id, body, **options))

    @property
    def used(self) -> int:
        """Slots that are taken."""
        return sum(len(worker.sessions) for worker in self._controller.registry.workers())


@pytest.fixture
def agent_of() -> type[Agent]:
    return Agent


@pytest.fixture
def agent(controller: Controller) -> Agent:
    return Agent(controller)


@pytest.fixture
def no_descriptors() -> Any:
    """A context in which this process can open nothing more."""

    @contextlib.contextmanager
    def context() -> Iterator[None]:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        lowest_free = os.open(os.devnull, os.O_RDONLY)
        os.close(lowest_free)
        resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_free, hard))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

    return context


@pytest.fixture
def until() -> Any:
    """Waits for a condition that no event tells of."""

    async def wait(condition: Any) -> None:
        async with asyncio.timeout(5):
            while not condition():
                await asyncio.sleep(0.005)

    return wait


@pytest.fixture
async def controller() -> AsyncIterator[Controller]:
    async with Controller(ControllerConfig(start_timeout_s=5.0, interact_timeout_s=5.0)) as running:
        yield running


@pytest.fixture
async def make_worker(controller: Controller) -> AsyncIterator[Any]:
    """Start workers that are registered with the controller."""
    async with contextlib.AsyncExitStack() as stack:

        async def make(**options: Any) -> FakeWorker:
            worker = FakeWorker(**options)
            await worker.open()
            stack.push_async_callback(worker.close)
            worker.notice = controller.cancel_notice
            worker.beat(controller)
            return worker

        yield make


@pytest.fixture
async def fake_worker() -> AsyncIterator[FakeWorker]:
    """A worker that no controller knows yet."""
    worker = FakeWorker()
    await worker.open()
    yield worker
    await worker.close()

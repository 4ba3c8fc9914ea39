import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import web

from agentrl_controller import Controller, ControllerConfig
from agentrl_core import Heartbeat


class FakeWorker:
    """A task worker in this process that does as it is told.

    Attributes:
        live: sessions that hold a slot.
        seen: route, body and headers of each request.
        gate: interactions wait for it.
        start_gate: starts wait for it.
        fail: route to (HTTP status, detail) that it answers.
        notice: called with each cancelled session; None keeps quiet.
        finish_at: the turn that ends a session.
        replays: whether it echoes request ids and answers repeated ones as before.
        broken: route to how many of its next requests are read and then cut off.
        replies: route to the raw body that it answers.
    """

    def __init__(self, *, capacity: int = 2, name: str = "task") -> None:
        self.capacity = capacity
        self.name = name
        self.live: set[int] = set()
        self.seen: list[tuple[str, Any, Any]] = []
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
        self.replays = False
        self.broken: dict[str, int] = {}
        self.replies: dict[str, str] = {}
        self._known: dict[str, web.Response] = {}
        self._runner: web.AppRunner | None = None
        self.address = ""
        self.port = 0

    async def open(self) -> None:
        app = web.Application()
        for route in ("start_sample", "interact", "cancel_with_notice"):
            app.router.add_post(f"/api/{route}", self._wrap(route))
        app.router.add_get("/api/get_sessions", self.get_sessions)
        self._runner = web.AppRunner(app, shutdown_timeout=0.01)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self.port)
        await site.start()
        self.port = self._runner.addresses[0][1]
        self.address = f"http://127.0.0.1:{self.port}/api"

    async def close(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    def _wrap(self, route: str) -> Any:
        async def handle(request: web.Request) -> web.StreamResponse:
            body = await request.json()
            self.seen.append((route, body, request.headers))
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
            return web.Response(
                body=response.body, status=response.status, headers=headers, content_type="application/json"
            )

        return handle

    async def _handle(self, route: str, body: Any) -> web.Response:
        await {"start_sample": self.start_gate, "interact": self.gate}.get(route, self._open).wait()
        if route in self.fail:
            status, detail = self.fail[route]
            return web.json_response({"detail": detail}, status=status)
        if route in self.replies:
            return web.Response(text=self.replies[route])
        return await getattr(self, route)(body)

    async def get_sessions(self, request: web.Request) -> web.Response:
        return web.json_response({str(session_id): 0 for session_id in self.live})

    async def start_sample(self, body: Any) -> web.Response:
        if len(self.live) >= self.capacity:
            return web.json_response({"detail": "full"}, status=406)
        self.live.add(body["session_id"])
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
        return web.json_response({"session_id": body["session_id"], "env_out": reply})

    async def cancel_with_notice(self, body: Any) -> web.Response:
        if body["session_id"] not in self.live:
            return web.json_response({"detail": "unknown session"}, status=400)
        self.live.discard(body["session_id"])
        if self.notice is not None:
            self.notice(body["session_id"])
        return web.json_response(None)

    def beat(self, controller: Controller, **changes: Any) -> Any:
        """Send a heartbeat."""
        fields = {
            "name": self.name,
            "address": self.address,
            "concurrency": self.capacity,
            "indices": [0, 1, 2, 3],
            "splits": {"train": [0, 1], "test": [2, 3]},
        }
        return controller.heartbeat(Heartbeat.model_validate(fields | changes))


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

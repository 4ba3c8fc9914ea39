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
        notices: whether it tells the controller of cancelled sessions.
    """

    def __init__(self, *, capacity: int = 2, name: str = "task") -> None:
        self.capacity = capacity
        self.name = name
        self.live: set[int] = set()
        self.seen: list[tuple[str, Any, Any]] = []
        self.gate = asyncio.Event()
        self.start_gate = asyncio.Event()
        self.gate.set()
        self.start_gate.set()
        self.fail: dict[str, tuple[int, str]] = {}
        self.notice: Any = None
        self.turns = itertools.count(1)
        self.finish_at = 10**9
        self._runner: web.AppRunner | None = None
        self.address = ""

    async def open(self) -> None:
        app = web.Application()
        for route in ("start_sample", "interact", "cancel_with_notice"):
            app.router.add_post(f"/api/{route}", getattr(self, route))
        self._runner = web.AppRunner(app, shutdown_timeout=0.01)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.address = f"http://127.0.0.1:{self._runner.addresses[0][1]}/api"

    async def close(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    async def start_sample(self, request: web.Request) -> web.Response:
        body = await self._take("start_sample", request)
        await self.start_gate.wait()
        if "start_sample" in self.fail:
            return self._failure("start_sample")
        if len(self.live) >= self.capacity:
            return web.json_response({"detail": "full"}, status=406)
        self.live.add(body["session_id"])
        return web.json_response(
            {"messages": [{"role": "user", "content": "go", "odd": [1]}], "tools": [], "status": "running"}
        )

    async def interact(self, request: web.Request) -> web.Response:
        body = await self._take("interact", request)
        await self.gate.wait()
        if "interact" in self.fail:
            return self._failure("interact")
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

    async def cancel_with_notice(self, request: web.Request) -> web.Response:
        body = await self._take("cancel_with_notice", request)
        self.live.discard(body["session_id"])
        if self.notice is not None:
            self.notice(body["session_id"])
        return web.json_response(None)

    async def _take(self, route: str, request: web.Request) -> Any:
        body = await request.json()
        self.seen.append((route, body, request.headers))
        return body

    def _failure(self, route: str) -> web.Response:
        status, detail = self.fail[route]
        return web.json_response({"detail": detail}, status=status)

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

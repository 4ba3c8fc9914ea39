"""Controllers, task workers and a browser for the tests of the dashboard."""

import asyncio
import contextlib
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn
from playwright.sync_api import Browser, Page, sync_playwright

from agentrl_controller import Controller, ControllerConfig
from agentrl_controller.sessions import Session, SessionState
from agentrl_core import Heartbeat
from agentrl_core.sockets import listen

CHROMIUM = "/usr/bin/chromium"
FLAGS = [
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update"),
]
BIN = Path(sys.executable).parent


class Server(uvicorn.Server):
    """Ends the controller's work first, as `agentrl-controller serve` does."""

    def __init__(self, controller: Controller, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._controller = controller

    async def shutdown(self, sockets: Any = None) -> None:
        await self._controller.stop()
        await super().shutdown(sockets)


class Served:
    """A controller that is served by a thread.

    Attributes:
        controller: it; touch its state through `do` alone.
        url: where its page is.
    """

    def __init__(self, config: ControllerConfig, *, port: int = 0) -> None:
        self._listener = listen("127.0.0.1", port)
        self.port = self._listener.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.controller = Controller(config)
        options = uvicorn.Config(
            self.controller.app, log_level="error", timeout_graceful_shutdown=1, lifespan="on"
        )
        self._server = Server(self.controller, options)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._server.serve(sockets=[self._listener]))

    def __enter__(self) -> "Served":
        self._thread.start()
        until(lambda: self._server.started)
        return self

    def __exit__(self, *_: object) -> None:
        self._server.should_exit = True
        self._thread.join(20)
        assert not self._thread.is_alive(), "the controller does not end"

    def do(self, work: Any) -> Any:
        """Call something on the controller's own thread; returns what it returns."""

        async def call() -> Any:
            return work(self.controller)

        return asyncio.run_coroutine_threadsafe(call(), self._loop).result(20)

    def crowd(self, count: int) -> None:
        """Add sessions that nobody plays."""
        self.do(lambda controller: crowd_into(controller, count))

    def until(self, condition: Any) -> None:
        """Wait for something to become true of the controller."""
        until(lambda: self.do(condition))


def until(condition: Any, *, within_s: float = 20.0) -> None:
    """Wait for what no event tells of."""
    end = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < end, "it did not come to pass in time"
        time.sleep(0.02)


@contextlib.contextmanager
def worker_of(url: str) -> Iterator[None]:
    """A process that serves `guess` to a controller."""
    words = [str(BIN / "agentrl-env"), "serve", "agentrl_env_sdk.tasks.guess:Guess"]
    words += ["--controller", f"{url}/api"]
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        until(lambda: "guess" in httpx.get(f"{url}/api/list_workers").json())
        yield
    finally:
        process.terminate()
        process.wait(20)


def crowd_into(controller: Controller, count: int) -> None:
    """Sessions of two tasks that nobody plays, every fourth of them busy."""
    beat = {"concurrency": count, "indices": list(range(500))}
    names = ("shop", "maze")
    workers = [
        controller.registry.heartbeat(
            Heartbeat.model_validate({"name": name, "address": f"http://127.0.0.1:{port}/api", **beat}),
            now=time.monotonic(),
        )
        for port, name in enumerate(names, start=1)
    ]
    now = time.time()
    for n in range(count):
        worker = workers[n % 2]
        session = Session(
            controller.sessions.new_id(),
            worker.task,
            n % 500,
            custom_task=None,
            worker=worker,
            started=now - count + n,
            last_used=time.monotonic(),
            state=SessionState.BUSY if n % 4 == 0 else SessionState.IDLE,
        )
        controller.sessions.add(session)


@pytest.fixture(scope="session")
def serve() -> type[Served]:
    """Serve a controller of one's own."""
    return Served


@pytest.fixture(scope="module")
def live() -> Iterator[Served]:
    """A controller with one real worker of `guess`."""
    with Served(ControllerConfig()) as served, worker_of(served.url):
        yield served


class Command:
    """`agentrl-controller serve` in a process of its own.

    Attributes:
        url: where its page is.
    """

    def __init__(self) -> None:
        words = [str(BIN / "agentrl-controller"), "serve", "--port", "0", "--no-grpc", "--store", "memory"]
        self._process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        assert self._process.stdout is not None
        said = self._process.stdout.readline()
        self.url = said[said.index("http") :].strip().removesuffix("/api")

    def end(self) -> None:
        """Ask it to end, and see that it does."""
        self._process.terminate()
        self._process.wait(10)


@pytest.fixture
def command() -> Iterator[Command]:
    """The command with one real worker of `guess`."""
    running = Command()
    with worker_of(running.url):
        yield running
    running.end()


@pytest.fixture(scope="module")
def crowd() -> Iterator[Served]:
    """A controller with 10,000 sessions that nobody plays."""
    with Served(ControllerConfig(lease_s=10_000.0, audit_s=10_000.0, probe_s=10_000.0)) as served:
        served.crowd(10_000)
        yield served
        served.do(lambda controller: controller.sessions.live.clear())


# Playwright runs a loop of its own in this thread, which no test with another loop may meet.
@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    if not shutil.which(CHROMIUM):
        pytest.skip(f"{CHROMIUM} is missing; Debian has it in the package `chromium`")
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield chromium
        chromium.close()


class Watch:
    """Pages that are not allowed a fault, nor a request to anywhere but their controller."""

    def __init__(self, browser: Browser) -> None:
        self._browser = browser
        self._contexts: list[Any] = []
        self.faults: list[str] = []
        self.requests: list[Any] = []

    def open(self, served: Served, path: str = "", *, expected: str = "", **options: Any) -> Page:
        """A new tab in a profile of its own.

        Args:
            served: whose dashboard.
            path: the view.
            expected: part of console errors that belong to the test.
            options: of the browser's context.
        """
        context = self._browser.new_context(**{"viewport": {"width": 1280, "height": 800}, **options})
        self._contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(15_000)

        def note(message: Any) -> None:
            if message.type in ("error", "warning") and not (expected and expected in message.text):
                self.faults.append(f"{message.type}: {message.text}")

        def ask(request: Any) -> None:
            self.requests.append(request)
            if not request.url.startswith(f"{served.url}/"):
                self.faults.append(f"a request left for {request.url}")

        page.on("console", note)
        page.on("pageerror", lambda error: self.faults.append(f"uncaught: {error}"))
        page.on("request", ask)
        page.goto(f"{served.url}/{path}")
        return page

    def close(self) -> None:
        for context in self._contexts:
            context.close()


@pytest.fixture
def watch(browser: Browser) -> Iterator[Watch]:
    watching = Watch(browser)
    yield watching
    watching.close()
    assert watching.faults == []

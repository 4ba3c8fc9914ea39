"""Our controller, published task workers, and a client that speaks the published wire and no more."""

import asyncio
import contextlib
import json
import os
import secrets
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

BIN = Path(sys.executable).parent
TASKS = Path(__file__).parent / "tasks"
TRANSPORTS = ("http", "grpc")
PUBLISHED = os.environ.get("AGENTRL_PUBLISHED_PYTHON", "")


class Process:
    """A process with its log in a file.

    Attributes:
        pid: its number.
        log: what it says, but for the lines that are read.
    """

    def __init__(self, words: list[str], folder: Path, name: str, *, read: bool = False, **env: str) -> None:
        self.log = folder / f"{name}.log"
        # What we inherit may send requests to loopback through a proxy.
        kept = {key: value for key, value in os.environ.items() if not key.lower().endswith("_proxy")}
        with self.log.open("ab") as log:
            out = subprocess.PIPE if read else log
            self._process = subprocess.Popen(
                words, stdout=out, stderr=log, text=True, env={**kept, **env}, cwd=folder
            )
        self.pid = self._process.pid

    def line(self) -> str:
        """The next line of its output."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, f"it ended:\n{self.log.read_text()}"
        return line.strip()

    def kill(self) -> None:
        """End it with SIGKILL, if it has not ended."""
        self._process.kill()
        self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()


class Controller(Process):
    """`agentrl-controller serve`.

    Attributes:
        urls: where workers reach it, by transport.
    """

    def __init__(self, folder: Path, *options: str, ports: tuple[int, int] = (0, 0)) -> None:
        words = [str(BIN / "agentrl-controller"), "serve", "--port", str(ports[0])]
        super().__init__([*words, "--grpc-port", str(ports[1]), *options], folder, "controller", read=True)
        self.urls = {transport: self.line().split()[-1] for transport in TRANSPORTS}
        self.url = self.urls["http"]


class Worker(Process):
    """`python -m agentrl.worker`, unmodified, as its README starts it.

    Attributes:
        name: the task's.
        url: where its API is, which is open with either transport.
    """

    def __init__(self, folder: Path, controller: Controller, over: str, name: str, task: dict) -> None:
        self.name = name
        port = free_port()
        self.url = f"http://127.0.0.1:{port}/api"
        config = folder / f"{name}-{port}.json"
        config.write_text(json.dumps({name: task}))
        words = [PUBLISHED, "-m", "agentrl.worker", name, "-c", str(config), "-C", controller.urls[over]]
        words += ["-s", self.url, "--host", "127.0.0.1", "-p", str(port)]
        super().__init__(words, folder, config.stem, PYTHONPATH=str(TASKS))

    async def current(self) -> int:
        """Sessions that it holds by its own account."""
        async with httpx.AsyncClient(trust_env=False) as http:
            return (await http.get(f"{self.url}/worker_status")).json()["current"]


class Client:
    """An agent that knows the published routes, fields and the header `session_id`, and nothing of ours."""

    def __init__(self, http: httpx.AsyncClient) -> None:
        self.http = http

    async def post(self, route: str, body: Any = None, *, session_id: str | None = None) -> httpx.Response:
        """The answer to a request, good or bad."""
        headers = {} if session_id is None else {"session_id": session_id}
        return await self.http.post(f"/{route}", json=body, headers=headers)

    async def start(self, name: str, index: int | str, custom_task: Any = None) -> tuple[str, dict]:
        """Open a session; returns its id and the body of the answer."""
        response = await self.post("start_sample", {"name": name, "index": index, "custom_task": custom_task})
        assert response.status_code == 200, response.text
        return response.headers["session_id"], response.json()

    async def interact(self, session_id: str, *messages: dict | str) -> dict:
        """Hand messages to a session; a string is what an assistant says."""
        said = [{"role": "assistant", "content": m} if isinstance(m, str) else m for m in messages]
        response = await self.post("interact", {"messages": said}, session_id=session_id)
        assert response.status_code == 200, response.text
        return response.json()

    async def cancel(self, session_id: str) -> None:
        """End a session."""
        response = await self.post("cancel", session_id=session_id)
        assert (response.status_code, response.json()) == (200, None)

    async def get(self, route: str, **params: str) -> Any:
        """What a route says."""
        response = await self.http.get(f"/{route}", params=params)
        assert response.status_code == 200, response.text
        return response.json()

    async def depth(self, task: str) -> float:
        """Starts of a task that wait for a slot; our own metric, for the tests alone."""
        text = (await self.http.get(self.http.base_url.join("/metrics"))).text
        name = f'agentrl_queue_depth{{task="{task}"}} '
        return next((float(line.split()[-1]) for line in text.splitlines() if line.startswith(name)), 0.0)

    async def is_idle(self, *workers: Worker) -> bool:
        """Whether all slots are free, by the controller's account and by the workers' own."""
        listed = await self.workers(workers[0].name)
        taken = [each["current"] for each in listed] + [await worker.current() for worker in workers]
        return not any(taken)

    async def workers(self, task: str) -> list[dict]:
        """The workers of a task."""
        return list((await self.get("list_workers")).get(task, {"workers": {}})["workers"].values())

    async def until_served(self, *workers: Worker) -> None:
        """Wait until as many workers of their task live, and take requests."""

        async def are_there() -> bool:
            listed = await self.workers(workers[0].name)
            return sum(each["status"] == "ALIVE" for each in listed) == len(workers)

        await until(are_there)
        for worker in workers:
            await until(lambda worker=worker: _answers(worker))


async def _answers(worker: Worker) -> bool:
    try:
        await worker.current()
    except httpx.TransportError:
        return False
    return True


async def until(condition: Callable[[], Awaitable[Any]], *, within_s: float = 60.0) -> None:
    """Wait for what no event tells of."""
    end = time.monotonic() + within_s
    while not await condition():
        assert time.monotonic() < end, "it did not come to pass in time"
        await asyncio.sleep(0.02)


def free_port() -> int:
    """A port of loopback that is free now."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


@pytest.fixture(scope="session", autouse=True)
def published() -> str:
    """The interpreter that has the published packages."""
    if not PUBLISHED:
        pytest.skip("`nox -s published` installs the published packages and names their interpreter")
    return PUBLISHED


@pytest.fixture(scope="session")
def controller(published: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Controller]:
    """A controller for everybody."""
    running = Controller(tmp_path_factory.mktemp("controller"))
    yield running
    running.kill()


@pytest.fixture(scope="session", params=TRANSPORTS)
def over(request: pytest.FixtureRequest) -> str:
    """The transport between controller and workers."""
    return request.param


@pytest.fixture(scope="session")
def eventually() -> Callable[..., Awaitable[None]]:
    """Wait for a condition: `await eventually(lambda: ..., within_s=...)`."""
    return until


@pytest.fixture
def start_controller(tmp_path: Path) -> Iterator[Callable[..., Controller]]:
    """Starts controllers of a test's own: `start_controller("--store", ..., ports=(...))`."""
    started: list[Controller] = []

    def start(*options: str, ports: tuple[int, int] = (0, 0)) -> Controller:
        started.append(Controller(tmp_path, *options, ports=ports))
        return started[-1]

    yield start
    for running in started:
        running.kill()


@contextlib.asynccontextmanager
async def connect(controller: Controller) -> AsyncIterator[Client]:
    """An agent of a controller."""
    async with httpx.AsyncClient(base_url=controller.url, timeout=60, trust_env=False) as http:
        yield Client(http)


@pytest.fixture
async def client(controller: Controller) -> AsyncIterator[Client]:
    """An agent."""
    async with connect(controller) as client:
        yield client


@pytest.fixture
def client_of() -> Callable[[Controller], contextlib.AbstractAsyncContextManager[Client]]:
    """An agent of another controller: `async with client_of(controller) as client`."""
    return connect


Serve = Callable[..., Worker]


@pytest.fixture(scope="session")
def serve_all(controller: Controller, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serve]:
    """Starts workers that stay until the end; see `serve`."""
    with _serving(controller, tmp_path_factory.mktemp("workers")) as serve:
        yield serve


@pytest.fixture
def serve(controller: Controller, tmp_path: Path) -> Iterator[Serve]:
    """Starts workers of a test's own: `serve(over, kind, concurrency, name=..., to=..., **parameters)`."""
    with _serving(controller, tmp_path) as serve:
        yield serve


@contextlib.contextmanager
def _serving(controller: Controller, folder: Path) -> Iterator[Serve]:
    workers: list[Worker] = []

    def serve(
        over: str,
        kind: str,
        concurrency: int,
        *,
        name: str = "",
        to: Controller = controller,
        module: str = "their_tasks",
        **parameters: Any,
    ) -> Worker:
        name = name or f"{kind.lower()}-{secrets.token_hex(4)}"
        task = {"module": f"{module}.{kind}", "parameters": {"name": name, "concurrency": concurrency}}
        task["parameters"] |= parameters
        worker = Worker(folder, to, over, name, task)
        workers.append(worker)
        return worker

    try:
        yield serve
    finally:
        for worker in workers:
            worker.kill()


@pytest.fixture(scope="session")
def all_workers(serve_all: Serve) -> dict[tuple[str, str], Worker]:
    """Workers that several tests share, by kind and transport; they start once they are asked for."""
    return {}


@pytest.fixture
async def shared(client: Client, serve_all: Serve, over: str, all_workers: Any) -> Any:
    """The shared worker of a kind: `await shared("Shop", 4)`."""

    async def get(kind: str, concurrency: int, **parameters: Any) -> Worker:
        key = (kind + str(parameters), over)
        if key not in all_workers:
            all_workers[key] = serve_all(over, kind, concurrency, **parameters)
        await client.until_served(all_workers[key])
        return all_workers[key]

    return get


@pytest.fixture
async def shop(shared: Any) -> Worker:
    """Four slots and the indices -1 to 2."""
    return await shared("Shop", 4)


@pytest.fixture
async def script(shared: Any) -> Worker:
    """Four slots; custom tasks, and two samples: one that ends at its start and one that fails there."""
    ends = {"says": [[{"role": "user", "content": "Too late."}]], "rewards": [{"reward": -0.5, "score": 0.1}]}
    scripts = [{**ends, "status": "task limit reached"}, {**ends, "status": "raise"}]
    return await shared("Script", 4, scripts=scripts)


@pytest.fixture
async def slow(shared: Any) -> Worker:
    """Two slots; answers when told."""
    return await shared("Slow", 2)

"""A worker on a stream to the real controller, which is killed and begun again around it."""

import asyncio
import contextlib
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from agentrl_core import FunctionCall, Message, ToolCall
from agentrl_core.client import SessionClient
from agentrl_core.sockets import listen

BIN = Path(sys.executable).parent
WAIT_S = 30
TASK = """
import os
from pathlib import Path
from agentrl_env_sdk import Session, Task, tool

class Steps(Task):
    splits = {"train": 3}
    turn_timeout_s = 30.0

    def setup(self, session: Session) -> str:
        session.state["steps"] = 0
        return f"walk {os.getpid()}"

    @tool
    def step(self, session: Session) -> str:
        "Walk on."
        session.state["steps"] += 1
        return f"step {session.state['steps']} of {os.getpid()}"

    @tool
    async def wait(self, session: Session) -> str:
        "Wait for the file `go`."
        import asyncio
        while not Path(__file__).with_name("go").exists():
            await asyncio.sleep(0.01)
        return self.step(session)
"""


class Process:
    """A command in a process of its own, and the first line that it says."""

    def __init__(self, process: asyncio.subprocess.Process, line: str) -> None:
        self.process = process
        self.line = line

    async def end(self, *, kill: bool = False) -> int:
        (self.process.kill if kill else self.process.terminate)()
        async with asyncio.timeout(WAIT_S):
            return await self.process.wait()


Start = Callable[..., Any]


@pytest.fixture
async def start() -> AsyncIterator[Start]:
    """Starts commands; what still runs at the end is killed."""
    running: list[Process] = []

    async def begin(command: str, *words: object) -> Process:
        process = await asyncio.create_subprocess_exec(
            *(str(BIN / command), "serve", *map(str, words)),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        assert process.stdout is not None
        async with asyncio.timeout(WAIT_S):
            found = Process(process, (await process.stdout.readline()).decode())
        running.append(found)
        return found

    yield begin
    for each in running:
        with contextlib.suppress(ProcessLookupError):
            await each.end(kill=True)


class Stage:
    """A controller with ports that stay, and the task for its workers."""

    def __init__(self, start: Start, folder: Path) -> None:
        self._start = start
        self._folder = folder
        with listen("127.0.0.1", 0) as http, listen("127.0.0.1", 0) as grpc:
            self._port, self._grpc_port = (each.getsockname()[1] for each in (http, grpc))
        self.url = f"http://127.0.0.1:{self._port}/api"
        self.stream = f"grpc://127.0.0.1:{self._grpc_port}"
        self._task = folder / "steps.py"
        self._task.write_text(TASK)

    async def controller(self, *words: object) -> Process:
        ports = ("--port", self._port, "--grpc-port", self._grpc_port)
        return await self._start(
            "agentrl-controller", *ports, "--store", f"sqlite:{self._folder}/c.db", *words
        )

    async def worker(self, *words: object) -> Process:
        return await self._start("agentrl-env", self._task, "--controller", self.stream, *words)

    def go(self) -> None:
        """Let `wait` come back."""
        (self._folder / "go").touch()

    async def until(self, condition: Callable[[list[dict[str, Any]]], bool], *, token: str = "") -> None:
        """Wait until the controller's workers are as they should be."""
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        async with asyncio.timeout(WAIT_S), httpx.AsyncClient(headers=headers) as http:
            while True:
                with contextlib.suppress(httpx.TransportError):
                    tasks = (await http.get(f"{self.url}/list_workers")).json()
                    workers = list(tasks.get("steps", {"workers": {}})["workers"].values())
                    if condition(workers):
                        return
                await asyncio.sleep(0.05)


@pytest.fixture
def stage(start: Start, tmp_path: Path) -> Stage:
    return Stage(start, tmp_path)


def alive(count: int) -> Callable[[list[dict[str, Any]]], bool]:
    return lambda workers: [worker["status"] for worker in workers] == ["ALIVE"] * count


def call(name: str) -> list[Message]:
    function = FunctionCall(name=name, arguments=json.dumps({}))
    return [Message(role="assistant", tool_calls=[ToolCall(id="c", type="function", function=function)])]


async def test_a_session_goes_on_after_the_controller_was_killed(stage: Stage) -> None:
    controller, worker = await stage.controller(), await stage.worker()
    assert worker.line.startswith(f"Serving steps to {stage.stream} as grpc://steps-")
    await stage.until(alive(1))
    async with SessionClient(stage.url) as client:
        session = await client.start("steps", 0)
        pid = session.opening.messages[0].text.removeprefix("walk ")
        assert (await session.interact(call("step"))).messages[0].text == f"step 1 of {pid}"
        for number in (2, 3):
            await controller.end(kill=True)
            controller = await stage.controller()
            await stage.until(alive(1))
            assert (await session.interact(call("step"))).messages[0].text == f"step {number} of {pid}"


async def test_an_answer_that_is_made_while_there_is_no_controller_is_not_lost(stage: Stage) -> None:
    controller = await stage.controller()
    await stage.worker()
    await stage.until(alive(1))
    async with SessionClient(stage.url) as client:
        session = await client.start("steps", 1)
        waiting = asyncio.create_task(session.interact(call("wait"), deadline_s=WAIT_S))
        await stage.until(lambda workers: workers[0]["current"] == 1)
        await controller.end(kill=True)
        stage.go()
        await stage.controller()
        assert (await waiting).messages[0].text.startswith("step 1 of ")
        assert (await session.interact(call("step"))).messages[0].text.startswith("step 2 of ")


async def test_several_processes_register_each_and_leave_together(stage: Stage) -> None:
    await stage.controller("--token", "secret")
    crew = await stage.worker("--workers", 2, "--concurrency", 1, "--token", "secret")
    await stage.until(alive(2), token="secret")
    async with SessionClient(stage.url, token="secret") as client:
        async with asyncio.timeout(WAIT_S):
            sessions = await asyncio.gather(*(client.start("steps", index) for index in (0, 1)))
        said = {session.opening.messages[0].text for session in sessions}
        assert len(said) == 2
        for session in sessions:
            await session.cancel()
    assert await crew.end() == 0


async def test_a_cancelled_session_leaves_its_slot(stage: Stage) -> None:
    await stage.controller()
    await stage.worker("--concurrency", 1)
    await stage.until(alive(1))
    async with SessionClient(stage.url) as client:
        for _ in range(3):
            session = await client.start("steps", 0, deadline_s=WAIT_S)
            await session.cancel()
    await stage.until(lambda workers: workers[0]["current"] == 0)

"""The processes beside the trainer: a controller and task workers, started from their own commands."""

import asyncio
import contextlib
import ctypes
import os
import re
import shutil
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Self

from agentrl_core import AgentRLError
from agentrl_core.client import SessionClient

_STOP_TIMEOUT_S = 5.0
_START_TIMEOUT_S = 90.0
_URL = re.compile(rb"(https?://\S+)")
_TAIL_LINES = 8
_POLL_S = 0.05
_CONTROLLER = ("serve", "--store", "memory", "--no-grpc")
"""The run's own controller ends with it; its workers are on this machine."""


class ServiceError(AgentRLError):
    """A process did not start or ended by itself; the message has its last words."""


class Service:
    """A child process that says where it serves on its standard output.

    Its output goes to a log file. It ends when this process does, however that ends.
    """

    def __init__(self, name: str, command: Sequence[str], log: Path) -> None:
        self.name = name
        self.log = log
        self._command = command
        self._process: asyncio.subprocess.Process | None = None
        self._url: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._reader: asyncio.Task[None] | None = None

    async def start(self) -> str:
        """Start it and wait for its address.

        Raises:
            ServiceError: it ended, or said nothing in time.
        """
        await self._spawn()
        try:
            async with asyncio.timeout(_START_TIMEOUT_S):
                return await asyncio.shield(self._url)
        except TimeoutError as error:
            raise ServiceError(
                f"{self.name} did not start within {_START_TIMEOUT_S:.0f} s: {self.words()}"
            ) from error

    async def run(self) -> int:
        """Start it and wait for its end; returns the exit code."""
        process = await self._spawn()
        return await process.wait()

    async def _spawn(self) -> asyncio.subprocess.Process:
        self.log.parent.mkdir(parents=True, exist_ok=True)
        self._process = await asyncio.create_subprocess_exec(
            *self._command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
            start_new_session=True,
            preexec_fn=_die_with_parent,
        )
        self._reader = asyncio.create_task(self._read())
        return self._process

    async def watch(self) -> None:
        """Return never while it lives.

        Raises:
            ServiceError: it ended.
        """
        assert self._process is not None
        code = await self._process.wait()
        raise ServiceError(f"{self.name} ended by itself with exit code {code}: {self.words()}")

    async def stop(self) -> None:
        """End it, politely first."""
        process = self._process
        if process is None:
            return
        for signal_number in (signal.SIGTERM, signal.SIGKILL):
            if process.returncode is not None:
                break
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal_number)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_STOP_TIMEOUT_S):
                    await process.wait()
        if self._reader is not None:
            await self._reader

    async def _read(self) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        with self.log.open("ab") as log:
            async for line in self._process.stdout:
                log.write(line)
                log.flush()
                found = _URL.search(line)
                if found and b"Serving" in line and not self._url.done():
                    self._url.set_result(found.group(1).decode())
        code = await self._process.wait()
        if not self._url.done():
            message = f"{self.name} ended with exit code {code} before it served: {self.words()}"
            self._url.set_exception(ServiceError(message))
            self._url.exception()  # A process that nobody asked for its address has nothing to report.

    def words(self) -> str:
        """The last lines of its output."""
        lines = self.log.read_text(errors="replace").strip().splitlines() if self.log.exists() else []
        return " | ".join(line.strip() for line in lines[-_TAIL_LINES:]) or "it said nothing"


class LocalEnvironments:
    """A controller on loopback and one task worker for each task.

    Args:
        targets: what `agentrl-env serve` serves, one process each.
        log_dir: where their output goes.
        port: of the controller; 0 takes a free one.
    """

    def __init__(self, targets: Sequence[str], log_dir: Path, *, port: int = 0) -> None:
        self._targets = targets
        self._log_dir = log_dir
        self._port = port
        self._services: list[Service] = []
        self.url = ""

    async def __aenter__(self) -> Self:
        try:
            controller = self._add(
                "controller", [command("agentrl-controller"), *_CONTROLLER, "--port", str(self._port)]
            )
            self.url = await controller.start()
            workers = [
                self._add(
                    f"task-{number}",
                    [command("agentrl-env"), "serve", target, "--controller", self.url],
                )
                for number, target in enumerate(self._targets)
            ]
            await asyncio.gather(*(worker.start() for worker in workers))
            await self._registered()
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.gather(*(service.stop() for service in reversed(self._services)))

    async def _registered(self) -> None:
        """Wait until the controller knows every task."""
        async with SessionClient(self.url) as client, asyncio.timeout(_START_TIMEOUT_S):
            while len(await client.tasks()) < len(self._targets):  # noqa: ASYNC110 - another process's state
                await asyncio.sleep(_POLL_S)

    async def watch(self) -> None:
        """Return never while all live.

        Raises:
            ServiceError: one of them ended by itself.
        """
        async with asyncio.TaskGroup() as watchers:
            for service in self._services:
                watchers.create_task(service.watch())

    def _add(self, name: str, words: list[str]) -> Service:
        service = Service(name, words, self._log_dir / f"{name}.log")
        self._services.append(service)
        return service


def command(name: str) -> str:
    """The path of a console script of this environment.

    Raises:
        ServiceError: the package that brings it is not installed.
    """
    beside = Path(sys.executable).parent / name
    path = str(beside) if beside.is_file() else shutil.which(name)
    if path is None:
        raise ServiceError(
            f"the command `{name}` is missing; install it with `pip install agentrl-workers[quickstart]`"
        )
    return path


def _die_with_parent() -> None:
    """Ask Linux to end this child when its parent dies, even of SIGKILL."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGTERM)

"""Agents for a worker's own API, on a socket each, and what its process costs meanwhile."""

import asyncio
import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
BIN = Path(sys.executable).parent
TICKS = os.sysconf("SC_CLK_TCK")


class Agent:
    """A keep-alive connection that asks one thing after the other, in the published wire's words."""

    def __init__(self, url: str) -> None:
        self._host, _, port = url.removeprefix("http://").split("/")[0].partition(":")
        self._port = int(port)

    async def __aenter__(self) -> "Agent":
        self._reader, self._writer = await asyncio.open_connection(self._host, self._port)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._writer.close()

    async def ask(self, route: str, body: Any) -> tuple[int, bytes]:
        """HTTP status and body of an answer."""
        data = json.dumps(body).encode()
        head = f"POST /api/{route} HTTP/1.1\r\nHost: {self._host}\r\nContent-Type: application/json\r\n"
        self._writer.write(f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data)
        answer = await self._reader.readuntil(b"\r\n\r\n")
        lower = answer.lower()
        start = lower.index(b"content-length:") + 15
        length = int(lower[start : lower.index(b"\r\n", start)])
        return int(answer[9:12]), await self._reader.readexactly(length)

    async def ask_well(self, route: str, body: Any) -> bytes:
        """The body of an answer that must be a good one."""
        status, answer = await self.ask(route, body)
        if status != 200:
            raise RuntimeError(f"{route}: HTTP {status} {answer[:200]!r}")
        return answer


def says(text: str) -> list[dict[str, str]]:
    """An assistant's message."""
    return [{"role": "assistant", "content": text}]


def calls(name: str, **arguments: Any) -> list[dict[str, Any]]:
    """An assistant's tool call."""
    function = {"name": name, "arguments": json.dumps(arguments)}
    return [{"role": "assistant", "tool_calls": [{"id": "c", "type": "function", "function": function}]}]


class Cost:
    """What a process uses, read from /proc."""

    def __init__(self, pid: int) -> None:
        self._folder = Path("/proc") / str(pid)

    @property
    def cpu_s(self) -> float:
        """CPU seconds so far."""
        fields = (self._folder / "stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS

    @property
    def memory_kib(self) -> int:
        """Resident memory in KiB."""
        return self._status("VmRSS:")

    @property
    def num_threads(self) -> int:
        """Threads."""
        return self._status("Threads:")

    @property
    def num_descriptors(self) -> int:
        """Open files and sockets."""
        return sum(1 for _ in (self._folder / "fd").iterdir())

    def _status(self, name: str) -> int:
        lines = (self._folder / "status").read_text().splitlines()
        return int(next(line.split()[1] for line in lines if line.startswith(name)))


@contextlib.contextmanager
def controller() -> Iterator[str]:
    """A controller to register with; yields the address of its API."""
    words = [str(BIN / "agentrl-controller"), "serve", "--port", "0", "--store", "memory", "--no-grpc"]
    with _running(words) as process:
        assert process.stdout is not None
        yield process.stdout.readline().split()[-1]


@contextlib.contextmanager
def our_worker(task: str, *options: str) -> Iterator[tuple[str, int]]:
    """`agentrl-env serve`; yields the address of its API and its process."""
    words = [str(BIN / "agentrl-env"), "serve", f"{HERE / 'our_tasks.py'}:{task}", *options]
    with _running(words) as process:
        assert process.stdout is not None
        yield process.stdout.readline().split()[-1], process.pid


@contextlib.contextmanager
def published_worker(python: str, controller: str) -> Iterator[tuple[str, int]]:
    """`python -m agentrl.worker`, unmodified; yields the address of its API and its process."""
    with socket.socket() as probe, tempfile.TemporaryDirectory() as folder:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
        probe.close()
        parameters = {"name": "talk", "concurrency": 100_000, "full_async": True}
        config = Path(folder) / "config.json"
        config.write_text(json.dumps({"talk": {"module": "published_tasks.Talk", "parameters": parameters}}))
        url = f"http://127.0.0.1:{port}/api"
        words = [python, "-m", "agentrl.worker", "talk", "-c", str(config), "-C", controller, "-s", url]
        words += ["--host", "127.0.0.1", "-p", str(port)]
        # It logs each request to its output, which nobody would read.
        with _running(words, out=subprocess.DEVNULL, PYTHONPATH=str(HERE)) as process:
            _wait_for(port, process)
            yield url, process.pid


@contextlib.contextmanager
def _running(words: list[str], *, out: int = subprocess.PIPE, **env: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        words, stdout=out, stderr=subprocess.DEVNULL, text=True, env={**os.environ, **env}
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def _wait_for(port: int, process: "subprocess.Popen[str]") -> None:
    deadline = time.monotonic() + 60.0
    while time.monotonic() < deadline and process.poll() is None:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1.0):
            return
        time.sleep(0.1)
    raise RuntimeError("the worker does not listen")

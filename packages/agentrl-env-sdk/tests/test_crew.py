import asyncio
import contextlib
import itertools
import os
import re
import signal
import ssl
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from aiohttp import web

from agentrl_core import ConfigError
from agentrl_core.client import SessionClient
from agentrl_env_sdk.worker.crew import Crew
from agentrl_env_sdk.worker.lifecycle import WorkerConfig
from agentrl_env_sdk.worker.serving import Serving

COMMAND = str(Path(sys.executable).parent / "agentrl-env")
WAIT_S = 30
TASK = """
from agentrl_env_sdk import Task
class Small(Task):
    def setup(self, session):
        return "go {number}"
"""


class Served:
    """`agentrl-env serve` in a process of its own, and what it says."""

    def __init__(self, process):
        self.process = process

    async def addresses(self, count=1):
        """The addresses of the next workers that say so."""
        assert self.process.stdout is not None
        async with asyncio.timeout(WAIT_S):
            lines = [(await self.process.stdout.readline()).decode() for _ in range(count)]
        return [re.fullmatch(r"Serving small on (\S+)\n", line).group(1) for line in lines]

    async def end(self, number=signal.SIGTERM):
        """Send a signal; returns the exit code and the log."""
        self.process.send_signal(number)
        async with asyncio.timeout(WAIT_S):
            _, log = await self.process.communicate()
        return self.process.returncode, log.decode()


@contextlib.asynccontextmanager
async def serving(*words):
    process = await asyncio.create_subprocess_exec(
        *(COMMAND, "serve", *map(str, words)), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    try:
        yield Served(process)
    finally:
        if process.returncode is None:
            process.kill()
            await process.communicate()


class Beats:
    """A controller that only listens."""

    def __init__(self):
        self.port = 0
        self.latest = {}
        self.came = asyncio.Condition()

    async def receive(self, request):
        beat = await request.json()
        async with self.came:
            self.latest[beat["instance"]] = beat
            self.came.notify_all()
        return web.json_response(None)

    async def until(self, condition):
        """Wait until the heartbeats fulfil something."""
        async with asyncio.timeout(WAIT_S), self.came:
            await self.came.wait_for(lambda: condition(self.latest))


@pytest.fixture
async def controller():
    beats = Beats()
    app = web.Application()
    app.router.add_post("/api/receive_heartbeat", beats.receive)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    beats.url = f"http://127.0.0.1:{runner.addresses[0][1]}/api"
    yield beats
    await runner.cleanup()


@pytest.fixture
def small(tmp_path):
    path = tmp_path / "small.py"
    path.write_text(TASK.format(number=1))
    return path


def children_of(pid):
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def ended(pids):
    """Whether processes have ended; those that nobody has waited for yet count, too."""

    def has_ended(pid):
        try:
            return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
        except OSError:
            return True

    return all(has_ended(pid) for pid in pids)


async def test_each_process_registers_and_one_that_dies_is_replaced_and_all_end_together(small, controller):
    async with serving(small, "--workers", 2, "--controller", controller.url) as served:
        addresses = await served.addresses(2)
        await controller.until(lambda latest: len(latest) == 2)
        assert {beat["address"] for beat in controller.latest.values()} == set(addresses)
        children = children_of(served.process.pid)
        assert len(children) == 2
        os.kill(children[0], signal.SIGKILL)
        await controller.until(lambda latest: len(latest) == 3)
        code, log = await served.end()
        assert code == 0
        assert "a worker process ended with code -9; another one begins" in log
        assert ended(children)


async def test_a_crew_whose_parent_is_killed_ends(small, controller):
    async with serving(small, "--workers", 2, "--controller", controller.url) as served:
        await served.addresses(2)
        children = children_of(served.process.pid)
        served.process.kill()
        await served.process.wait()
        async with asyncio.timeout(WAIT_S):
            while not ended(children):
                await asyncio.sleep(0.02)


async def test_a_task_that_is_wrong_ends_the_crew(small, controller):
    small.write_text("x = 1\n")
    async with serving(small, "--workers", 2, "--controller", controller.url) as served:
        async with asyncio.timeout(WAIT_S):
            _, log = await served.process.communicate()
        assert served.process.returncode == 1
        assert b"holds no class that derives from `Task`" in log


async def test_a_change_of_the_code_begins_anew_and_an_error_in_it_waits_for_the_next(small):
    async with serving(small, "--reload") as served:
        (address,) = await served.addresses()

        async def opening():
            async with SessionClient(address) as client:
                session = await client.start("small", 0)
                return session.opening.messages[0].text

        assert await opening() == "go 1"
        small.write_text(TASK.format(number=2))
        assert await served.addresses() == [address]
        assert await opening() == "go 2"
        small.write_text("def broken(:\n")
        async with asyncio.timeout(WAIT_S):
            while b"begins again with the next change" not in await served.process.stderr.readline():
                pass
        small.write_text(TASK.format(number=3))
        assert await served.addresses() == [address]
        assert await opening() == "go 3"
        assert (await served.end(signal.SIGINT))[0] == 0


async def test_a_crew_of_anything_is_restarted_until_it_is_to_stop(tmp_path):
    log = tmp_path / "log"
    script = f"open({str(log)!r}, 'a').write('x'); import sys; sys.exit(3)"
    crew = Crew([[sys.executable, "-c", script]])
    running = asyncio.create_task(crew.run())
    async with asyncio.timeout(WAIT_S):
        while not log.exists() or len(log.read_text()) < 2:
            await asyncio.sleep(0.02)
        os.kill(os.getpid(), signal.SIGTERM)
        assert await running == 0
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().remove_signal_handler(number)


@pytest.mark.parametrize(
    ("config", "settings", "message"),
    [
        ({}, {"workers": 2}, "--workers needs a --controller"),
        ({"controller": "http://c/api"}, {"workers": 2, "reload": True}, "--reload is for one process"),
        (
            {"controller": "http://c/api", "advertise": "http://me/api"},
            {"workers": 2},
            "--advertise must name a port, that of the first process, got `http://me/api`",
        ),
    ],
)
def test_settings_that_contradict_each_other_are_refused(config, settings, message):
    with pytest.raises(ConfigError, match=message):
        Serving("t.py", None, WorkerConfig(**config), **settings)


def test_the_processes_count_their_ports_on_and_no_token_is_an_argument():
    config = WorkerConfig(
        controller="http://c/api",
        port=7000,
        advertise="http://me:9000/api",
        token="secret",
        ca=Path("ca.pem"),
    )
    first, second = Serving("c.yaml", "entry", config, workers=2, concurrency=5).commands()
    assert first[-3:] == second[-3:] == ["--", "c.yaml", "entry"]
    for command, port, advertised in (
        (first, "7000", "http://me:9000/api"),
        (second, "7001", "http://me:9001/api"),
    ):
        given = dict(itertools.pairwise(command))
        assert (given["--port"], given["--advertise"]) == (port, advertised)
        assert (given["--concurrency"], given["--ca"]) == ("5", "ca.pem")
        assert "secret" not in command


async def test_https_is_served_with_a_certificate(small, tmp_path):
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    words = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=w"]
    words += ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(cert)]
    subprocess.run(words, check=True, capture_output=True)
    async with serving(small, "--tls-cert", cert, "--tls-key", key) as served:
        (address,) = await served.addresses()
        assert address.startswith("https://127.0.0.1:")
        async with httpx.AsyncClient(verify=ssl.create_default_context(cafile=cert)) as http:
            assert (await http.get(f"{address}/get_indices")).json() == [0]


def test_a_certificate_that_is_none_is_told(small, tmp_path):
    words = [COMMAND, "serve", small, "--tls-cert", small, "--tls-key", small]
    served = subprocess.run(words, capture_output=True, text=True, check=False, timeout=WAIT_S)
    assert served.returncode == 1
    assert re.match(r"error: `.*small.py` and `.*` are no certificate and its key in PEM", served.stderr)

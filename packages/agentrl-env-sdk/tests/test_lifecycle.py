import asyncio
import contextlib
import ssl
import subprocess
import time
from pathlib import Path

import httpx
import pytest
from aiohttp import web

from agentrl_core import ConfigError
from agentrl_env_sdk import tool
from agentrl_env_sdk.worker import Runner, Worker, WorkerConfig

WAIT_S = 15


class Controller:
    """A controller's side of HTTP: takes heartbeats and notices, or refuses them."""

    def __init__(self):
        self.refuses = False
        self.beats = asyncio.Queue()
        self.notices = asyncio.Queue()
        self.refused = asyncio.Queue()
        self.url = ""

    async def beat(self, request):
        if self.refuses:
            self.refused.put_nowait(time.monotonic())
            return web.json_response({"message": "not now"}, status=400)
        self.beats.put_nowait(await request.json())
        return web.json_response(None)

    async def notice(self, request):
        self.notices.put_nowait((request.headers["session_id"], request.headers.get("Authorization")))
        return web.json_response(None)


@contextlib.asynccontextmanager
async def controlling(tls=None):
    controller = Controller()
    app = web.Application()
    app.router.add_post("/api/receive_heartbeat", controller.beat)
    app.router.add_post("/api/cancel_notice", controller.notice)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls).start()
    controller.url = f"http{'s' if tls else ''}://127.0.0.1:{runner.addresses[0][1]}/api"
    yield controller
    await runner.cleanup()


@contextlib.asynccontextmanager
async def working(runner, **settings):
    """A worker in this process, and its address."""
    ready = asyncio.get_running_loop().create_future()
    worker = Worker(runner, WorkerConfig(heartbeat_s=0.02, **settings), ready=ready.set_result)
    serving = asyncio.create_task(worker.serve())
    try:
        yield await ready
    finally:
        worker.stop(now=True)
        async with asyncio.timeout(WAIT_S):
            await serving


async def next_of(queue):
    async with asyncio.timeout(WAIT_S):
        return await queue.get()


def certificate(folder):
    cert, key = folder / "cert.pem", folder / "key.pem"
    words = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=c"]
    words += ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(cert)]
    subprocess.run(words, check=True, capture_output=True)
    return cert, key


async def test_an_outage_is_told_once_and_its_end_too(counter, caplog):
    caplog.set_level("INFO", logger="agentrl_env_sdk")
    async with controlling() as controller, working(Runner(counter), controller=controller.url) as address:
        assert (await next_of(controller.beats))["address"] == address
        controller.refuses = True
        for _ in range(3):
            await next_of(controller.refused)
        controller.refuses = False
        while not controller.beats.empty():
            controller.beats.get_nowait()
        for _ in range(2):
            await next_of(controller.beats)
    told = [record.getMessage() for record in caplog.records]
    refusals = [text for text in told if "not now" in text]
    assert refusals == [
        'the controller does not take heartbeats: HTTP 400: {"message": "not now"}; trying on'
    ]
    assert "the controller is back" in told


async def test_the_end_of_a_cancelled_session_is_told(counter):
    settings = {"token": "secret"}
    async with (
        controlling() as controller,
        working(Runner(counter), controller=controller.url, **settings) as url,
        httpx.AsyncClient(base_url=url, headers={"Authorization": "Bearer secret"}) as http,
    ):
        await http.post("start_sample", json={"index": 0, "session_id": 5})
        assert (await http.post("cancel_with_notice", json={"session_id": 5})).status_code == 200
        assert await next_of(controller.notices) == ("5", "Bearer secret")


async def test_a_controller_with_tls_is_trusted_by_the_given_certificates(counter, tmp_path, caplog):
    cert, key = certificate(tmp_path)
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(cert, key)
    async with controlling(tls) as controller:
        async with working(Runner(counter), controller=controller.url, ca=cert):
            assert (await next_of(controller.beats))["name"] == "counter"
        while not controller.beats.empty():
            controller.beats.get_nowait()
        async with working(Runner(counter), controller=controller.url), asyncio.timeout(WAIT_S):
            while "certificate verify failed" not in caplog.text:
                await asyncio.sleep(0.01)
        assert controller.beats.empty()


async def test_a_task_that_blocks_the_loop_is_named_and_measured(counter, caplog):
    class Blocking(type(counter)):
        @tool
        async def add(self, number: int) -> str:
            """Block."""
            time.sleep(number / 10)
            return "done"

    function = {"name": "add", "arguments": '{"number": 3}'}
    said = [{"role": "assistant", "tool_calls": [{"id": "c", "type": "function", "function": function}]}]
    async with (
        working(Runner(Blocking()), blocked_warning_s=0.05) as url,
        httpx.AsyncClient(base_url=url) as http,
    ):
        await http.post("start_sample", json={"index": 0, "session_id": 1})
        await http.post("interact", json={"session_id": 1, "messages": said})
        figures = (await http.get(url.replace("/api", "/metrics"))).text
    (lag,) = [line.split()[1] for line in figures.splitlines() if line.startswith("agentrl_env_loop_lag_s")]
    assert float(lag) > 0.2
    (warning,) = [text for text in caplog.messages if ", in add" in text]
    assert warning.startswith("task `blocking` has blocked the event loop")
    assert "test_lifecycle.py:" in warning


async def test_the_task_lets_go_after_its_last_episode_and_where_it_cannot_be_served(counter, caplog):
    class Holding(type(counter)):
        async def close(self):
            self.torn_down.append("closed")
            raise RuntimeError("half of it stays")

    task = Holding()
    async with working(Runner(task)) as url, httpx.AsyncClient(base_url=url) as http:
        await http.post("start_sample", json={"index": 0, "session_id": 1})
    assert task.torn_down == [1, "closed"]
    assert "task `holding` does not let go of what it holds" in caplog.text
    task = Holding()
    config = WorkerConfig(tls_cert=Path("no_such.pem"), tls_key=Path("no_such.key"))
    with pytest.raises(ConfigError, match="no certificate"):
        await Worker(Runner(task), config, ready=print).serve()
    assert task.torn_down == ["closed"]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"controller": "c:5020"},
            "must begin with one of http://, https://, grpc://, grpcs://, got `c:5020`",
        ),
        ({"token": " "}, "the token must be printable ASCII and not empty"),
        ({"advertise": "me:5021"}, "must be the URL of the worker's API, got `me:5021`"),
        ({"tls_cert": "c.pem"}, "a certificate needs its key"),
        ({"controller": "http://c/api", "host": "::"}, "a controller cannot reach `::`"),
    ],
)
def test_settings_that_cannot_work_are_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        WorkerConfig(**settings)


async def test_certificates_that_are_none_are_told(counter, tmp_path):
    (tmp_path / "ca.pem").write_text("nothing")
    config = WorkerConfig(controller="https://127.0.0.1:1/api", ca=tmp_path / "ca.pem")
    with pytest.raises(ConfigError, match=r"ca.pem` holds no certificates in PEM"):
        await Worker(Runner(counter), config, ready=print).serve()

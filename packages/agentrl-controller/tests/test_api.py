import re
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from agentrl_controller import Controller, ControllerConfig
from agentrl_core import ErrorCode, Message, SessionError
from agentrl_core.client import SessionClient
from agentrl_core.sockets import listen

COMMAND = str(Path(sys.executable).parent / "agentrl-controller")
SAID = {"messages": [{"role": "assistant", "content": "hi"}]}


def over(controller, **options):
    transport = httpx.ASGITransport(controller.app)
    return httpx.AsyncClient(transport=transport, base_url="http://c/api/", **options)


@pytest.fixture
async def http(controller):
    async with over(controller) as client:
        yield client


async def test_the_published_routes_have_their_published_shapes(http, controller, make_worker):
    worker = await make_worker()
    started = await http.post("start_sample", json={"name": "task", "index": 1})
    session_id = started.headers["session_id"]
    assert started.headers["session-id"] == session_id
    assert started.json() == {
        "messages": [{"role": "user", "content": "go", "odd": [1]}],
        "tools": [],
        "status": "running",
        "finish": False,
        "reward": 0.0,
        "metrics": {},
    }
    answer = (await http.post("interact", json=SAID, headers={"session_id": session_id})).json()
    assert (answer["finish"], answer["reward"], answer["metrics"]) == (False, 0.5, {"score": 1.0})

    workers = (await http.get("list_workers")).json()["task"]
    assert workers["indices"] == [0, 1, 2, 3]
    (listed,) = workers["workers"].values()
    assert listed["address"] == worker.address
    assert (listed["capacity"], listed["current"], listed["status"]) == (2, 1, "ALIVE")
    session = (await http.get("list_sessions")).json()[session_id]
    assert (session["name"], session["index"], session["locked"]) == ("task", 1, False)

    assert (await http.get("get_indices", params={"name": "task"})).json() == [0, 1, 2, 3]
    assert (await http.get("get_indices", params={"name": "task", "split": "test"})).json() == [2, 3]
    assert (await http.get("version")).json()["version"] == 1
    assert (await http.post("cancel", headers={"session-id": session_id})).json() is None
    assert controller.sessions.find(int(session_id)).state in ("cancelling", "cancelled")


async def test_a_heartbeat_registers_a_worker(http, controller):
    body = {"name": "t", "address": "http://127.0.0.1:1/api", "concurrency": 3, "indices": ["a"]}
    answer = await http.post("receive_heartbeat", json=body)
    assert (answer.status_code, answer.json()) == (200, None)
    assert controller.registry.task("t").indices == ["a"]


@pytest.mark.parametrize(
    ("method", "route", "options", "status", "message"),
    [
        ("POST", "start_sample", {"json": {"name": "x", "index": 0}}, 400, "no worker serves task `x`"),
        ("POST", "start_sample", {"json": {"name": "task", "index": 9}}, 400, "has 4 samples, none is 9"),
        ("POST", "start_sample", {"json": {"name": "task", "index": -1}}, 400, "`custom_task` is missing"),
        ("POST", "start_sample", {"json": {"index": 1}}, 400, "`name`: Field required"),
        ("POST", "start_sample", {"content": b"{"}, 400, "the body is no JSON"),
        ("POST", "interact", {"json": SAID}, 400, "must hold a session's number, got ''"),
        ("POST", "interact", {"json": SAID, "headers": {"session_id": "7"}}, 400, "session 7 is unknown"),
        ("POST", "interact", {"json": {}, "headers": {"session_id": "7"}}, 400, "`messages` must be a list"),
        ("GET", "get_indices?name=x", {}, 400, "no worker serves task `x`; served: task"),
        ("GET", "get_indices?name=task&split=dev", {}, 400, "has no split `dev`; it has: test, train"),
        ("POST", "mark_stale", {"json": {"name": "task", "worker_id": 99}}, 400, "has no worker 99"),
    ],
)
async def test_what_is_wrong_is_told_as_a_message(http, make_worker, method, route, options, status, message):
    await make_worker()
    answer = await http.request(method, route, **options)
    assert answer.status_code == status
    assert message in answer.json()["message"]
    assert answer.json()["code"] in set(ErrorCode)


async def test_cancel_all_needs_a_name_where_there_are_several_tasks(http, make_worker):
    await make_worker(name="one")
    await make_worker(name="two")
    await http.post("start_sample", json={"name": "one", "index": 0})
    assert (await http.post("cancel_all")).status_code == 403
    assert (await http.post("cancel_all", params={"name": "one"})).status_code == 200
    assert (await http.post("cancel_all", params={"force": "true"})).status_code == 200


async def test_no_capacity_is_503_with_retry_after(http, make_worker):
    await make_worker(capacity=1)
    await http.post("start_sample", json={"name": "task", "index": 0})
    refused = await http.post(
        "start_sample", json={"name": "task", "index": 0}, headers={"X-Deadline-Ms": "30"}
    )
    assert (refused.status_code, refused.headers["Retry-After"]) == (503, "1")
    assert refused.json()["code"] == "no_capacity"


async def test_metrics_count_sessions_queue_and_workers(http, make_worker):
    await make_worker()
    await http.post("start_sample", json={"name": "task", "index": 0})
    text = (await http.get("http://c/metrics")).text
    assert 'agentrl_sessions{task="task",state="idle"} 1' in text
    assert 'agentrl_queue_depth{task="task"} 0' in text
    assert 'agentrl_workers{task="task",status="ALIVE"} 1' in text


async def test_a_token_is_asked_for_and_large_bodies_are_refused():
    controller = Controller(ControllerConfig(token="secret", max_body_bytes=100))
    async with over(controller) as http:
        assert (await http.get("list_workers")).status_code == 401
        assert (await http.get("http://c/healthz")).status_code == 200
        http.headers["Authorization"] = "Bearer secret"
        assert (await http.get("list_workers")).json() == {}
        assert (await http.post("interact", content=b"x" * 101)).status_code == 413


class Served:
    """`agentrl-controller serve` in a process of its own."""

    def __init__(self, *arguments):
        self.process = subprocess.Popen(
            [COMMAND, "serve", *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        found = re.fullmatch(r"Serving the controller on (http://\S+/api)\n", self.process.stdout.readline())
        assert found
        self.url = found.group(1)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.communicate()


async def test_the_served_controller_plays_a_session_with_the_session_client(fake_worker):
    worker = fake_worker
    with Served("--port", "0") as served:
        async with SessionClient(served.url) as client, httpx.AsyncClient() as http:
            beat = {"name": "task", "address": worker.address, "concurrency": 1, "indices": [0]}
            assert (await http.post(f"{served.url}/receive_heartbeat", json=beat)).status_code == 200
            session = await client.start("task", 0)
            reply = await session.interact([Message(role="assistant", content="hi")])
            assert reply.messages[0].text == "answer 1"
            assert reply.messages[0].to_wire()["reasoning"] == {"kept": True}
            await session.cancel()
            with pytest.raises(SessionError) as caught:
                await client.start("nothing", 0)
            assert caught.value.code is ErrorCode.UNKNOWN_TASK
        listed = subprocess.run(
            [COMMAND, "status", "--url", served.url], capture_output=True, text=True, check=True
        )
        assert "task  samples: 1  sessions: 1 cancelling" in listed.stdout
        assert worker.address in listed.stdout
        served.process.send_signal(signal.SIGTERM)
        served.process.wait(timeout=5)


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--host", "0.0.0.0"], 2, "give a --token, or say --insecure"),
        (["--port", "TAKEN"], 1, "the port is in use; choose another port"),
    ],
)
def test_a_server_that_cannot_be_is_one_clear_message(arguments, code, message):
    with listen("127.0.0.1", 0) as taken:
        words = [str(taken.getsockname()[1]) if word == "TAKEN" else word for word in arguments]
        ended = subprocess.run(
            [COMMAND, "serve", *words], capture_output=True, text=True, timeout=30, check=False
        )
    assert ended.returncode == code
    assert message in ended.stderr
    assert "Traceback" not in ended.stderr

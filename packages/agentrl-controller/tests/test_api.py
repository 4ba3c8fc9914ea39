import asyncio
import re
import signal
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

import httpx
import pytest
from fastapi import FastAPI

from agentrl_controller import Controller, ControllerConfig
from agentrl_core import ErrorCode, Message, SessionError
from agentrl_core.client import SessionClient
from agentrl_core.sockets import listen

COMMAND = str(Path(sys.executable).parent / "agentrl-controller")
SAID = {"messages": [{"role": "assistant", "content": "hi"}]}


def over(controller, **options):
    transport = httpx.ASGITransport(controller.app)
    return httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1/api/", **options)


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


async def test_errors_of_every_kind_have_a_message_and_a_code(http):
    for method, path, status in (
        ("GET", "nothing", 404),
        ("GET", "interact", 405),
        ("GET", "get_indices", 400),
        ("POST", "cancel_all?force=perhaps", 400),
        ("POST", "cancel", 400),
    ):
        answer = await http.request(method, path)
        assert answer.status_code == status, path
        assert set(answer.json()) == {"message", "code"}


async def test_a_fault_of_its_own_is_an_error_without_its_insides(controller, monkeypatch):
    monkeypatch.setattr(controller.registry, "task", lambda name: 1 / 0)
    transport = httpx.ASGITransport(controller.app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1/api/") as http:
        for answer in (
            await http.get("get_indices?name=task"),
            await http.post("mark_stale", json={"name": "task", "worker_id": 1}),
        ):
            assert answer.status_code == 500
            assert answer.json() == {
                "message": "the controller failed with ZeroDivisionError; its log says where",
                "code": "internal",
            }


@pytest.mark.parametrize("header", ["9" * 5000, "-1", "x", "1.5", "²"])
async def test_a_session_header_that_is_no_number_is_refused(http, header):
    answer = await http.post("interact", json=SAID, headers={"session_id": header.encode()})
    assert (answer.status_code, answer.json()["code"]) == (400, "bad_request")


@pytest.mark.parametrize("header", ["0", "-5", "soon", "9" * 400])
async def test_a_deadline_that_is_none_is_refused(http, make_worker, header):
    await make_worker()
    answer = await http.post(
        "start_sample", json={"name": "task", "index": 0}, headers={"X-Deadline-Ms": header}
    )
    assert answer.status_code == 400
    assert "must be a positive number of milliseconds" in answer.json()["message"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"address": "ftp://x"},
            "`address` must be http://HOST:PORT/PATH, https://HOST:PORT/PATH or grpc://ID, got 'ftp://x'",
        ),
        ({"address": "http://x y"}, "got 'http://x y'"),
        ({"concurrency": -1}, "`concurrency` must be >= 0, got -1"),
        ({"indices": None}, "`indices`: Input should be a valid list"),
    ],
)
async def test_a_heartbeat_that_makes_no_sense_is_refused(http, controller, changes, message):
    body = {"name": "t", "address": "http://127.0.0.1:1/api", "concurrency": 3, "indices": ["a"]}
    answer = await http.post("receive_heartbeat", json=body | changes)
    assert answer.status_code == 400
    assert message in answer.json()["message"]
    assert controller.registry.tasks == {}


async def test_a_repeated_heartbeat_is_taken_in_without_being_read(http, controller, monkeypatch):
    body = {"name": "t", "address": "http://127.0.0.1:1/api", "concurrency": 3, "indices": ["a"]}
    await http.post("receive_heartbeat", json=body)
    worker = controller.registry.worker("t", 1)
    worker.last_visit = 0.0
    monkeypatch.setattr("agentrl_controller.controller.decode", None)
    assert (await http.post("receive_heartbeat", json=body)).status_code == 200
    assert worker.last_visit > 0.0
    monkeypatch.undo()
    await http.post("receive_heartbeat", json=body | {"concurrency": 5})
    assert worker.capacity == 5
    await http.post("receive_heartbeat", json=body)
    assert worker.capacity == 3


async def test_request_ids_come_back_on_answers_and_on_refusals(http, make_worker):
    await make_worker()
    for index, status in ((0, 200), (99, 400)):
        answer = await http.post(
            "start_sample", json={"name": "task", "index": index}, headers={"X-Request-Id": f"r{index}"}
        )
        assert (answer.status_code, answer.headers["X-Request-Id"]) == (status, f"r{index}")


async def test_dates_in_lists_are_dates(http, make_worker):
    await make_worker()
    started = await http.post("start_sample", json={"name": "task", "index": 0})
    session = (await http.get("list_sessions")).json()[started.headers["session_id"]]
    worker = (await http.get("list_workers")).json()["task"]["workers"]["1"]
    for text in (session["start"], session["last_update"], worker["last_visit"]):
        age = datetime.now(UTC) - datetime.fromisoformat(text)
        assert abs(age.total_seconds()) < 60


async def test_a_worker_is_drained_and_cleaned_by_its_number(http, controller, make_worker, until):
    worker = await make_worker()
    await http.post("start_sample", json={"name": "task", "index": 0})
    assert (await http.post("mark_stale", json={"name": "task", "worker_id": 1})).json() is None
    assert (await http.get("list_workers")).json()["task"]["workers"]["1"]["stale"]
    assert (await http.post("clean_worker", json={"name": "task", "worker_id": 1})).json() is None
    await until(lambda: worker.live == set() and controller.sessions.live == {})


async def test_a_drained_worker_that_serves_again_takes_who_waits(http, controller, make_worker, until):
    await make_worker()
    await http.post("mark_stale", json={"name": "task", "worker_id": 1})
    starting = asyncio.create_task(http.post("start_sample", json={"name": "task", "index": 0}))
    await until(lambda: controller.admission.depth("task") == 1)
    await http.post("mark_stale", json={"name": "task", "worker_id": 1, "stale": False})
    assert (await starting).status_code == 200


async def test_it_is_ready_while_it_runs():
    controller = Controller()
    async with over(controller) as http:
        assert (await http.get("http://127.0.0.1/readyz")).status_code == 503
        refused = await http.post("interact", json=SAID, headers={"session_id": "7"})
        assert (refused.status_code, refused.json()["code"]) == (503, "no_capacity")
        async with controller:
            assert (await http.get("http://127.0.0.1/readyz")).status_code == 200
        assert (await http.get("http://127.0.0.1/readyz")).status_code == 503


async def test_it_can_be_mounted(make_worker, controller):
    await make_worker()
    host = FastAPI()
    host.mount("/inner", controller.app)
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(host), base_url="http://127.0.0.1/inner/api/"
    ) as http:
        started = await http.post("start_sample", json={"name": "task", "index": 0})
        session = {"session_id": started.headers["session_id"]}
        assert (await http.post("interact", json=SAID, headers=session)).json()["reward"] == 0.5
        assert (await http.get("version")).status_code == 200


async def test_metrics_count_sessions_queue_and_workers(http, make_worker):
    await make_worker()
    await http.post("start_sample", json={"name": "task", "index": 0})
    text = (await http.get("http://127.0.0.1/metrics")).text
    assert 'agentrl_sessions{state="idle",task="task"} 1.0' in text
    assert 'agentrl_queue_depth{task="task"} 0.0' in text
    assert 'agentrl_workers{status="ALIVE",task="task"} 1.0' in text
    assert 'agentrl_slots{kind="taken",task="task"} 1.0' in text
    assert 'agentrl_requests_total{route="start_sample"} 1.0' in text
    assert 'agentrl_start_seconds_bucket{le="300.0"} 1.0' in text
    assert "agentrl_start_seconds_count 1.0" in text


async def test_a_token_is_asked_for_and_large_bodies_are_refused():
    controller = Controller(ControllerConfig(token="secret", max_body_bytes=100))
    async with over(controller) as http:
        assert (await http.get("list_workers")).status_code == 401
        assert (await http.get("http://127.0.0.1/healthz")).status_code == 200
        http.headers["Authorization"] = "Bearer secret"
        assert (await http.get("list_workers")).json() == {}
        for path in ("interact", "start_sample", "receive_heartbeat", "mark_stale"):
            for body in (b"x" * 101, chunks()):
                assert (await http.post(path, content=body)).status_code == 413


async def chunks():
    for _ in range(3):
        yield b"x" * 50


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
            await register(http, served.url, worker)
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


async def register(http, url, worker):
    beat = {"name": "task", "address": worker.address, "concurrency": worker.capacity, "indices": [0]}
    assert (await http.post(f"{url}/receive_heartbeat", json=beat)).status_code == 200


@pytest.mark.parametrize("stop", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_stops_it_at_once_and_tells_everybody(fake_worker, until, stop):
    worker = fake_worker
    worker.capacity = 1
    worker.gate.clear()
    with Served("--port", "0") as served:
        async with SessionClient(served.url, connect_timeout_s=0.1) as client, httpx.AsyncClient() as http:
            await register(http, served.url, worker)
            session = await client.start("task", 0)
            calls = [asyncio.create_task(session.interact([])), asyncio.create_task(client.start("task", 0))]
            await until(lambda: worker.count("interact"))
            while (
                b'queue_depth{task="task"} 1.0' not in (await http.get(served.url[:-3] + "metrics")).content
            ):
                await asyncio.sleep(0)
            began = time.monotonic()
            served.process.send_signal(stop)
            await asyncio.to_thread(served.process.wait, 5)
            assert time.monotonic() - began < 2.0
            codes = [error.code for error in await asyncio.gather(*calls, return_exceptions=True)]
            assert codes == [ErrorCode.WORKER_LOST, ErrorCode.UNREACHABLE]
            assert worker.live == set()
        _, errors = served.process.communicate()
        assert "Traceback" not in errors
        assert "ERROR" not in errors


async def test_a_client_that_hangs_up_leaves_no_session_behind(fake_worker, until):
    worker = fake_worker
    worker.start_gate.clear()
    with Served("--port", "0") as served:
        async with httpx.AsyncClient() as http:
            await register(http, served.url, worker)
            body = {"name": "task", "index": 0}
            with pytest.raises(httpx.ReadTimeout):
                await http.post(f"{served.url}/start_sample", json=body, timeout=httpx.Timeout(5, read=0.2))
            await until(lambda: worker.count("cancel_with_notice"))
            worker.start_gate.set()
            await until(lambda: worker.live == set())


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

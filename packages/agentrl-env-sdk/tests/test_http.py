import asyncio
import json
import math

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl_core import ErrorCode, SessionError
from agentrl_core.client import SessionClient
from agentrl_env_sdk import Session, tool
from agentrl_env_sdk.worker import Runner
from agentrl_env_sdk.worker.http import create_app
from agentrl_env_sdk.worker.routes import encode


@pytest.fixture
def runner(counter):
    return Runner(counter, concurrency=2)


@pytest.fixture
async def http(runner):
    transport = httpx.ASGITransport(create_app(runner))
    async with httpx.AsyncClient(transport=transport, base_url="http://worker/api/") as client:
        yield client


def add(number):
    function = {"name": "add", "arguments": f'{{"number": {number}}}'}
    return {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"id": "c", "type": "function", "function": function}],
    }


async def test_the_published_routes_have_their_published_shapes(http):
    started = await http.post("start_sample", json={"index": 1, "session_id": 5})
    assert started.headers["session_id"] == "5"
    body = started.json()
    assert body["messages"] == [{"role": "user", "content": "count to three, sample 1"}]
    assert body["tools"][0]["function"]["name"] == "add"
    assert (body["status"], body["finish"], body["reward"], body["metric"]) == ("running", False, 0.0, {})

    assert (await http.get("get_sessions")).json() == {"5": 1}
    assert (await http.get("worker_status")).json() == {"concurrency": 2, "current": 1}
    assert (await http.post("sample_status", json={"session_id": 5})).json()["status"] == "running"

    answer = (await http.post("interact", json={"session_id": 5, "messages": [add(3)]})).json()
    assert answer["session_id"] == 5
    last = answer["env_out"]
    assert (last["status"], last["finish"], last["reward"]) == ("completed", True, pytest.approx(0.6))
    assert last["metric"]["score"] == pytest.approx(0.6)
    assert (await http.get("get_indices")).json() == [0, 1, 2, 3, 4]
    assert (await http.get("get_indices", params={"split": "test"})).json() == [3, 4]
    assert (await http.post("calculate_overall", json={"name": "n", "results": [{}]})).json() == {"total": 1}


@pytest.mark.parametrize(
    ("route", "body", "status", "detail"),
    [
        ("start_sample", {"index": 99, "session_id": 1}, 400, "none is 99"),
        ("interact", {"session_id": 404, "messages": []}, 400, "session 404 is unknown here"),
        ("interact", {"messages": []}, 400, "name the session"),
        ("interact", {"session_id": 1, "messages": "hi"}, 422, "`messages`"),
        ("start_sample", {"index": 0, "session_id": "a\r\nX: y"}, 400, "printable ASCII, got 'a\\r\\nX: y'"),
        ("fork", {"session_id": 404}, 400, "session 404 is unknown here"),
        ("cancel", {"session_id": 404}, 400, "session 404 is unknown here"),
        ("start_sample", b"{", 422, "the body is no JSON"),
    ],
)
async def test_what_is_wrong_is_told_as_detail(http, route, body, status, detail):
    sent = {"content": body} if isinstance(body, bytes) else {"json": body}
    answer = await http.post(route, **sent)
    assert answer.status_code == status
    assert detail in answer.json()["detail"]


async def test_an_unknown_split_is_told_with_those_there_are(http):
    answer = await http.get("get_indices", params={"split": "dev"})
    assert (answer.status_code, answer.json()["detail"]) == (
        400,
        "task `counter` has no split `dev`; it has ['test', 'train']",
    )


async def test_a_full_worker_answers_406(http):
    for session_id in (1, 2):
        await http.post("start_sample", json={"index": 0, "session_id": session_id})
    assert (await http.post("start_sample", json={"index": 0, "session_id": 3})).status_code == 406
    await http.post("cancel_all")
    assert (await http.post("start_sample", json={"index": 0, "session_id": 3})).status_code == 200


async def test_a_request_id_comes_back_and_repeats_the_answer(http):
    named = {"X-Request-Id": "r1"}
    first = await http.post("start_sample", json={"index": 0}, headers=named)
    again = await http.post("start_sample", json={"index": 0}, headers=named)
    assert first.headers["X-Request-Id"] == "r1"
    assert first.headers["session_id"] == again.headers["session_id"]
    assert (await http.get("worker_status")).json()["current"] == 1


async def test_a_passed_deadline_is_504_and_the_answer_is_kept(runner, counter):
    gate = asyncio.Event()

    class Gated(type(counter)):
        @tool
        async def add(self, session: Session, number: int) -> str:
            """Add."""
            await gate.wait()
            return "late"

    app = create_app(Runner(Gated()))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://worker/api/") as http:
        session_id = int((await http.post("start_sample", json={"index": 0})).headers["session_id"])
        body = {"session_id": session_id, "messages": [add(1)]}
        headers = {"X-Request-Id": "r", "X-Deadline-Ms": "20"}
        assert (await http.post("interact", json=body, headers=headers)).status_code == 504
        gate.set()
        late = await http.post("interact", json=body, headers={"X-Request-Id": "r"})
        assert late.json()["env_out"]["messages"][0]["content"] == "late"


async def test_cancel_with_notice_answers_at_once_and_tells_at_the_end(runner, counter):
    told = asyncio.Queue()
    app = create_app(runner, cancelled=told.put)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://worker/api/") as http:
        await http.post("start_sample", json={"index": 0, "session_id": 9})
        assert (await http.post("cancel_with_notice", json={"session_id": 9})).status_code == 200
        async with asyncio.timeout(5):
            assert await told.get() == 9
        assert runner.sessions == {}


async def test_a_token_is_asked_for(counter):
    app = create_app(Runner(counter), token="secret")
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://worker/api/") as http:
        assert (await http.get("get_indices")).status_code == 401
        allowed = await http.get("get_indices", headers={"Authorization": "Bearer secret"})
        assert allowed.json() == [0, 1, 2, 3, 4]


async def test_metrics_that_are_no_json_and_large_and_multimodal_content_pass(counter):
    parts = [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}]

    class Odd(type(counter)):
        @tool
        def add(self, session: Session, number: int) -> list:
            """Add."""
            session.reward(0.0, loss=math.nan, path={"a": math.inf})
            return [*parts, {"type": "text", "text": "x" * 1_000_000}]

    app = create_app(Runner(Odd()))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://worker/api/") as http:
        await http.post("start_sample", json={"index": 0, "session_id": 1})
        reply = (await http.post("interact", json={"session_id": 1, "messages": [add(1)]})).json()["env_out"]
    assert reply["metrics"] == {"loss": None, "path": {"a": None}}
    assert reply["messages"][0]["content"][0] == parts[0]
    assert len(reply["messages"][0]["content"][1]["text"]) == 1_000_000


async def test_an_agent_without_a_controller_talks_to_the_worker(unused_tcp_server, call):
    url = unused_tcp_server
    async with SessionClient(url) as client:
        assert await client.indices("counter", split="train") == [0, 1, 2]
        assert list(await client.tasks()) == ["counter"]
        session = await client.start("counter", 2, seed=1)
        assert session.opening.messages[0].text == "count to three, sample 2"
        assert (await session.interact([call("add", number=1)])).messages[0].text == "1"
        reply = await session.interact([call("add", number=2)])
        assert reply.finish
        assert reply.metrics["score"] == pytest.approx(0.7)
        other = await client.start("counter", 0)
        await other.cancel()
        with pytest.raises(SessionError) as caught:
            await other.interact([])
        assert caught.value.code is ErrorCode.SESSION_FINISHED


@pytest.mark.parametrize(
    ("route", "body", "http_status", "code"),
    [
        ("start_sample", {"index": 99}, 400, "unknown_index"),
        ("start_sample", {"index": 0, "name": "other"}, 400, "unknown_task"),
        ("start_sample", {"index": 0}, 406, "no_capacity"),
        ("interact", {"session_id": 404, "messages": []}, 400, "unknown_session"),
        ("interact", {"session_id": 1, "messages": "hi"}, 422, "bad_request"),
        ("calculate_overall", [1], 422, "bad_request"),
        ("calculate_overall", {"results": "none"}, 422, "bad_request"),
        ("cancel", b"[" * 100_000, 422, "bad_request"),
    ],
)
async def test_errors_carry_a_code_and_the_request_id(counter, route, body, http_status, code):
    runner = Runner(counter, concurrency=1)
    await runner.start(0, session_id=1)
    transport = httpx.ASGITransport(create_app(runner))
    async with httpx.AsyncClient(transport=transport, base_url="http://worker/api/") as http:
        sent = {"content": body} if isinstance(body, bytes) else {"json": body}
        answer = await http.post(route, **sent, headers={"X-Request-Id": "r"})
    assert (answer.status_code, answer.json()["code"]) == (http_status, code)
    assert isinstance(answer.json()["detail"], str)
    assert answer.headers["X-Request-Id"] == "r"
    await runner.cancel_all()


async def test_a_client_without_a_controller_waits_for_a_slot(unused_tcp_server, runner):
    async with SessionClient(unused_tcp_server) as client:
        first, _ = await asyncio.gather(client.start("counter", 0), client.start("counter", 1))
        third = asyncio.create_task(client.start("counter", 2, deadline_s=20))
        await asyncio.wait([third], timeout=0.05)
        assert not third.done()
        await first.cancel()
        assert (await third).opening.messages[0].text == "count to three, sample 2"
        with pytest.raises(SessionError, match="serves task `counter`, not `other`") as caught:
            await client.indices("other")
        assert caught.value.code is ErrorCode.UNKNOWN_TASK
    await runner.cancel_all()


def whole(size):
    return b"x" * size


async def chunked(size):
    for _ in range(size // 100):
        yield b"x" * 100


@pytest.mark.parametrize(("send", "size"), [(whole, 1001), (chunked, 1100), (chunked, 10**9)])
@pytest.mark.parametrize("route", ["start_sample", "calculate_overall"])
async def test_a_body_without_end_is_refused(runner, route, send, size):
    transport = httpx.ASGITransport(create_app(runner, max_body_bytes=1000))
    async with httpx.AsyncClient(transport=transport, base_url="http://worker/api/") as http:
        answer = await http.post(route, content=send(size))
    assert (answer.status_code, answer.json()["detail"]) == (400, "the body exceeds 1000 bytes")


async def test_a_summary_that_fails_says_why(counter):
    class Odd(type(counter)):
        def calculate_overall(self, results):
            return {"mean": sum(result["score"] for result in results)}

    transport = httpx.ASGITransport(create_app(Runner(Odd())), raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://worker/api/") as http:
        assert (await http.post("calculate_overall", json={"results": [{"score": 1}]})).json() == {"mean": 1}
        failed = await http.post("calculate_overall", json={"results": [{}]})
    assert (failed.status_code, failed.json()["detail"]) == (500, "KeyError: 'score'")


async def test_a_body_in_pieces_is_read_as_a_whole(http):
    async def pieces():
        for piece in (b'{"index": ', b"", b'1, "session_id"', b": 7}"):
            yield piece

    assert (await http.post("start_sample", content=pieces())).headers["session_id"] == "7"


async def test_pages_of_other_sites_are_refused(http):
    other = {"Origin": "http://elsewhere:80"}
    assert (await http.post("start_sample", json={"index": 0}, headers=other)).status_code == 403
    own = {"Origin": "http://worker"}
    assert (await http.post("start_sample", json={"index": 0}, headers=own)).status_code == 200


@pytest.mark.parametrize(
    ("site", "status"),
    [("evil.example:80", 403), ("evil.example.:80", 403), ("127.0.0.1:80", 200), ("[::1]:80", 200)],
)
async def test_a_public_name_that_was_made_to_mean_this_machine_is_refused(http, site, status):
    headers = {"Origin": f"http://{site}", "Host": site}
    assert (await http.post("start_sample", json={"index": 0}, headers=headers)).status_code == status


async def test_what_no_json_reader_takes_is_told_to_the_task_all_the_same(http):
    await http.post("start_sample", json={"index": 0, "session_id": 1})
    said = b'{"session_id": 1, "messages": [{"role": "assistant", "content": "half \\ud83d, NaN", "n": NaN}]}'
    answer = await http.post("interact", content=said)
    assert answer.json()["env_out"]["status"] == "running"


async def test_a_fork_goes_on_where_the_session_stands(counter, call):
    class Forkable(type(counter)):
        def snapshot(self, session):
            return dict(session.state)

    app = create_app(Runner(Forkable()))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://worker/api/") as http:
        await http.post("start_sample", json={"index": 0, "session_id": 1})
        await http.post("interact", json={"session_id": 1, "messages": [add(1)]})
        forked = await http.post("fork", json={"session_id": 1, "fork_id": 2})
        assert (forked.headers["session_id"], forked.json()["messages"]) == ("2", [])
        for session_id in (1, 2):
            body = {"session_id": session_id, "messages": [add(1)]}
            answer = (await http.post("interact", json=body)).json()["env_out"]
            assert answer["messages"][0]["content"] == "2"


async def test_the_figures_tell_of_episodes_and_turns(http, runner):
    await http.post("start_sample", json={"index": 0, "session_id": 1})
    await http.post("start_sample", json={"index": 0, "session_id": 2})
    await http.post("interact", json={"session_id": 1, "messages": [add(3)]})
    text = (await http.get("http://worker/metrics")).text
    values = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    assert values['agentrl_env_episodes_total{status="completed",task="counter"}'] == "1.0"
    assert values['agentrl_env_sessions{task="counter"}'] == "1.0"
    assert values['agentrl_env_slots{task="counter"}'] == "2.0"
    assert values["agentrl_env_turn_seconds_count"] == "1.0"
    await runner.cancel_all()


async def test_the_description_names_every_route_and_the_routes_answer(http):
    described = (await http.get("http://worker/openapi.json")).json()["paths"]
    named = {path.removeprefix("/api/") for path in described if path.startswith("/api/")}
    assert {"start_sample", "interact", "cancel", "get_indices"} < named
    for name in named:
        (method,) = described[f"/api/{name}"]
        answer = await http.request(method, name, json={"index": 0, "session_id": 1, "messages": []})
        assert answer.status_code in (200, 400), name


async def test_a_token_is_asked_for_by_figures_and_not_by_pages(counter):
    app = create_app(Runner(counter), token="secret")
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://worker/") as http:
        assert (await http.get("metrics")).status_code == 401
        for page in ("", "docs", "openapi.json", "healthz"):
            assert (await http.get(page)).status_code == 200


class Array:
    """An array as numpy and torch have it."""

    def tolist(self):
        return [1.0, math.nan]


class Awkward:
    def __str__(self):
        return "awkward"


leaves = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(max_size=4)
leaves |= st.builds(Array) | st.builds(Awkward) | st.sets(st.integers(), max_size=3)
metrics = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.tuples(inner, inner)
        | st.dictionaries(st.text(max_size=4) | st.integers() | st.tuples(st.integers()), inner, max_size=3)
    ),
    max_leaves=8,
)


def refuse(constant):
    raise AssertionError(f"{constant} is no JSON")


@given(metrics)
def test_whatever_a_task_reports_becomes_strict_json(value):
    json.loads(encode({"metrics": value}), parse_constant=refuse)


def test_what_contains_itself_or_is_very_deep_becomes_json_too():
    loop: dict = {}
    loop["again"] = loop
    deep: list = []
    for _ in range(10_000):
        deep = [deep]
    for value in (loop, deep):
        assert b'"..."' in encode(value)


@pytest.fixture
async def unused_tcp_server(runner):
    import uvicorn

    from agentrl_core.sockets import listen, url_of

    listener = listen("127.0.0.1", 0)
    server = uvicorn.Server(uvicorn.Config(create_app(runner), log_level="warning"))
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    yield url_of(listener, path="/api")
    server.should_exit = True
    await serving

"""The short way of the session routes, byte by byte, on a real socket."""

import asyncio
import json
import time

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agentrl_controller import Controller, ControllerConfig
from agentrl_controller.server import Address, make_server
from agentrl_core.sockets import listen

SAID = b'{"messages": [{"role": "assistant", "content": "hi"}]}'


class Wire:
    """A connection that sends what it is told and reads whole responses."""

    def __init__(self, reader, writer):
        self._reader, self._writer = reader, writer

    def send(self, data):
        self._writer.write(data)

    def post(self, route, body=b"", **headers):
        lines = [f"POST /api/{route} HTTP/1.1", "host: 127.0.0.1", f"content-length: {len(body)}"]
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        self.send("\r\n".join([*lines, "", ""]).encode("latin-1") + body)

    async def read(self):
        """Status, headers and body of the next response."""
        async with asyncio.timeout(10):
            head = (await self._reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
            headers = dict(line.lower().split(": ", 1) for line in head[1:] if line)
            status = int(head[0].split()[1])
            if status < 200:
                return status, headers, b""
            return status, headers, await self._reader.readexactly(int(headers["content-length"]))

    async def is_closed(self):
        async with asyncio.timeout(10):
            return await self._reader.read() == b""

    def close(self):
        self._writer.transport.abort()


class Site:
    """A controller that is served in this process."""

    def __init__(self, config):
        self.controller = Controller(config)
        self.server = make_server(self.controller, Address("127.0.0.1", 0))
        self.listener = listen("127.0.0.1", 0)
        self.port = self.listener.getsockname()[1]
        self.wires = []

    async def __aenter__(self):
        self.serving = asyncio.create_task(self.server.serve(sockets=[self.listener]))
        async with asyncio.timeout(10):
            while not self.server.started or not self.server._acceptors:
                await asyncio.sleep(0.005)
        return self

    async def __aexit__(self, *_):
        for wire in self.wires:
            wire.close()
        self.server.should_exit = True
        await self.serving

    async def connect(self):
        self.wires.append(Wire(*await asyncio.open_connection("127.0.0.1", self.port)))
        return self.wires[-1]

    async def start(self):
        wire = await self.connect()
        wire.post("start_sample", b'{"name": "task", "index": 0}')
        status, headers, body = await wire.read()
        assert status == 200, body
        assert headers["session_id"] == headers["session-id"]
        return wire, headers["session_id"]


@pytest.fixture
async def site(fake_worker):
    fake_worker.replays = True
    async with Site(ControllerConfig(max_body_bytes=10_000, start_timeout_s=5.0)) as site:
        fake_worker.notice = site.controller.cancel_notice
        fake_worker.beat(site.controller)
        yield site


def said(body):
    return json.loads(body)["messages"][0]["content"]


async def test_a_connection_is_kept_for_the_next_request(site):
    wire, session_id = await site.start()
    for turn in (1, 2):
        wire.post("interact", SAID, session_id=session_id, x_request_id=f"r{turn}")
        status, headers, body = await wire.read()
        assert (status, said(body)) == (200, f"answer {turn}")
        assert headers["x-request-id"] == f"r{turn}"
        assert headers["content-type"] == "application/json"
        assert "date" in headers
    wire.post("cancel", session_id=session_id)
    assert (await wire.read())[::2] == (200, b"null")


async def test_requests_that_are_sent_ahead_are_answered_in_order(site):
    wire, session_id = await site.start()
    get = b"GET /api/version HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n"
    wire.post("interact", SAID, session_id=session_id)
    wire.send(get)
    wire.post("interact", SAID, session_id=session_id)
    wire.post("cancel", session_id=session_id)
    wire.send(get)
    bodies = [(await wire.read())[2] for _ in range(5)]
    assert [said(bodies[0]), said(bodies[2])] == ["answer 1", "answer 2"]
    assert bodies[3] == b"null"
    assert [json.loads(bodies[n])["version"] for n in (1, 4)] == [1, 1]


async def test_a_body_may_come_in_pieces_and_in_chunks(site):
    wire, session_id = await site.start()
    wire.send(f"POST /api/interact HTTP/1.1\r\nHOST: 127.0.0.1\r\nSession-Id: {session_id}\r\n".encode())
    wire.send(b"transfer-encoding: chunked\r\n\r\n")
    for part in (SAID[:7], SAID[7:]):
        await asyncio.sleep(0)
        wire.send(b"%x\r\n%b\r\n" % (len(part), part))
    wire.send(b"0\r\n\r\n")
    assert said((await wire.read())[2]) == "answer 1"


async def test_who_asks_before_it_sends_is_told_to_go_on(site):
    wire, session_id = await site.start()
    head = f"POST /api/interact HTTP/1.1\r\nhost: 127.0.0.1\r\nsession_id: {session_id}\r\n"
    wire.send((head + f"expect: 100-continue\r\ncontent-length: {len(SAID)}\r\n\r\n").encode())
    assert (await wire.read())[0] == 100
    wire.send(SAID)
    assert said((await wire.read())[2]) == "answer 1"


@pytest.mark.parametrize("chunked", [False, True])
async def test_a_body_beyond_the_limit_is_refused_and_the_connection_closed(site, chunked):
    wire, session_id = await site.start()
    head = f"POST /api/interact HTTP/1.1\r\nhost: 127.0.0.1\r\nsession_id: {session_id}\r\n".encode()
    if chunked:
        wire.send(head + b"transfer-encoding: chunked\r\n\r\n2711\r\n" + b"x" * 10_001)
    else:
        wire.send(head + b"content-length: 10001\r\n\r\n")
    status, headers, body = await wire.read()
    assert (status, headers["connection"]) == (413, "close")
    assert json.loads(body)["message"] == "the body has more than 10000 bytes"
    assert await wire.is_closed()


async def test_headers_without_end_are_refused(site):
    wire = await site.connect()
    wire.send(b"POST /api/interact HTTP/1.1\r\nhost: 127.0.0.1\r\nx-long: " + b"y" * 70_000)
    status, _, body = await wire.read()
    assert (status, json.loads(body)["message"]) == (431, "the headers have more than 65536 bytes")
    assert await wire.is_closed()


@pytest.mark.parametrize(
    "data",
    [
        b"GARBAGE\r\n\r\n",
        b"POST /api/interact HTTP/1.1\r\nhost: a\r\ncontent-length: x\r\n\r\n",
        b"POST /api/interact HTTP/1.1\r\nhost: a\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n",
    ],
)
async def test_what_is_no_http_is_refused(site, data):
    wire = await site.connect()
    wire.send(data)
    assert (await wire.read())[0] == 400
    assert await wire.is_closed()


async def test_clients_that_do_not_finish_a_request_are_given_up(site):
    slow, idle = await site.connect(), await site.connect()
    slow.send(b"POST /api/interact HTTP/1.1\r\n")
    other, session_id = await site.start()
    head = f"POST /api/interact HTTP/1.1\r\nhost: a\r\nsession_id: {session_id}\r\ncontent-length: 9\r\n\r\n"
    other.send(head.encode() + b"x")
    connections = site.server.server_state.connections
    async with asyncio.timeout(10):
        while sum(each.reading_since is not None for each in connections) < 2:
            await asyncio.sleep(0.005)
    for seconds, answered in ((31.0, slow), (301.0, other)):
        for each in list(connections):
            each.check_patience(time.monotonic() + seconds)
        status, _, body = await answered.read()
        assert status == 408, body
        assert await answered.is_closed()
    assert await idle.is_closed()


async def test_http_1_0_closes_after_the_answer(site):
    wire, session_id = await site.start()
    head = f"POST /api/interact HTTP/1.0\r\nsession_id: {session_id}\r\ncontent-length: {len(SAID)}\r\n\r\n"
    wire.send(head.encode() + SAID)
    status, headers, body = await wire.read()
    assert (status, headers["connection"], said(body)) == (200, "close", "answer 1")
    assert await wire.is_closed()


async def test_a_client_that_leaves_loses_nothing(site, fake_worker, until):
    wire, session_id = await site.start()
    fake_worker.gate.clear()
    wire.post("interact", SAID, session_id=session_id, x_request_id="a")
    await until(lambda: fake_worker.count("interact") == 1)
    wire.close()
    fake_worker.gate.set()
    await until(lambda: site.controller.sessions.live[int(session_id)].state == "idle")
    again = await site.connect()
    again.post("interact", SAID, session_id=session_id, x_request_id="a")
    assert said((await again.read())[2]) == "answer 1"
    assert fake_worker.count("interact") == 1


async def test_a_client_that_leaves_the_line_leaves_no_session(site, fake_worker, until):
    fake_worker.capacity = 1
    fake_worker.beat(site.controller)
    _, session_id = await site.start()
    waiting = await site.connect()
    waiting.post("start_sample", b'{"name": "task", "index": 0}')
    await until(lambda: site.controller.admission.depth("task") == 1)
    waiting.close()
    await until(lambda: site.controller.admission.depth("task") == 0)
    assert set(site.controller.sessions.live) == {int(session_id)}


async def test_an_exchange_that_runs_refuses_another_and_nothing_shifts(site, fake_worker, until):
    wire, session_id = await site.start()
    fake_worker.gate.clear()
    wire.post("interact", SAID, session_id=session_id, x_request_id="a")
    await until(lambda: fake_worker.count("interact") == 1)
    other, same = await site.connect(), await site.connect()
    other.post("interact", SAID, session_id=session_id, x_request_id="b")
    status, _, body = await other.read()
    assert (status, json.loads(body)["code"]) == (409, "session_busy")
    same.post("interact", SAID, session_id=session_id, x_request_id="a")
    fake_worker.gate.set()
    assert said((await wire.read())[2]) == said((await same.read())[2]) == "answer 1"
    other.post("interact", SAID, session_id=session_id, x_request_id="b")
    assert said((await other.read())[2]) == "answer 2"


@pytest.mark.parametrize(("choice", "state"), [("continue", "busy"), ("cancel", "cancelling")])
async def test_when_the_deadline_passes_the_caller_has_chosen_what_happens(
    site, fake_worker, choice, state, until
):
    wire, session_id = await site.start()
    fake_worker.gate.clear()
    wire.post("interact", SAID, session_id=session_id, x_deadline_ms=50, x_on_deadline=choice)
    status, _, body = await wire.read()
    assert (status, json.loads(body)["code"]) == (504, "deadline_exceeded")
    session = site.controller.sessions.find(int(session_id))
    assert session.state in (state, "cancelled")
    (told,) = [headers["x-deadline-ms"] for route, _, headers in fake_worker.seen if route == "interact"]
    assert 0 < int(told) <= 50
    fake_worker.gate.set()


async def test_too_many_connections_and_exchanges_are_shed(fake_worker, until):
    config = ControllerConfig(max_connections=2, max_in_flight=1)
    async with Site(config) as site:
        fake_worker.beat(site.controller)
        one, first = await site.start()
        two, second = await site.start()
        three = await site.connect()
        three.send(b"GET /healthz HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n")
        status, headers, body = await three.read()
        assert (status, headers["retry-after"], headers["connection"]) == (503, "1", "close")
        assert json.loads(body)["message"] == "2 connections are open, which is the limit"
        fake_worker.gate.clear()
        one.post("interact", SAID, session_id=first)
        await until(lambda: fake_worker.count("interact") == 1)
        two.post("interact", SAID, session_id=second)
        status, headers, body = await two.read()
        assert (status, headers["retry-after"]) == (503, "1")
        assert json.loads(body)["message"] == "1 exchanges are under way, which is the limit"
        fake_worker.gate.set()
        assert (await one.read())[0] == 200
        two.post("interact", SAID, session_id=second)
        assert (await two.read())[0] == 200


HEADERS = st.dictionaries(
    st.sampled_from(
        [
            *("session_id", "session-id", "x-request-id", "x-deadline-ms", "x-on-deadline", "origin", "host"),
            *("authorization", "x-client-id"),
        ]
    ),
    st.sampled_from(
        ["7", "", "-1", "abc", "0", "1" * 40, "cancel", "http://evil", "evil", "127.0.0.1", "\xe9"]
    ),
    max_size=4,
)
BODIES = st.sampled_from(
    [b"", b"{", b"{}", b"[]", SAID, b'{"name": "task"}', b'{"name": "x", "index": 0}', b"\xff", b"NaN"]
)


async def test_both_ways_give_the_same_refusals(site):
    """Requests that fail must fail alike over the socket and through ASGI."""
    wire = await site.connect()
    transport = httpx.ASGITransport(site.controller.app)
    loop = asyncio.get_running_loop()

    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as http:

        async def compare(route, headers, body):
            headers = {"host": "127.0.0.1"} | headers
            lines = [f"POST /api/{route} HTTP/1.1", f"content-length: {len(body)}"]
            lines += [f"{name}: {value}" for name, value in headers.items()]
            wire.send("\r\n".join([*lines, "", ""]).encode("latin-1") + body)
            status, _, text = await wire.read()
            encoded = {name: value.encode("latin-1") for name, value in headers.items()}
            slow = await http.post(f"/api/{route}", content=body, headers=encoded)
            assert (status, text) == (slow.status_code, slow.content)
            assert status in (400, 401, 403)

        @settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
        @given(st.sampled_from(["start_sample", "interact", "cancel"]), HEADERS, BODIES)
        def check(route, headers, body):
            asyncio.run_coroutine_threadsafe(compare(route, headers, body), loop).result(20)

        await asyncio.to_thread(check)

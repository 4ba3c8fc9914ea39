"""The session client against real HTTP servers: what it waits for, repeats, and reports."""

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
from aiohttp import web

from agentrl_core import (
    DEADLINE_HEADER,
    REQUEST_ID_HEADER,
    SESSION_HEADER,
    ConfigError,
    ErrorCode,
    Message,
    SampleStatus,
    SessionError,
    WorkerStatus,
)
from agentrl_core.client import Session, SessionClient

OPENING = {
    "messages": [{"role": "user", "content": "go", "cache": {"ttl": 1}}],
    "tools": [{"type": "function", "function": {"name": "look"}}],
}
ACTION = Message(role="assistant", content="left")


class Server:
    """A controller whose routes a test replaces; keeps every request it got."""

    def __init__(self) -> None:
        self.answers: dict[str, Callable[[web.Request], Awaitable[web.StreamResponse]]] = {
            "start_sample": self._start
        }
        self.requests: list[web.Request] = []
        self.bodies: list[bytes] = []
        self.url = ""

    def answer(self, route: str, *responses: web.Response | None) -> None:
        """Give these answers in turn, the last one for ever; None drops the connection."""
        left = list(responses)

        async def handler(request: web.Request) -> web.StreamResponse:
            response = left.pop(0) if len(left) > 1 else left[0]
            if response is None:
                assert request.transport is not None
                request.transport.abort()
                return web.Response()
            return web.Response(body=response.body, status=response.status, headers=response.headers)

        self.answers[route] = handler

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.requests.append(request)
        self.bodies.append(await request.read())
        return await self.answers[request.match_info["route"]](request)

    async def _start(self, request: web.Request) -> web.StreamResponse:
        return web.json_response(OPENING, headers={SESSION_HEADER: "41"})


async def serve(server: Server, sock: socket.socket) -> web.AppRunner:
    app = web.Application()
    app.router.add_route("*", "/api/{route}", server.handle)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.SockSite(runner, sock).start()
    host, port = sock.getsockname()
    server.url = f"http://{host}:{port}/api"
    return runner


def bound_socket() -> socket.socket:
    """A socket on a free port that refuses connections until somebody listens."""
    sock = socket.socket()
    sock.bind(("127.0.0.1", 0))
    return sock


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    server = Server()
    runner = await serve(server, bound_socket())
    yield server
    await runner.cleanup()


@pytest.fixture
async def client(server: Server) -> AsyncIterator[SessionClient]:
    async with SessionClient(server.url, start_timeout_s=10, interact_timeout_s=10) as client:
        yield client


async def start(client: SessionClient, **options) -> Session:
    return await client.start("maze", 3, **options)


def full(retry_after: str = "0.2") -> web.Response:
    body = {"message": "every worker is full", "code": "no_capacity"}
    return web.json_response(body, status=503, headers={"Retry-After": retry_after})


def opened() -> web.Response:
    return web.json_response(OPENING, headers={SESSION_HEADER: "41"})


async def test_start_opens_a_session_with_its_first_messages_and_tools(server, client):
    session = await start(client, seed=7, group_id="g")
    (request,) = server.requests
    assert (session.id, session.task, session.index, session.finished) == ("41", "maze", 3, False)
    assert session.opening.tools is not None
    assert session.opening.tools[0].function.name == "look"
    assert server.bodies == [b'{"name": "maze", "index": 3, "seed": 7, "group_id": "g"}']
    assert request.headers[REQUEST_ID_HEADER]
    assert 0 < int(request.headers[DEADLINE_HEADER]) <= 10_000


async def test_start_may_bring_a_sample_of_the_callers_own(server, client):
    await client.start("maze", custom_task={"size": 2})
    assert server.bodies == [b'{"name": "maze", "index": -1, "custom_task": {"size": 2}}']


async def test_token_is_sent_as_bearer(server):
    async with SessionClient(server.url + "/", token="s3cret") as client:
        await start(client)
    assert server.requests[0].headers["Authorization"] == "Bearer s3cret"


async def test_start_waits_for_capacity_at_least_as_long_as_the_server_says(server, client):
    server.answer("start_sample", full("0.2"), opened())
    began = asyncio.get_running_loop().time()
    assert (await start(client)).id == "41"
    assert asyncio.get_running_loop().time() - began >= 0.2
    first, second = server.requests
    assert first.headers[REQUEST_ID_HEADER] == second.headers[REQUEST_ID_HEADER]
    assert int(second.headers[DEADLINE_HEADER]) <= int(first.headers[DEADLINE_HEADER]) - 200


async def test_start_that_finds_no_capacity_before_its_deadline_says_so(server, client):
    server.answer("start_sample", full("30"))
    with pytest.raises(SessionError, match="every worker is full") as caught:
        await start(client, deadline_s=5)
    assert (caught.value.code, caught.value.retry_after_s) == (ErrorCode.NO_CAPACITY, 30.0)
    assert len(server.requests) == 1


async def test_server_that_never_answers_costs_no_more_than_the_deadline(server, client):
    session = await start(client)
    silence = asyncio.Event()

    async def never(request: web.Request) -> web.StreamResponse:
        await silence.wait()
        return web.Response()

    server.answers["interact"] = never
    with pytest.raises(SessionError, match=r"within 0\.1 s") as caught:
        await session.interact([ACTION], deadline_s=0.1)
    silence.set()
    assert caught.value.code is ErrorCode.DEADLINE_EXCEEDED


async def test_deadline_that_has_passed_sends_nothing(server, client):
    with pytest.raises(SessionError) as caught:
        await start(client, deadline_s=0)
    assert caught.value.code is ErrorCode.DEADLINE_EXCEEDED
    assert server.requests == []


class Watched(SessionClient):
    """Tells when a request first failed."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.failed = asyncio.Event()

    async def _attempt(self, *args, **options):
        try:
            return await super()._attempt(*args, **options)
        except SessionError:
            self.failed.set()
            raise


async def test_refused_connection_is_tried_again_until_the_server_is_up():
    server, sock = Server(), bound_socket()
    async with Watched(f"http://127.0.0.1:{sock.getsockname()[1]}/api") as client:
        starting = asyncio.create_task(start(client, deadline_s=20))
        await asyncio.wait_for(client.failed.wait(), 10)
        runner = await serve(server, sock)
        assert (await starting).id == "41"
    await runner.cleanup()


async def test_server_that_stays_away_is_unreachable():
    with bound_socket() as sock:
        url = f"http://127.0.0.1:{sock.getsockname()[1]}/api"
        async with SessionClient(url) as client:
            with pytest.raises(SessionError, match=url) as caught:
                await start(client, deadline_s=0.3)
    assert caught.value.code is ErrorCode.UNREACHABLE


async def test_server_that_stays_away_is_given_up_long_before_the_deadline():
    with bound_socket() as sock:
        url = f"http://127.0.0.1:{sock.getsockname()[1]}/api"
        async with SessionClient(url, connect_timeout_s=0.3) as client, asyncio.timeout(10):
            with pytest.raises(SessionError) as caught:
                await start(client, deadline_s=600)
    assert caught.value.code is ErrorCode.UNREACHABLE


async def test_server_that_takes_no_connection_is_unreachable():
    with bound_socket() as sock, socket.socket() as first, socket.socket() as second:
        sock.listen(0)
        for filler in (first, second):  # A full backlog: the kernel ignores who comes next.
            filler.setblocking(False)
            filler.connect_ex(sock.getsockname())
        url = f"http://127.0.0.1:{sock.getsockname()[1]}/api"
        async with SessionClient(url, connect_timeout_s=0.3) as client, asyncio.timeout(10):
            with pytest.raises(SessionError, match="no connection within") as caught:
                await start(client, deadline_s=600)
    assert caught.value.code is ErrorCode.UNREACHABLE


async def test_wait_for_capacity_does_not_count_as_being_unreachable(server):
    server.answer("start_sample", full("0.2"), full("0.2"), full("0.2"), opened())
    async with SessionClient(server.url, connect_timeout_s=0.1) as client:
        assert (await start(client, deadline_s=20)).id == "41"
    assert len(server.requests) == 4


async def test_proxy_that_drops_every_connection_is_given_up_too(server):
    replaying = web.json_response(OPENING, headers={SESSION_HEADER: "41", REQUEST_ID_HEADER: "echo"})
    server.answer("start_sample", replaying)
    server.answer("interact", None)
    async with SessionClient(server.url, connect_timeout_s=0.3) as client, asyncio.timeout(10):
        session = await start(client)
        with pytest.raises(SessionError) as caught:
            await session.interact([ACTION], deadline_s=600)
    assert caught.value.code is ErrorCode.UNREACHABLE
    assert len(server.requests) > 2


@pytest.mark.parametrize("limit_s", [0, -1, float("nan")])
def test_limit_of_connecting_that_is_not_positive_is_refused(limit_s):
    with pytest.raises(ConfigError, match="`connect_timeout_s` must be > 0"):
        SessionClient("http://127.0.0.1:5020/api", connect_timeout_s=limit_s)


async def test_dropped_connection_is_never_repeated_to_a_server_that_does_not_replay(server, client):
    session = await start(client)
    server.answer("interact", None, web.json_response({"finish": True}))
    with pytest.raises(SessionError) as caught:
        await session.interact([ACTION])
    assert caught.value.code is ErrorCode.UNREACHABLE
    assert [request.path for request in server.requests] == ["/api/start_sample", "/api/interact"]


async def test_dropped_connection_is_repeated_under_the_same_id_to_a_server_that_replays(server, client):
    replaying = web.json_response(OPENING, headers={SESSION_HEADER: "41", REQUEST_ID_HEADER: "echo"})
    server.answer("start_sample", replaying)
    session = await start(client)
    server.answer("interact", None, None, web.json_response({"finish": True, "status": "completed"}))
    reply = await session.interact([ACTION])
    ids = [request.headers[REQUEST_ID_HEADER] for request in server.requests]
    assert reply.status is SampleStatus.COMPLETED
    assert len(ids) == 4
    assert len(set(ids[1:])) == 1
    assert ids[0] != ids[1]
    assert len(set(server.bodies[1:])) == 1


async def test_interact_sends_unknown_fields_and_returns_them(server, client):
    async def echo(request: web.Request) -> web.StreamResponse:
        return web.json_response({**await request.json(), "reward": 0.5, "metrics": {"score": 1}})

    server.answers["interact"] = echo
    session = await start(client)
    wire = {"role": "assistant", "content": None, "reasoning_content": "hm", "x": {"y": [1]}}
    reply = await session.interact([Message.model_validate(wire)])
    assert [message.to_wire() for message in reply.messages] == [wire]
    assert (reply.reward, reply.metrics) == (0.5, {"score": 1})
    assert session.opening.messages[0].to_wire() == OPENING["messages"][0]
    assert server.requests[-1].headers[SESSION_HEADER] == "41"


async def test_session_is_finished_when_a_reply_says_so(server, client):
    session = await start(client)
    server.answer("interact", web.json_response({}), web.json_response({"finish": True}))
    await session.interact([ACTION])
    assert not session.finished
    await session.interact([ACTION])
    assert session.finished


@pytest.mark.parametrize("code", [code for code in ErrorCode if code not in ("no_capacity", "unreachable")])
async def test_error_carries_the_servers_code_whatever_the_http_status(server, client, code):
    session = await start(client)
    server.answer("interact", web.json_response({"message": "why", "code": code}, status=400))
    with pytest.raises(SessionError, match=r"interact: why \(HTTP 400\)") as caught:
        await session.interact([ACTION])
    assert caught.value.code is code


@pytest.mark.parametrize(
    ("status", "body", "code"),
    [
        (400, {"message": "no such index"}, "bad_request"),
        (401, {"message": "who"}, "unauthorized"),
        (403, {"message": "no"}, "unauthorized"),
        (404, {"message": "gone"}, "unknown_session"),
        (409, {"message": "busy"}, "session_busy"),
        (422, {"detail": [{"loc": ["body"], "msg": "missing"}]}, "bad_request"),
        (406, {"detail": "concurrency limit"}, "worker_failed"),
        (500, {"message": "boom"}, "worker_failed"),
        (500, {"message": "boom", "code": "from the future"}, "worker_failed"),
        (500, {"message": "boom", "code": ["bad_request"]}, "worker_failed"),
        (500, ["boom"], "worker_failed"),
        (504, {}, "deadline_exceeded"),
        (302, {}, "worker_failed"),
    ],
)
async def test_error_without_a_known_code_is_classed_by_its_http_status(server, client, status, body, code):
    session = await start(client)
    server.answer("interact", web.json_response(body, status=status, headers={"Location": "/api/elsewhere"}))
    with pytest.raises(SessionError, match=f"HTTP {status}") as caught:
        await session.interact([ACTION])
    assert caught.value.code == code


async def test_error_page_of_a_proxy_is_classed_by_its_http_status(server, client):
    session = await start(client)
    server.answer("interact", web.Response(text="<h1>Bad gateway</h1>", status=502))
    with pytest.raises(SessionError, match="Bad Gateway") as caught:
        await session.interact([ACTION])
    assert caught.value.code is ErrorCode.WORKER_FAILED


@pytest.mark.parametrize(
    "body",
    ["<html>", "", "[]", '{"status": "fine"}', '{"messages": 3}', '{"reward": NaN}', '{"reward": Infinity}'],
)
async def test_malformed_reply_is_the_workers_failure(server, client, body):
    session = await start(client)
    server.answer("interact", web.Response(text=body, content_type="application/json"))
    with pytest.raises(SessionError) as caught:
        await session.interact([ACTION])
    assert caught.value.code is ErrorCode.WORKER_FAILED


async def test_start_without_a_session_header_names_the_likely_proxy(server, client):
    server.answer("start_sample", web.json_response(OPENING))
    with pytest.raises(SessionError, match="underscores_in_headers") as caught:
        await start(client)
    assert caught.value.code is ErrorCode.WORKER_FAILED


async def test_server_that_speaks_no_http_is_reported_as_such():
    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"SSH-2.0-OpenSSH\r\n\r\n")
        writer.close()

    other = await asyncio.start_server(greet, "127.0.0.1", 0)
    port = other.sockets[0].getsockname()[1]
    async with other, SessionClient(f"http://127.0.0.1:{port}/api") as client:
        with pytest.raises(SessionError, match="no HTTP") as caught:
            await start(client, deadline_s=5)
    assert caught.value.code is ErrorCode.WORKER_FAILED


@pytest.mark.parametrize("url", ["127.0.0.1:5020/api", "grpc://127.0.0.1:5021", ""])
def test_address_without_http_is_refused_with_an_example(url):
    with pytest.raises(ConfigError, match=r"http://127\.0\.0\.1:5020/api"):
        SessionClient(url)


async def test_cancel_ends_the_session_once(server, client):
    session = await start(client)
    server.answer("cancel", web.json_response(None))
    await session.cancel()
    await session.cancel()
    assert session.finished
    assert [request.path for request in server.requests] == ["/api/start_sample", "/api/cancel"]


@pytest.mark.parametrize("code", ["unknown_session", "session_finished", "bad_request"])
async def test_cancel_of_a_session_that_is_gone_is_no_error(server, client, code):
    session = await start(client)
    server.answer("cancel", web.json_response({"message": "gone", "code": code}, status=400))
    await session.cancel()
    assert session.finished


async def test_cancel_that_the_server_could_not_do_is_an_error(server, client):
    session = await start(client)
    server.answer("cancel", web.json_response({"message": "boom"}, status=500))
    with pytest.raises(SessionError, match="boom"):
        await session.cancel()
    assert not session.finished


async def test_indices_of_a_split_are_asked_for_by_name(server, client):
    server.answer("get_indices", web.json_response([0, "a"]))
    assert await client.indices("maze", split="test") == [0, "a"]
    assert dict(server.requests[0].query) == {"name": "maze", "split": "test"}


async def test_tasks_are_listed_with_their_workers(server, client):
    worker = {"id": 1, "address": "http://w/api", "capacity": 2, "current": 0, "status": "ALIVE"}
    server.answer("list_workers", web.json_response({"maze": {"indices": [0], "workers": {"1": worker}}}))
    tasks = await client.tasks()
    assert tasks["maze"].workers["1"].status is WorkerStatus.ALIVE


@pytest.mark.parametrize("body", ["null", '{"maze": 3}', "[[]]"])
@pytest.mark.parametrize("call", [lambda client: client.tasks(), lambda client: client.indices("maze")])
async def test_malformed_listing_is_the_workers_failure(server, client, body, call):
    for route in ("list_workers", "get_indices"):
        server.answer(route, web.Response(text=body, content_type="application/json"))
    with pytest.raises(SessionError, match="malformed") as caught:
        await call(client)
    assert caught.value.code is ErrorCode.WORKER_FAILED


async def test_many_sessions_wait_at_once(server, client):
    everyone = asyncio.Barrier(150)

    async def together(request: web.Request) -> web.StreamResponse:
        await everyone.wait()
        return web.json_response({"finish": True})

    server.answers["interact"] = together
    sessions = await asyncio.gather(*(start(client) for _ in range(150)))
    replies = await asyncio.gather(*(session.interact([ACTION]) for session in sessions))
    assert all(reply.finish for reply in replies)

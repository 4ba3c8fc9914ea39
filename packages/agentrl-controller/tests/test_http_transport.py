"""The client for workers, against servers that send what they like."""

import asyncio
import contextlib
import time

import pytest

from agentrl_controller.transports import Call, HttpTransport, WorkerError
from agentrl_core.sockets import listen

OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}"


class Server:
    """Reads requests and answers each with the next of its scripts."""

    def __init__(self):
        self.script = []
        self.requests = []
        self.connections = 0
        self.writers = []

    async def __aenter__(self):
        self.server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.address = f"http://127.0.0.1:{self.server.sockets[0].getsockname()[1]}/api"
        return self

    async def __aexit__(self, *_):
        self.server.close()
        for writer in self.writers:
            writer.transport.abort()

    async def _serve(self, reader, writer):
        self.connections += 1
        self.writers.append(writer)
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
                self.requests.append((head, await reader.readexactly(length)))
                step = self.script.pop(0) if self.script else OK
                if callable(step):
                    step(writer)
                    continue
                for part in step if isinstance(step, list) else [step]:
                    writer.write(part)
                    await asyncio.sleep(0)


@pytest.fixture
async def server():
    async with Server() as server:
        yield server


@pytest.fixture
async def transport():
    transport = HttpTransport(token="secret")
    yield transport
    await transport.close()


def call(server, **fields):
    return Call(server.address, "interact", b"{}", **({"timeout_s": 5.0} | fields))


async def test_a_call_says_what_it_knows(server, transport):
    asked = call(server, session_id=7, request_id="r", deadline_s=1.5, headers=(("x-more", "m"),))
    reply = await transport.send(asked)
    assert (reply.http_status, reply.body, reply.finish) == (200, b"{}", None)
    head, body = server.requests[0]
    lines = head.decode().split("\r\n")
    assert lines[0] == "POST /api/interact HTTP/1.1"
    assert {
        *("authorization: Bearer secret", "content-type: application/json", "session_id: 7"),
        *("x-request-id: r", "x-deadline-ms: 1500", "content-length: 2", "x-more: m"),
    } <= set(lines)
    assert body == b"{}"


@pytest.mark.parametrize(
    ("answer", "status", "body"),
    [
        (OK, 200, b"{}"),
        ([OK[:5], OK[5:30], OK[30:]], 200, b"{}"),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\n{\r\n1\r\n}\r\n0\r\n\r\n", 200, b"{}"),
        (b"HTTP/1.1 100 Continue\r\n\r\n" + OK, 200, b"{}"),
        (b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n", 404, b""),
        (b"HTTP/1.1 204 No Content\r\n\r\n", 204, b""),
        (b"HTTP/1.1 200 OK\r\nX-Session-Finish: 1\r\ncontent-length: 2\r\n\r\n{}", 200, b"{}"),
    ],
)
async def test_answers_of_every_shape_are_read_and_the_connection_kept(
    server, transport, answer, status, body
):
    server.script = [answer]
    reply = await transport.send(call(server))
    assert (reply.http_status, reply.body) == (status, body)
    assert reply.finish is (True if b"Finish: 1" in answer else None)
    await transport.send(call(server))
    assert server.connections == 1


async def test_an_answer_may_end_with_the_connection(server, transport):
    def answer(writer):
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n[1]")
        writer.write_eof()

    server.script = [answer]
    assert (await transport.send(call(server))).body == b"[1]"
    await transport.send(call(server))
    assert server.connections == 2


async def test_a_server_that_says_it_closes_is_not_asked_on_that_connection(server, transport):
    server.script = [b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\n{}"]
    await transport.send(call(server))
    await transport.send(call(server))
    assert server.connections == 2


@pytest.mark.parametrize(
    ("step", "message"),
    [
        (lambda writer: writer.transport.abort(), "broke off"),
        (lambda writer: (writer.write(OK[:20]), writer.close()), "broke off"),
        (lambda writer: (writer.write(OK[:-1]), writer.close()), "broke off"),
        (b"SMTP ready\r\n", "answered what is no HTTP"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 999999999999\r\n\r\n", "answered more than"),
    ],
)
async def test_what_is_no_answer_is_the_workers_fault(server, transport, step, message):
    server.script = [step]
    with pytest.raises(WorkerError, match=message) as caught:
        await transport.send(call(server))
    assert not caught.value.unreachable
    assert (await transport.send(call(server))).body == b"{}"
    assert server.connections == 2


async def test_a_late_answer_reaches_nobody_else(server, transport):
    late = asyncio.Event()

    def answer(writer):
        asyncio.get_running_loop().call_later(
            0.1, lambda: (writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nlate"), late.set())
        )

    server.script = [answer]
    with pytest.raises(TimeoutError):
        await transport.send(call(server, timeout_s=0.02))
    assert (await transport.send(call(server))).body == b"{}"
    await late.wait()
    assert (await transport.send(call(server))).body == b"{}"


async def test_a_cancelled_call_leaves_no_half_read_connection(server, transport):
    server.script = [lambda writer: writer.write(OK[:20])]
    asking = asyncio.create_task(transport.send(call(server)))
    async with asyncio.timeout(5):
        while not server.requests:
            await asyncio.sleep(0.005)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    assert (await transport.send(call(server))).body == b"{}"


async def test_what_nobody_asked_for_closes_the_connection(server, transport):
    server.script = [OK + OK[:20]]
    await transport.send(call(server))
    assert (await transport.send(call(server))).body == b"{}"
    assert server.connections == 2


async def test_nobody_there_means_unreachable(transport):
    with contextlib.closing(listen("127.0.0.1", 0)) as free:
        address = f"http://127.0.0.1:{free.getsockname()[1]}/api"
    with pytest.raises(WorkerError, match="is unreachable") as caught:
        await transport.send(Call(address, "interact"))
    assert caught.value.unreachable


async def test_connections_are_given_up_before_a_server_closes_them(server, transport):
    """A server that closes idle connections early teaches the client to come sooner, or anew."""
    await transport.send(call(server))
    origin = transport._origins[server.address]
    assert origin.keep_s == 4.0
    server.writers[0].close()
    async with asyncio.timeout(5):
        while origin.idle:
            await asyncio.sleep(0.005)
    assert origin.keep_s < 4.0
    kept_s = origin.keep_s
    await transport.send(call(server))
    assert server.connections == 2
    origin.idle[0].idle_since -= kept_s + 0.01  # It has been idle for as long as is safe.
    await transport.send(call(server))
    assert server.connections == 3
    origin.expire(time.monotonic() + 61.0)
    assert origin.keep_s == min(4.0, 2 * kept_s)


async def test_a_server_may_say_how_long_it_keeps_a_connection(server, transport):
    server.script = [b"HTTP/1.1 200 OK\r\nKeep-Alive: timeout=2, max=9\r\ncontent-length: 2\r\n\r\n{}"]
    await transport.send(call(server))
    assert transport._origins[server.address].keep_s == pytest.approx(1.6)


async def test_a_thousand_calls_at_once_get_their_own_answers(transport):
    async def serve(reader, writer):
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                body = await reader.readexactly(int(head.split(b"content-length: ")[1].split(b"\r\n")[0]))
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body))

    server = await asyncio.start_server(serve, "127.0.0.1", 0, backlog=1000)
    address = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/api"
    calls = [Call(address, "interact", b"%d" % n, timeout_s=20.0) for n in range(1000)]
    for _ in range(2):
        replies = await asyncio.gather(*(transport.send(each) for each in calls))
        assert [reply.body for reply in replies] == [each.body for each in calls]
    server.close()

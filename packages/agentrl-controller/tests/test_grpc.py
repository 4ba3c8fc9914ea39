import asyncio
import contextlib
import json
import random
import socket
import time
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest

from agentrl_controller.transports.base import Call, WorkerError
from agentrl_controller.transports.grpc import GrpcTransport
from agentrl_core import ConfigError, ErrorCode, SessionError
from agentrl_core.rpc import worker_stream_pb2 as pb
from agentrl_core.rpc.worker_stream_pb2_grpc import ControllerStub

Envelope = pb.WorkerStreamEnvelope
OPTIONS = [("grpc.max_receive_message_length", 100 * 1024 * 1024)]
MEGABYTE = 1024 * 1024
STREAM = "/agentbench.Controller/WorkerStream"


class Host:
    """The controller's side: a transport, and what it has told."""

    def __init__(self, **settings: Any) -> None:
        self.beats: list[dict[str, Any]] = []
        self.notices: list[int] = []
        self.lost: asyncio.Queue[tuple[str, str]] = asyncio.Queue()
        self.beaten = asyncio.Event()
        self.refusal = ""
        self.token = ""
        self.port = 0
        self.transport = GrpcTransport(
            heartbeat=self._beat,
            cancel_notice=self._notice,
            lost=lambda address, reason: self.lost.put_nowait((address, reason)),
            check=self._check,
            **settings,
        )

    def _beat(self, fields: dict[str, Any]) -> None:
        if self.refusal:
            raise SessionError(self.refusal, code=ErrorCode.BAD_REQUEST)
        self.beats.append(fields)
        self.beaten.set()

    def _notice(self, session_id: int) -> None:
        if session_id < 0:
            raise SessionError(f"session {session_id} is unknown", code=ErrorCode.UNKNOWN_SESSION)
        self.notices.append(session_id)

    def _check(self, metadata: Any) -> None:
        if self.token and metadata.get("authorization") != f"Bearer {self.token}":
            raise SessionError("the token is wrong", code=ErrorCode.UNAUTHORIZED)

    async def send(self, worker: "StreamWorker | str", route: str = "interact", **fields: Any) -> Any:
        address = worker if isinstance(worker, str) else f"grpc://{worker.id}"
        return await self.transport.send(Call(address, route, **fields))


class StreamWorker:
    """A worker's end of a stream, message by message."""

    def __init__(self, port: int, *, worker_id: str = "w1", token: str = "") -> None:
        self.id = worker_id
        self.channel = grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=OPTIONS)
        metadata = (("authorization", f"Bearer {token}"),) if token else None
        self.stream = ControllerStub(self.channel).WorkerStream(metadata=metadata)

    async def beat(self, host: Host, **fields: Any) -> None:
        """Send a heartbeat and wait until it has been taken."""
        host.beaten.clear()
        await self.write(receive_heartbeat_request=self.heartbeat(**fields))
        async with asyncio.timeout(5):
            await host.beaten.wait()

    def heartbeat(self, **fields: Any) -> pb.ReceiveHeartbeatRequest:
        indices = [pb.TaskIndex(int_value=n) for n in range(3)]
        known = {"id": self.id, "name": "task", "concurrency": 4, "indices": indices}
        return pb.ReceiveHeartbeatRequest(**{**known, **fields})

    async def write(self, kind: int = Envelope.HEARTBEAT, **fields: Any) -> None:
        envelope = Envelope(**{"id": "e1", "type": kind, **fields})
        envelope.timestamp.GetCurrentTime()
        await self.stream.write(envelope)

    async def read(self) -> Envelope:
        async with asyncio.timeout(5):
            envelope = await self.stream.read()
        assert isinstance(envelope, Envelope), f"the stream ended: {self.stream!r}"
        return envelope

    async def answer(self, request: Envelope, code: int = 200, content: Any = None, **fields: Any) -> None:
        body = b"" if content is None else json.dumps(content).encode()
        response = Envelope.WorkerResponse(code=code, json=body, **fields)
        await self.write(Envelope.RESPONSE, id=request.id, worker_response=response)

    async def ending(self) -> tuple[grpc.StatusCode, str]:
        """How the stream ended, after it has."""
        async with asyncio.timeout(5):
            with contextlib.suppress(grpc.aio.AioRpcError):
                while await self.stream.read() is not grpc.aio.EOF:
                    pass
            return await self.stream.code(), await self.stream.details() or ""

    async def close(self) -> None:
        self.stream.cancel()
        await self.channel.close()


@contextlib.asynccontextmanager
async def serving(**settings: Any) -> AsyncIterator[Host]:
    host = Host(**settings)
    host.port = await host.transport.listen("127.0.0.1", 0)
    try:
        yield host
    finally:
        await host.transport.close()


@pytest.fixture
async def host() -> AsyncIterator[Host]:
    async with serving() as host:
        yield host


@pytest.fixture
async def worker(host: Host) -> AsyncIterator[StreamWorker]:
    worker = StreamWorker(host.port)
    await worker.beat(host)
    yield worker
    await worker.close()


def spawn(*calls: Any) -> list[asyncio.Task[Any]]:
    return [asyncio.create_task(call) for call in calls]


async def outcome(task: asyncio.Task[Any]) -> Any:
    async with asyncio.timeout(5):
        (result,) = await asyncio.gather(task, return_exceptions=True)
    return result


def test_the_wire_has_the_published_numbers():
    expected = {
        "TaskIndex": {"int_value": 1, "string_value": 2},
        "ReceiveHeartbeatRequest": {"id": 1, "name": 2, "concurrency": 3, "indices": 4},
        "SessionCancelNotice": {"session_id": 1},
        "WorkerStreamEnvelope": {
            "id": 1,
            "type": 2,
            "timestamp": 3,
            "receive_heartbeat_request": 101,
            "session_cancel_notice": 111,
            "worker_response": 121,
            "worker_request": 211,
        },
        "WorkerStreamEnvelope.WorkerRequest": {"method": 1, "endpoint": 2, "json": 3},
        "WorkerStreamEnvelope.WorkerResponse": {"code": 1, "message": 2, "json": 3},
    }
    ours = {"native", "instance", "splits_json", "deadline_ms", "request_id", "session_id", "finish"}
    for name, numbers in expected.items():
        kind: Any = pb
        for part in name.split("."):
            kind = getattr(kind, part)
        fields = {field.name: field.number for field in kind.DESCRIPTOR.fields}
        assert fields.items() >= numbers.items()
        added = fields.keys() - numbers.keys()
        assert added <= ours
        assert all(fields[field] > 100 for field in added)
    assert Envelope.MessageType.items() == [("HEARTBEAT", 0), ("REQUEST", 1), ("RESPONSE", 2)]
    assert pb.DESCRIPTOR.services_by_name["Controller"].full_name == "agentbench.Controller"


async def test_a_published_heartbeat_gives_the_fields_of_a_json_one(host):
    published = (
        b"\x0a\x02h1\x10\x00"  # The envelope's id and type,
        b"\xaa\x06\x17"  # then field 101:
        b"\x0a\x03abc\x12\x04shop\x18\x10"  # id, name, concurrency,
        b"\x22\x02\x08\x00\x22\x04\x12\x02s7"  # indices: 0 and "s7".
    )
    async with grpc.aio.insecure_channel(f"127.0.0.1:{host.port}") as channel:
        stream = channel.stream_stream(STREAM)()
        await stream.write(published)
        async with asyncio.timeout(5):
            await host.beaten.wait()
    (fields,) = host.beats
    assert fields == {
        "name": "shop",
        "address": "grpc://abc",
        "concurrency": 16,
        "indices": [0, "s7"],
        "native": False,
        "instance": None,
        "splits": None,
    }


async def test_a_native_heartbeat_tells_more(host):
    worker = StreamWorker(host.port)
    await worker.beat(host, native=True, instance="i9", splits_json='{"test": [2]}')
    fields = host.beats[0]
    assert (fields["native"], fields["instance"], fields["splits"]) == (True, "i9", {"test": [2]})
    await worker.close()


async def test_a_repeated_heartbeat_is_not_read_anew(host, worker):
    await worker.beat(host)
    await worker.beat(host, concurrency=5)
    first, second, third = host.beats
    assert second is first
    assert (first["concurrency"], third["concurrency"]) == (4, 5)


async def test_workers_of_a_task_share_one_list_of_indices(host, worker):
    second, third = StreamWorker(host.port, worker_id="w2"), StreamWorker(host.port, worker_id="w3")
    await second.beat(host)
    await third.beat(host, indices=[pb.TaskIndex(int_value=0)])
    lists = [fields["indices"] for fields in host.beats]
    assert lists == [[0, 1, 2], [0, 1, 2], [0]]
    assert lists[1] is lists[0]
    await second.close()
    await third.close()


async def test_calls_go_out_as_requests_and_answers_come_back(host, worker):
    (start,) = spawn(host.send(worker, "start_sample", body=b'{"index":1}', timeout_s=2.0, deadline_s=1.5))
    request = await worker.read()
    asked = request.worker_request
    assert request.type == Envelope.REQUEST
    assert abs(request.timestamp.seconds - time.time()) < 60
    assert (asked.method, asked.endpoint, asked.json) == ("POST", "start_sample", b'{"index":1}')
    assert (asked.deadline_ms, asked.request_id, asked.session_id) == (1500, "", 0)
    await worker.answer(request, content={"messages": []})
    reply = await start
    assert (reply.http_status, json.loads(reply.body), reply.finish) == (200, {"messages": []}, None)

    (turn,) = spawn(host.send(worker, body=b"{}", timeout_s=3.0, session_id=2**53 - 1, request_id="r1"))
    request = await worker.read()
    asked = request.worker_request
    assert (asked.deadline_ms, asked.request_id, asked.session_id) == (3000, "r1", 2**53 - 1)
    await worker.answer(request, content={"reward": 1}, finish=False)
    reply = await turn
    assert (reply.body, reply.finish) == (b'{"reward": 1}', False)


@pytest.mark.parametrize(
    ("answered", "expected"),
    [
        ({"code": 400, "message": "No such session"}, (400, {"detail": "No such session"})),
        ({"code": 503, "json": b'{"detail": "x", "code": "c"}'}, (503, {"detail": "x", "code": "c"})),
        ({"code": 200}, (200, None)),
        ({}, (500, {"detail": "the worker answered with 0, which is no HTTP status"})),
        ({"code": -5}, (500, {"detail": "the worker answered with -5, which is no HTTP status"})),
    ],
)
async def test_every_answer_has_a_status_and_json(host, worker, answered, expected):
    (call,) = spawn(host.send(worker))
    request = await worker.read()
    response = Envelope.WorkerResponse(**answered)
    await worker.write(Envelope.RESPONSE, id=request.id, worker_response=response)
    reply = await call
    assert (reply.http_status, json.loads(reply.body)) == expected


async def test_a_thousand_calls_at_once_get_their_own_answers_in_any_order(host, worker):
    calls = spawn(*(host.send(worker, body=str(n).encode(), timeout_s=30.0) for n in range(1000)))
    requests = [await worker.read() for _ in calls]
    assert len({request.id for request in requests}) == 1000
    random.Random(3).shuffle(requests)
    for request in requests:
        await worker.answer(request, content={"echo": int(request.worker_request.json)})
    replies = await asyncio.gather(*calls)
    assert [json.loads(reply.body)["echo"] for reply in replies] == list(range(1000))


async def test_a_worker_without_a_stream_is_unreachable(host):
    with pytest.raises(WorkerError, match="grpc://nobody has no stream open") as raised:
        await host.send("grpc://nobody")
    assert raised.value.unreachable


async def test_all_who_wait_are_told_when_the_stream_breaks(host, worker):
    calls = spawn(*(host.send(worker, timeout_s=60.0) for _ in range(5)))
    for _ in calls:
        await worker.read()
    await worker.close()
    for call in calls:
        error = await outcome(call)
        assert isinstance(error, WorkerError)
        assert not error.unreachable
        assert error.http_status is None
    address, reason = await asyncio.wait_for(host.lost.get(), 5)
    assert address == "grpc://w1"
    assert reason
    with pytest.raises(WorkerError, match="no stream open"):
        await host.send(worker)
    assert host.lost.empty()


async def test_a_worker_that_closes_its_end_is_gone(host, worker):
    (call,) = spawn(host.send(worker, timeout_s=60.0))
    await worker.read()
    await worker.stream.done_writing()
    assert isinstance(await outcome(call), WorkerError)
    assert await asyncio.wait_for(host.lost.get(), 5) == ("grpc://w1", "its stream ended")
    assert (await worker.ending())[0] is grpc.StatusCode.OK


async def test_a_late_answer_is_nobodys(host, worker):
    (call,) = spawn(host.send(worker, body=b"1", timeout_s=0.01))
    late = await worker.read()
    assert isinstance(await outcome(call), TimeoutError)
    (call,) = spawn(host.send(worker, body=b"2"))
    request = await worker.read()
    await worker.answer(late, content="late")
    await worker.answer(request, content="timely")
    await worker.answer(request, content="again")
    assert (await call).body == b'"timely"'


async def test_a_caller_that_leaves_disturbs_nobody(host, worker):
    left, stayed = spawn(host.send(worker, body=b"1"), host.send(worker, body=b"2"))
    first, second = await worker.read(), await worker.read()
    left.cancel()
    assert isinstance(await outcome(left), asyncio.CancelledError)
    await worker.answer(first, content="nobody's")
    await worker.answer(second, content="mine")
    assert (await stayed).body == b'"mine"'


async def test_a_worker_that_does_not_read_blocks_no_other_and_acts_on_nothing_given_up():
    async with serving(max_queued_bytes=25 * MEGABYTE) as host:
        slow, quick = StreamWorker(host.port, worker_id="slow"), StreamWorker(host.port, worker_id="quick")
        await slow.beat(host)
        await quick.beat(host)
        big = b"1" * (8 * MEGABYTE)
        kept = spawn(*(host.send(slow, body=big, timeout_s=60.0) for _ in range(3)))
        given_up = await outcome(*spawn(host.send(slow, body=b"2", timeout_s=0.01)))
        assert isinstance(given_up, TimeoutError)
        refused = await outcome(*spawn(host.send(slow, body=bytes(10 * MEGABYTE))))
        assert isinstance(refused, SessionError)
        assert refused.code == ErrorCode.NO_CAPACITY
        assert refused.retry_after_s is not None

        (call,) = spawn(host.send(quick, body=b"3"))
        await quick.answer(await quick.read(), content="quick")
        assert (await call).body == b'"quick"'

        for _ in kept:
            request = await slow.read()
            assert request.worker_request.json == big
            await slow.answer(request, content="slow")
        assert [(await call).body for call in kept] == [b'"slow"'] * 3
        (call,) = spawn(host.send(slow, body=b"4"))
        request = await slow.read()
        assert request.worker_request.json == b"4"
        await slow.answer(request, content="in time")
        assert (await call).body == b'"in time"'
        await slow.close()
        await quick.close()


async def test_what_was_not_sent_when_the_stream_broke_may_be_sent_elsewhere(host, worker):
    big = b"1" * (8 * MEGABYTE)
    sent, waiting = spawn(host.send(worker, body=big), host.send(worker, body=b"2"))
    await asyncio.sleep(0)  # Both are in the queue, and the second cannot pass the first.
    other = StreamWorker(host.port)
    await other.beat(host)
    assert isinstance(await outcome(sent), WorkerError)
    error = await outcome(waiting)
    assert isinstance(error, WorkerError)
    assert error.unreachable
    await other.close()


async def test_too_large_a_body_does_not_end_the_stream(host, worker):
    error = await outcome(*spawn(host.send(worker, body=bytes(100 * MEGABYTE))))
    assert isinstance(error, WorkerError)
    assert error.http_status == 413
    (call,) = spawn(host.send(worker, body=b"1"))
    await worker.answer(await worker.read(), content="ok")
    assert (await call).body == b'"ok"'


async def test_a_worker_that_comes_again_takes_its_old_streams_place(host, worker):
    (call,) = spawn(host.send(worker, timeout_s=60.0))
    old = await worker.read()
    again = StreamWorker(host.port)
    await again.beat(host)
    assert isinstance(await outcome(call), WorkerError)
    code, message = await worker.ending()
    assert code is grpc.StatusCode.ABORTED
    assert "took its place" in message

    (call,) = spawn(host.send(worker))
    await again.answer(old, content="to the stream before")
    await again.answer(await again.read(), content="here")
    assert (await call).body == b'"here"'
    assert host.lost.empty()
    await again.close()
    assert (await asyncio.wait_for(host.lost.get(), 5))[0] == "grpc://w1"


async def test_a_worker_comes_back_after_its_stream_broke(host, worker):
    await worker.close()
    await asyncio.wait_for(host.lost.get(), 5)
    again = StreamWorker(host.port)
    await again.beat(host)
    (call,) = spawn(host.send(again))
    await again.answer(await again.read(), content="back")
    assert (await call).body == b'"back"'
    await again.close()


async def test_cancel_notices_are_answered(host, worker):
    await worker.write(Envelope.REQUEST, id="n1", session_cancel_notice={"session_id": 2**53 - 1})
    answer = await worker.read()
    assert host.notices == [2**53 - 1]
    assert (answer.type, answer.id) == (Envelope.RESPONSE, "n1")
    assert (answer.worker_response.code, answer.worker_response.json) == (200, b"null")

    await worker.write(Envelope.REQUEST, id="n2", session_cancel_notice={"session_id": -1})
    answer = await worker.read()
    assert (answer.id, answer.worker_response.code) == ("n2", 400)
    assert answer.worker_response.message == "session -1 is unknown"

    await worker.write(Envelope.REQUEST, id="n3", worker_request={"endpoint": "list_workers"})
    answer = await worker.read()
    assert (answer.id, answer.worker_response.code) == ("n3", 404)


async def test_a_notice_may_come_before_the_first_heartbeat(host):
    worker = StreamWorker(host.port)
    await worker.write(Envelope.REQUEST, id="n1", session_cancel_notice={"session_id": 7})
    assert (await worker.read()).worker_response.code == 200
    assert host.notices == [7]
    await worker.close()
    assert host.lost.empty()


@pytest.mark.parametrize("token", ["", "wrong"])
async def test_a_stream_without_the_right_token_is_refused(host, token):
    host.token = "right"
    worker = StreamWorker(host.port, token=token)
    assert await worker.ending() == (grpc.StatusCode.UNAUTHENTICATED, "the token is wrong")
    assert host.beats == []
    await worker.close()


async def test_a_stream_with_the_right_token_is_let_in(host):
    host.token = "right"
    worker = StreamWorker(host.port, token="right")
    await worker.beat(host)
    await worker.close()


async def test_a_refused_heartbeat_ends_the_stream_with_the_reason(host):
    host.refusal = "the indices differ"
    worker = StreamWorker(host.port)
    await worker.write(receive_heartbeat_request=worker.heartbeat())
    assert await worker.ending() == (grpc.StatusCode.INVALID_ARGUMENT, "the indices differ")
    with pytest.raises(WorkerError, match="no stream open"):
        await host.send(worker)
    assert host.lost.empty()
    await worker.close()


async def test_a_later_refusal_loses_the_worker(host, worker):
    host.refusal = "the indices differ"
    await worker.write(receive_heartbeat_request=worker.heartbeat(name="other"))
    assert (await worker.ending())[0] is grpc.StatusCode.INVALID_ARGUMENT
    assert await asyncio.wait_for(host.lost.get(), 5) == ("grpc://w1", "the indices differ")


@pytest.mark.parametrize("fields", [{"id": ""}, {"id": "w2"}, {"splits_json": "{"}])
async def test_a_heartbeat_that_makes_no_sense_ends_the_stream(host, worker, fields):
    await worker.write(receive_heartbeat_request=worker.heartbeat(**fields))
    code, message = await worker.ending()
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert next(iter(fields)) in message
    assert len(host.beats) == 1


async def test_what_is_no_envelope_ends_the_stream(host):
    async with grpc.aio.insecure_channel(f"127.0.0.1:{host.port}") as channel:
        stream = channel.stream_stream(STREAM)()
        await stream.write(b"\xff\xff\xff")
        async with asyncio.timeout(5):
            assert await stream.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_closing_tells_both_ends_and_loses_nobody():
    async with serving() as host:
        worker = StreamWorker(host.port)
        await worker.beat(host)
        (call,) = spawn(host.send(worker, timeout_s=60.0))
        await worker.read()
        await host.transport.close()
        error = await outcome(call)
        assert isinstance(error, WorkerError)
        assert await worker.ending() == (grpc.StatusCode.UNAVAILABLE, "the controller stops")
        assert host.lost.empty()
        await worker.close()


async def test_a_port_in_use_is_a_fault_of_the_settings():
    async with serving() as host:
        with pytest.raises(ConfigError, match=f"127.0.0.1:{host.port}"):
            await Host().transport.listen("127.0.0.1", host.port)


async def test_it_listens_on_ipv6():
    with socket.socket(socket.AF_INET6) as probe:
        try:
            probe.bind(("::1", 0))
        except OSError:
            pytest.skip("this machine has no IPv6")
    host = Host()
    port = await host.transport.listen("::1", 0)
    worker = StreamWorker(port)
    await worker.channel.close()
    assert port > 0
    await host.transport.close()

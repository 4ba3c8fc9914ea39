import asyncio
import contextlib
import json
import subprocess
from pathlib import Path

import grpc
import pytest

from agentrl_core import ConfigError
from agentrl_core.rpc import MAX_MESSAGE_BYTES
from agentrl_core.rpc.worker_stream_pb2 import WorkerStreamEnvelope as Envelope
from agentrl_core.rpc.worker_stream_pb2_grpc import ControllerServicer, add_ControllerServicer_to_server
from agentrl_env_sdk import Session, tool
from agentrl_env_sdk.worker import Runner, Worker, WorkerConfig
from agentrl_env_sdk.worker.link import Pause

OPTIONS = [("grpc.max_receive_message_length", MAX_MESSAGE_BYTES), ("grpc.so_reuseport", 0)]
WAIT_S = 15


class Stream:
    """The controller's end of a worker's stream."""

    def __init__(self, context):
        self.context = context
        self.metadata = dict(context.invocation_metadata())
        self.beats = asyncio.Queue()
        self.answers = {}
        self.notices = asyncio.Queue()
        self.broken = asyncio.Event()

    def take(self, envelope):
        if envelope.type == Envelope.HEARTBEAT:
            self.beats.put_nowait(envelope.receive_heartbeat_request)
        elif envelope.type == Envelope.RESPONSE:
            self._answer(envelope.id).set_result(envelope.worker_response)
        else:
            self.notices.put_nowait(envelope)

    def _answer(self, envelope_id):
        return self.answers.setdefault(envelope_id, asyncio.get_running_loop().create_future())

    async def send(self, envelope_id, route, content=None, **fields):
        body = b"" if content is None else json.dumps(content).encode()
        asked = Envelope.WorkerRequest(method="POST", endpoint=route, json=body, **fields)
        await self.context.write(Envelope(id=envelope_id, type=Envelope.REQUEST, worker_request=asked))

    async def answer(self, envelope_id):
        async with asyncio.timeout(WAIT_S):
            return await self._answer(envelope_id)

    async def ask(self, route, content=None, **fields):
        envelope_id = f"e{len(self.answers)}"
        await self.send(envelope_id, route, content, **fields)
        response = await self.answer(envelope_id)
        return response, json.loads(response.json)

    async def confirm(self, notice):
        response = Envelope.WorkerResponse(code=200, json=b"null")
        await self.context.write(Envelope(id=notice.id, type=Envelope.RESPONSE, worker_response=response))


class Controller(ControllerServicer):
    """A controller that tests take the part of."""

    def __init__(self, *, token=None, credentials=None, port=0):
        self.streams = asyncio.Queue()
        self.num_refused = 0
        self.is_quiet = False
        self._token = token
        self._server = grpc.aio.server(options=OPTIONS)
        add_ControllerServicer_to_server(self, self._server)
        address = f"127.0.0.1:{port}"
        if credentials is None:
            self.port = self._server.add_insecure_port(address)
        else:
            self.port = self._server.add_secure_port(address, credentials)

    async def __aenter__(self):
        await self._server.start()
        return self

    async def __aexit__(self, *_):
        await self._server.stop(0)

    async def WorkerStream(self, request_iterator, context):  # noqa: N802
        if self._token and ("authorization", f"Bearer {self._token}") not in context.invocation_metadata():
            self.num_refused += 1
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, "the token is wrong")
        if not self.is_quiet:
            await context.send_initial_metadata(())
        stream = Stream(context)
        self.streams.put_nowait(stream)
        reading = asyncio.create_task(self._read(request_iterator, stream))
        broken = asyncio.create_task(stream.broken.wait())
        try:
            await asyncio.wait([reading, broken], return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (reading, broken):
                task.cancel()
        if stream.broken.is_set():
            await context.abort(grpc.StatusCode.UNAVAILABLE, "it breaks")

    async def _read(self, envelopes, stream):
        async for envelope in envelopes:
            stream.take(envelope)

    async def stream(self):
        """The next stream, after its first heartbeat."""
        async with asyncio.timeout(WAIT_S):
            stream = await self.streams.get()
            stream.first_beat = await stream.beats.get()
            return stream


@contextlib.asynccontextmanager
async def working(runner, controller, *, scheme="grpc", **settings):
    """A worker in this process, and its addresses."""
    ready = asyncio.get_running_loop().create_future()
    config = WorkerConfig(controller=f"{scheme}://127.0.0.1:{controller.port}", heartbeat_s=0.05, **settings)
    worker = Worker(runner, config, ready=ready.set_result)
    serving = asyncio.create_task(worker.serve())
    await asyncio.wait([ready, serving], return_when=asyncio.FIRST_COMPLETED)
    if serving.done():
        await serving
    try:
        yield await ready
    finally:
        worker.stop(now=True)
        async with asyncio.timeout(WAIT_S):
            await serving


@pytest.fixture
def runner(counter):
    return Runner(counter, concurrency=2)


@pytest.fixture
async def controller():
    async with Controller() as controller:
        yield controller


@pytest.fixture
async def address(runner, controller):
    async with working(runner, controller) as address:
        yield address


def add(number):
    function = {"name": "add", "arguments": json.dumps({"number": number})}
    return {"role": "assistant", "tool_calls": [{"id": "c", "type": "function", "function": function}]}


def content_of(answer):
    return answer["messages"][0]["content"]


async def test_a_heartbeat_says_who_the_worker_is(controller, address):
    stream = await controller.stream()
    beat = stream.first_beat
    assert address == f"grpc://{beat.id}"
    assert (beat.name, beat.concurrency, beat.native) == ("counter", 2, True)
    assert [index.int_value for index in beat.indices] == [0, 1, 2, 3, 4]
    assert json.loads(beat.splits_json) == {"train": [0, 1, 2], "test": [3, 4]}
    async with asyncio.timeout(WAIT_S):
        assert await stream.beats.get() == beat


async def test_a_controller_that_says_nothing_before_it_asks_is_spoken_to_first(runner, controller):
    controller.is_quiet = True
    async with working(runner, controller):
        stream = await controller.stream()
        assert (await stream.ask("worker_status"))[1] == {"concurrency": 2, "current": 0}


async def test_an_episode_is_played_over_the_stream(controller, address):
    stream = await controller.stream()
    response, opening = await stream.ask("start_sample", {"index": 1}, session_id=7)
    assert (response.code, response.finish, response.HasField("finish")) == (200, False, True)
    assert content_of(opening) == "count to three, sample 1"
    response, answer = await stream.ask("interact", {"messages": [add(1)]}, session_id=7)
    assert (content_of(answer), response.finish) == ("1", False)
    response, answer = await stream.ask("interact", {"messages": [add(2)]}, session_id=7)
    assert (answer["status"], answer["reward"], response.finish) == ("completed", pytest.approx(0.6), True)


async def test_the_published_bodies_are_taken_too(controller, address):
    stream = await controller.stream()
    _, opening = await stream.ask("start_sample", {"index": 0, "session_id": 3})
    assert opening["metric"] == {}
    _, answer = await stream.ask("interact", {"session_id": 3, "messages": [add(1)]})
    assert (answer["session_id"], content_of(answer["env_out"])) == (3, "1")
    assert (await stream.ask("get_sessions"))[1] == {"3": 0}
    assert (await stream.ask("worker_status"))[1] == {"concurrency": 2, "current": 1}
    assert (await stream.ask("get_indices"))[1] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("route", "content", "code", "detail"),
    [
        ("start_sample", {"index": 99}, 400, "none is 99"),
        ("interact", {"session_id": 404, "messages": []}, 400, "session 404 is unknown here"),
        ("interact", {"session_id": 1, "messages": "hi"}, 422, "`messages`"),
        ("__init__", {}, 404, "no route"),
        ("answer", {}, 404, "no route"),
    ],
)
async def test_refusals_are_those_of_http(controller, address, route, content, code, detail):
    stream = await controller.stream()
    response, answer = await stream.ask(route, content)
    assert response.code == code
    assert detail in response.message == answer["detail"]


async def test_a_repeated_request_id_acts_once_and_a_passed_deadline_is_504(counter, controller):
    gate = asyncio.Event()

    class Gated(type(counter)):
        @tool
        async def add(self, session: Session, number: int) -> str:
            """Add."""
            await gate.wait()
            session.state["count"] += number
            return str(session.state["count"])

    async with working(Runner(Gated()), controller):
        stream = await controller.stream()
        await stream.ask("start_sample", {"index": 0}, session_id=1)
        asked = {"content": {"messages": [add(1)]}, "session_id": 1, "request_id": "r"}
        assert (await stream.ask("interact", **asked, deadline_ms=20))[0].code == 504
        gate.set()
        for _ in range(2):
            assert content_of((await stream.ask("interact", **asked))[1]) == "1"


async def test_a_cancelled_session_is_told_until_it_is_confirmed(controller, address):
    stream = await controller.stream()
    await stream.ask("start_sample", {"index": 0}, session_id=9)
    assert (await stream.ask("cancel_with_notice", {"session_id": 9}))[0].code == 200
    async with asyncio.timeout(WAIT_S):
        first = await stream.notices.get()
        stream.broken.set()
        stream = await controller.stream()
        again = await stream.notices.get()
        assert first.session_cancel_notice.session_id == again.session_cancel_notice.session_id == 9
        await stream.confirm(again)
        await stream.ask("worker_status")  # Answered after the confirmation was read.
        stream.broken.set()
        stream = await controller.stream()
        await stream.ask("worker_status")
    assert stream.notices.empty()


class Slow:
    """Makes a task whose tool waits to be let go."""

    def __init__(self, counter):
        self.entered, self.gate = asyncio.Event(), asyncio.Event()
        slow = self

        class Task(type(counter)):
            @tool
            async def add(self, session: Session, number: int) -> str:
                """Add."""
                slow.entered.set()
                await slow.gate.wait()
                return f"added {number}"

        self.runner = Runner(Task())


async def test_an_answer_made_while_the_stream_is_broken_goes_on_the_next_one(counter, controller):
    slow = Slow(counter)
    async with working(slow.runner, controller) as address:
        stream = await controller.stream()
        await stream.ask("start_sample", {"index": 0}, session_id=1)
        await stream.send("late", "interact", {"messages": [add(5)]}, session_id=1, request_id="r")
        await slow.entered.wait()
        port = controller.port
        await controller.__aexit__()
        slow.gate.set()
        await slow.runner.interact(1, [], request_id="r")  # The answer has been made.
        async with Controller(port=port) as restarted:
            stream = await restarted.stream()
            assert f"grpc://{stream.first_beat.id}" == address
            answer = json.loads((await stream.answer("late")).json)
            assert content_of(answer) == "added 5"
            assert (await stream.ask("get_sessions"))[1] == {"1": 0}


async def test_heartbeats_do_not_pile_up_while_there_is_no_stream(runner):
    attempts = asyncio.Semaphore(0)

    async def hang_up(_, writer):
        attempts.release()
        writer.close()

    nobody = await asyncio.start_server(hang_up, "127.0.0.1", 0)
    nobody.port = nobody.sockets[0].getsockname()[1]
    async with working(runner, nobody):
        async with asyncio.timeout(WAIT_S):
            for _ in range(3):  # Several heartbeats fall due in the pauses between.
                await attempts.acquire()
        nobody.close()
        async with Controller(port=nobody.port) as controller:
            stream = await controller.stream()
            await stream.ask("worker_status")
            assert stream.beats.qsize() <= 1


async def test_a_worker_that_drains_says_that_it_has_no_room(runner, controller, address):
    stream = await controller.stream()
    await stream.ask("start_sample", {"index": 0}, session_id=1)
    runner.is_draining = True
    async with asyncio.timeout(WAIT_S):
        while (await stream.beats.get()).concurrency:
            pass
    assert (await stream.ask("start_sample", {"index": 0}, session_id=2))[0].code == 406


async def test_the_last_answer_is_sent_before_the_worker_ends(counter, controller):
    slow = Slow(counter)
    async with working(slow.runner, controller):
        stream = await controller.stream()
        await stream.ask("start_sample", {"index": 0}, session_id=1)
        await stream.send("last", "interact", {"messages": [add(5)]}, session_id=1)
        await slow.entered.wait()
    answer = json.loads((await stream.answer("last")).json)
    assert answer["status"] == "cancelled"


async def test_an_answer_too_large_for_a_stream_is_refused_and_the_stream_goes_on(counter, controller):
    class Large(type(counter)):
        @tool
        async def add(self, number: int) -> str:
            """Add."""
            return "x" * MAX_MESSAGE_BYTES

    async with working(Runner(Large()), controller):
        stream = await controller.stream()
        await stream.ask("start_sample", {"index": 0}, session_id=1)
        response, answer = await stream.ask("interact", {"messages": [add(1)]}, session_id=1)
        assert response.code == 500
        assert "more than a stream carries at once" in answer["detail"]
        assert (await stream.ask("worker_status"))[0].code == 200


async def test_a_token_is_shown_and_one_that_is_refused_is_tried_again_with_pauses(runner, caplog):
    async with Controller(token="secret") as controller:
        async with working(runner, controller, token="secret"):
            await controller.stream()
        async with working(runner, controller, token="wrong"):
            async with asyncio.timeout(WAIT_S):
                while controller.num_refused < 2:
                    await asyncio.sleep(0.01)
    warnings = [r.getMessage() for r in caplog.records if "the token is wrong" in r.getMessage()]
    assert len(warnings) == 1


def certificate(folder, name="127.0.0.1"):
    """A certificate of its own authority."""
    cert, key = folder / "cert.pem", folder / "key.pem"
    words = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", f"/CN={name}"]
    words += ["-addext", f"subjectAltName=IP:{name}", "-keyout", str(key), "-out", str(cert)]
    subprocess.run(words, check=True, capture_output=True)
    return cert, key


async def test_tls_is_trusted_by_the_given_certificates_alone(runner, tmp_path, caplog):
    cert, key = certificate(tmp_path)
    credentials = grpc.ssl_server_credentials([(key.read_bytes(), cert.read_bytes())])
    async with Controller(credentials=credentials) as controller:
        async with working(runner, controller, scheme="grpcs"):
            async with asyncio.timeout(WAIT_S):
                while "UNAVAILABLE" not in caplog.text:
                    await asyncio.sleep(0.01)
            assert controller.streams.empty()
        async with working(runner, controller, scheme="grpcs", ca=cert):
            stream = await controller.stream()
            assert (await stream.ask("worker_status"))[0].code == 200


def listening():
    """Ports that this process listens on, by /proc."""
    inodes = set()
    for link in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            inodes.add(str(link.readlink()))
    ports = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/self/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in inodes:
                ports.add(int(fields[1].rpartition(":")[2], 16))
    return ports


async def test_no_port_is_open_unless_one_is_asked_for(runner, controller):
    before = listening()
    async with working(runner, controller):
        await controller.stream()
        assert listening() == before
    async with working(runner, controller, port=0):
        await controller.stream()
        assert len(listening() - before) == 1


@pytest.mark.parametrize("address", ["grpc://127.0.0.1", "grpc://:5021", "grpc://host:port", "ftp://h:1"])
async def test_an_address_that_is_none_is_refused(runner, address):
    with pytest.raises(ConfigError, match=address):
        await Worker(runner, WorkerConfig(controller=address), ready=print).serve()


async def test_certificates_that_cannot_be_read_are_told(runner, tmp_path):
    config = WorkerConfig(controller="grpcs://127.0.0.1:1", ca=tmp_path / "none.pem")
    with pytest.raises(ConfigError, match=r"none.pem` cannot be read"):
        await Worker(runner, config, ready=print).serve()


def test_pauses_grow_to_their_longest_and_begin_anew():
    pause = Pause(1.0, 5.0, uniform=lambda low, high: (low + high) / 2)
    assert [pause.next_s() for _ in range(5)] == [0.75, 1.5, 3.0, 3.75, 3.75]
    pause.reset()
    assert pause.next_s() == 0.75

"""Several controllers that share a real Redis."""

import asyncio
import contextlib
import json
import shutil
import subprocess
from collections.abc import AsyncIterator

import grpc
import httpx
import msgspec
import pytest

from agentrl_controller import Controller, ControllerConfig
from agentrl_controller.server import Address, make_server
from agentrl_controller.store import RedisStore
from agentrl_core import ConfigError
from agentrl_core.rpc.worker_stream_pb2 import WorkerStreamEnvelope
from agentrl_core.sockets import listen, url_of

SAID = {"messages": [{"role": "assistant", "content": "hi"}]}

pytestmark = pytest.mark.skipif(
    shutil.which("redis-server") is None, reason="redis-server is not installed (Debian: redis-server)"
)


class Replica:
    """A controller with a server of its own, in this process."""

    def __init__(self, url: str, **settings) -> None:
        self.store = RedisStore(url)
        config = ControllerConfig(start_timeout_s=5.0, interact_timeout_s=8.0, **settings)
        self.controller = Controller(config, store=self.store)
        self.listener = listen("127.0.0.1", 0)
        self.url = url_of(self.listener, path="/api/")
        self.server = make_server(self.controller, Address("127.0.0.1", 0))
        self.http = httpx.AsyncClient(base_url=self.url, timeout=20.0)

    async def open(self) -> None:
        self.serving = asyncio.create_task(self.server.serve(sockets=[self.listener]))
        async with asyncio.timeout(10):
            while not self.server.started or self.controller.peers._url == "":
                await asyncio.sleep(0.005)

    async def close(self) -> None:
        await self.http.aclose()
        self.server.should_exit = True
        await asyncio.gather(self.serving, return_exceptions=True)

    def pause(self) -> asyncio.Event:
        """Renew the lease no more until the event is set, as a process that hangs."""
        join, resumed = self.store.join, asyncio.Event()

        async def later(url):
            await resumed.wait()
            return await join(url)

        self.store.join = later
        return resumed

    async def die(self) -> None:
        """End as a killed process does: ports close, leases run out, nothing more is written or told."""
        self.store._has_ended = True
        self.store._pending.clear()
        self.controller.peers.tell = lambda *_, **__: None
        self.pause()
        for acceptor in self.server._acceptors:
            acceptor.close()
        self.listener.close()
        for session in list(self.controller.sessions.live.values()):
            if session.job is not None:
                session.job.cancel()
        for connection in list(self.server.server_state.connections):
            connection.transport.abort()
        await self.store._redis.delete(f"agentrl:alive:{self.store.replica}")

    async def start(self, **fields):
        answer = await self.http.post("start_sample", json={"name": "task", "index": 0} | fields)
        assert answer.status_code == 200, answer.text
        return answer.headers["session_id"]

    async def interact(self, session_id, request_id=None, **headers):
        if request_id is not None:
            headers["x-request-id"] = request_id
        return await self.http.post("interact", json=SAID, headers={"session_id": session_id, **headers})


@pytest.fixture(scope="module")
def redis_url(tmp_path_factory):
    with contextlib.closing(listen("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    folder = tmp_path_factory.mktemp("redis")
    command = ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", str(folder)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    for line in process.stdout:
        if "eady to accept connections" in line:
            break
    yield f"redis://127.0.0.1:{port}/0"
    process.terminate()
    process.communicate()


@pytest.fixture
async def replicas(redis_url) -> AsyncIterator[list[Replica]]:
    pair = [Replica(redis_url), Replica(redis_url)]
    await pair[0].store._redis.flushall()
    for replica in pair:
        await replica.open()
    yield pair
    for replica in pair:
        await replica.close()


@pytest.fixture
async def worker(fake_worker, replicas, until):
    fake_worker.replays = True
    fake_worker.notice = replicas[0].controller.cancel_notice
    await beat(fake_worker, replicas[0])
    await until(lambda: "task" in replicas[1].controller.registry.tasks)
    return fake_worker


async def beat(worker, replica, **changes):
    fields = {
        "name": "task",
        "address": worker.address,
        "concurrency": worker.capacity,
        "indices": [0, 1],
        "native": worker.replays,
    }
    answer = await replica.http.post("receive_heartbeat", json=fields | changes)
    assert answer.status_code == 200, answer.text


async def test_any_replica_serves_any_session(replicas, worker):
    one, two = replicas
    session_id = await one.start()
    answers = [await replica.interact(session_id, f"r{n}") for n, replica in enumerate([two, one, two, two])]
    assert [a.json()["messages"][0]["content"] for a in answers] == [f"answer {n}" for n in (1, 2, 3, 4)]
    again = await one.interact(session_id, "r3")
    assert again.json() == answers[3].json()
    assert again.headers["x-request-id"] == "r3"
    assert (await two.http.get("list_sessions")).json()[session_id]["state"] == "idle"
    assert (await two.http.post("cancel", headers={"session_id": session_id})).status_code == 200
    assert worker.live == set()


async def test_slots_are_shared_and_one_that_comes_free_elsewhere_is_taken(replicas, worker, until):
    one, two = replicas
    first, second = await one.start(), await two.start()
    assert worker.num_opened == 2
    waiting = asyncio.create_task(two.start())
    await until(lambda: two.controller.admission.depth("task") == 1)
    await until(lambda: one.controller.registry.at("task", worker.address).num_taken == 2)
    (listed,) = (await one.http.get("list_workers")).json()["task"]["workers"].values()
    assert (listed["current"], listed["capacity"]) == (2, 2)
    await one.http.post("cancel", headers={"session_id": first})
    third = await asyncio.wait_for(waiting, 5)
    assert worker.live == {int(second), int(third)}


async def test_one_that_dies_leaves_its_sessions_to_the_other(replicas, worker, until):
    one, two = replicas
    session_id = await one.start()
    await one.interact(session_id, "a")
    worker.gate.clear()
    asking = asyncio.create_task(one.interact(session_id, "b"))
    await until(lambda: worker.count("interact") == 2)
    await one.die()
    with pytest.raises(httpx.HTTPError):
        await asking
    worker.gate.set()
    # The client comes again to whoever is left, before anybody has noticed.
    answer = await two.interact(session_id, "b")
    assert answer.status_code == 200, answer.text
    assert answer.json()["messages"][0]["content"] == "answer 2"
    assert int(session_id) in two.controller.sessions.live
    assert (await two.interact(session_id, "c")).json()["messages"][0]["content"] == "answer 3"
    assert worker.live == {int(session_id)}


async def test_one_that_was_thought_dead_goes_on_without_what_was_taken(replicas, worker, until):
    one, two = replicas
    session_id = await one.start()
    before = one.store.replica
    resumed = one.pause()
    await two.store._redis.delete(f"agentrl:alive:{before}")
    await until(lambda: int(session_id) in two.controller.sessions.live)
    resumed.set()
    await until(lambda: int(session_id) not in one.controller.sessions.live)
    assert one.store.replica != before
    answer = await one.interact(session_id, "a")
    assert answer.json()["messages"][0]["content"] == "answer 1"
    assert worker.live == {int(session_id)}


async def test_draining_and_cancelling_reach_every_replica(replicas, worker, until):
    one, two = replicas
    await one.start()
    await two.start()
    (number,) = (await one.http.get("list_workers")).json()["task"]["workers"]
    body = {"name": "task", "worker_id": int(number), "stale": True}
    assert (await two.http.post("mark_stale", json=body)).status_code == 200
    await until(lambda: one.controller.registry.at("task", worker.address).stale)
    assert (await two.http.post("cancel_all", params={"force": True})).status_code == 200
    await until(lambda: worker.live == set())


async def test_a_session_that_nobody_has_is_unknown(replicas, worker):
    answer = await replicas[1].interact("12345")
    assert (answer.status_code, answer.json()["code"]) == (400, "unknown_session")
    assert answer.json()["message"] == "session 12345 is unknown"


async def test_a_newcomer_knows_workers_and_takes_what_the_dead_have_left(redis_url, replicas, worker):
    one, two = replicas
    session_id = await one.start()
    await one.die()
    await two.close()
    late = Replica(redis_url)
    await late.open()
    answer = await late.interact(session_id, "a")
    assert json.loads(answer.content)["messages"][0]["content"] == "answer 1"
    await late.close()


async def test_what_cannot_be_taken_in_does_not_end_the_listening(replicas, worker, until):
    one, two = replicas
    for wrong in (b"\xc1", msgspec.msgpack.encode({"kind": "beat", "from": "x", "body": b"{}", "via": ""})):
        await one.store.publish(wrong)
    (number,) = (await one.http.get("list_workers")).json()["task"]["workers"]
    body = {"name": "task", "worker_id": int(number), "stale": True}
    assert (await one.http.post("mark_stale", json=body)).status_code == 200
    await until(lambda: two.controller.registry.at("task", worker.address).stale)


async def test_redis_that_is_not_there_is_named():
    with contextlib.closing(listen("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with pytest.raises(ConfigError, match=f"the store at 127.0.0.1:{port}/0 cannot be used"):
        await RedisStore(f"redis://user:secret@127.0.0.1:{port}/0").open()


class Streamed:
    """A native worker that opens a stream to a replica and may move to another one."""

    def __init__(self):
        self.turns = {}
        self.known = {}
        self.moved = None

    async def open(self, replica):
        """Serve over a stream of this replica's, instead of any other."""
        port = await replica.controller.serve_grpc("127.0.0.1", 0)
        if self.moved is not None:
            self.serving.cancel()
            await self.channel.close()
        self.channel = grpc.aio.insecure_channel(f"127.0.0.1:{port}")
        call = self.channel.stream_stream(
            "/agentbench.Controller/WorkerStream",
            request_serializer=WorkerStreamEnvelope.SerializeToString,
            response_deserializer=WorkerStreamEnvelope.FromString,
        )()
        beat = WorkerStreamEnvelope(type=WorkerStreamEnvelope.MessageType.HEARTBEAT)
        heartbeat = beat.receive_heartbeat_request
        heartbeat.id, heartbeat.name, heartbeat.concurrency, heartbeat.native = "w", "task", 2, True
        heartbeat.indices.add().int_value = 0
        await call.write(beat)
        self.moved = replica
        self.serving = asyncio.create_task(self._serve(call))

    async def _serve(self, call):
        while (envelope := await call.read()) is not grpc.aio.EOF:
            if envelope.type != WorkerStreamEnvelope.MessageType.REQUEST:
                continue
            asked = envelope.worker_request
            if asked.request_id not in self.known:
                self.known[asked.request_id] = self._answer(asked)
            reply = WorkerStreamEnvelope(id=envelope.id, type=WorkerStreamEnvelope.MessageType.RESPONSE)
            reply.worker_response.code = 200
            reply.worker_response.json = json.dumps(self.known[asked.request_id]).encode()
            await call.write(reply)

    def _answer(self, asked):
        if asked.endpoint == "get_sessions":
            return {str(session_id): 0 for session_id in self.turns}
        if asked.endpoint == "interact":
            self.turns[asked.session_id] += 1
        else:
            self.turns[asked.session_id] = 0
        return {
            "messages": [{"role": "user", "content": f"turn {self.turns[asked.session_id]}"}],
            "finish": False,
        }

    async def close(self):
        self.serving.cancel()
        await self.channel.close()


async def test_a_stream_may_move_to_another_replica_and_its_sessions_with_it(replicas, until):
    one, two = replicas
    worker = Streamed()
    await worker.open(one)
    await until(lambda: all("task" in each.controller.registry.tasks for each in replicas))
    session_id = await two.start()  # The start goes to the replica that has the stream.
    assert int(session_id) in one.controller.sessions.live
    first = await two.interact(session_id, "a")
    assert first.json()["messages"][0]["content"] == "turn 1"
    await worker.open(two)
    await until(lambda: int(session_id) in two.controller.sessions.live)
    for number, replica in enumerate((one, two), start=2):
        answer = await replica.interact(session_id, f"r{number}")
        assert answer.json()["messages"][0]["content"] == f"turn {number}"
    assert int(session_id) not in one.controller.sessions.live
    await worker.close()

"""Containers and pods through the real clients, against servers that speak the routes they use.

No engine and no cluster runs here. The servers keep the documented forms (Docker: a connection taken over,
with frames of eight bytes' header; Kubernetes: `v4.channel.k8s.io` over a WebSocket, the exit code in a
status on channel 3), and run what they are told by this machine's shell: outputs, codes, files are real.
"""

import asyncio
import contextlib
import json
import os
import signal
import struct
from pathlib import Path

import pytest
from aiohttp import WSMsgType, web
from kubernetes_asyncio import client

from agentrl_core import ConfigError
from agentrl_env_sdk.drivers import EnvironmentFailedError, Environments, Limits, LocalLeases, Subtype, reap
from agentrl_env_sdk.drivers.docker import LABEL, DockerDriver
from agentrl_env_sdk.drivers.kubernetes import KubernetesDriver
from agentrl_env_sdk.drivers.leases import Lease

SUBTYPE = Subtype(
    "web_box",
    image="box:1",
    command=("serve", "--now"),
    env={"COLOUR": "red"},
    ports=(8080,),
    limits=Limits(memory_bytes=64 << 20, processes=50),
)


async def started(backend, words):
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        *words, stdin=pipe, stdout=pipe, stderr=pipe, cwd=backend.folder, start_new_session=True
    )
    backend.processes.append(process)
    return process


async def end(processes):
    """What a lost stream has left."""
    for process in processes:
        if process.returncode is None:
            os.killpg(process.pid, signal.SIGKILL)
            await process.wait()


async def copy(stream, send, number):
    while data := await stream.read(4096):
        await send(number, data)


class Engine:
    """The routes of a Docker engine that are used, on plain sockets: an exec takes its connection over."""

    def __init__(self, folder):
        self.folder = folder
        self.made, self.execs, self.pulled = {}, {}, []
        self.images = {"box:1"}
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        self.asked = asyncio.Event()
        self.answered = asyncio.Event()
        self.is_broken = False
        self.streams, self.processes = [], []
        self.url = ""

    async def serve(self, reader, writer):
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                method, target, _ = head.split("\r\n", 1)[0].split(" ")
                headers = dict(line.lower().split(": ", 1) for line in head.split("\r\n")[1:] if line)
                body = await reader.readexactly(int(headers.get("content-length", 0)))
                path, _, query = target.partition("?")
                if path.endswith("/start") and "/exec/" in path:
                    assert headers["upgrade"] == "tcp"
                    assert json.loads(body) == {"Detach": False, "Tty": False}
                    await self.run(path.split("/")[-2], reader, writer)
                    break
                status, answer = await self.answer(
                    method, path.split("/")[1:], query, json.loads(body or "{}")
                )
                data = b"" if status == 204 else json.dumps(answer).encode()
                kind = (
                    ""
                    if status == 204
                    else f"Content-Type: application/json\r\nContent-Length: {len(data)}\r\n"
                )
                writer.write(f"HTTP/1.1 {status} X\r\n{kind}\r\n".encode() + data)
        writer.close()

    async def answer(self, method, path, query, body):  # noqa: C901 - a table of routes
        steps = path[1:] if path[0].startswith("v1") else path
        match [method, *steps]:
            case "GET", "version":
                return 200, {"ApiVersion": "1.43"}
            case "POST", "containers", "create":
                self.asked.set()
                await self.may_answer.wait()
                if body["Image"] not in self.images:
                    return 404, {"message": "No such image"}
                self.answered.set()
                self.made[query.removeprefix("name=")] = body
                return 201, {"Id": query.removeprefix("name="), "Warnings": []}
            case "POST", "images", "create":
                self.pulled.append(query)
                self.images.add("late:1")
                return 200, {"status": "done"}
            case "POST", "containers", name, "start":
                return 204, None
            case "GET", "containers", name, "json":
                ports = {"8080/tcp": [{"HostIp": "127.0.0.1", "HostPort": "40123"}]}
                return 200, {"Id": name, "NetworkSettings": {"Ports": ports}}
            case "POST", "containers", name, "exec":
                if name not in self.made:
                    return 404, {"message": "No such container"}
                self.execs[str(len(self.execs))] = {"Cmd": body["Cmd"], "ExitCode": None}
                return 201, {"Id": str(len(self.execs) - 1)}
            case "GET", "exec", number, "json":
                code = self.execs[number]["ExitCode"]
                return 200, {"ExitCode": code, "ProcessConfig": {"tty": False}}
            case "DELETE", "containers", name:
                if self.is_broken:
                    return 500, {"message": "cannot remove root filesystem"}
                assert query == "force=True&v=True" or sorted(query.split("&")) == ["force=1", "v=1"], query
                return (204, None) if self.made.pop(name, None) else (404, {"message": "No such container"})
        raise AssertionError(f"no such route: {method} {path}")

    def drop(self):
        """Lose every stream in the middle."""
        for writer in self.streams:
            writer.transport.abort()

    async def run(self, number, reader, writer):
        self.streams.append(writer)
        assert not self.execs[number].get("Started"), "a command is started once"
        self.execs[number]["Started"] = True
        process = await started(self, self.execs[number]["Cmd"])
        writer.write(b"HTTP/1.1 101 UPGRADED\r\nConnection: Upgrade\r\nUpgrade: tcp\r\n\r\n")

        async def send(stream, data):
            writer.write(struct.pack(">BxxxL", stream, len(data)) + data)
            await writer.drain()

        async def feed():
            with contextlib.suppress(ConnectionError):
                while data := await reader.read(4096):
                    process.stdin.write(data)

        feeding = asyncio.create_task(feed())
        await asyncio.gather(copy(process.stdout, send, 1), copy(process.stderr, send, 2))
        code = await process.wait()
        self.execs[number]["ExitCode"] = code if code >= 0 else 128 - code
        feeding.cancel()
        writer.close()


class Cluster:
    """The routes of a cluster that are used."""

    def __init__(self, folder):
        self.folder = folder
        self.made = {}
        self.streams, self.processes = [], []
        self.configuration = client.Configuration()

    def drop(self):
        """Lose every stream in the middle."""
        for transport in self.streams:
            transport.abort()

    def app(self):
        app = web.Application()
        pods = "/api/v1/namespaces/arena/pods"
        app.router.add_post(pods, self.create)
        app.router.add_get(pods, self.watch)
        app.router.add_get(pods + "/{name}/exec", self.run)
        app.router.add_delete(pods + "/{name}", self.delete)
        return app

    async def create(self, request):
        body = await request.json()
        self.made[body["metadata"]["name"]] = body
        return web.json_response(body, status=201)

    async def watch(self, request):
        answer = web.StreamResponse()
        await answer.prepare(request)
        body = self.made[request.query["fieldSelector"].removeprefix("metadata.name=")]
        for ready in ("False", "True"):
            conditions = [{"type": "Ready", "status": ready}]
            status = {"phase": "Running", "podIP": "10.4.5.6", "conditions": conditions}
            line = json.dumps({"type": "MODIFIED", "object": {**body, "status": status}})
            await answer.write(line.encode() + b"\n")
        return answer

    async def delete(self, request):
        if self.made.pop(request.match_info["name"], None) is None:
            return web.json_response({"kind": "Status", "status": "Failure", "code": 404}, status=404)
        return web.json_response({"kind": "Status", "status": "Success"})

    async def run(self, request):
        if request.match_info["name"] not in self.made:
            return web.json_response({"kind": "Status", "code": 404}, status=404)
        wanted = {key: request.query[key] for key in ("stdin", "stdout", "stderr", "tty")}
        assert {key: value.lower() for key, value in wanted.items()} == {
            "stdin": "true",
            "stdout": "true",
            "stderr": "true",
            "tty": "false",
        }
        socket = web.WebSocketResponse(protocols=["v4.channel.k8s.io"])
        await socket.prepare(request)
        self.streams.append(request.transport)
        assert socket.ws_protocol == "v4.channel.k8s.io"
        process = await started(self, request.query.getall("command"))

        async def send(channel, data):
            with contextlib.suppress(ConnectionError):
                await socket.send_bytes(bytes([channel]) + data)

        async def feed():
            async for message in socket:
                assert message.type == WSMsgType.BINARY
                assert message.data[0] == 0
                process.stdin.write(message.data[1:])

        feeding = asyncio.create_task(feed())
        await asyncio.gather(copy(process.stdout, send, 1), copy(process.stderr, send, 2))
        code = await process.wait()
        cause = {"reason": "ExitCode", "message": str(code if code >= 0 else 128 - code)}
        failure = {"status": "Failure", "reason": "NonZeroExitCode", "details": {"causes": [cause]}}
        await send(3, json.dumps(failure if code else {"status": "Success"}).encode())
        feeding.cancel()
        await asyncio.wait([feeding])
        await socket.close()
        return socket


class Arena(Environments):
    """Environments, and what stands behind their driver."""

    backend: Engine | Cluster


@pytest.fixture
async def engine(tmp_path):
    folder = tmp_path / "container"
    folder.mkdir()
    found = Engine(folder)
    server = await asyncio.start_server(found.serve, "127.0.0.1", 0)
    found.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    yield found
    await end(found.processes)
    server.close()


@pytest.fixture
async def cluster(tmp_path):
    folder = tmp_path / "pod"
    folder.mkdir()
    found = Cluster(folder)
    runner = web.AppRunner(found.app())
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    found.configuration = client.Configuration(host=f"http://127.0.0.1:{runner.addresses[0][1]}")
    yield found
    await end(found.processes)
    await runner.cleanup()


@pytest.fixture(params=["docker", "kubernetes"])
async def environments(request, tmp_path, engine, cluster):
    if request.param == "docker":
        driver, backend = DockerDriver(engine.url), engine
    else:
        driver = KubernetesDriver(namespace="arena", configuration=cluster.configuration)
        backend = cluster
    leases = LocalLeases(tmp_path / "leases.sqlite")
    found = Arena(driver, [SUBTYPE], leases=leases)
    found.backend = backend
    async with found:
        yield found
    assert backend.made == {}
    assert await leases.all() == []


def is_running(text):
    for folder in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if folder.name.isdigit() and text in (folder / "cmdline").read_bytes():
                return (folder / "stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    return False


async def until(condition):
    async with asyncio.timeout(15):
        while not condition():
            await asyncio.sleep(0.01)


async def test_commands_have_two_outputs_a_code_and_input(environments):
    async with environments.lease("web_box") as box:
        done = await box.run("cat; echo oops >&2; exit 3", stdin=b"given")
        assert (done.code, done.stdout, done.stderr) == (3, b"given", b"oops\n")
        assert (await box.run("cat")).stdout == b""  # Nothing to read is an end, not a wait.
        done = await box.run("head -c 3000000 /dev/zero", output_bytes=1000)
        assert (done.code, len(done.stdout), done.dropped_bytes) == (0, 1000, 2_999_000)
        assert box.isolation == {"processes", "files"}


async def test_a_command_that_takes_too_long_ends_with_its_children(environments):
    async with environments.lease("web_box") as box:
        done = await box.run("sleep 7401 & sh -c 'sleep 7402' & echo begun; wait", timeout_s=0.7)
        assert (done.code, done.timed_out, done.stdout) == (124, True, b"begun\n")
        await until(lambda: not (is_running(b"sleep\x007401") or is_running(b"sleep\x007402")))


async def test_a_shell_keeps_its_place_and_is_followed_by_another(environments):
    async with environments.lease("web_box") as box:
        shell = await box.shell()
        done = await shell.run("mkdir d; cd d; X=1; echo out; echo err >&2; false")
        assert (done.code, done.stdout, done.stderr) == (1, b"out\n", b"err\n")
        assert (await shell.run('pwd; printf "%s" "$X"')).stdout.endswith(b"/d\n1")
        assert (await shell.run("sleep 7403", timeout_s=0.5)).timed_out
        await until(lambda: not is_running(b"sleep\x007403"))
        assert (await shell.run("exit 7")).code == 7
        assert (await shell.run("echo again")).stdout == b"again\n"
        await shell.close()


async def test_files_go_in_and_out(environments):
    data = os.urandom(150_000)
    async with environments.lease("web_box") as box:
        await box.put("a/b c/d.bin", data)
        assert (environments.backend.folder / "a" / "b c" / "d.bin").read_bytes() == data
        assert await box.get("a/b c/d.bin") == data
        with pytest.raises(EnvironmentFailedError, match="No such file"):
            await box.get("missing")


async def test_a_command_whose_stream_is_lost_has_not_succeeded(environments):
    async with environments.lease("web_box") as box:
        running = asyncio.create_task(box.run("echo up > up; sleep 3"))
        await until(lambda: (environments.backend.folder / "up").exists())
        environments.backend.drop()
        with pytest.raises(EnvironmentFailedError, match=r"lost before the command ended|is gone"):
            await running


async def test_a_container_that_is_gone_is_told(environments):
    async with environments.lease("web_box") as box:
        environments.backend.made.clear()
        with pytest.raises(EnvironmentFailedError, match="is gone"):
            await box.run("true")


async def test_a_container_is_asked_for_with_its_limits(engine, tmp_path):
    driver = DockerDriver(engine.url)
    box = await driver.create(SUBTYPE, "agentrl-a")
    assert engine.made["agentrl-a"] == {
        "Image": "box:1",
        "Cmd": ["serve", "--now"],
        "Env": ["COLOUR=red"],
        "ExposedPorts": {"8080/tcp": {}},
        "Labels": {LABEL: "agentrl-a"},
        "HostConfig": {
            "PortBindings": {"8080/tcp": [{"HostIp": "127.0.0.1"}]},
            "Init": True,
            "Memory": 64 << 20,
            "PidsLimit": 50,
        },
    }
    assert box.url() == box.url(8080) == "http://127.0.0.1:40123"
    with pytest.raises(EnvironmentFailedError, match="no port 81"):
        box.url(81)
    await driver.create(Subtype("late", image="late:1"), "agentrl-b")
    assert engine.pulled == ["fromImage=late:1"] or "late" in engine.pulled[0]
    assert engine.made["agentrl-b"]["HostConfig"]["NetworkMode"] == "none"
    for name in ("agentrl-a", "agentrl-b", "agentrl-b"):  # One that is gone is no fault.
        await driver.destroy(name)
    with pytest.raises(ConfigError, match="needs an `image`"):
        await driver.create(Subtype("bare"), "agentrl-c")
    await driver.close()


async def test_a_start_given_up_before_the_engine_answers_leaves_no_container(engine, tmp_path):
    engine.may_answer.clear()
    slow = Subtype("slow", image="box:1", start_timeout_s=0.1)
    leases = LocalLeases(tmp_path / "leases.sqlite")
    async with Environments(DockerDriver(engine.url), [slow], leases=leases) as environments:

        async def use():
            async with environments.lease("slow"):
                pass

        using = asyncio.create_task(use())
        await engine.asked.wait()
        asyncio.get_running_loop().call_later(0.3, engine.may_answer.set)
        with pytest.raises(EnvironmentFailedError, match="was not there within"):
            await using
    async with asyncio.timeout(10):
        await engine.answered.wait()  # Even one that answers after everything is closed has made nothing.
    assert engine.made == {}
    assert await leases.all() == []


async def test_a_container_that_the_engine_does_not_remove_keeps_its_lease(engine, tmp_path):
    leases, driver = LocalLeases(tmp_path / "leases.sqlite"), DockerDriver(engine.url)
    await leases.write([Lease("agentrl-a", "docker", '["elsewhere", 1, "5"]', 0.0)])
    engine.made["agentrl-a"] = {}
    engine.is_broken = True
    assert await reap(driver, leases) == []
    assert [lease.name for lease in await leases.all()] == ["agentrl-a"]
    engine.is_broken = False
    assert await reap(driver, leases) == ["agentrl-a"]
    assert (engine.made, await leases.all()) == ({}, [])
    await driver.close()


async def test_a_pod_is_asked_for_with_its_limits(cluster):
    driver = KubernetesDriver(namespace="arena", configuration=cluster.configuration)
    box = await driver.create(SUBTYPE, "agentrl-a")
    assert cluster.made["agentrl-a"]["spec"]["containers"] == [
        {
            "name": "environment",
            "image": "box:1",
            "command": ["serve", "--now"],
            "env": [{"name": "COLOUR", "value": "red"}],
            "ports": [{"containerPort": 8080}],
            "resources": {"limits": {"memory": str(64 << 20)}},
        }
    ]
    assert cluster.made["agentrl-a"]["metadata"] == {"name": "agentrl-a", "labels": {LABEL: "agentrl-a"}}
    assert cluster.made["agentrl-a"]["spec"]["activeDeadlineSeconds"] == 3720
    assert box.url() == "http://10.4.5.6:8080"
    for _ in range(2):  # One that is gone is no fault.
        await driver.destroy("agentrl-a")
    await driver.close()

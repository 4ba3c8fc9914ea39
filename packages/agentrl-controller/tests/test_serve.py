"""`agentrl-controller serve` as a process: its options, its death, its encryption."""

import contextlib
import json
import os
import re
import signal
import ssl
import subprocess
import sys
from pathlib import Path

import grpc
import httpx
import pytest

from agentrl_core.sockets import listen

COMMAND = str(Path(sys.executable).parent / "agentrl-controller")
SAID = {"messages": [{"role": "assistant", "content": "hi"}]}


class Served:
    """A serving process; `url` and `grpc` are what it prints."""

    def __init__(self, *arguments, env=None):
        self.process = subprocess.Popen(
            [COMMAND, "serve", *map(str, arguments)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | (env or {}),
        )
        assert self.process.stdout is not None
        found = re.fullmatch(
            r"Serving the controller on (https?://\S+/api)\n", self.process.stdout.readline()
        )
        assert found
        self.url = found.group(1)
        if "--no-grpc" not in arguments:
            found = re.fullmatch(r"Serving task workers on grpc://(\S+)\n", self.process.stdout.readline())
            assert found
            self.grpc = found.group(1)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.communicate()


def refused(*arguments, env=None):
    """Exit code and standard error of a command that does not serve."""
    done = subprocess.run(
        [COMMAND, "serve", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=30,
        env=os.environ | (env or {}),
    )
    return done.returncode, done.stderr


async def beat(http, url, worker):
    fields = {
        "name": "task",
        "address": worker.address,
        "concurrency": worker.capacity,
        "indices": [0],
        "native": worker.replays,
    }
    assert (await http.post(f"{url}/receive_heartbeat", json=fields)).status_code == 200


async def test_a_killed_controller_carries_on_when_it_is_back(fake_worker, tmp_path):
    fake_worker.replays = True
    store = f"sqlite:{tmp_path / 'store.sqlite'}"
    async with httpx.AsyncClient() as http:
        with Served("--port", 0, "--no-grpc", "--store", store) as first:
            await beat(http, first.url, fake_worker)
            started = await http.post(f"{first.url}/start_sample", json={"name": "task", "index": 0})
            headers = {"session_id": started.headers["session_id"], "x-request-id": "a"}
            answer = await http.post(f"{first.url}/interact", json=SAID, headers=headers)
            first.process.send_signal(signal.SIGKILL)
            first.process.wait()
        port = first.url.split(":")[2].split("/")[0]
        with Served("--port", port, "--no-grpc", "--store", store) as second:
            again = await http.post(f"{second.url}/interact", json=SAID, headers=headers)
            assert again.json() == answer.json()
            headers["x-request-id"] = "b"
            onward = await http.post(f"{second.url}/interact", json=SAID, headers=headers)
            assert onward.json()["messages"][0]["content"] == "answer 2"
            assert set(map(str, fake_worker.live)) == {headers["session_id"]}


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--host", "0.0.0.0"], 2, "serving on 0.0.0.0 lets others in: give a --token, or say --insecure"),
        (["--token", " "], 2, "the token is empty"),
        (["--store", ""], 1, "`store` must be memory, sqlite:PATH"),
        (["--advertise", "here"], 2, "--advertise must be the URL of this controller's API, got 'here'"),
        (["--port", "x"], 2, "'x' is not a valid integer"),
        (
            ["--store", "mysql://h"],
            1,
            "`store` must be memory, sqlite:PATH or redis://HOST:PORT/DB, got 'mysql://h'",
        ),
        (["--store", "sqlite:/proc/none/store"], 1, "the store /proc/none/store cannot be used"),
        (["--store", "redis://127.0.0.1:1/0"], 1, "the store at 127.0.0.1:1/0 cannot be used"),
        (["--config", "missing.toml"], 2, "'missing.toml' does not exist"),
        (["--allow-worker", "10.0.0.0/99"], 1, "`allow_workers` holds networks and host names"),
        (["--host", "no.such.host.invalid", "--token", "t"], 1, "no.such.host.invalid"),
    ],
)
def test_a_wrong_option_is_named_with_the_way_out(arguments, code, message):
    status, said = refused("--port", 0, *arguments) if "--port" not in arguments else refused(*arguments)
    assert status == code, said
    assert message in " ".join(said.split())
    assert "Traceback" not in said


def test_ports_that_are_taken_are_named(tmp_path):
    with contextlib.closing(listen("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        for arguments in (
            ["--port", port, "--no-grpc", "--store", "memory"],
            ["--port", 0, "--grpc-port", port],
        ):
            status, said = refused(*arguments)
            assert status == 1, said
            assert str(port) in said
            assert "Traceback" not in said


def test_a_store_that_another_controller_has_is_refused(tmp_path):
    store = f"sqlite:{tmp_path / 'store.sqlite'}"
    with Served("--port", 0, "--no-grpc", "--store", store):
        status, said = refused("--port", 0, "--no-grpc", "--store", store)
    assert status == 1, said
    assert "another controller has it, give each a --store of its own" in said
    assert "Traceback" not in said


def test_the_default_store_is_a_file_for_each_port(tmp_path):
    with contextlib.closing(listen("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with Served("--port", port, "--no-grpc", env={"XDG_STATE_HOME": str(tmp_path)}):
        assert (tmp_path / "agentrl" / f"controller-{port}.sqlite").exists()


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tls")
    subprocess.run(
        [
            *(
                "openssl",
                "req",
                "-x509",
                "-newkey",
                "rsa:2048",
                "-nodes",
                "-days",
                "2",
                "-subj",
                "/CN=localhost",
            ),
            *("-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"),
            *("-keyout", str(folder / "key.pem"), "-out", str(folder / "cert.pem")),
        ],
        check=True,
        capture_output=True,
    )
    return folder


async def test_both_transports_can_be_encrypted(certificate, tmp_path):
    config = tmp_path / "controller.json"
    tls = {"cert": str(certificate / "cert.pem"), "key": str(certificate / "key.pem")}
    config.write_text(json.dumps({"tls": tls, "token": "secret"}))
    context = ssl.create_default_context(cafile=str(certificate / "cert.pem"))
    with Served("--port", 0, "--config", config) as served:
        assert served.url.startswith("https://")
        headers = {"authorization": "Bearer secret"}
        async with httpx.AsyncClient(verify=context, headers=headers) as http:
            assert (await http.get(f"{served.url}/version")).json()["version"] == 1
            missing = await http.post(f"{served.url}/interact", json=SAID, headers={"session_id": "7"})
            assert missing.json()["code"] == "unknown_session"
        credentials = grpc.ssl_channel_credentials((certificate / "cert.pem").read_bytes())
        async with grpc.aio.secure_channel(served.grpc, credentials) as channel:
            call = channel.stream_stream("/agentbench.Controller/WorkerStream")()
            assert await call.code() is grpc.StatusCode.UNAUTHENTICATED


def test_a_certificate_that_is_none_is_named(tmp_path):
    config = tmp_path / "controller.json"
    (tmp_path / "cert.pem").write_text("none")
    tls = {"cert": str(tmp_path / "cert.pem"), "key": str(tmp_path / "missing.pem")}
    config.write_text(json.dumps({"tls": tls}))
    status, said = refused("--port", 0, "--no-grpc", "--config", config)
    assert status == 1, said
    assert "`tls`" in said
    assert "Traceback" not in said

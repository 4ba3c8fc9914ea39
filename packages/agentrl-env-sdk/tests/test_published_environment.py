"""Environments of published tasks, made by processes where a task asks for containers."""

import asyncio
import hashlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import httpx
import pytest

from agentrl_core import ConfigError, Message
from agentrl_env_sdk.drivers import EnvironmentFailedError
from agentrl_env_sdk.published import installed, load_published
from agentrl_env_sdk.published.environment import (
    EnvironmentController,
    EnvironmentDelegation,
    create_controller,
)
from agentrl_env_sdk.worker import Runner

TASKS = Path(__file__).parent / "published_tasks"
PATH = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin"])

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="process environments are for Linux")
mariadb = pytest.mark.skipif(shutil.which("mariadbd", path=PATH) is None, reason="needs mariadb-server")


class Boxes(EnvironmentDelegation):
    """Boxes of a session's own, a desk that sessions share, and a page that links to them.

    Attributes:
        prepared: what was told after an instance was made.
        asked: what instances were asked for with.
    """

    def __init__(self, *, has_page: bool = False) -> None:
        super().__init__("boxes")
        self._has_page = has_page
        self.prepared: list[tuple[str, str, str]] = []
        self.asked: list[dict[str, Any]] = []

    def get_subtypes(self) -> list[str]:
        return ["box", "desk"]

    def is_exclusive(self, subtype: str) -> bool:
        return subtype == "box"

    def supports_reuse(self, subtype: str) -> bool:
        return subtype == "desk"

    def get_service_port(self, subtype: str) -> int | None:
        return {"desk": 8123, "page": 80}.get(subtype)

    def get_container_images(self) -> dict[str, str]:
        return {"box": "registry:5000/ubuntu:24.04", "desk": "desk", "page": "page@sha256:0"}

    async def create_docker_container(self, attrs: dict, subtype: str, **kwargs: Any) -> dict:
        self.asked.append({"subtype": subtype, **kwargs})
        attrs["Env"]["KIND"] = subtype
        attrs["HostConfig"]["Memory"] = 2**30
        return attrs

    async def post_create_docker_container(
        self, subtype: str, environment_id: str, environment_url: str
    ) -> None:
        code, _, _ = await self.controller.execute_command(environment_id, ["touch", "prepared"])
        assert code == 0
        self.prepared.append((subtype, environment_id, environment_url))

    def has_homepage(self) -> bool:
        return self._has_page

    def get_homepage_subtype(self) -> str:
        return "page"

    def get_homepage_envs(self, site_urls: dict[str, str]) -> dict[str, str]:
        return {"SITES": json.dumps(site_urls)}


@pytest.fixture(autouse=True)
def leases(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leases of a test's own, and no driver but the configured one."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.delenv("AGENTRL_ENVIRONMENT_DRIVER", raising=False)


Make = Callable[..., EnvironmentController]


@pytest.fixture
async def make() -> AsyncIterator[Make]:
    """Controllers that are closed with the test: `make(delegation, **options)`."""
    made: list[EnvironmentController] = []

    def controller(delegation: EnvironmentDelegation, **options: Any) -> EnvironmentController:
        made.append(create_controller("process", delegation, **options))
        return made[-1]

    yield controller
    for each in made:
        await each.close()


async def until(condition: Callable[[], bool]) -> None:
    """Wait for what no event tells of."""
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)


async def test_a_box_belongs_to_one_session_and_ends_with_it(make):
    delegation = Boxes()
    controller = make(delegation)
    first, ids, urls = await controller.start_session("box", colour="red")
    _, others, _ = await controller.start_session(["box"])
    box = ids["box"]
    assert (urls, box != others["box"]) == ({"box": "127.0.0.1"}, True)
    assert delegation.asked == [{"subtype": "box", "colour": "red"}, {"subtype": "box"}]
    assert delegation.prepared[0] == ("box", box, "127.0.0.1")
    assert await controller.execute_command(box, "ls") == (0, b"prepared\n", b"")
    assert await controller.get_env_variables(box) == {"KIND": "box"}
    await controller.end_session(first)
    await controller.end_session(first)
    with pytest.raises(EnvironmentFailedError, match="does not exist"):
        await controller.execute_command(box, "ls")


async def test_words_of_a_command_are_taken_as_they_are(make):
    controller = make(Boxes())
    _, ids, _ = await controller.start_session("box")
    words = ["sh", "-c", 'echo "$1"; echo no >&2; exit 3', "--", "a b; $HOME *"]
    assert await controller.execute_command(ids["box"], words) == (3, b"a b; $HOME *\n", b"no\n")
    assert await controller.execute_command(ids["box"], "echo '$HOME' | cat") == (0, b"$HOME | cat\n", b"")
    code, out, _ = await controller.execute_command(ids["box"], ["sh", "-c", "echo $KIND"])
    assert (code, out) == (0, b"box\n")


async def test_a_shell_keeps_its_state_and_both_outputs_in_order(make):
    controller = make(Boxes())
    _, ids, _ = await controller.start_session("box")
    said = await controller.execute_shell(ids["box"], "mkdir d; cd d; X=5\necho a; echo b >&2; echo c")
    assert said == b"a\nb\nc\n"
    assert await controller.execute_shell(ids["box"], 'basename "$PWD"; echo $X') == b"d\n5\n"
    await controller.create_shell(ids["box"])
    assert await controller.execute_shell(ids["box"], "echo $X") == b"\n"


async def test_what_takes_too_long_is_a_time_out(make):
    controller = make(Boxes())
    _, ids, _ = await controller.start_session("box")
    with pytest.raises(TimeoutError, match="did not end within 1 s"):
        await controller.execute_command(ids["box"], ["sleep", "60"], timeout=1)
    with pytest.raises(TimeoutError, match="did not end within 1 s"):
        await controller.execute_shell(ids["box"], "sleep 60", timeout=1)
    assert await controller.execute_shell(ids["box"], "echo again") == b"again\n"


async def test_a_desk_is_shared_unless_a_session_leaves_traces(make):
    controller = make(Boxes())
    started = await asyncio.gather(
        *(controller.start_session("desk") for _ in range(3)),
        controller.start_session("desk", immutable=False),
    )
    assert len({ids["desk"] for _, ids, _ in started}) == 1  # `supports_reuse` says that traces may stay
    assert {urls["desk"] for _, _, urls in started} == {"http://127.0.0.1:8123"}

    class Fragile(Boxes):
        def get_reuse_limit(self, subtype: str) -> int:
            return 100

    controller = make(Fragile())
    started = [await controller.start_session("desk", immutable=each) for each in (True, True, False)]
    kept, same, own = (ids["desk"] for _, ids, _ in started)
    assert (kept == same, kept == own) == (True, False)


async def test_a_homepage_knows_the_others(make):
    controller = make(Boxes(has_page=True))
    _, ids, urls = await controller.start_session(["box", "desk"])
    assert urls["page"] == "http://127.0.0.1"
    known = json.loads((await controller.get_env_variables(ids["page"]))["SITES"])
    assert known == {"box": "127.0.0.1", "desk": "http://127.0.0.1:8123"}


async def test_threads_call_the_sync_twins(make):
    controller = make(Boxes())

    def work() -> tuple[Any, ...]:
        session_id, ids, _ = controller.sync_start_session("box")
        controller.sync_renew_session(session_id)
        controller.sync_create_shell(ids["box"])
        said = controller.sync_execute_shell(ids["box"], "echo a")
        done = controller.sync_execute_command(ids["box"], "echo b")
        env = controller.sync_get_env_variables(ids["box"])
        controller.sync_end_session(session_id)
        return said, done, env

    with pytest.raises(RuntimeError, match="set `loop`"):
        controller.sync_renew_session("x")
    controller.loop = asyncio.get_running_loop()
    assert await asyncio.to_thread(work) == (b"a\n", (0, b"b\n", b""), {"KIND": "box"})


async def test_a_session_that_is_not_renewed_runs_out(make):
    class Brief(Boxes):
        def get_max_execution_time(self, subtype: str) -> int:
            return 0

    controller = make(Brief())
    _, ids, _ = await controller.start_session("desk")
    assert ids["desk"]
    await until(lambda: not controller._held)


async def test_a_wrong_subtype_driver_or_service_is_named(make, monkeypatch):
    with pytest.raises(ConfigError, match=r"no subtype `chair`, only \['box', 'desk'\]"):
        await make(Boxes()).start_session("chair")
    with pytest.raises(ConfigError, match="got `nomad`"):
        create_controller("nomad", Boxes())
    with pytest.raises(ConfigError, match="`services` of `box`"):
        make(Boxes(), services={"box": "oracle"})
    monkeypatch.setenv("AGENTRL_ENVIRONMENT_DRIVER", "manual")
    controller = create_controller("docker", Boxes(), network_name="n", urls={"box": "http://there"})
    assert await controller.start_session("box") == ("manual", {}, {"box": "http://there"})


def call(name: str, **arguments: str) -> list[Message]:
    function = {"name": name, "arguments": json.dumps(arguments)}
    calls = [{"id": "c1", "type": "function", "function": function}]
    return [Message.model_validate({"role": "assistant", "content": None, "tool_calls": calls})]


@pytest.fixture
def ledger_config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The ledger task's configuration, containers and all; the driver alone is another, by a variable."""
    pytest.importorskip("aiomysql")
    monkeypatch.setenv("AGENTRL_ENVIRONMENT_DRIVER", "process")
    monkeypatch.setenv("LEDGER_PARAMETERS_PASSWORD", "it's \\ secret")
    config = tmp_path / "ledger.yaml"
    config.write_text(
        "default: {module: their_ledger.Ledger, parameters: {concurrency: 8}}\n"
        "ledger:\n"
        "  parameters:\n"
        "    name: ledger-std\n"
        "    password: password\n"
        "    env_driver: docker\n"
        "    env_options:\n"
        "      network_name: ledger_default\n"
        "      state_driver: redis\n"
        "      state_options: {connection: {host: 172.17.0.1}}\n"
    )
    return config


@pytest.fixture
async def ledger(ledger_config: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Any]:
    """The ledger task."""
    monkeypatch.setattr(sys, "path", [str(TASKS), *sys.path])
    with installed():
        task = load_published(ledger_config, "ledger")
        yield task
        await task.close()
    sys.modules.pop("their_ledger", None)


@mariadb
async def test_a_worker_that_is_stopped_leaves_nothing(ledger_config, monkeypatch):
    folder = Path(tempfile.gettempdir()) / f"agentrl-environments-{os.getuid()}"
    before = set(folder.glob("agentrl-mysql-*"))
    words = [
        sys.executable,
        "-m",
        "agentrl_env_sdk.cli",
        "serve",
        "--published",
        str(ledger_config),
        "ledger",
    ]
    env = {**os.environ, "PYTHONPATH": str(TASKS)}
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=env) as worker:
        assert worker.stdout is not None
        url = worker.stdout.readline().split()[-1]
        async with httpx.AsyncClient(base_url=url, timeout=60, trust_env=False) as http:
            opened = await http.post("/start_sample", json={"index": 1, "session_id": 5})
            assert opened.json()["messages"][1]["content"] == "Book 45 to Ben's balance."
            (made,) = set(folder.glob("agentrl-mysql-*")) - before
            assert (await http.post("/cancel", json={"session_id": 5})).status_code == 200
        worker.terminate()
        assert worker.wait(timeout=60) == 0
    assert not made.exists()


@mariadb
async def test_a_task_with_a_mysql_container_plays_on_a_process(ledger):
    runner = Runner(ledger)
    session_id, opening = await runner.start(0)
    assert [message.text for message in opening.messages] == [
        "Answer by SQL.",
        "Whose balance is the highest?",
    ]
    assert [tool.function.name for tool in opening.tools] == ["run_sql", "answer"]
    asked = await runner.interact(session_id, call("run_sql", sql="SELECT MAX(balance) FROM ledger"))
    assert (asked.messages[0].role, asked.messages[0].text) == ("tool", "[(120,)]")
    wrong = await runner.interact(session_id, call("run_sql", sql="SELEKT"))
    assert "SQL syntax" in wrong.messages[0].text
    last = await runner.interact(session_id, call("answer", value="Ada"))
    assert (last.finish, last.reward, last.metrics) == (True, 1.0, {"score": 1.0})

    session_id, _ = await runner.start(1)
    await runner.interact(
        session_id, call("run_sql", sql="UPDATE ledger SET balance = 80 WHERE name = 'Ben'")
    )
    last = await runner.interact(session_id, call("answer", value="done"))
    assert (last.finish, last.reward) == (True, 1.0)

    custom = {"question": "Who comes last?", "answer": "Cyd"}
    session_id, opening = await runner.start(-1, custom_task=custom)
    assert opening.messages[-1].text == "Who comes last?"
    assert (await runner.interact(session_id, call("answer", value="Ben"))).reward == 0.0
    assert await asyncio.to_thread(ledger.calculate_overall, [{"index": 0, "status": "completed"}]) == {
        "total": 1,
        "completed": 1,
    }


@mariadb
async def test_sessions_share_the_server_and_nothing_in_it(ledger):
    runner = Runner(ledger)
    started = await asyncio.gather(*(runner.start(1) for _ in range(8)))
    ids = [session_id for session_id, _ in started]
    await runner.interact(ids[0], call("run_sql", sql="UPDATE ledger SET balance = 80 WHERE name = 'Ben'"))
    answers = await asyncio.gather(*(runner.interact(each, call("answer", value="")) for each in ids[:4]))
    assert [answer.reward for answer in answers] == [1.0, 0.0, 0.0, 0.0]
    controller: Any = ledger.published.env_controller
    assert len({held.environments["mysql"].name for held in controller._held.values()}) == 1
    await runner.cancel_all()
    assert controller._held == {}


class Peaks(EnvironmentDelegation):
    """A database server of an image."""

    def __init__(self, image: str) -> None:
        super().__init__("peaks")
        self._image = image

    async def create_docker_container(self, attrs: dict[str, Any], subtype: str) -> dict[str, Any]:
        attrs["Env"] = {"MYSQL_ROOT_PASSWORD": "x", "MYSQL_DATABASE": "peaks"}
        return {**attrs, "Image": self._image, "ExposedPorts": {"3306/tcp": {}}}


@pytest.fixture
async def sql(request: pytest.FixtureRequest, make: Make) -> AsyncIterator[Callable[[str], Any]]:
    """Runs statements on what stands in for the image that the test names: `await sql(statement)`."""
    aiomysql = pytest.importorskip("aiomysql")
    _, _, hosts = await make(Peaks(request.param)).start_session("default")
    async with aiomysql.connect(
        host=hosts["default"], user="root", password="x", db="peaks", charset="utf8mb4", autocommit=True
    ) as connection:

        async def run(statement: str) -> list[tuple[Any, ...]]:
            cursor = await connection.cursor()
            await cursor.execute(statement)
            return list(await cursor.fetchall())

        yield run


@mariadb
@pytest.mark.filterwarnings("ignore:Truncated incorrect")
@pytest.mark.parametrize("sql", ["docker.io/library/mysql:8"], indirect=True)
async def test_what_stands_in_for_mysql_answers_as_it_does(sql):
    await sql("CREATE TABLE peaks (name TEXT, place TEXT)")
    await sql("INSERT INTO peaks VALUES ('Đeravica', '1'), ('富士山', 'first'), ('Mont\u00a0Blanc', '3')")
    # Text is held as UTF-8, whose bytes a hash is taken of.
    (answer,) = await sql("SELECT name, MD5(name) FROM peaks WHERE name = '富士山'")
    assert answer == ("富士山", hashlib.md5("富士山".encode()).hexdigest())
    # It is compared by the rules of Unicode, without padding.
    assert await sql("SELECT place FROM peaks WHERE name = 'MONT BLANC'") == [("3",)]
    assert await sql("SELECT place FROM peaks WHERE name = 'Đeravica '") == []
    # What is no number may be held against one, in an UPDATE too.
    await sql("UPDATE peaks SET place = 2 WHERE place = 1")
    assert await sql("SELECT place FROM peaks ORDER BY place") == [("2",), ("3",), ("first",)]
    assert await sql("SELECT @@group_concat_max_len") == [(1024,)]


@mariadb
@pytest.mark.parametrize("sql", ["mariadb:11"], indirect=True)
async def test_what_stands_in_for_mariadb_keeps_its_own_ways(sql):
    ((charset, mode, longest),) = await sql(
        "SELECT @@character_set_database, @@sql_mode, @@group_concat_max_len"
    )
    assert (charset, "STRICT_TRANS_TABLES" in mode, longest) == ("utf8mb4", True, 2**20)


@pytest.mark.skipif(shutil.which("redis-server", path=PATH) is None, reason="needs redis-server")
async def test_a_redis_stands_in_for_its_image(make):
    class Cache(Boxes):
        def get_subtypes(self) -> list[str]:
            return ["cache", "box"]

        def get_service_port(self, subtype: str) -> int | None:
            return None

        def get_container_images(self) -> dict[str, str]:
            return {"cache": "docker.io/library/redis:7-alpine", "box": "redis"}

        async def post_create_docker_container(self, *told: str) -> None:
            self.prepared.append(told)

    controller = make(Cache(), services={"box": "directory"})
    session_id, ids, hosts = await controller.start_session(["cache", "box"])
    reader, writer = await asyncio.open_connection(hosts["cache"], 6379)
    writer.write(b"SET a 5\r\nGET a\r\n")
    assert [await reader.readline() for _ in range(3)] == [b"+OK\r\n", b"$1\r\n", b"5\r\n"]
    writer.close()
    assert await controller.execute_command(ids["box"], "pwd") == (0, ANY, b"")
    with pytest.raises(EnvironmentFailedError, match="no commands"):
        await controller.execute_command(ids["cache"], "pwd")
    await controller.end_session(session_id)
    with pytest.raises(OSError, match=r"refused|Connect"):
        await asyncio.open_connection(hosts["cache"], 6379)


KILLED = """
import asyncio, sys
from agentrl_env_sdk.published.environment import EnvironmentDelegation, create_controller

class Server(EnvironmentDelegation):
    async def create_docker_container(self, attrs, subtype):
        attrs["Env"] = {"MARIADB_ROOT_PASSWORD": "x"}
        return {**attrs, "Image": "mariadb:11", "ExposedPorts": {"3306/tcp": {}}}

async def main():
    controller = create_controller("process", Server("server"))
    _, ids, urls = await controller.start_session("default")
    print(ids["default"], urls["default"], flush=True)
    await asyncio.sleep(600)

asyncio.run(main())
"""


@pytest.fixture
def victim() -> Iterator[tuple[subprocess.Popen[str], str, str]]:
    """A process that holds a server: it, the server's name, and its address."""
    process = subprocess.Popen([sys.executable, "-c", KILLED], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    name, host = process.stdout.readline().split()
    yield process, name, host
    process.kill()
    process.wait()
    process.stdout.close()


@mariadb
async def test_a_killed_owner_leaves_neither_server_nor_files(victim, make):
    process, name, host = victim
    folder = Path(tempfile.gettempdir()) / f"agentrl-environments-{os.getuid()}" / name
    with socket.create_connection((host, 3306), timeout=5):
        assert folder.exists()
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    await until(lambda: not _listens(host))
    await make(Boxes()).start_session("box")
    await until(lambda: not folder.exists())


def _listens(host: str) -> bool:
    try:
        socket.create_connection((host, 3306), timeout=5).close()
    except OSError:
        return False
    return True

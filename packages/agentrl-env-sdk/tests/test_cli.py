import asyncio
import json
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from aiohttp import web

from agentrl_core import FunctionCall, Message, SessionError, ToolCall
from agentrl_core.client import SessionClient
from agentrl_core.sockets import listen

COMMAND = str(Path(sys.executable).parent / "agentrl-env")
README = Path(__file__).parents[1] / "README.md"


@pytest.fixture
def task_file(tmp_path):
    """The README's example as a file."""
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    (example,) = [block for block in blocks if "class MyTask(Task)" in block]
    assert len(example.strip().splitlines()) <= 20
    path = tmp_path / "my_task.py"
    path.write_text(example)
    return path


def run(*arguments, **options):
    return subprocess.run(
        [COMMAND, *map(str, arguments)], capture_output=True, text=True, timeout=60, check=False, **options
    )


class Served:
    """`agentrl-env serve` in a process of its own."""

    def __init__(self, *arguments):
        self.process = subprocess.Popen(
            [COMMAND, "serve", *map(str, arguments)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        self.line = self.process.stdout.readline()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.communicate()


async def test_the_readme_example_is_served_and_played(task_file):
    with Served(task_file) as served:
        found = re.fullmatch(r"Serving my-task on (http://127\.0\.0\.1:\d+/api)\n", served.line)
        assert found, served.line
        async with SessionClient(found.group(1)) as client:
            session = await client.start("my-task", 0)
            for number in range(1, 6):
                call = FunctionCall(name="guess", arguments=json.dumps({"number": number}))
                message = Message(
                    role="assistant",
                    content="",
                    tool_calls=[ToolCall(id="c", type="function", function=call)],
                )
                reply = await session.interact([message])
                if reply.finish:
                    break
            assert reply.finish
        served.process.send_signal(signal.SIGTERM)
        assert served.process.wait(timeout=10) == 0


def test_play_is_the_same_by_hand(task_file):
    typed = "hello there\n" + "".join(f"guess number={n}\n" for n in (3, 4)) + 'guess {"number": 5}\n'
    played = run("play", task_file, "--seed", "1", input=typed)
    assert played.returncode == 0, played.stderr
    assert "user: Guess my number between 1 and 10." in played.stdout
    assert "call a tool; tools: guess(number)" in played.stdout
    assert re.search(r"tool: (higher|lower|correct)", played.stdout)


def test_play_ends_cleanly_where_the_input_does(task_file):
    played = run("play", task_file, input="")
    assert played.returncode == 0
    assert played.stdout.endswith("cancelled\n")


async def test_a_worker_registers_with_its_controller(task_file):
    beats: asyncio.Queue = asyncio.Queue()

    async def receive(request):
        await beats.put(await request.json())
        return web.json_response(None)

    app = web.Application()
    app.router.add_post("/api/receive_heartbeat", receive)
    server = web.AppRunner(app)
    await server.setup()
    site = web.TCPSite(server, "127.0.0.1", 0)
    await site.start()
    port = server.addresses[0][1]
    with Served(task_file, "--controller", f"http://127.0.0.1:{port}/api", "--concurrency", "3") as served:
        async with asyncio.timeout(20):
            first = await beats.get()
        assert first["name"] == "my-task"
        assert first["address"] in served.line
        assert first["concurrency"] == 3
        assert first["indices"] == list(range(100))
        assert first["splits"] == {"train": list(range(80)), "test": list(range(80, 100))}
    await server.cleanup()


HANGING = """
import threading
from agentrl_env_sdk import Session, Task, tool
class Hang(Task):
    splits = {"train": 2}
    turn_timeout_s = 0.5
    def setup(self, session: Session) -> str:
        return "go"
    @tool
    def act(self) -> str:
        threading.Event().wait()
        return ""
"""


async def act(session):
    call = FunctionCall(name="act", arguments="{}")
    message = Message(role="assistant", content="", tool_calls=[ToolCall(id="c", function=call)])
    return await session.interact([message])


async def start_until_refused(client):
    """The signal has arrived once a start is refused."""
    while True:
        session = await client.start("hang", 0, deadline_s=1)
        await session.cancel()


async def test_a_tool_that_hangs_ends_its_episode_and_not_the_exit(tmp_path):
    (tmp_path / "hang.py").write_text(HANGING)
    with Served(tmp_path / "hang.py") as served:
        async with SessionClient(served.line.split()[-1]) as client:
            reply = await act(await client.start("hang", 0))
            assert reply.metrics["error"] == "no answer within `turn_timeout_s` = 0.5 s"
        served.process.send_signal(signal.SIGTERM)
        assert served.process.wait(timeout=10) == 0


async def test_sigterm_lets_episodes_end_and_a_second_signal_does_not(tmp_path):
    (tmp_path / "hang.py").write_text(HANGING)
    with Served(tmp_path / "hang.py") as served:
        async with SessionClient(served.line.split()[-1]) as client:
            first, second = await client.start("hang", 0), await client.start("hang", 1)
            served.process.send_signal(signal.SIGTERM)
            with pytest.raises(SessionError, match="about to stop"):
                await start_until_refused(client)
            assert (await act(first)).finish
            assert served.process.poll() is None
            served.process.send_signal(signal.SIGTERM)
            assert await asyncio.to_thread(served.process.wait, 10) == 0
            del second


def test_ctrl_c_ends_a_worker_at_once(task_file):
    with Served(task_file) as served:
        served.process.send_signal(signal.SIGINT)
        assert served.process.wait(timeout=10) == 0
        assert served.process.stderr.read() == ""


def test_a_controller_cannot_be_told_an_address_that_is_none(task_file):
    options = ["--host", "0.0.0.0", "--controller", "http://127.0.0.1:1/api"]
    served = run("serve", task_file, *options)
    assert served.returncode == 1
    assert (
        "a controller cannot reach `0.0.0.0`; name an address of this machine with --advertise"
        in served.stderr
    )


def test_the_authors_own_lines_are_shown_and_no_others(tmp_path):
    (tmp_path / "sibling.py").write_text("import json\ndef load():\n    return json.loads('{')\n")
    (tmp_path / "queue.py").write_text("import sibling\nsibling.load()\n")
    served = run("serve", tmp_path / "queue.py")
    assert served.returncode == 1
    assert "sibling.load()" in served.stderr
    assert "JSONDecodeError" in served.stderr
    assert "importlib" not in served.stderr


def test_a_task_that_cannot_be_described_says_why(tmp_path):
    path = tmp_path / "odd.py"
    path.write_text(
        "from agentrl_env_sdk import Task, tool\nclass A(Task):\n    @tool\n    def f(self, *a): pass\n"
    )
    served = run("serve", path)
    assert served.returncode == 1
    assert served.stderr.startswith("error: tool `f` cannot be described to a model")


def test_a_wrong_target_is_one_clear_line():
    served = run("serve", "no_such_file.py")
    assert (served.returncode, served.stderr) == (1, "error: there is no file `no_such_file.py`\n")


def test_an_entry_of_a_configuration_is_played(task_file):
    config = task_file.with_name("tasks.yaml")
    config.write_text("x: {module: my_task.MyTask}\ny: {module: none}")
    with Served(config, "x") as served:
        assert served.line.startswith("Serving x on http://127.0.0.1:")


def test_a_port_in_use_is_one_clear_line(task_file):
    with listen("127.0.0.1", 0) as taken:
        served = run("serve", task_file, "--port", taken.getsockname()[1])
    assert served.returncode == 1
    assert re.fullmatch(r"error: cannot listen on .*: the port is in use; choose another .*\n", served.stderr)


@pytest.mark.parametrize(
    ("options", "message"),
    [(["--split", "dev"], "there is no split `dev`"), (["--index", "100"], "the task has no sample 100")],
)
def test_play_names_what_does_not_exist(task_file, options, message):
    played = run("play", task_file, *options, input="")
    assert played.returncode == 1
    assert message in played.stderr


def test_importing_the_package_loads_no_server():
    servers = ("fastapi", "uvicorn", "aiohttp")
    code = f"import agentrl_env_sdk, sys; print([m for m in {servers} if m in sys.modules])"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert loaded.stdout == "[]\n"

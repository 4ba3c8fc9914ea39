import asyncio
import json
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from aiohttp import web

from agentrl_core import FunctionCall, Message, ToolCall
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


async def test_a_worker_registers_with_its_controller_and_keeps_on(task_file):
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
            first, second = await beats.get(), await beats.get()
        assert first == second
        assert first["name"] == "my-task"
        assert first["address"] in served.line
        assert first["concurrency"] == 3
        assert first["indices"] == list(range(100))
        assert first["splits"] == {"train": list(range(80)), "test": list(range(80, 100))}
    await server.cleanup()


def test_a_port_in_use_is_one_clear_line(task_file):
    with listen("127.0.0.1", 0) as taken:
        served = run("serve", task_file, "--port", taken.getsockname()[1])
    assert served.returncode == 1
    assert re.fullmatch(r"error: cannot listen on .*: the port is in use; choose another .*\n", served.stderr)


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("x = 1\n", "holds no class that derives from `Task`"),
        (
            "from agentrl_env_sdk import Task\nclass A(Task): pass\nclass B(Task): pass\n",
            "several tasks, A, B; name one",
        ),
        ("import agentrl_env_sdk\nraise RuntimeError('no luck')\n", "RuntimeError: no luck"),
        ("def broken(:\n", "SyntaxError"),
    ],
)
def test_a_file_that_holds_no_task_says_why(tmp_path, code, message):
    path = tmp_path / "odd.py"
    path.write_text(code)
    served = run("serve", path)
    assert served.returncode == 1
    assert served.stderr.startswith("error: ")
    assert message in served.stderr


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("no_such_file.py", "there is no file `no_such_file.py`"),
        ("agentrl_env_sdk.tasks.guess:Gess", "has no task class `Gess`; it has Guess"),
        ("no_such_package:Task", "No module named 'no_such_package'"),
    ],
)
def test_a_wrong_target_says_what_is_wrong(target, message):
    served = run("serve", target)
    assert served.returncode == 1
    assert message in served.stderr


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

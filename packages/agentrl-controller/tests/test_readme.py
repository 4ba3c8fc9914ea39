import asyncio
import json
import os
import re
from pathlib import Path

import httpx
import uvicorn

from agentrl_controller import Controller
from agentrl_core.sockets import listen, url_of

README = (Path(__file__).parents[1] / "README.md").read_text()


class _Server(uvicorn.Server):
    def __init__(self, app):
        super().__init__(uvicorn.Config(app, log_level="warning"))
        self.listener = listen("127.0.0.1", 0)
        self.url = url_of(self.listener)

    async def __aenter__(self):
        self.serving = asyncio.create_task(self.serve(sockets=[self.listener]))
        return self

    async def __aexit__(self, *_):
        self.should_exit = True
        await self.serving


def block(language):
    (text,) = re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)
    return text


async def test_the_session_by_hand_plays_a_turn(fake_worker, tmp_path, until):
    controller = Controller()
    async with _Server(controller.app) as server:
        await until(lambda: controller.is_running)
        fake_worker.notice = controller.cancel_notice
        fake_worker.beat(controller)
        shell = await asyncio.create_subprocess_exec(
            *("sh", "-e", "-c", block("sh").replace("curl -s", "echo; curl -s")),
            cwd=tmp_path,
            env=os.environ | {"API": f"{server.url}/api", "TASK": "task"},
            stdout=asyncio.subprocess.PIPE,
        )
        output, _ = await shell.communicate()
        indices, opening, answer, cancelled = map(json.loads, output.split(b"\n")[1:])
        assert indices == [0, 1, 2, 3]
        assert opening["messages"][0]["content"] == "go"
        assert answer["messages"][0]["content"] == "answer 1"
        assert cancelled is None
        assert fake_worker.live == set()


async def test_the_library_example_mounts_a_controller_that_runs():
    names = {}
    exec(block("python"), names)
    async with _Server(names["app"]) as server, httpx.AsyncClient() as http:
        answer = await http.get(f"{server.url}/controller/readyz")
        assert (answer.status_code, answer.json()) == (200, {"status": "ready"})
    assert not names["controller"].is_running

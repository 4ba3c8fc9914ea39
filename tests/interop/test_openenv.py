"""The real OpenEnv package, its servers and its clients, with ours."""

import json
import sys
from pathlib import Path

import pytest

from agentrl_core import FunctionCall, Message, SampleStatus, ToolCall
from agentrl_env_sdk import testing
from agentrl_env_sdk.adapters.openenv import OpenEnvTask
from agentrl_env_sdk.tasks.guess import Guess
from agentrl_env_sdk.worker.runner import Runner

from .conftest import DEADLINE_S, EXAMPLES, HERE, python_of, result_of, started  # isort: skip


def calling(name: str, **arguments: object) -> list[Message]:
    call = ToolCall(id="c1", function=FunctionCall(name=name, arguments=json.dumps(arguments)))
    return [Message(role="assistant", content="", tool_calls=[call])]


async def test_a_real_server_is_a_task(tmp_path: Path):
    words = (python_of("OPENENV"), str(HERE / "openenv_server.py"), "typed")
    async with started(*words, folder=tmp_path, marker="http") as url:
        task = OpenEnvTask(url, splits={"test": [{"level": 7}]}, concurrency=4)
        runner = Runner(task)
        session_id, opening = await runner.start(0, seed=11, deadline_s=DEADLINE_S)
        assert opening.messages[-1].text == "seed 11, level 7"
        (tool,) = opening.tools or []
        text = tool.function.parameters["properties"]["text"]
        assert (tool.function.name, text["description"]) == ("step", "the word to say")
        short = await runner.interact(session_id, calling("step", text="a"))
        assert "`text`" in short.messages[0].text
        heard = await runner.interact(session_id, calling("step", text="hello"))
        assert (heard.messages[0].text, heard.reward, heard.finish) == ("hello", 0.5, False)

        other, _ = await runner.start(0, seed=12, deadline_s=DEADLINE_S)
        failed = await runner.interact(other, calling("step", text="fail"))
        assert (failed.status, failed.reward) == (SampleStatus.TASK_ERROR, 0.0)
        assert "the parrot is ill" in failed.metrics["error"]

        done = await runner.interact(session_id, calling("step", text="bye"))
        assert (done.messages[0].text, done.finish, done.status) == ("bye", True, SampleStatus.COMPLETED)
        assert done.reward == pytest.approx(0.3)


async def test_the_example_plays_what_runs_at_its_address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    words = (python_of("OPENENV"), str(HERE / "openenv_server.py"), "typed")
    async with started(*words, folder=tmp_path, marker="http") as url:
        monkeypatch.setenv("OPENENV_URL", url)
        async with testing.play(str(EXAMPLES / "openenv_task.py"), index=3) as episode:
            await episode.call("step", text="bye")
            assert episode.status == SampleStatus.COMPLETED


async def test_the_mcp_tools_of_a_real_server_are_tools(tmp_path: Path):
    words = (python_of("OPENENV"), str(HERE / "openenv_server.py"), "mcp")
    async with started(*words, folder=tmp_path, marker="http") as url:
        runner = Runner(OpenEnvTask(url, instructions="Add.", concurrency=4))
        session_id, opening = await runner.start(0, deadline_s=DEADLINE_S)
        assert [tool.function.name for tool in opening.tools or []] == ["add"]
        answer = await runner.interact(session_id, calling("add", a=2, b=40))
        assert answer.messages[0].text == "42"
        wrong = await runner.interact(session_id, calling("add", a="two", b=40))
        assert wrong.messages[0].text.startswith("error: argument `a`")
        await runner.cancel_all()


async def test_real_clients_play_our_task(tmp_path: Path):
    ours = (sys.executable, str(HERE / "our_openenv_server.py"))
    python = python_of("OPENENV")
    async with started(*ours, folder=tmp_path, marker="http") as url:
        seen = result_of(python, str(HERE / "openenv_client.py"), url, folder=tmp_path)
    secret = Guess.splits["train"][0]
    results, state = seen["generic"]["results"], seen["generic"]["state"]
    assert f"from {secret // 10 * 10} to" in results[0]["observation"]["text"]
    assert results[0]["done"] is False
    told = "correct" if secret % 10 == 4 else ("higher" if secret % 10 > 4 else "lower")
    assert results[1]["observation"]["result"] == told
    assert results[-1]["done"] is True
    assert state == {"episode_id": "mine", "step_count": len(results) - 1, "task": "guess", "index": 0}
    assert "VALIDATION_ERROR" in seen["generic"]["refused"]
    (tool,) = seen["tools"]["tools"]
    assert (tool["name"], list(tool["input_schema"]["properties"])) == ("guess", ["number"])
    assert seen["tools"]["wrong"].startswith("error: argument `number`")
    assert seen["tools"]["outside"]["result"] == "out of range"
    assert seen["report"]["passed"], seen["report"]

"""A real verifiers environment, in its own interpreter, as a task."""

import os
import signal
import sys
from pathlib import Path

import pytest

from agentrl_core import ConfigError, Message, SampleStatus
from agentrl_env_sdk import testing
from agentrl_env_sdk.adapters.verifiers import VerifiersTask
from agentrl_env_sdk.worker.runner import Runner

from .conftest import DEADLINE_S, EXAMPLES, HERE, python_of  # isort: skip

VARIABLES = {"PYTHONPATH": str(HERE / "packages"), "NO_PROXY": "*"}


@pytest.fixture(scope="module")
def task() -> VerifiersTask:
    return VerifiersTask(python_of("VERIFIERS"), "sums-vf", variables=VARIABLES)


def said(text: str) -> list[Message]:
    return [Message(role="assistant", content=text)]


async def test_a_rollout_asks_the_agent_and_the_rubric_rewards(task: VerifiersTask):
    assert (task.task_name, task.splits) == ("sums-vf", {"train": 5})
    runner = Runner(task)
    session_id, opening = await runner.start(3, deadline_s=DEADLINE_S)
    first = [(message.role, message.text) for message in opening.messages]
    assert first == [("system", "Answer with a number."), ("user", "3 + 10 = ?")]
    again = await runner.interact(session_id, said("14"))
    assert [(message.role, message.text) for message in again.messages] == [("user", "14 is wrong")]
    assert (again.reward, again.finish) == (0.0, False)
    last = await runner.interact(session_id, said("13"))
    assert (last.status, last.finish, last.reward) == (SampleStatus.COMPLETED, True, 2.5)
    assert last.metrics["reward/correct"] == 2.0
    assert last.metrics["replies"] == 2.0

    # Two at once, in the same process; one goes on to the last attempt, one is cancelled and one limited.
    one, _ = await runner.start(0, deadline_s=DEADLINE_S)
    other, opened = await runner.start(1, deadline_s=DEADLINE_S)
    assert opened.messages[-1].text == "1 + 10 = ?"
    await runner.cancel(other)
    for _ in range(2):
        assert not (await runner.interact(one, said("a wrong answer"))).finish
    ended = await runner.interact(one, said("a wrong answer"))
    assert (ended.finish, ended.reward, ended.metrics["replies"]) == (True, 0.0, 3.0)

    # The process goes down under a session: a failure that is told, and the next session has another one.
    session_id, _ = await runner.start(2, deadline_s=DEADLINE_S)
    (pid,) = children_with("verifiers_bridge.py")
    os.killpg(pid, signal.SIGKILL)
    lost = await runner.interact(session_id, said("12"))
    assert (lost.status, lost.finish, lost.reward) == (SampleStatus.TASK_ERROR, True, 0.0)
    assert "process has ended" in lost.metrics["error"]
    session_id, opening = await runner.start(4, deadline_s=DEADLINE_S)
    assert opening.messages[-1].text == "4 + 10 = ?"
    await runner.cancel_all()
    await task.close()
    assert children_with("verifiers_bridge.py") == []


def children_with(text: str) -> list[int]:
    """Processes that we started, by a word of their command."""
    listed = Path("/proc/self/task").glob("*/children")
    pids = [int(pid) for path in listed for pid in path.read_text().split()]
    return [pid for pid in pids if text in Path(f"/proc/{pid}/cmdline").read_text()]


def test_an_interpreter_without_verifiers_is_a_config_error():
    with pytest.raises(ConfigError, match=r"(?s)does not start.*No module named 'verifiers'"):
        VerifiersTask(sys.executable, "sums-vf")


def test_an_interpreter_that_is_not_there_is_a_config_error(tmp_path: Path):
    with pytest.raises(ConfigError, match="runs no verifiers environment"):
        VerifiersTask(tmp_path / "python", "sums-vf")


async def test_the_example_plays_a_taskset_by_its_name(monkeypatch: pytest.MonkeyPatch):
    for name, value in VARIABLES.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("VERIFIERS_PYTHON", python_of("VERIFIERS"))
    monkeypatch.setenv("VERIFIERS_TASKSET", "sums-vf")
    async with testing.play(str(EXAMPLES / "verifiers_task.py"), index=1) as episode:
        await episode.say("11")
        assert (episode.status, episode.reward) == (SampleStatus.COMPLETED, 2.5)

"""The protocol with an environment's process, whose place a script takes; `tests/interop` has verifiers."""

import asyncio
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from agentrl_core import ConfigError, Message, SampleStatus
from agentrl_env_sdk.adapters import verifiers
from agentrl_env_sdk.adapters.verifiers import VerifiersTask
from agentrl_env_sdk.worker.runner import Runner

# Sample 0 asks twice and rewards the replies' length; 1 rewrites its conversation; 2 fails; 3 is cut short;
# 4 ends the process; 5 offers a tool and wants its arguments.
SCRIPT = """
import json, sys
say = lambda **said: print(json.dumps(said), flush=True)
if "--count" in sys.argv:
    say(ready=6)
    sys.exit()
print("noise", file=sys.stderr, flush=True)
say(ready=6)
system = {"role": "system", "content": "Answer."}
user = {"role": "user", "content": "question"}
tools = [{"type": "function", "function": {"name": "add", "description": "add", "parameters": {}}}]
indices, seen, ended = {}, {}, {"rewards": {"a": 0.5, "b": 0.25}, "metrics": {"m": 1.0, "n": None}}
for line in sys.stdin:
    asked = json.loads(line)
    if asked["do"] == "cancel":
        print("cancelled", asked["episode"], file=sys.stderr, flush=True)
    elif asked["do"] == "start":
        name = asked["episode"]
        indices[name], seen[name] = asked["index"], [system, user]
        if asked["index"] == 4:
            sys.exit("out of memory")
        say(episode=name, call=name, messages=seen[name], tools=tools if asked["index"] == 5 else None)
    else:
        name = asked["call"]
        index, replied = indices[name], asked["message"]
        if index == 0 and len(seen[name]) == 2:
            seen[name] += [replied, {"role": "user", "content": "again"}]
            say(episode=name, call=name, messages=seen[name], tools=None)
        elif index == 1:
            say(episode=name, call=name, messages=[system, user], tools=None)
        elif index == 2:
            say(episode=name, end={"error": "TaskError: no scorer"})
        elif index == 5:
            arguments = replied["tool_calls"][0]["function"]["arguments"]
            say(episode=name, end={**ended, "rewards": {"a": len(arguments)}, "truncated": None})
        else:
            say(episode=name, end={**ended, "truncated": "max_turns" if index == 3 else None})
"""


@pytest.fixture
async def task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[VerifiersTask]:
    script = tmp_path / "bridge.py"
    script.write_text(SCRIPT)
    monkeypatch.setattr(verifiers, "_BRIDGE", script)
    made = VerifiersTask(sys.executable, "some-taskset", name="mine")
    yield made
    await made.close()
    assert made._process is None or made._process.has_ended


def said(text: str) -> list[Message]:
    return [Message(role="assistant", content=text)]


async def test_turns_are_what_the_rollout_asks_and_rewards_come_last(task: VerifiersTask):
    assert (task.task_name, task.splits) == ("mine", {"train": 6})
    runner = Runner(task)
    (one, first), (other, _) = await asyncio.gather(runner.start(0), runner.start(0))
    assert [message.role for message in first.messages] == ["system", "user"]
    again = await runner.interact(one, said("x"))
    assert ([message.text for message in again.messages], again.reward) == (["again"], 0.0)
    last = await runner.interact(one, said("y"))
    assert (last.status, last.reward, last.metrics["score"]) == (SampleStatus.COMPLETED, 0.75, 0.75)
    assert (last.metrics["reward/a"], last.metrics["m"], "n" in last.metrics) == (0.5, 1.0, False)
    assert not (await runner.interact(other, said("z"))).finish
    await runner.cancel_all()


async def test_the_tools_of_a_rollout_are_the_sessions(task: VerifiersTask, call: Callable[..., Message]):
    runner = Runner(task)
    session_id, opening = await runner.start(5)
    assert [tool.function.name for tool in opening.tools or []] == ["add"]
    last = await runner.interact(session_id, [call("add", number=2)])
    assert last.reward == len('{"number": 2}')


@pytest.mark.parametrize(
    ("index", "status", "told"),
    [
        (1, SampleStatus.TASK_ERROR, "rewrote its conversation"),
        (2, SampleStatus.TASK_ERROR, "no scorer"),
        (3, SampleStatus.TASK_LIMIT_REACHED, "max_turns"),
    ],
)
async def test_how_an_episode_ends_is_told(task: VerifiersTask, index: int, status: SampleStatus, told: str):
    runner = Runner(task)
    session_id, _ = await runner.start(index)
    last = await runner.interact(session_id, said("x"))
    assert last.status is status
    assert told in str(last.metrics.get("error") or last.metrics["truncated"])
    assert last.reward == (0.75 if status is SampleStatus.TASK_LIMIT_REACHED else 0.0)


async def test_a_process_that_ends_fails_its_sessions_and_the_next_gets_another(task: VerifiersTask):
    runner = Runner(task)
    alive, _ = await runner.start(0)
    _, failed = await runner.start(4)
    assert failed.status is SampleStatus.TASK_ERROR
    assert "out of memory" in failed.metrics["error"]
    lost = await runner.interact(alive, said("x"))
    assert (lost.status, lost.reward) == (SampleStatus.TASK_ERROR, 0.0)
    session_id, _ = await runner.start(3)
    assert (await runner.interact(session_id, said("x"))).reward == 0.75


async def test_a_turn_limit_cancels_the_rollout(task: VerifiersTask):
    task.max_turns = 1
    runner = Runner(task)
    session_id, _ = await runner.start(0)
    last = await runner.interact(session_id, said("x"))
    assert (last.status, last.metrics["truncated"]) == (SampleStatus.TASK_LIMIT_REACHED, "max_turns")
    process: Any = task._process
    async with asyncio.timeout(10):
        while not any("cancelled" in line for line in process._log):
            await asyncio.sleep(0)


def test_what_does_not_start_is_a_config_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(ConfigError, match="runs no verifiers environment"):
        VerifiersTask(tmp_path / "python", "some-taskset")
    script = tmp_path / "bridge.py"
    script.write_text("raise SystemExit('no such taskset')")
    monkeypatch.setattr(verifiers, "_BRIDGE", script)
    with pytest.raises(ConfigError, match="no such taskset"):
        VerifiersTask(sys.executable, "some-taskset")
    assert VerifiersTask(sys.executable, "some-taskset", count=3).splits == {"train": 3}

"""Tasks written against the published names play on our runner, and see what they are used to."""

import asyncio
import json
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agentrl_core import ConfigError, Message, SessionError
from agentrl_env_sdk.published import PublishedTask, installed, load_published, player
from agentrl_env_sdk.published.task import Task
from agentrl_env_sdk.published.typings import (
    AgentCancelledException,
    RewardHistoryItem,
    SampleStatus,
    TaskSampleExecutionResult,
)
from agentrl_env_sdk.worker import Runner

DONE = TaskSampleExecutionResult()
TOOL = {"type": "function", "function": {"name": "look", "description": "Looks.", "parameters": {}}}


def user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


def said(text: str) -> list[Message]:
    return [Message(role="assistant", content=text)]


def texts(messages: list[Message]) -> list[Any]:
    return [message.content for message in messages]


class Played(Task):
    """Plays what a test gives it.

    Attributes:
        seen: what it was told, in order.
    """

    def __init__(self, play: Any = None, *, indices: Any = (0,), **options: Any) -> None:
        super().__init__("played", **options)
        self._play = play
        self._indices = list(indices)
        self.seen: list[Any] = []
        self.ended = asyncio.Event()

    def get_indices(self) -> list[int | str]:
        return self._indices

    async def start_sample(self, index, session):
        try:
            return await self._play(self, index, session)
        except AgentCancelledException:
            self.seen.append("agent gone")
            return TaskSampleExecutionResult(status=SampleStatus.CANCELLED)
        except asyncio.CancelledError:
            self.seen.append("cut short")
            raise
        finally:
            self.ended.set()


def runner_of(play: Any = None, **options: Any) -> tuple[Played, Runner]:
    task = Played(play, **options)
    return task, Runner(PublishedTask(task))


async def test_what_is_new_is_sent_and_the_reply_joins_the_history():
    async def play(task, index, session):
        session.inject([user("one"), [user("two")], None])
        output = await session.action(user("three"))
        task.seen = [output.status, output.messages, list(session.history)]
        session.inject(user("four"))
        return DONE

    task, runner = runner_of(play)
    session_id, opening = await runner.start(0)
    assert (texts(opening.messages), opening.finish) == (["one", "two", "three"], False)
    reply = Message.model_validate({"role": "assistant", "content": "hm", "reasoning": "because"})
    last = await runner.interact(session_id, [reply])
    assert (texts(last.messages), last.status, last.finish) == (["four"], "completed", True)
    heard = {"role": "assistant", "content": "hm", "reasoning": "because"}
    assert task.seen == ["normal", [heard], [user("one"), user("two"), user("three"), heard]]


async def test_the_last_reward_since_the_last_exchange_counts():
    async def play(task, index, session):
        session.inject([RewardHistoryItem(reward=5), user("a"), RewardHistoryItem(reward=1, score=0.5)])
        await session.action()
        await session.action(user("b"))
        session.inject(RewardHistoryItem(reward=2, score=7.5, metrics={"trace": [{"k": 1}]}))
        return DONE

    _, runner = runner_of(play)
    session_id, first = await runner.start(0)
    assert (first.reward, first.metrics) == (1.0, {"score": 0.5})
    second = await runner.interact(session_id, said("x"))
    assert (second.reward, second.metrics) == (0.0, {})
    last = await runner.interact(session_id, said("y"))
    assert (last.reward, last.metrics) == (2.0, {"trace": [{"k": 1}], "score": 7.5})


async def test_a_whole_history_is_sent_but_no_reward_twice():
    async def play(task, index, session):
        session.set_full_history()
        await session.action(user("a"), RewardHistoryItem(reward=3))
        await session.action(user("b"))
        return DONE

    _, runner = runner_of(play)
    session_id, first = await runner.start(0)
    second = await runner.interact(session_id, said("x"))
    last = await runner.interact(session_id, said("y"))
    assert [texts(each.messages) for each in (second, last)] == [["a", "x", "b"], ["a", "x", "b", "y"]]
    assert [first.reward, second.reward, last.reward] == [3.0, 0.0, 0.0]


async def test_what_follows_a_cleared_or_covered_history_is_sent():
    async def play(task, index, session):
        await session.action(user("a"), user("b"))
        session.clear()
        await session.action(user("c"))
        session.cover([user("short")])
        await session.action(user("d"))
        session.history[0]["content"] = "changed in place"
        session.history = [*session.history, user("e")]
        return DONE

    _, runner = runner_of(play)
    session_id, _ = await runner.start(0)
    answers = [await runner.interact(session_id, said("x")) for _ in range(3)]
    assert [texts(each.messages) for each in answers] == [["c"], ["d"], ["e"]]


async def test_tools_of_an_episode_stay_with_it():
    async def play(task, index, session):
        await session.action(user("a"))
        session.set_tools([{"name": "own", "description": "Own.", "input_schema": {"type": "object"}}])
        await session.action(user("b"))
        session.set_tools(None)
        return DONE

    _, runner = runner_of(play, tools=[TOOL])
    session_id, first = await runner.start(0)
    answers = [first, *[await runner.interact(session_id, said("x")) for _ in range(2)]]
    assert [[tool.function.name for tool in each.tools or []] for each in answers] == [
        ["look"],
        ["own"],
        ["look"],
    ]
    assert answers[1].tools[0].function.parameters == {"type": "object"}


async def test_multimodal_last_messages_arrive_whole():
    parts = [{"type": "text", "text": "see"}, {"type": "image_url", "image_url": {"url": "data:,"}}]

    async def play(task, index, session):
        await session.action(user(parts))
        session.inject(user(tuple(parts)))
        return DONE

    _, runner = runner_of(play)
    session_id, first = await runner.start(0)
    last = await runner.interact(session_id, said("x"))
    assert texts([*first.messages, *last.messages]) == [parts, parts]


async def test_silence_is_an_empty_message():
    async def play(task, index, session):
        task.seen = (await session.action(user("a"))).messages
        return DONE

    task, runner = runner_of(play)
    session_id, _ = await runner.start(0)
    await runner.interact(session_id, [])
    assert task.seen == [{"role": "assistant", "content": ""}]


@pytest.mark.parametrize("item", ["text", 7, {"role": "agent", "content": "x"}, {"reward": "much"}])
async def test_what_is_no_history_item_is_refused(item):
    async def play(task, index, session):
        with pytest.raises(ValueError, match=r"message|role|reward"):
            session.inject(item)
        session.inject({"reward": 0.5})
        return DONE

    _, runner = runner_of(play)
    _, only = await runner.start(0)
    assert (only.status, only.messages, only.reward) == ("completed", [], 0.5)


async def test_a_failure_keeps_what_was_said_before_it():
    async def play(task, index, session):
        session.inject([user("so far"), RewardHistoryItem(reward=0.25)])
        raise RuntimeError("the stage is on fire")

    _, runner = runner_of(play)
    _, only = await runner.start(0)
    assert (only.status, only.finish, texts(only.messages), only.reward) == (
        "task error",
        True,
        ["so far"],
        0.25,
    )
    assert only.metrics == {"error": "RuntimeError: the stage is on fire", "score": 0.0}


@pytest.mark.parametrize(
    ("result", "status"),
    [
        (None, "task error"),
        ({"succeed": True}, "task error"),
        (TaskSampleExecutionResult(status=SampleStatus.TASK_LIMIT_REACHED), "task limit reached"),
        (TaskSampleExecutionResult(status=SampleStatus.RUNNING), "unknown"),
    ],
)
async def test_a_result_says_how_it_ended(result, status):
    async def play(task, index, session):
        return result

    _, runner = runner_of(play)
    _, only = await runner.start(0)
    assert (only.status, only.finish) == (status, True)


async def test_an_exit_of_the_task_is_its_failure_alone():
    async def play(task, index, session):
        sys.exit(3)

    _, runner = runner_of(play)
    _, only = await runner.start(0)
    assert (only.status, only.metrics["error"]) == ("task error", "RuntimeError: SystemExit: 3")


@pytest.mark.parametrize(("full_async", "seen"), [(False, "agent gone"), (True, "cut short")])
async def test_a_cancelled_task_is_told_its_own_way(full_async, seen):
    async def play(task, index, session):
        await session.action(user("a"))

    task, runner = runner_of(play, full_async=full_async)
    session_id, _ = await runner.start(0)
    await runner.cancel(session_id)
    assert (task.seen, runner.sessions, runner.status(session_id)) == ([seen], {}, "cancelled")


async def test_a_task_that_may_not_be_cut_short_goes_on_to_its_next_action():
    gate = asyncio.Event()

    async def play(task, index, session):
        await session.action(user("a"))
        await gate.wait()
        task.seen.append("through the gate")
        await session.action(user("b"))

    task, runner = runner_of(play)
    session_id, _ = await runner.start(0)
    waiting = asyncio.create_task(runner.interact(session_id, said("x")))
    await asyncio.sleep(0)
    cancelling = asyncio.create_task(runner.cancel(session_id))
    await asyncio.sleep(0)
    gate.set()
    await cancelling
    assert (task.seen, (await waiting).status) == (["through the gate", "agent gone"], "cancelled")


@pytest.mark.parametrize("full_async", [False, True])
async def test_a_long_clean_up_is_not_cut_short(full_async, monkeypatch):
    monkeypatch.setattr(player, "_PATIENCE_S", 0.05)
    gate = asyncio.Event()

    class Tidy(Played):
        async def start_sample(self, index, session):
            try:
                await session.action(user("a"))
            finally:
                await gate.wait()
                self.seen.append("tidy")
                self.ended.set()

    task = Tidy(full_async=full_async)
    runner = Runner(PublishedTask(task))
    session_id, _ = await runner.start(0)
    await runner.cancel(session_id)
    assert (task.seen, runner.sessions) == ([], {})
    gate.set()
    await task.ended.wait()
    assert task.seen == ["tidy"]


async def test_a_task_that_waits_for_something_else_is_cut_short_in_the_end(monkeypatch):
    monkeypatch.setattr(player, "_PATIENCE_S", 0.05)
    begun = asyncio.Event()

    async def play(task, index, session):
        begun.set()
        await asyncio.Event().wait()

    task, runner = runner_of(play)
    starting = asyncio.create_task(runner.start(0, session_id=1))
    await begun.wait()
    await runner.cancel(1)
    await task.ended.wait()
    assert (task.seen, (await starting)[1].status) == (["cut short"], "cancelled")


async def test_arguments_of_a_call_are_text():
    async def play(task, index, session):
        task.seen = (await session.action(user("a"))).messages
        return DONE

    task, runner = runner_of(play)
    session_id, _ = await runner.start(0)
    call = {"id": "c", "type": "function", "function": {"name": "look", "arguments": {"x": 1}}}
    await runner.interact(session_id, [Message.model_validate({"role": "assistant", "tool_calls": [call]})])
    assert json.loads(task.seen[0]["tool_calls"][0]["function"]["arguments"]) == {"x": 1}


async def test_a_task_that_lets_its_cancellation_pass_frees_its_slot():
    class Naive(Played):
        async def start_sample(self, index, session):
            await session.action(user("a"))
            return DONE

    runner = Runner(PublishedTask(Naive(concurrency=1)))
    for _ in range(2):
        session_id, _ = await runner.start(0)
        await runner.cancel(session_id)
        assert runner.status(session_id) == "cancelled"


class Sync(Played):
    def sync_start_sample(self, index, session):
        try:
            for _ in range(2):
                self.seen.append(
                    (threading.get_ident(), session.sync_action(user("?")).messages[0]["content"])
                )
        except AgentCancelledException:
            self.seen.append("agent gone")
            return TaskSampleExecutionResult(status=SampleStatus.CANCELLED)
        return DONE

    async def start_sample(self, index, session):
        return await Task.start_sample(self, index, session)


async def test_a_sync_task_keeps_its_thread():
    task = Sync()
    runner = Runner(PublishedTask(task))
    session_id, _ = await runner.start(0)
    await runner.interact(session_id, said("x"))
    last = await runner.interact(session_id, said("y"))
    (thread, first), (same, second) = task.seen
    assert (first, second, last.finish) == ("x", "y", True)
    assert thread == same != threading.get_ident()


async def test_a_sync_task_hears_of_its_cancellation():
    task = Sync(concurrency=1)
    runner = Runner(PublishedTask(task))
    session_id, _ = await runner.start(0)
    await runner.cancel(session_id)
    assert (task.seen, runner.status(session_id)) == (["agent gone"], "cancelled")


async def test_as_many_sync_sessions_as_there_are_slots():
    runner = Runner(PublishedTask(Sync(concurrency=400)))
    started = [await runner.start(0) for _ in range(400)]
    answers = await asyncio.gather(*(runner.interact(each, said("x")) for each, _ in started))
    assert {answer.status for answer in answers} == {"running"}
    await runner.cancel_all()


async def test_indices_are_the_tasks_own():
    async def play(task, index, session):
        task.seen.append(index)
        return DONE

    task, runner = runner_of(play, indices=[-1, 200, 203, "door"])
    assert [index for each in runner.samples.splits.values() for index in each] == [-1, 200, 203, "door"]
    await runner.start(203)
    await runner.start("door")
    assert task.seen == [203, "door"]
    with pytest.raises(SessionError, match="none is 201"):
        await runner.start(201)


async def test_custom_tasks_have_a_way_of_their_own():
    class Custom(Played):
        async def start_sample_custom(self, task, session):
            session.inject(user(task["say"]))
            return DONE

    runner = Runner(PublishedTask(Custom(indices=[-1])))
    _, only = await runner.start(-1, custom_task={"say": "hello"})
    assert texts(only.messages) == ["hello"]
    with pytest.raises(SessionError, match="`custom_task` is missing"):
        await runner.start(-1)


def test_results_come_to_the_overall_as_objects():
    class Summed(Played):
        def calculate_overall(self, results):
            return {"total": sum(each.result["reward"] for each in results if each.status == "completed")}

    results = [
        {"index": 0, "status": "completed", "result": {"reward": 2}, "history": [user("x"), {"reward": 1.0}]},
        {"index": "b", "status": "task error", "result": None},
    ]
    assert PublishedTask(Summed()).calculate_overall(results) == {"total": 2}


SOURCE = """
from agentrl.worker import __version__
from agentrl.worker.config import ConfigLoader
from agentrl.worker.environment import EnvironmentDelegation, create_controller
from agentrl.worker.task import Session, Task
from agentrl.worker.typings import InstanceFactory, RewardHistoryItem, TaskSampleExecutionResult

class Echo(Task):
    def __init__(self, greeting, **kwargs):
        super().__init__(**kwargs)
        self.greeting = greeting

    def get_indices(self):
        return [0]

    async def start_sample(self, index, session: Session):
        asked = {"role": "user", "content": self.greeting}
        heard = (await session.action(asked)).messages[0]["content"]
        session.inject(RewardHistoryItem(reward=heard == self.greeting, score=1))
        return TaskSampleExecutionResult()

class NoTask:
    def __init__(self, **kwargs):
        pass
"""


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A configuration and its tasks, in the working directory; what it makes importable goes with it."""
    (tmp_path / "their_echo.py").write_text(SOURCE)
    entries = {
        "default": {"module": "their_echo.Echo", "parameters": {"name": "echo", "concurrency": 3}},
        "echo": {"parameters": {"greeting": "hello"}},
        "nothing": {"module": "their_echo.NoTask"},
        "incomplete": {"parameters": {}},
        "unknown": {"module": "their_echo.Missing"},
    }
    path = tmp_path / "config.json"
    path.write_text(json.dumps(entries))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    with installed():
        yield path
    sys.modules.pop("their_echo", None)


async def test_a_configuration_names_the_task(config):
    task = load_published(config, "echo")
    assert (task.task_name, task.concurrency) == ("echo", 3)
    runner = Runner(task)
    session_id, opening = await runner.start(0)
    last = await runner.interact(session_id, said(opening.messages[0].text))
    assert (last.reward, last.metrics, last.finish) == (1.0, {"score": 1.0}, True)


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("nothing", "must derive"),
        ("incomplete", "greeting"),
        ("unknown", "Missing"),
        ("absent", "no entry `absent`"),
    ],
)
def test_what_cannot_be_made_is_a_wrong_setting(config, name, fault):
    with pytest.raises(ConfigError, match=fault):
        load_published(config, name)

import re
from typing import Literal

import pytest

from agentrl_env_sdk import Session, Task, tool
from agentrl_env_sdk.play import _message, play_by_hand


@pytest.mark.parametrize(
    ("line", "name", "arguments"),
    [
        ("guess number=5", "guess", '{"number": 5}'),
        ('guess {"number": 5}', "guess", '{"number": 5}'),
        ('answer text="hello there" loud=true', "answer", '{"text": "hello there", "loud": true}'),
        ("look", "look", "{}"),
        ("  guess   number=5 ", "guess", '{"number": 5}'),
    ],
)
def test_a_line_that_looks_like_a_call_is_one(line, name, arguments):
    (made,) = _message(line, 3).tool_calls or []
    assert (made.function.name, made.function.arguments, made.id) == (name, arguments, "call_3")


@pytest.mark.parametrize("line", ["hello there", "I don't know", "is x = 3 ?", "what?", ""])
def test_any_other_line_is_said(line):
    message = _message(line, 0)
    assert (message.content, message.tool_calls) == (line, None)


class Count(Task):
    """Counts; what it says depends on the session's chance, too."""

    splits = {"train": 2, "named": {"7": "seven"}}

    def setup(self, session: Session) -> str:
        session.state["n"] = 0
        return f"count from {session.random.randrange(100)}"

    @tool
    def add(self, session: Session, number: int = 1, kind: Literal["up", "down"] | None = None) -> str:
        """Add to the count."""
        session.state["n"] += number
        session.reward(0.25)
        if session.state["n"] >= 3:
            session.finish()
        return f"now {session.state['n']}, {session.random.random()}"


class Forkable(Count):
    def snapshot(self, session: Session) -> dict:
        return dict(session.state)


class Drifting(Count):
    times = 0

    def setup(self, session: Session) -> str:
        self.times += 1
        super().setup(session)
        return f"the {self.times}th time"


@pytest.fixture
def played(monkeypatch, capsys):
    """What is shown when lines are typed."""

    async def play(task, *lines, index=None, split=None, seed=1):
        typed = iter(lines)
        monkeypatch.setattr("builtins.input", lambda _: next(typed, None) or end())
        await play_by_hand(task, index=index, split=split, seed=seed)
        return capsys.readouterr().out

    def end():
        raise EOFError

    return play


async def test_state_rewards_and_times_can_be_looked_at(played):
    shown = await played(Count(), "add number=2", ":state", ":rewards", ":time", ":tools", ":log")
    assert "tool add(number: integer, kind: up|down|null)  Add to the count." in shown
    assert "sample 0 of split 'train', seed 1, 31 turns left, 0 unusable replies" in shown
    assert "state: {'n': 2}" in shown
    assert "turn 1    +0.25  total 0.25" in shown
    assert re.search(r"opening +[\d.]+ ms\nturn 1 +[\d.]+ ms\nin all +[\d.]+ ms", shown)
    assert 'assistant: add {"number": 2}' in shown
    assert shown.endswith("cancelled\n")


@pytest.mark.parametrize(("task", "how"), [(Forkable, ""), (Count, "played again from the start")])
async def test_a_step_back_leads_to_the_same_again(played, task, how):
    shown = await played(task(), "add", "add", ":back", ":state", "add", "add", ":back 3", ":state")
    counted = re.findall(r"tool: now (\d), ([\d.]+)", shown)
    numbers = [number for number, _ in counted]
    assert numbers == ["1", "2", "1", "2", "3"]
    assert counted[3] == counted[1]
    assert re.findall(r"state: \{'n': (\d)\}", shown) == ["1", "0"]
    assert how in shown
    assert "back at turn 1" in shown
    assert "back at opening" in shown


async def test_a_step_back_from_the_end_goes_on(played):
    shown = await played(Forkable(), "add number=3", "add", ":back", "add number=1", ":rewards", ":quit")
    assert "end: completed" in shown
    assert "the episode has ended as `completed`; :back, :save FILE or :quit" in shown
    assert "turn 1    +0.25  total 0.25" in shown


async def test_no_step_back_where_the_task_goes_another_way(played):
    shown = await played(Drifting(), "add", ":back", ":state")
    assert "played again goes another way, opening, message 1" in shown
    assert "state: {'n': 1}" in shown


async def test_a_mistyped_command_is_told(played, tmp_path):
    shown = await played(
        Count(),
        ":bakc",
        ":back",
        ":back 7",
        "add",
        ":back x",
        ":back -1",
        ":save",
        f":save {tmp_path / 'no' / 'file'}",
        ":help",
    )
    assert "there is no `:bakc`; there are :help, :state" in shown
    assert "cannot go 1 turns back, there were 0" in shown
    assert "cannot go 7 turns back" in shown
    assert ":back takes a number of turns, got `x`" in shown
    assert ":back takes a number of turns, got `-1`" in shown
    assert "back at" not in shown
    assert "`:save FILE` needs the name of a file" in shown
    assert "error: cannot write" in shown
    assert ":save FILE             write the episode" in shown


async def test_a_named_sample_is_played(played):
    assert "named" in await played(Count(), ":state", index=7)
    assert "sample '7' of split 'named'" in await played(Count(), ":state", split="named")


async def test_a_task_that_fails_at_its_start_can_be_looked_at(played):
    class Broken(Count):
        def setup(self, session: Session) -> str:
            raise ValueError("no file")

    shown = await played(Broken(), ":state", ":rewards", "add")
    assert "end: task error" in shown
    assert "error: the episode ended at its start" in shown


async def test_the_state_of_an_episode_in_a_process_is_told_to_be_there(played):
    class Apart(Count):
        isolation = "process"

    shown = await played(Apart(), "add", ":state", ":back", "add")
    assert "state: in the episode's process; play with --in-process" in shown
    assert re.findall(r"tool: now (\d)", shown) == ["1", "1"]

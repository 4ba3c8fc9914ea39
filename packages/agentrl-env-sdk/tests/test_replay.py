import json
import subprocess
import sys
from pathlib import Path

import pytest

from agentrl_core import ConfigError, Message
from agentrl_env_sdk import testing
from agentrl_env_sdk.recording import Recording, Step, first_difference, parse
from agentrl_env_sdk.replay import read, replay, seed_of
from agentrl_env_sdk.tasks import Guess, Trail

COMMAND = str(Path(sys.executable).parent / "agentrl-env")


async def recorded(task, index, *actions, **options):
    async with testing.play(task, index, **options) as episode:
        for action in actions:
            await episode.act(action)
        return Recording.of(episode)


def guess(number):
    return testing.act("guess", number=number)


async def test_a_saved_episode_is_the_same_when_it_is_replayed(tmp_path):
    before = await recorded(
        Trail, 3, testing.act("read", key="gem"), "hello", testing.act("answer", number=4)
    )
    before.save(tmp_path / "episode.jsonl")
    (read_again,) = read(tmp_path / "episode.jsonl")
    assert read_again == before
    (result,) = await replay(Trail(), [read_again])
    assert result.difference is None
    assert result.after.reward == before.reward


async def test_a_sample_of_ones_own_is_replayed(tmp_path):
    before = await recorded(Guess, None, guess(124), guess(123), sample=123)
    before.save(tmp_path / "episode.jsonl")
    (result,) = await replay(Guess(), read(tmp_path / "episode.jsonl"))
    assert (result.difference, result.after.steps[-1].status) == (None, "completed")


async def test_files_may_hold_several_episodes(tmp_path):
    episodes = [await recorded(Guess, index, guess(1)) for index in (0, 1, 2)]
    path = tmp_path / "episodes.jsonl"
    path.write_text("".join(line for episode in episodes for line in episode.lines()))
    assert [result.difference for result in await replay(Guess(), read(path))] == [None, None, None]


@pytest.fixture
async def original():
    return await recorded(Guess, 0, guess(410), guess(415), guess(416))


def changed(original, turn, **fields):
    steps = [*original.steps]
    steps[turn] = steps[turn].model_copy(update=fields)
    return original.model_copy(update={"steps": tuple(steps)})


@pytest.mark.parametrize(
    ("turn", "fields", "told"),
    [
        (0, {"messages": (Message(role="user", content="hello"),)}, "opening, message 1: "),
        (1, {"messages": ()}, "turn 1, 0 messages, now 1"),
        (0, {"tools": ()}, "opening, tools: [], now ['guess']"),
        (2, {"reward": 0.5}, "turn 2, reward: 0.5, now 0.1"),
        (3, {"status": "running"}, "turn 3, status: running, now completed"),
    ],
)
async def test_the_first_difference_is_told(original, turn, fields, told):
    (result,) = await replay(Guess(), [changed(original, turn, **fields)])
    assert told in (result.difference or "")


async def test_an_episode_that_ends_earlier_is_another(original):
    longer = original.model_copy(update={"steps": (*original.steps, Step(action=original.actions[0]))})
    (result,) = await replay(Guess(), [longer])
    assert result.difference == "after 4 turns it had ended, now after 3"


def test_what_is_not_recorded_is_not_compared(original):
    bare = [Step(action=step.action, messages=step.messages) for step in original.steps]
    assert first_difference(original.model_copy(update={"steps": tuple(bare)}), original) is None


async def test_the_conversations_of_an_evaluation_are_read(tmp_path, original):
    messages = []
    for step in original.steps:
        messages += [step.action.to_wire()] if step.action else []
        messages += [message.to_wire() for message in step.messages]
    line = {"task": "guess", "index": 0, "repeat": 2, "attempt": 1, "messages": messages}
    unanswered = {**line, "messages": [*messages[:1], messages[1]]}
    path = tmp_path / "conversations.jsonl"
    path.write_text(json.dumps(line) + "\n" + json.dumps(unanswered) + "\n")
    (tmp_path / "plan.json").write_text('{"seed": 7}')
    whole, broken_off = read(path)
    assert (whole.seed, len(whole.actions), len(broken_off.actions)) == (3834212752, 3, 0)
    assert [result.difference for result in await replay(Guess(), [whole, broken_off])] == [None, None]


def test_the_seed_of_an_evaluation_s_episode_follows_from_its_plan():
    line = {"task": "guess", "index": "a", "repeat": 0}
    # zlib.crc32(b"7/guess/'a'/0")
    assert seed_of(line, plan_seed=7) == 2428055552
    assert seed_of({**line, "seed": 5}, plan_seed=7) == 5
    assert seed_of(line, plan_seed=None) is None


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "holds no episode"),
        ("{", "line 1 of"),
        ("[1]", "line 1 of .* is no JSON object"),
        ('{"messages": []}', "line 1 is a step of no episode"),
        ('{"task": "guess"}', "this is no recording"),
        ('{"step": 1, "advantage": 0.5, "text": [], "trajectory": {}}', "tokens of a training run"),
    ],
)
def test_a_file_that_holds_no_episode_is_refused(tmp_path, text, told):
    (tmp_path / "file").write_text(text)
    with pytest.raises(ConfigError, match=told):
        read(tmp_path / "file")


async def test_another_task_and_an_unknown_sample_are_refused(original):
    with pytest.raises(ConfigError, match="is of task `guess`, the target is `trail`"):
        await replay(Trail(), [original])
    with pytest.raises(ConfigError, match="cannot be begun again: task `guess` has 900 samples"):
        await replay(Guess(), [original.model_copy(update={"index": 9000})])
    with pytest.raises(ConfigError, match="cannot read"):
        read(Path("nowhere"))


def test_lines_of_a_recording_are_read_back(original):
    lines = [json.loads(line) for line in original.lines()]
    assert parse(lines) == [original]
    assert (lines[0]["task"], lines[0]["index"], len(lines)) == ("guess", 0, 5)


def run(*arguments, typed=""):
    command = [COMMAND, *map(str, arguments)]
    return subprocess.run(command, input=typed, capture_output=True, text=True, timeout=60, check=False)


def test_what_play_saves_replay_reads(tmp_path):
    task = tmp_path / "dice.py"
    task.write_text(
        "from agentrl_env_sdk import Session, Task, tool\n"
        "class Dice(Task):\n"
        "    def setup(self, session: Session) -> str:\n"
        "        return 'roll'\n"
        "    @tool\n"
        "    def roll(self, session: Session) -> int:\n"
        "        return session.random.randint(1, 6)\n"
    )
    saved = tmp_path / "episode.jsonl"
    played = run("play", task, "--seed", "5", typed=f"roll\nroll\n:save {saved}\n")
    assert f"saved 2 turns to {saved}" in played.stdout, played.stderr
    same = run("replay", saved, task)
    assert (same.returncode, same.stdout) == (0, "dice, sample 0, seed 5: the same, 2 turns, return 0\n")
    task.write_text(task.read_text().replace("randint(1, 6)", "randint(7, 12)"))
    other = run("replay", saved, task)
    assert other.returncode == 1
    assert "dice, sample 0, seed 5: turn 1, message 1: " in other.stdout
    missing = run("replay", tmp_path / "none", task)
    assert (missing.returncode, missing.stderr[:19]) == (1, "error: cannot read ")

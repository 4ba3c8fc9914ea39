"""Plays the agent's part of a file again and tells where the environment answers differently.

    lines of a file --> recordings --> Runner, same sample, seed and actions --> the first difference

Two forms are read: what `agentrl-env play` saves (`:save FILE`), and lines with `task`, `index`, `messages`
and, where it is known, `seed`. `conversations.jsonl` of an evaluation has such lines; their seeds follow from
`plan.json` beside it. The trainer's `trajectories.jsonl` holds tokens, which are no messages without the
model's tokenizer.
"""

import json
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentrl_core import ConfigError, Message, SessionError
from agentrl_env_sdk.recording import Recording, Step, first_difference, parse
from agentrl_env_sdk.task import Task
from agentrl_env_sdk.testing.episode import begin
from agentrl_env_sdk.worker.runner import Runner


@dataclass(frozen=True, slots=True)
class Replay:
    """How an episode went the second time."""

    before: Recording
    """What the file tells."""
    after: Recording
    """What happened now."""
    difference: str | None
    """Where they part first; None where they do not."""


def read(path: Path) -> list[Recording]:
    """The episodes of a file.

    Raises:
        ConfigError: it cannot be read, or holds none.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read `{path}`: {error}") from error
    lines = list(_objects(path, text))
    if any("trajectory" in line and "advantage" in line for line in lines):
        rule = "it holds tokens of a training run, and only messages can be replayed"
        raise ConfigError(f"`{path}` cannot be replayed: {rule}; use an evaluation's `conversations.jsonl`")
    plan_seed = _plan_seed(path.with_name("plan.json"))
    found: list[Recording] = []
    recorded: list[dict[str, Any]] = []
    for line in lines:
        if "messages" in line and "task" in line:
            found.append(_of_conversation(line, plan_seed=plan_seed))
        else:
            recorded.append(line)
    found += parse(recorded)
    if not found:
        raise ConfigError(f"`{path}` holds no episode")
    return found


async def replay(task: Task, recordings: Sequence[Recording]) -> list[Replay]:
    """Play episodes again, one after another.

    Raises:
        ConfigError: an episode is of another task, or of a sample that the task does not have.
    """
    runner = Runner(task)
    return [await _replay(runner, recording) for recording in recordings]


async def _replay(runner: Runner, before: Recording) -> Replay:
    name = runner.task.task_name
    if before.task != name:
        raise ConfigError(
            f"the episode is of task `{before.task}`, the target is `{name}`; name the right one"
        )
    custom = {} if before.custom_task is None else {"custom_task": before.custom_task}
    try:
        episode = await begin(runner, before.index, seed=before.seed, **custom)
    except SessionError as error:
        raise ConfigError(f"the episode cannot be begun again: {error}") from error
    try:
        for action in before.actions:
            if not episode.finished:
                await episode.act(action)
        after = Recording.of(episode)
    finally:
        await episode.cancel()
    return Replay(before, after, first_difference(before, after))


def _objects(path: Path, text: str) -> Iterator[dict[str, Any]]:
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip():
            continue
        try:
            value = json.loads(line)
        except ValueError as error:
            raise ConfigError(f"line {number} of `{path}` is no JSON: {error}") from error
        if not isinstance(value, dict):
            raise ConfigError(f"line {number} of `{path}` is no JSON object")
        yield value


def _plan_seed(path: Path) -> int | None:
    """The seed of an evaluation's plan; None where there is none."""
    try:
        plan = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    seed = plan.get("seed") if isinstance(plan, dict) else None
    return seed if isinstance(seed, int) else None


def seed_of(line: Mapping[str, Any], *, plan_seed: int | None) -> int | None:
    """The seed of an episode's line: its own, or the one that an evaluation with this plan gave it."""
    if "seed" in line:
        return line["seed"]
    if plan_seed is None or "repeat" not in line:
        return None
    name = f"{plan_seed}/{line['task']}/{line['index']!r}/{line['repeat']}"
    return zlib.crc32(name.encode("utf-8", "surrogatepass"))


def _of_conversation(line: Mapping[str, Any], *, plan_seed: int | None) -> Recording:
    """An episode of which only the messages are known; each of the agent's ends a step."""
    steps: list[Step] = []
    action: Message | None = None
    said: list[Message] = []
    for given in line["messages"]:
        message = Message.model_validate(given)
        if message.role != "assistant":
            said.append(message)
            continue
        steps.append(Step(action=action, messages=tuple(said)))
        action, said = message, []
    if said or not steps:  # Else the agent's last words were never answered.
        steps.append(Step(action=action, messages=tuple(said)))
    return Recording(
        task=line["task"],
        index=line["index"],
        seed=seed_of(line, plan_seed=plan_seed),
        custom_task=line.get("custom_task"),
        steps=tuple(steps),
    )

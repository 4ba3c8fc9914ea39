"""An episode on paper: what the agent did and what the environment answered, to be played again.

A file of recordings has a JSON object a line: a head with `task`, `index` and `seed`, then a step an
exchange, the opening first; another head begins another episode.
"""

import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from agentrl_core import CUSTOM_INDEX, ConfigError, Message, SampleIndex, SampleStatus, Tool
from agentrl_env_sdk.content import encodable
from agentrl_env_sdk.oracle import Observation

if TYPE_CHECKING:
    from agentrl_env_sdk.testing.episode import Episode

_SHOWN_CHARACTERS = 200
_TOLERANCE = 1e-9


class Step(BaseModel):
    """What the environment answered, and to what."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    action: Message | None = None
    """What the agent did; None for the opening."""
    messages: tuple[Message, ...] = ()
    """What the environment said."""
    tools: tuple[Tool, ...] | None = None
    """The tools, where they are new."""
    reward: float | None = None
    """What it was worth; None where that is not recorded."""
    status: SampleStatus | None = None
    """State of the episode; None where that is not recorded."""
    metrics: dict[str, Any] = Field(default_factory=dict)
    """What was reported of the episode so far."""


class Recording(BaseModel):
    """An episode that was played."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    task: str
    """Name of the task."""
    index: SampleIndex
    """Sample of the task."""
    seed: int | None = None
    """Seed of the episode; None where that is not recorded."""
    custom_task: Any = None
    """The sample itself where it was not one of the task's."""
    steps: tuple[Step, ...] = ()
    """The opening, and a step for each reply of the agent."""

    @classmethod
    def of(cls, episode: "Episode") -> "Recording":
        """An episode as far as it has been played."""
        actions = [None, *episode.actions]
        seen = zip(actions, episode.observations, strict=True)
        steps = tuple(_step(action, observation) for action, observation in seen)
        is_custom = episode.index == CUSTOM_INDEX and not episode.opening.finish
        return cls(
            task=episode.runner.task.task_name,
            index=episode.index,
            seed=episode.seed,
            custom_task=episode.session.sample if is_custom else None,
            steps=steps,
        )

    @property
    def reward(self) -> float:
        """The return."""
        return sum(step.reward or 0.0 for step in self.steps)

    @property
    def actions(self) -> list[Message]:
        """What the agent did."""
        return [step.action for step in self.steps if step.action is not None]

    def lines(self) -> Iterator[str]:
        """The recording as lines of JSON."""
        yield _line(self.model_dump(mode="json", exclude={"steps"}))
        for step in self.steps:
            yield _line(
                {
                    "action": step.action and step.action.to_wire(),
                    "messages": [message.to_wire() for message in step.messages],
                    "tools": step.tools and [tool.model_dump(mode="json") for tool in step.tools],
                    "reward": step.reward,
                    "status": step.status,
                    "metrics": step.metrics,
                }
            )

    def save(self, path: Path) -> None:
        """Write it to a file of its own.

        Raises:
            ConfigError: the file cannot be written.
        """
        try:
            path.write_text("".join(self.lines()), encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"cannot write `{path}`: {error.strerror}") from error


def parse(lines: Sequence[Any]) -> list[Recording]:
    """The recordings that lines of JSON hold.

    Raises:
        ConfigError: they are none.
    """
    found: list[dict[str, Any]] = []
    for number, line in enumerate(lines, start=1):
        if "task" in line:
            found.append({**line, "steps": []})
        elif not found:
            raise ConfigError(f"line {number} is a step of no episode; a line with `task` comes first")
        else:
            found[-1]["steps"].append(line)
    try:
        return [Recording.model_validate(each) for each in found]
    except ValidationError as error:
        raise ConfigError(f"this is no recording: {error}") from error


def first_difference(expected: Recording, actual: Recording) -> str | None:
    """Where two recordings part, in words; None where they are the same.

    Metrics may hold times and are not compared; neither is what is not recorded.
    """
    for turn, (one, other) in enumerate(zip(expected.steps, actual.steps, strict=False)):
        told = _difference(one, other)
        if told is not None:
            return f"{'opening' if turn == 0 else f'turn {turn}'}, {told}"
    before, after = len(expected.steps) - 1, len(actual.steps) - 1
    return None if before == after else f"after {before} turns it had ended, now after {after}"


def _step(action: Message | None, seen: Observation) -> Step:
    return Step(
        action=action,
        messages=seen.messages,
        tools=seen.tools,
        reward=seen.reward,
        status=seen.status,
        metrics=seen.metrics,
    )


def _difference(one: Step, other: Step) -> str | None:
    for place, (said, says) in enumerate(zip(one.messages, other.messages, strict=False), start=1):
        if _compared(said) != _compared(says):
            return f"message {place}: {_shown(said)}, now {_shown(says)}"
    if len(one.messages) != len(other.messages):
        return f"{len(one.messages)} messages, now {len(other.messages)}"
    if one.tools is not None and one.tools != other.tools:
        return f"tools: {_names(one)}, now {_names(other)}"
    if one.reward is not None and not _equal(one.reward, other.reward or 0.0):
        return f"reward: {one.reward:g}, now {other.reward or 0.0:g}"
    if one.status is not None and one.status != other.status:
        error = other.metrics.get("error")
        return f"status: {one.status}, now {other.status}{f' ({error})' if error else ''}"
    return None


def _compared(message: Message) -> dict[str, Any]:
    """A message without the fields that are there and empty."""
    return {name: value for name, value in message.to_wire().items() if value is not None}


def _equal(one: float, other: float) -> bool:
    return math.isclose(one, other, rel_tol=_TOLERANCE, abs_tol=_TOLERANCE)


def _shown(message: Message) -> str:
    text = json.dumps(message.to_wire(), ensure_ascii=False)
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}..."


def _names(step: Step) -> list[str]:
    return [tool.function.name for tool in step.tools or ()]


def _line(value: Any) -> str:
    return encodable(json.dumps(value, ensure_ascii=False, default=str)) + "\n"

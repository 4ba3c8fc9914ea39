"""Picks a few readable conversations of a run in one pass, holding no more than those."""

import json
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, ValidationError

from agentrl_core import Trajectory
from agentrl_workers.report.lines import read_lines

_MOST_TASKS = 16


class TurnText(BaseModel, frozen=True):
    """The text of a turn, decoded by the trainer."""

    context: str = ""
    """What the environment put before the reply; carries no loss."""
    reply: str = ""
    """What the policy sampled."""


class RecordedTrajectory(BaseModel, frozen=True):
    """A line of `trajectories.jsonl`."""

    step: int
    """Training step that used it."""
    advantage: float = 0.0
    """How much better it did than its group."""
    trajectory: Trajectory
    """The episode."""
    text: tuple[TurnText, ...] = ()
    """Its turns in words; empty where nobody decoded them."""


@dataclass(frozen=True)
class Conversation:
    """A recorded episode and why it was picked."""

    is_late: bool
    """Whether it is the last of its kind, rather than the first."""
    is_success: bool
    """Whether the episode reached its goal."""
    record: RecordedTrajectory
    """The episode."""


def is_success(trajectory: Trajectory) -> bool:
    """Whether an episode reached its goal: full score where the task reports one, else full reward."""
    result = trajectory.reward if trajectory.score is None else trajectory.score
    return result >= 1.0


def pick_conversations(path: Path) -> tuple[tuple[Conversation, ...], int]:
    """The first and the last success and failure of each task, and the number of unreadable lines.

    An episode that says nothing about the agent is neither; of one that is first and last at once,
    the first stays.
    """
    first: dict[tuple[str, bool], RecordedTrajectory] = {}
    last: dict[tuple[str, bool], RecordedTrajectory] = {}
    unreadable = 0
    for line in read_lines(path):
        record = _parse(line)
        if record is None:
            unreadable += 1
            continue
        trajectory = record.trajectory
        if not trajectory.outcome.is_scored or not trajectory.turns:
            continue
        kind = (trajectory.task, is_success(trajectory))
        if kind in first:
            last[kind] = record
        elif len(first) < 2 * _MOST_TASKS:
            first[kind] = record
    picked = [
        Conversation(is_late=found is last, is_success=kind[1], record=record)
        for found in (first, last)
        for kind, record in found.items()
    ]
    picked.sort(key=lambda one: (one.record.trajectory.task, one.is_late, one.is_success))
    return tuple(picked), unreadable


def _parse(line: bytes | None) -> RecordedTrajectory | None:
    if line is None:
        return None
    try:
        return RecordedTrajectory.model_validate_json(line)
    except ValidationError:
        pass
    try:
        # A model may have written half a character; JSON can say so, UTF-8 cannot.
        whole = json.dumps(json.loads(line), ensure_ascii=False).encode("utf-8", "replace")
        return RecordedTrajectory.model_validate_json(whole)
    except (ValueError, RecursionError):
        return None

"""The append-only account of an evaluation: one line an attempt, on disk before it counts."""

import fcntl
import json
import os
from pathlib import Path
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from agentrl_core import ConfigError, Outcome, SampleIndex
from agentrl_eval.plan import Plan, Sample

_JOURNAL, _CONVERSATIONS, _PLAN, _LOCK = "journal.jsonl", "conversations.jsonl", "plan.json", ".lock"


class Record(BaseModel):
    """How an attempt ended."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    task: str
    """Task name."""
    index: SampleIndex
    """Sample of the task."""
    repeat: int
    """Which of the sample's episodes."""
    attempt: int
    """Which try, from 1."""
    final: bool
    """Whether this is the episode's result; an attempt that is tried again is not."""
    outcome: Outcome
    """How it ended."""
    reason: str = ""
    """Why, in words."""
    score: float | None = None
    """The task's headline result; the sum of the rewards where it reports none."""
    reward: float = 0.0
    """Sum of the rewards."""
    turns: int = 0
    """Replies of the model."""
    prompt_tokens: int = 0
    """Tokens read."""
    completion_tokens: int = 0
    """Tokens written."""
    duration_s: float = 0.0
    """Seconds from start to end."""
    metrics: dict[str, Any] = Field(default_factory=dict)
    """What else the task reported."""

    @property
    def sample(self) -> Sample:
        """The episode it belongs to."""
        return Sample(self.task, self.index, self.repeat)


class Journal:
    """The files of one evaluation; one process at a time writes them.

    Args:
        folder: where they lie.
        plan: what is evaluated.
        resume: go on with the plan that is there.

    Raises:
        ConfigError: the folder is in use or holds another evaluation.
    """

    def __init__(self, folder: Path, plan: Plan, *, resume: bool) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._lock = (folder / _LOCK).open("w")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise ConfigError(f"another process writes to `{folder}`; choose another `--dir`") from error
        _check_plan(folder, plan, resume=resume)
        self.records = list(read_journal(folder))
        _cut_torn_line(folder / _JOURNAL)
        _cut_torn_line(folder / _CONVERSATIONS)
        self._journal = (folder / _JOURNAL).open("ab")
        self._conversations = (folder / _CONVERSATIONS).open("ab")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def finished(self) -> set[Sample]:
        """Episodes that have a result."""
        return {record.sample for record in self.records if record.final}

    def write(self, record: Record, conversation: list[dict[str, Any]]) -> None:
        """Add an attempt; it is on disk when this returns."""
        key = {name: getattr(record, name) for name in ("task", "index", "repeat", "attempt")}
        _append(self._conversations, {**key, "messages": conversation})
        _append(self._journal, record.model_dump(mode="json"))
        self.records.append(record)

    def close(self) -> None:
        """Close the files and let others at them."""
        self._journal.close()
        self._conversations.close()
        self._lock.close()


def read_journal(folder: Path) -> list[Record]:
    """The attempts of a folder in order; a line that is not whole yet is left out."""
    path = folder / _JOURNAL
    if not path.exists():
        return []
    records = []
    for line in path.read_bytes().split(b"\n")[:-1]:
        try:
            records.append(Record.model_validate_json(line))
        except ValidationError as error:
            raise ConfigError(f"`{path}` holds a line that is no record: {line[:80]!r}") from error
    return records


def _check_plan(folder: Path, plan: Plan, *, resume: bool) -> None:
    path = folder / _PLAN
    if not path.exists():
        if resume:
            raise ConfigError(f"`{folder}` holds no evaluation to resume")
        draft = path.with_suffix(".tmp")
        draft.write_text(plan.model_dump_json(indent=2) + "\n")
        draft.replace(path)
        return
    if not resume:
        raise ConfigError(f"`{folder}` holds an evaluation; choose another `--dir`, or go on with `--resume`")
    before = Plan.model_validate_json(path.read_text())
    changed = [
        f"`{name}` was {getattr(before, name)!r} and is {getattr(plan, name)!r}"
        for name in Plan.model_fields
        if getattr(before, name) != getattr(plan, name)
    ]
    if changed:
        raise ConfigError(f"`{folder}` holds another evaluation: {'; '.join(changed)}")


def _cut_torn_line(path: Path) -> None:
    """Drop what a crash left of a last line, so that the next one does not continue it."""
    if path.exists():
        data = path.read_bytes()
        whole = data.rfind(b"\n") + 1
        if whole < len(data):
            with path.open("r+b") as file:
                file.truncate(whole)


def _append(file: Any, value: Any) -> None:
    file.write(json.dumps(value, default=str).encode("utf-8", "surrogatepass") + b"\n")
    file.flush()
    os.fsync(file.fileno())

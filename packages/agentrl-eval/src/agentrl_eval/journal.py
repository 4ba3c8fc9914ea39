"""The append-only account of an evaluation: one line an attempt, on disk before it counts."""

import asyncio
import fcntl
import json
import math
import os
import threading
from collections import Counter
from pathlib import Path
from typing import Any, BinaryIO, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from agentrl_core import ConfigError, Message, Outcome, SampleIndex
from agentrl_eval.plan import Plan
from agentrl_eval.sampling import Sample

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
    """The task's headline result, or the sum of the rewards; None where it tells nothing of the agent."""
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
    """The attempts so far, in memory; `FileJournal` keeps them on disk too."""

    def __init__(self) -> None:
        self.records: list[Record] = []

    def finished(self) -> set[Sample]:
        """Episodes that have a result."""
        return {record.sample for record in self.records if record.final}

    def attempts(self) -> Counter[Sample]:
        """How often each episode was tried."""
        return Counter(record.sample for record in self.records)

    async def write(self, record: Record, conversation: list[Message]) -> None:  # noqa: ARG002
        """Add an attempt; it is kept when this returns."""
        self.records.append(record)


class FileJournal(Journal):
    """The files of one evaluation; one process at a time writes them.

    The conversation of an attempt is written before its record. After a crash one may therefore stand
    there without a record, or twice: the last of an attempt counts.

    Args:
        folder: where they lie.
        plan: what is evaluated.
        resume: go on with the plan that is there.

    Raises:
        ConfigError: the folder cannot be written, is in use, or holds another evaluation.
    """

    def __init__(self, folder: Path, plan: Plan, *, resume: bool) -> None:
        super().__init__()
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._lock_file = (folder / _LOCK).open("w")
        except OSError as error:
            raise ConfigError(
                f"cannot write to `{folder}`: {error.strerror}; choose another `--dir`"
            ) from error
        try:
            fcntl.flock(self._lock_file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self.records = read_journal(folder)
            _check_plan(folder, plan, resume=resume, begun=bool(self.records))
        except BlockingIOError as error:
            self._lock_file.close()
            raise ConfigError(f"another process writes to `{folder}`; choose another `--dir`") from error
        except ConfigError:
            self._lock_file.close()
            raise
        self._journal = _open_whole(folder / _JOURNAL)
        self._conversations = _open_whole(folder / _CONVERSATIONS)
        self._pending: list[tuple[bytes, bytes]] = []
        self._mutex = threading.Lock()
        self._broken = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def write(self, record: Record, conversation: list[Message]) -> None:
        """Add an attempt; it is on disk when this returns.

        Attempts that end while the disk is busy share the next write. A cancelled call writes all the same.

        Raises:
            ConfigError: the disk is full or gone.
        """
        key = {name: getattr(record, name) for name in ("task", "index", "repeat", "attempt")}
        said = _line({**key, "messages": [message.to_wire() for message in conversation]})
        self.records.append(record)
        self._pending.append((said, _line(record.model_dump(mode="json"))))
        await asyncio.to_thread(self._commit)

    def close(self) -> None:
        """Write what is left, close the files and let others at them."""
        try:
            self._commit()
        finally:
            for file in (self._journal, self._conversations, self._lock_file):
                file.close()

    def _commit(self) -> None:
        """Write what waits; on return it is on disk, whichever thread has written it."""
        with self._mutex:
            if not self._pending or self._broken:
                return
            lines, self._pending = self._pending, []
            try:
                _append(self._conversations, b"".join(said for said, _ in lines))
                _append(self._journal, b"".join(entry for _, entry in lines))
            except OSError as error:
                self._broken = True  # Anything more would continue a torn line.
                raise ConfigError(
                    f"cannot write `{self._journal.name}`: {error.strerror}; "
                    "make room, then go on with `--resume`"
                ) from error


def read_journal(folder: Path) -> list[Record]:
    """The attempts of a folder in order, also while it is written; a line that is not whole yet is left out.

    Raises:
        ConfigError: a whole line is no record.
    """
    path = folder / _JOURNAL
    if not path.exists():
        return []
    records = []
    for number, line in enumerate(path.read_bytes().split(b"\n")[:-1], start=1):
        try:
            records.append(Record.model_validate_json(line))
        except ValidationError as error:
            raise ConfigError(f"line {number} of `{path}` is no record: {line[:80]!r}") from error
    return records


def _check_plan(folder: Path, plan: Plan, *, resume: bool, begun: bool) -> None:
    path = folder / _PLAN
    if resume and not path.exists():
        raise ConfigError(f"`{folder}` holds no evaluation to resume; leave out `--resume` to begin one")
    if not resume and begun:
        raise ConfigError(f"`{folder}` holds an evaluation; choose another `--dir`, or go on with `--resume`")
    if not resume:
        draft = path.with_suffix(".tmp")
        draft.write_text(plan.model_dump_json(indent=2) + "\n")
        draft.replace(path)
        return
    try:
        before = Plan.model_validate_json(path.read_text())
    except ValidationError as error:
        raise ConfigError(f"`{path}` is no plan of this version: {error}") from error
    changed = [
        f"`{name}` was {getattr(before, name)!r} and is {getattr(plan, name)!r}"
        for name in Plan.model_fields
        if getattr(before, name) != getattr(plan, name)
    ]
    if changed:
        raise ConfigError(
            f"`{folder}` holds another evaluation: {'; '.join(changed)}; resume with the same, "
            "or choose another `--dir`"
        )


def _open_whole(path: Path) -> BinaryIO:
    """A file to append to, without what a crash left of a last line."""
    file = path.open("a+b", buffering=0)
    file.seek(0)
    file.truncate(file.read().rfind(b"\n") + 1)
    return file


def _append(file: BinaryIO, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[file.write(rest) :]
    os.fsync(file.fileno())


def _line(value: Any) -> bytes:
    """A value as a line of strict JSON, whatever tasks and models put into it."""
    text = json.dumps(_finite(value), ensure_ascii=False, allow_nan=False, default=str)
    return text.encode("utf-8", "replace") + b"\n"


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value

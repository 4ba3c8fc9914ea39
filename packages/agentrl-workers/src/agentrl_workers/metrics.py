"""Numbers of each training step, as JSON lines and as TensorBoard scalars.

trainer: {"step": 7, "reward/t": 0.4, ...} -> Metrics.log -> metrics.jsonl -> read_metrics
                                                          -> tensorboard/
"""

import json
import math
import os
import time
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Self

_FILE_NAME = "metrics.jsonl"
_TENSORBOARD_NAME = "tensorboard"


class Metrics:
    """Appends one record a step to `metrics.jsonl` and to an event file under `tensorboard/`.

    Opening drops what earlier processes wrote after the step that the run resumes from, and a torn
    last line; so each step stands in the file once, in order.

    Args:
        folder: the run folder; made where it is absent.
        resumed_step: the last step that the run keeps; 0 starts anew.
    """

    def __init__(self, folder: str | Path, *, resumed_step: int = 0) -> None:
        self._path = Path(folder) / _FILE_NAME
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._last_step = _keep_until(self._path, resumed_step)
        self._lines = self._path.open("a", encoding="utf-8")
        self._events = _EventFile(self._path.parent / _TENSORBOARD_NAME, first_step=resumed_step + 1)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def log(self, record: Mapping[str, Any]) -> None:
        """Write a step's numbers, on disk when this returns.

        Args:
            record: `step` and any number of `area/name` metrics, flat; what is not finite is written
                as null and left out of TensorBoard.

        Raises:
            ValueError: the step is missing, or not after the last one.
            TypeError: a metric is not a number.
        """
        numbers = {name: _number(name, value) for name, value in record.items()}
        step = numbers.get("step")
        if not isinstance(step, int) or isinstance(step, bool):
            raise ValueError(f"`step` must be a whole number, got {step!r}; each record carries its step")
        if step <= self._last_step:
            raise ValueError(
                f"step {step} comes after step {self._last_step}; a step is logged once, "
                "and a resumed run opens its metrics with `resumed_step`"
            )
        line = {name: value if math.isfinite(value) else None for name, value in numbers.items()}
        self._lines.write(json.dumps(line, allow_nan=False) + "\n")
        self._lines.flush()
        self._last_step = step
        self._events.write(step, {name: value for name, value in line.items() if value is not None})

    def close(self) -> None:
        """Close both files; what was logged is on disk already."""
        self._lines.close()
        self._events.close()


def read_metrics(folder: str | Path) -> list[dict[str, float]]:
    """The records of a run folder in order, null as NaN; empty where nothing was logged.

    Reads while another process writes: a line that is not complete yet is left out.
    """
    path = Path(folder) / _FILE_NAME
    if not path.exists():
        return []
    return [
        {name: math.nan if value is None else value for name, value in record.items()}
        for _, record in _records(path)
    ]


class _EventFile:
    """TensorBoard's event file, written synchronously: a full disk raises here instead of hanging a queue."""

    def __init__(self, folder: Path, *, first_step: int) -> None:
        # tensorboardX imports torch where it finds it: not before the first run is opened.
        from tensorboardX import RecordWriter
        from tensorboardX.proto.event_pb2 import Event, SessionLog  # pyright: ignore[reportAttributeAccessIssue]

        folder.mkdir(exist_ok=True)
        # Two files of the same second must not share a name, and TensorBoard reads them by name.
        name = f"events.out.tfevents.{int(time.time()):010d}.{uuid.uuid4().hex[:8]}"
        self._writer = RecordWriter(str(folder / name))
        self._write_event(Event(wall_time=time.time(), file_version="brain.Event:2"))
        # Tells TensorBoard to forget what earlier files hold from this step on.
        started = SessionLog(status=SessionLog.START)
        self._write_event(Event(wall_time=time.time(), step=first_step, session_log=started))

    def write(self, step: int, numbers: Mapping[str, float]) -> None:
        from tensorboardX.proto.event_pb2 import Event  # pyright: ignore[reportAttributeAccessIssue]
        from tensorboardX.proto.summary_pb2 import Summary  # pyright: ignore[reportAttributeAccessIssue]

        values = [
            Summary.Value(tag=name, simple_value=value) for name, value in numbers.items() if name != "step"
        ]
        self._write_event(Event(wall_time=time.time(), step=step, summary=Summary(value=values)))

    def close(self) -> None:
        self._writer.close()

    def _write_event(self, event: Any) -> None:
        self._writer.write(event.SerializeToString())
        self._writer.flush()


def _number(name: str, value: Any) -> float:
    """The value as a plain `int` or `float`; numpy's and torch's scalars know how."""
    if hasattr(value, "item"):
        value = value.item()
    if isinstance(value, bool | int | float):
        return value
    raise TypeError(f"metric `{name}` must be a number, got {value!r}")


def _keep_until(path: Path, last_step: int) -> int:
    """Replace the file by its complete lines up to a step; the last step that is left, or -1."""
    left = -1
    if not path.exists():
        return left
    kept_path = path.with_suffix(".jsonl.tmp")
    with kept_path.open("wb") as kept:
        for line, record in _records(path):
            if left < record["step"] <= last_step:
                kept.write(line)
                left = record["step"]
        kept.flush()
        os.fsync(kept.fileno())
    kept_path.replace(path)
    return left


def _records(path: Path) -> Iterator[tuple[bytes, dict[str, Any]]]:
    """Each complete line with what it says; a crash leaves torn ones."""
    with path.open("rb") as lines:
        for line in lines:
            try:
                record = json.loads(line)
            except ValueError:
                continue
            if line.endswith(b"\n") and isinstance(record, dict) and isinstance(record.get("step"), int):
                yield line, record

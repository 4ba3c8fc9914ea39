"""A run folder as far as it got: whatever is absent or broken becomes a note instead of an error."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from agentrl_core import ConfigError
from agentrl_workers.report.conversations import Conversation, pick_conversations
from agentrl_workers.report.lines import read_lines


@dataclass(frozen=True)
class Run:
    """What the report shows of a run."""

    name: str
    """The folder's name."""
    config: Mapping[str, Any]
    """The resolved settings; empty where they could not be read."""
    config_text: str
    """The same as they stand in the file."""
    summary: Mapping[str, Any]
    """Results of the whole run; empty where it was interrupted."""
    steps: tuple[Mapping[str, Any], ...]
    """Metrics by step, each step once."""
    conversations: tuple[Conversation, ...]
    """Examples, early and late, by task."""
    notes: tuple[str, ...]
    """What is missing or unreadable, in words."""

    @property
    def tasks(self) -> list[str]:
        """Task names: the summary's in its order, then what only the metrics know."""
        metrics = {name: None for step in self.steps for name in step}
        trained = [name.partition("/")[2] for name in metrics if name.startswith(("reward/", "success/"))]
        return list(dict.fromkeys([*self.results, *sorted(trained)]))

    @property
    def results(self) -> Mapping[str, Mapping[str, Any]]:
        """The evaluations by task: `before`, `after` and `optimum` where they exist."""
        return {
            str(name): result if isinstance(result, Mapping) else {}
            for name, result in as_mapping(self.summary.get("tasks")).items()
        }


def read_run(folder: Path) -> Run:
    """Read what there is.

    Raises:
        ConfigError: there is no such folder.
    """
    if not folder.is_dir():
        raise ConfigError(f"no run folder at `{folder}`; give the folder that holds `metrics.jsonl`")
    notes: list[str] = []
    summary = _read_mapping(folder / "summary.json", json.loads, notes)
    if not (folder / "summary.json").exists():
        notes.append("The run is still going, or was interrupted.")
    config_text = _read_text(folder / "config.yaml")
    config = _read_mapping(folder / "config.yaml", yaml.safe_load, notes)
    steps = _read_steps(folder / "metrics.jsonl", notes)
    conversations, unreadable = pick_conversations(folder / "trajectories.jsonl")
    if unreadable:
        notes.append(f"{unreadable} unreadable line(s) of trajectories.jsonl were left out.")
    if not conversations:
        notes.append("No conversation was recorded in trajectories.jsonl.")
    notes += _missing_evaluations(summary)
    return Run(
        name=folder.resolve().name,
        config=config,
        config_text=config_text,
        summary=summary,
        steps=steps,
        conversations=conversations,
        notes=tuple(notes),
    )


def as_mapping(value: Any) -> Mapping[Any, Any]:
    """The value if it is a mapping, else an empty one."""
    return value if isinstance(value, Mapping) else {}


def as_number(value: Any) -> float:
    """The value as a finite float, else NaN."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return math.nan
    try:
        number = float(value)
    except OverflowError:
        return math.nan
    return number if math.isfinite(number) else math.nan


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _read_mapping(path: Path, parse: Any, notes: list[str]) -> Mapping[str, Any]:
    if not path.exists():
        notes.append(f"{path.name} is missing.")
        return {}
    try:
        tree = parse(_read_text(path))
    except (ValueError, RecursionError, yaml.YAMLError):
        tree = None
    if not isinstance(tree, Mapping):
        notes.append(f"{path.name} is unreadable.")
        return {}
    return tree


def _read_steps(path: Path, notes: list[str]) -> tuple[Mapping[str, Any], ...]:
    steps: dict[int, Mapping[str, Any]] = {}
    for line in read_lines(path):
        try:
            record = json.loads(line or b"")
        except (ValueError, RecursionError):
            continue
        if isinstance(record, dict) and isinstance(record.get("step"), int):
            steps[record["step"]] = record
    if not steps:
        notes.append("No training step was recorded.")
    return tuple(steps[step] for step in sorted(steps))


def _missing_evaluations(summary: Mapping[str, Any]) -> list[str]:
    tasks = as_mapping(summary.get("tasks"))
    if summary and not tasks:
        return ["No task was evaluated."]
    return [
        f"{name}: there is no evaluation {when} training."
        for name, result in tasks.items()
        for when in ("before", "after")
        if not math.isfinite(as_number(as_mapping(as_mapping(result).get(when)).get("rate")))
    ]

"""Some of each step's episodes, readable, as JSON lines."""

import json
from pathlib import Path
from typing import Any

from agentrl_core import Trajectory
from agentrl_workers.batch import Batch
from agentrl_workers.chat import ChatRenderer

_FILE_NAME = "trajectories.jsonl"


class Transcripts:
    """Appends episodes with their tokens, text and advantage to `trajectories.jsonl`.

    Args:
        run_dir: where the file lies.
        renderer: turns tokens into text.
        per_step: how many episodes of a step are written.
        resumed_step: the last step that the file keeps; 0 starts anew.
    """

    def __init__(self, run_dir: Path, renderer: ChatRenderer, *, per_step: int, resumed_step: int) -> None:
        self._renderer = renderer
        self._per_step = per_step
        path = run_dir / _FILE_NAME
        kept = _lines_until(path, resumed_step)
        draft = path.with_suffix(".tmp")
        draft.write_text("".join(kept))
        draft.replace(path)
        self._file = path.open("a")

    def write(self, batch: Batch, *, step: int) -> None:
        """Write the first episodes of each task in turn."""
        chosen = _spread(batch.trajectories, self._per_step)
        for position in chosen:
            trajectory = batch.trajectories[position]
            record = {
                "step": step,
                "advantage": float(batch.advantages[position]),
                "text": self._text(trajectory),
                "trajectory": trajectory.model_dump(mode="json"),
            }
            self._file.write(json.dumps(record) + "\n")
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _text(self, trajectory: Trajectory) -> list[dict[str, Any]]:
        return [
            {
                "context": self._renderer.text(turn.context_ids),
                "reply": self._renderer.text(turn.token_ids),
            }
            for turn in trajectory.turns
        ]


def _spread(trajectories: tuple[Trajectory, ...], count: int) -> list[int]:
    """Positions of up to `count` episodes, every n-th, so that all groups and tasks show."""
    if count == 0:
        return []
    stride = max(1, len(trajectories) // count)
    return list(range(0, len(trajectories), stride))[:count]


def _lines_until(path: Path, step: int) -> list[str]:
    if step == 0 or not path.exists():
        return []
    kept = []
    for line in path.read_text().splitlines(keepends=True):
        try:
            record = json.loads(line)
        except ValueError:
            continue
        if record["step"] <= step:
            kept.append(line)
    return kept

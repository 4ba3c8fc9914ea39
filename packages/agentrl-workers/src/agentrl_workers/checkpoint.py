"""Checkpoints of a run: complete or absent, newest kept."""

import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_STATE = "trainer.json"


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A complete checkpoint."""

    folder: Path
    """Model, optimiser, tokenizer and the trainer's state."""
    step: int
    """Steps that had been made."""

    def state(self) -> dict[str, Any]:
        """The trainer's state."""
        return json.loads((self.folder / _STATE).read_text())


class Checkpoints:
    """The checkpoints below a run folder.

    A checkpoint is written under another name and renamed when it is whole; a crash leaves the older ones.

    Args:
        folder: where they lie.
        keep: how many of the newest stay.
    """

    def __init__(self, folder: Path, *, keep: int) -> None:
        self.folder = folder
        self._keep = keep

    def begin(self, step: int) -> Path:
        """An empty folder to write step `step` into."""
        folder = self.folder / f".step-{step:06d}"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        return folder

    def commit(self, step: int, state: Mapping[str, Any]) -> Checkpoint:
        """Complete what `begin` began; older checkpoints than the newest `keep` go."""
        draft = self.folder / f".step-{step:06d}"
        (draft / _STATE).write_text(json.dumps(state))
        for path in draft.iterdir():
            _sync(path)
        final = self.folder / f"step-{step:06d}"
        shutil.rmtree(final, ignore_errors=True)
        draft.rename(final)
        _sync(self.folder)
        for old in self._all()[: -self._keep]:
            shutil.rmtree(old.folder)
        return Checkpoint(final, step)

    def latest(self) -> Checkpoint | None:
        """The newest complete checkpoint."""
        found = self._all()
        return found[-1] if found else None

    def _all(self) -> list[Checkpoint]:
        found = [
            Checkpoint(path, int(path.name.removeprefix("step-")))
            for path in self.folder.glob("step-*")
            if (path / _STATE).is_file()
        ]
        return sorted(found, key=lambda checkpoint: checkpoint.step)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

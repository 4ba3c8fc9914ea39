"""What a person may choose of the quickstart, and the settings that follow."""

from dataclasses import dataclass
from importlib import resources
from pathlib import Path

import yaml

from agentrl_workers.config import TrainConfig, load_config, make_config

TARGETS = {
    "guess": "agentrl_env_sdk.tasks.guess:Guess",
    "trail": "agentrl_env_sdk.tasks.trail:Trail",
}
"""What `agentrl-env` serves for each task."""

OPTIMA = {"guess": 1.0, "trail": 1.0}
"""Best success rate of each task, as its documentation proves."""

_QUICK_STEPS = 30
_SAMPLES = 200
_QUICK_SAMPLES = 60


@dataclass(frozen=True, slots=True)
class Options:
    """The command's options."""

    run_dir: Path
    """Where everything is written."""
    seed: int = 0
    """Of the whole run."""
    steps: int | None = None
    """Optimiser steps instead of the preset's."""
    sync: bool = False
    """Train synchronously."""
    quick: bool = False
    """Fewer steps and held-out samples."""
    from_scratch: bool = False
    """Make the first model anew instead of taking the one that ships."""
    resume: bool = False
    """Go on with the run in `run_dir`."""
    overrides: tuple[str, ...] = ()
    """Further settings, `section.key=value` each."""

    @property
    def samples(self) -> int:
        """Held-out samples of each task in an evaluation."""
        return _QUICK_SAMPLES if self.quick else _SAMPLES


def resolve(options: Options, *, controller: str, model: Path) -> TrainConfig:
    """The run's settings: those that it began with, or the preset with the options."""
    saved = options.run_dir / "config.yaml"
    chosen = [f"controller={controller}", *options.overrides]
    if options.resume:
        return load_config(saved, chosen)
    preset = yaml.safe_load((resources.files("agentrl_workers") / "presets" / "quickstart.yaml").read_text())
    preset |= {"seed": options.seed, "model": {"path": str(model)}}
    if options.quick:
        preset["steps"] = _QUICK_STEPS
    if options.steps is not None:
        preset["steps"] = options.steps
    if options.sync:
        preset["max_lag"] = 0
    return make_config(preset, chosen)

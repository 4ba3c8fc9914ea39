"""What an evaluation runs: a pure description, and the samples that follow from it."""

import zlib
from collections.abc import Sequence
from dataclasses import dataclass

from pydantic import BaseModel, ConfigDict, Field

from agentrl_core import ConfigError, SampleIndex


class Plan(BaseModel):
    """Everything that decides what an evaluation measures; two with equal plans can be compared."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    tasks: tuple[str, ...] = Field(min_length=1)
    """Task names."""
    model: str
    """The model, such as `openai:NAME`."""
    split: str | None = "test"
    """Which samples; None for tasks without splits."""
    samples: int | None = Field(default=None, ge=1)
    """The first so many of each task; None for all."""
    indices: tuple[SampleIndex, ...] | None = None
    """These samples instead."""
    repeats: int = Field(default=1, ge=1)
    """Episodes of each sample."""
    temperature: float = Field(default=1.0, ge=0.0)
    """Sampling temperature."""
    max_tokens: int = Field(default=1024, ge=1)
    """Longest reply in tokens; a longer one ends the episode as truncated."""
    max_turns: int = Field(default=64, ge=1)
    """Replies before an episode is truncated."""
    seed: int = 0
    """Of environments and sampling."""
    success_threshold: float = 1.0
    """Score from which an episode counts as a success."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One episode to play."""

    task: str
    """Task name."""
    index: SampleIndex
    """Sample of the task."""
    repeat: int
    """Which of the sample's episodes, from 0."""

    def seed(self, base: int) -> int:
        """Seed of the episode: its own, the same in every run of the plan."""
        return zlib.crc32(f"{base}/{self.task}/{self.index}/{self.repeat}".encode())


def samples_of(plan: Plan, task: str, available: Sequence[SampleIndex]) -> list[Sample]:
    """The episodes of a task, in order.

    Raises:
        ConfigError: more samples are asked for than there are, or unknown ones.
    """
    chosen = list(available)
    where = f"split `{plan.split}` of `{task}`" if plan.split else f"task `{task}`"
    if plan.indices is not None:
        unknown = [index for index in plan.indices if index not in set(available)]
        if unknown:
            raise ConfigError(f"{where} has {len(available)} samples, none is {unknown[0]!r}")
        chosen = list(plan.indices)
    if plan.samples is not None:
        if plan.samples > len(chosen):
            raise ConfigError(
                f"{where} has {len(chosen)} samples, {plan.samples} are asked for; "
                "`--repeats` plays each more than once"
            )
        chosen = chosen[: plan.samples]
    return [Sample(task, index, repeat) for index in chosen for repeat in range(plan.repeats)]

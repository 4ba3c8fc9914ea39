"""What an evaluation runs: a pure description."""

from collections.abc import Sequence
from typing import Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from agentrl_core import ConfigError, SampleIndex


class Plan(BaseModel):
    """Everything that decides what an evaluation measures; two with equal plans can be compared.

    Raises:
        ConfigError: a task or an index stands there twice.
    """

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
    """Only these samples of the split."""
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

    @model_validator(mode="after")
    def _check(self) -> Self:
        _refuse_twice(self.tasks, what="task")
        _refuse_twice(self.indices or (), what="index")
        return self


def _refuse_twice(values: Sequence[SampleIndex], *, what: str) -> None:
    for value in values:
        if values.count(value) > 1:
            raise ConfigError(
                f"{what} {value!r} is named twice; `--repeats` plays each sample more than once"
            )

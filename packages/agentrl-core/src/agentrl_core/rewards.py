"""Rewards as an environment reports them during an episode."""

from typing import Any

from pydantic import BaseModel, ConfigDict, Field


class RewardItem(BaseModel):
    """One reward event; several in an episode add up."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    reward: float
    """What is added to the episode's return."""
    score: float | None = None
    """The headline result so far, reported as `metrics["score"]`."""
    metrics: dict[str, Any] = Field(default_factory=dict)
    """Other numbers about the episode."""

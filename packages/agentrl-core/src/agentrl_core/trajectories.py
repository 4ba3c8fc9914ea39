"""What a rollout leaves behind: exactly the tokens that were sampled, and what they earned."""

from itertools import pairwise
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, model_validator

from agentrl_core.outcomes import Outcome
from agentrl_core.sessions import SampleIndex

PolicyVersion = int
"""Number of optimiser updates that made the weights; 0 is the initial model."""


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Segment(_Frozen):
    """A run of a turn's tokens that one version of the weights sampled."""

    version: PolicyVersion
    """The version."""
    start: int
    """First token of the run, counted within the turn."""
    end: int
    """One past its last token."""


class Turn(_Frozen):
    """One reply of the policy, after the tokens that the environment put before it."""

    context_ids: tuple[int, ...]
    """Tokens between the previous reply and this one; the whole prompt where a sample starts."""
    token_ids: tuple[int, ...]
    """The reply exactly as sampled, its end marker included; never re-tokenised."""
    logps: tuple[float, ...]
    """Log-probability of each reply token under the version that sampled it."""
    segments: tuple[Segment, ...]
    """Which version sampled which tokens; covers the reply without a gap."""
    reward: float = 0.0
    """Reward the environment gave for this reply."""
    starts_sample: bool = False
    """Whether the tokens before this turn are dropped and a new sample starts here."""

    @model_validator(mode="after")
    def _check(self) -> "Turn":
        if len(self.token_ids) != len(self.logps):
            raise ValueError(f"{len(self.token_ids)} token_ids need as many logps, got {len(self.logps)}")
        ends = [0, *(segment.end for segment in self.segments)]
        starts = [*(segment.start for segment in self.segments), len(self.token_ids)]
        if ends != starts or any(end <= start for start, end in pairwise(ends)):
            raise ValueError(f"segments {self.segments} do not cover {len(self.token_ids)} tokens in order")
        return self


class Trajectory(_Frozen):
    """One episode of one sample, as the trainer reads it."""

    trajectory_id: str
    """Unique within the run."""
    task: str
    """Task name."""
    index: SampleIndex
    """Sample of the task."""
    group_id: str
    """Episodes of the same group share a baseline."""
    turns: tuple[Turn, ...] = ()
    """The replies in order."""
    outcome: Outcome
    """How the episode ended."""
    reason: str = ""
    """Why, in words; empty for a completed episode."""
    score: float | None = None
    """The task's headline result, where it reports one."""
    metrics: dict[str, Any] = Field(default_factory=dict)
    """Other numbers the task reported."""
    duration_s: float = 0.0
    """Seconds from start to end."""

    @property
    def reward(self) -> float:
        """Return of the episode: the sum of its turns' rewards."""
        return sum(turn.reward for turn in self.turns)

    @property
    def num_tokens(self) -> int:
        """Tokens that the policy sampled."""
        return sum(len(turn.token_ids) for turn in self.turns)

    @property
    def oldest_version(self) -> PolicyVersion:
        """The lowest version that sampled any token; staleness counts from here.

        Raises:
            ValueError: no token was sampled.
        """
        return min(segment.version for turn in self.turns for segment in turn.segments)

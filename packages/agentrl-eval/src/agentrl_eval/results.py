"""What an evaluation found: every episode counted, with intervals."""

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
from pydantic import BaseModel, ConfigDict

from agentrl_eval.journal import Record
from agentrl_eval.plan import Plan
from agentrl_eval.statistics import clustered_rate_interval, mean_interval


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Rate(_Frozen):
    """A success rate with its 95 % interval."""

    n: int
    """Episodes that it counts."""
    successes: int
    """Those that reached the success threshold."""
    rate: float | None
    """Their share; None where n is 0."""
    low: float
    """Lower end of the interval."""
    high: float
    """Upper end of the interval."""


class TaskResults(Rate):
    """One task; its own rate counts every episode, one that failed for whatever reason as no success."""

    planned: int
    """Episodes of the plan; more than n after an interruption."""
    mean_reward: float | None
    """Mean sum of rewards, 0 for episodes that say nothing about the agent."""
    reward_low: float | None
    """Lower end of its 95 % interval; None with fewer than two samples."""
    reward_high: float | None
    """Upper end of its 95 % interval."""
    outcomes: dict[str, int]
    """How many episodes ended how."""
    scored_only: Rate
    """The rate without the episodes that say nothing about the agent."""
    turns_mean: float | None
    """Replies of the model an episode."""
    tokens_mean: float | None
    """Tokens written an episode."""


class Results(_Frozen):
    """All of it, as `results.json` holds it."""

    tasks: dict[str, TaskResults]
    """By task name, in the order of the plan."""
    model: str
    """The model."""
    split: str | None
    """Which samples."""
    seed: int
    """Of environments and sampling."""
    success_threshold: float
    """Score from which an episode counts as a success."""
    complete: bool
    """Whether every episode of the plan has a result."""
    wall_s: float
    """Seconds that this run took; earlier ones of a resumed evaluation are not in it."""


def summarise(plan: Plan, records: Sequence[Record], *, planned: Mapping[str, int], wall_s: float) -> Results:
    """The results of a plan.

    Args:
        plan: what was run.
        records: its attempts; those that were tried again do not count.
        planned: episodes of each task.
        wall_s: seconds that it took.
    """
    final = [record for record in records if record.final]
    tasks = {
        task: _task([r for r in final if r.task == task], threshold=plan.success_threshold, planned=count)
        for task, count in planned.items()
    }
    return Results(
        tasks=tasks,
        model=plan.model,
        split=plan.split,
        seed=plan.seed,
        success_threshold=plan.success_threshold,
        complete=all(task.n == task.planned for task in tasks.values()),
        wall_s=round(wall_s, 3),
    )


def _task(records: Sequence[Record], *, threshold: float, planned: int) -> TaskResults:
    scored = [record for record in records if record.outcome.is_scored]
    rewards = [record.reward if record.outcome.is_scored else 0.0 for record in records]
    mean, low, high = mean_interval(rewards, clusters=[record.index for record in records])
    return TaskResults(
        **_rate(records, threshold=threshold).model_dump(),
        planned=planned,
        mean_reward=mean,
        reward_low=low,
        reward_high=high,
        outcomes=dict(sorted(Counter(str(record.outcome) for record in records).items())),
        scored_only=_rate(scored, threshold=threshold),
        turns_mean=float(np.mean([record.turns for record in records])) if records else None,
        tokens_mean=float(np.mean([record.completion_tokens for record in records])) if records else None,
    )


def _rate(records: Sequence[Record], *, threshold: float) -> Rate:
    wins = [record.score is not None and record.score >= threshold for record in records]
    low, high = clustered_rate_interval(wins, clusters=[record.index for record in records])
    rate = sum(wins) / len(wins) if wins else None
    return Rate(n=len(wins), successes=sum(wins), rate=rate, low=low, high=high)

"""What an evaluation found: every episode counted, with intervals."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from agentrl_eval.journal import Record
from agentrl_eval.statistics import clustered_rate_interval, mean_interval


def summarise(records: Sequence[Record], *, threshold: float) -> dict[str, Any]:
    """The results of each task.

    The rate counts every episode, one that failed for whatever reason as no success; `scored_only` leaves
    out those that say nothing about the agent. Both come with their n.

    Args:
        records: attempts; those that were tried again do not count.
        threshold: score from which an episode is a success.
    """
    final = [record for record in records if record.final]
    tasks = sorted({record.task for record in final})
    return {task: _task([r for r in final if r.task == task], threshold) for task in tasks}


def _task(records: Sequence[Record], threshold: float) -> dict[str, Any]:
    scored = [record for record in records if record.outcome.is_scored]
    rewards = [record.reward if record.outcome.is_scored else 0.0 for record in records]
    mean, low, high = mean_interval(rewards, [record.index for record in records])
    return {
        **_rate(records, threshold),
        "mean_reward": mean,
        "reward_low": low,
        "reward_high": high,
        "outcomes": dict(sorted(Counter(str(record.outcome) for record in records).items())),
        "scored_only": _rate(scored, threshold),
        "turns_mean": float(np.mean([record.turns for record in records])),
        "tokens_mean": float(np.mean([record.completion_tokens for record in records])),
    }


def _rate(records: Sequence[Record], threshold: float) -> dict[str, Any]:
    wins = [record.score is not None and record.score >= threshold for record in records]
    low, high = clustered_rate_interval(wins, [record.index for record in records])
    rate = sum(wins) / len(wins) if wins else None
    return {"n": len(wins), "successes": sum(wins), "rate": rate, "low": low, "high": high}

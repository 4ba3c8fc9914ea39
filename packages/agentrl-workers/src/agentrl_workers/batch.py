"""A step's groups turned into what the actor trains on, and the numbers that describe them."""

import random
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from agentrl_core import PolicyVersion, Trajectory
from agentrl_workers.advantage import group_advantage, task_normalised_advantage
from agentrl_workers.buffer import Group
from agentrl_workers.config import TrainConfig
from agentrl_workers.samples import Sample, samples_of

_SOLVED = 1.0
"""Score from which an episode counts as a success."""


@dataclass(frozen=True, slots=True)
class Batch:
    """What a step trains on."""

    trajectories: tuple[Trajectory, ...]
    """Every episode of every group."""
    advantages: np.ndarray
    """Of each trajectory."""
    updates: tuple[tuple[Sample, ...], ...]
    """The sequences of each optimiser update."""


def make_batch(groups: Sequence[Group], *, config: TrainConfig, step: int) -> Batch:
    """Advantages by group, then by task, and the sequences dealt out to the step's updates."""
    trajectories = tuple(trajectory for group in groups for trajectory in group.trajectories)
    advantages = group_advantage([t.reward for t in trajectories], [t.group_id for t in trajectories])
    if config.algorithm.task_normalisation:
        advantages = task_normalised_advantage(
            advantages, [t.num_tokens for t in trajectories], [t.task for t in trajectories]
        )
    samples = [
        sample
        for trajectory, advantage in zip(trajectories, advantages, strict=True)
        for sample in samples_of(trajectory, advantage=float(advantage))
    ]
    random.Random(f"{config.seed}/{step}").shuffle(samples)
    count = min(config.actor.updates_per_step, len(samples))
    return Batch(trajectories, advantages, tuple(tuple(samples[part::count]) for part in range(count)))


def is_success(trajectory: Trajectory) -> bool:
    """Whether the episode reached the task's goal; its return stands in where it reports no score."""
    score = trajectory.reward if trajectory.score is None else trajectory.score
    return score >= _SOLVED


def batch_metrics(batch: Batch, *, learner: PolicyVersion) -> dict[str, float]:
    """Rewards by task, lags, outcomes and groups without a signal."""
    by_task: dict[str, list[Trajectory]] = defaultdict(list)
    for trajectory in batch.trajectories:
        by_task[trajectory.task].append(trajectory)
    metrics: dict[str, float] = {}
    for task, trajectories in sorted(by_task.items()):
        rewards = np.array([t.reward for t in trajectories])
        metrics |= {
            f"reward/{task}": float(rewards.mean()),
            f"reward_std/{task}": float(rewards.std(ddof=1)) if len(rewards) > 1 else 0.0,
            f"success/{task}": float(np.mean([is_success(t) for t in trajectories])),
            f"num_trajectories/{task}": float(len(trajectories)),
            f"turns/{task}": float(np.mean([len(t.turns) for t in trajectories])),
        }
    outcomes = Counter(t.outcome for t in batch.trajectories)
    metrics |= {f"outcome/{outcome}": float(count) for outcome, count in sorted(outcomes.items())}
    metrics["groups/zero_variance"] = float(_flat_groups(batch.trajectories))
    return metrics | _lags(batch.trajectories, learner=learner)


def _lags(trajectories: Sequence[Trajectory], *, learner: PolicyVersion) -> dict[str, float]:
    lags = [
        (learner - segment.version, segment.end - segment.start)
        for trajectory in trajectories
        for turn in trajectory.turns
        for segment in turn.segments
    ]
    tokens = sum(count for _, count in lags)
    return {
        "staleness/lag_mean": sum(lag * count for lag, count in lags) / max(1, tokens),
        "staleness/lag_max": float(max((lag for lag, _ in lags), default=0)),
    }


def _flat_groups(trajectories: Sequence[Trajectory]) -> int:
    rewards: dict[str, set[float]] = defaultdict(set)
    for trajectory in trajectories:
        rewards[trajectory.group_id].add(trajectory.reward)
    return sum(len(values) == 1 for values in rewards.values())

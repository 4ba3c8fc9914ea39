"""How much better an episode did than its peers: one number a trajectory, in plain numpy."""

from collections.abc import Hashable, Sequence

import numpy as np

EPSILON = 1e-6
"""Added to a standard deviation before dividing by it."""


def group_advantage(rewards: Sequence[float], groups: Sequence[Hashable]) -> np.ndarray:
    """GRPO's advantage: `(R - mean) / (std + 1e-6)` over the trajectories of a group.

    A group of one, or of equal rewards, gets 0. Source: DeepSeekMath, arXiv 2402.03300, section 4.1.2
    (population standard deviation).

    Args:
        rewards: return of each trajectory (N).
        groups: group of each trajectory (N).

    Returns:
        Advantages (N), float64.
    """
    values_N = np.asarray(rewards, dtype=np.float64)
    advantage_N = np.zeros_like(values_N)
    for members in _members(groups):
        group = values_N[members]
        if np.ptp(group) > 0.0:
            advantage_N[members] = (group - group.mean()) / (group.std() + EPSILON)
    return advantage_N


def task_normalised_advantage(
    advantages: Sequence[float] | np.ndarray, num_tokens: Sequence[int], tasks: Sequence[Hashable]
) -> np.ndarray:
    """Advantages brought to mean 0 and deviation 1 within each task, over its loss tokens.

    Every token of a trajectory carries the trajectory's advantage, so longer ones weigh more. A task
    without spread gets 0. Source: AgentRL, arXiv 2510.04206, equation 1.

    Args:
        advantages: of each trajectory (N).
        num_tokens: loss tokens of each trajectory (N).
        tasks: task of each trajectory (N).

    Returns:
        Advantages (N), float64.
    """
    values_N = np.asarray(advantages, dtype=np.float64)
    weights_N = np.asarray(num_tokens, dtype=np.float64)
    normalised_N = np.zeros_like(values_N)
    for members in _members(tasks):
        values, weights = values_N[members], weights_N[members]
        if weights.sum() == 0.0 or np.ptp(values[weights > 0]) == 0.0:
            continue
        mean = np.average(values, weights=weights)
        deviation = np.sqrt(np.average((values - mean) ** 2, weights=weights))
        normalised_N[members] = (values - mean) / (deviation + EPSILON)
    return normalised_N


def _members(labels: Sequence[Hashable]) -> list[np.ndarray]:
    positions: dict[Hashable, list[int]] = {}
    for position, label in enumerate(labels):
        positions.setdefault(label, []).append(position)
    return [np.asarray(members) for members in positions.values()]

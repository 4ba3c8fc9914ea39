"""Finished groups on their way to the actor, and how many more may begin.

admissible() -> groups begin -> put() -> batch() -> trained; advance() moves the learner on
"""

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from agentrl_core import PolicyVersion, Trajectory
from agentrl_workers.mixture import Item


@dataclass(frozen=True, slots=True)
class Group:
    """The scored episodes of one sample."""

    item: Item
    """Which sample."""
    trajectories: tuple[Trajectory, ...]
    """At least two, or there is no baseline."""


def admissible_groups(
    *,
    max_running: int,
    running: int,
    accepted: int,
    learner: PolicyVersion,
    max_lag: int,
    groups_per_step: int,
) -> int:
    """How many groups may begin now without growing stale before their turn.

    `min(max_running - running, (max_lag + learner + 1) B - (accepted + running))`, at least 0. Source:
    AReaL, arXiv 2505.24298, equation 3; `max_lag` 0 admits exactly the next step's groups.

    Args:
        max_running: most groups at the same time.
        running: groups that have begun and not finished.
        accepted: groups that finished and were not dropped since, the trained ones included.
        learner: updates made so far.
        max_lag: updates that a token may be old when it is trained on.
        groups_per_step: B.
    """
    by_staleness = (max_lag + learner + 1) * groups_per_step - (accepted + running)
    return max(0, min(max_running - running, by_staleness))


def is_fresh(trajectory: Trajectory, *, learner: PolicyVersion, max_lag: int) -> bool:
    """Whether the oldest token is within `max_lag` updates of the learner."""
    return learner - trajectory.oldest_version <= max_lag


class Buffer:
    """Holds finished groups until a step's worth is there; the hard bound on staleness.

    Args:
        groups_per_step: groups in a batch.
        max_lag: updates that a token may be old when it is trained on.
        learner: updates made so far.
    """

    def __init__(self, *, groups_per_step: int, max_lag: int, learner: PolicyVersion = 0) -> None:
        self.groups_per_step = groups_per_step
        self.max_lag = max_lag
        self.learner = learner
        self.accepted = learner * groups_per_step
        """Groups that were put and not dropped; as admission counts them."""
        self._groups: deque[Group] = deque()
        self._stale: list[Trajectory] = []
        self._ready = asyncio.Event()

    def __len__(self) -> int:
        return len(self._groups)

    def put(self, group: Group) -> None:
        """Add a finished group."""
        self._groups.append(group)
        self.accepted += 1
        self._sift()

    def advance(self, learner: PolicyVersion) -> None:
        """Move the learner on; what grew stale is dropped."""
        self.learner = learner
        self._sift()

    def take_stale(self) -> list[Trajectory]:
        """Episodes dropped since the last call, among them fresh ones whose group fell apart."""
        dropped, self._stale = self._stale, []
        return dropped

    async def batch(self) -> list[Group]:
        """The oldest `groups_per_step` groups, once there are as many."""
        await self._ready.wait()
        batch = [self._groups.popleft() for _ in range(self.groups_per_step)]
        self._signal()
        return batch

    def _sift(self) -> None:
        kept: deque[Group] = deque()
        for group in self._groups:
            fresh = self._fresh(group.trajectories)
            if len(fresh) < 2:
                self._stale += group.trajectories
                self.accepted -= 1
                continue
            self._stale += [t for t in group.trajectories if t not in fresh]
            kept.append(group if len(fresh) == len(group.trajectories) else Group(group.item, tuple(fresh)))
        self._groups = kept
        self._signal()

    def _fresh(self, trajectories: Sequence[Trajectory]) -> list[Trajectory]:
        return [t for t in trajectories if is_fresh(t, learner=self.learner, max_lag=self.max_lag)]

    def _signal(self) -> None:
        if len(self._groups) >= self.groups_per_step:
            self._ready.set()
        else:
            self._ready.clear()

"""Plays many episodes at once and gives back whole groups."""

import asyncio
import zlib
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from agentrl_core import Outcome, Trajectory
from agentrl_workers.mixture import Item
from agentrl_workers.rollout import Episode

Play = Callable[[Episode], Awaitable[Trajectory]]


@dataclass(frozen=True, slots=True)
class GroupResult:
    """Every episode of a group, ended."""

    item: Item
    """Which sample."""
    trajectories: tuple[Trajectory, ...]
    """One for each member, failures included."""

    @property
    def usable(self) -> tuple[Trajectory, ...]:
        """Episodes whose reward says something about the agent and that hold a token to learn from."""
        return tuple(t for t in self.trajectories if t.outcome.is_scored and t.num_tokens > 0)

    @property
    def is_usable(self) -> bool:
        """Whether it has a baseline: two usable episodes at least."""
        return len(self.usable) >= 2


class BarrenStreak:
    """Counts groups in a row that gave nothing to learn from, in the order of their start.

    In the order of their end it would stop healthy runs, since failing is often faster than playing.
    """

    def __init__(self) -> None:
        self._ended: dict[int, str | None] = {}
        self.length = 0
        """Barren groups since the last usable one, up to the first group that still plays."""
        self.reason = ""
        """Of the last of them."""

    def add(self, result: GroupResult, *, oldest: int | None) -> None:
        """Book a group.

        Args:
            result: the group.
            oldest: position of the first group that still plays; none where none plays.
        """
        reasons = Counter(f"{t.task}: {t.outcome}: {t.reason}" for t in result.trajectories)
        self._ended[result.item.position] = None if result.is_usable else reasons.most_common(1)[0][0]
        for position in sorted(self._ended):
            if oldest is not None and position > oldest:
                break
            reason = self._ended.pop(position)
            self.length = 0 if reason is None else self.length + 1
            self.reason = reason or ""


@dataclass(slots=True)
class _Open:
    item: Item
    missing: int
    trajectories: list[Trajectory] = field(default_factory=list)


def episodes_of(item: Item, *, group_size: int, seed: int) -> list[Episode]:
    """A group's episodes: the same sample and the same environment seed."""
    group_id = f"{item.task}-{item.position}"
    environment_seed = zlib.crc32(f"{seed}/{item.position}".encode())
    return [
        Episode(f"{group_id}-{member}", group_id, item.task, item.index, environment_seed)
        for member in range(group_size)
    ]


class DistributedTaskManager:
    """Takes groups through a queue, plays their episodes concurrently, releases complete groups.

    An episode that the infrastructure failed is played again up to `retries` times; if it still fails, it
    stays in its group as a failure, so no group waits for ever.

    Args:
        play: plays one episode; must not raise for a bad one.
        concurrency: episodes at the same time.
        group_size: episodes in a group.
        retries: further tries after a failure of the infrastructure.
        seed: of the environments.
    """

    def __init__(self, play: Play, *, concurrency: int, group_size: int, retries: int, seed: int) -> None:
        self._play = play
        self._concurrency = concurrency
        self._group_size = group_size
        self._retries = retries
        self._seed = seed
        self._queue: asyncio.Queue[Episode] = asyncio.Queue()
        self._open: dict[str, _Open] = {}
        self._done: asyncio.Queue[GroupResult] = asyncio.Queue()

    @property
    def running(self) -> int:
        """Groups that have been submitted and not finished."""
        return len(self._open)

    @property
    def oldest(self) -> int | None:
        """Position of the first of the groups that run; none where none runs."""
        return min((group.item.position for group in self._open.values()), default=None)

    def submit(self, item: Item) -> list[Episode]:
        """Add a group; returns its episodes."""
        episodes = episodes_of(item, group_size=self._group_size, seed=self._seed)
        self._open[episodes[0].group_id] = _Open(item, missing=len(episodes))
        for episode in episodes:
            self._queue.put_nowait(episode)
        return episodes

    async def next_group(self) -> GroupResult:
        """The next group that is complete."""
        return await self._done.get()

    async def run(self) -> None:
        """Play what is submitted, until cancelled; cancelling cancels the sessions too.

        Raises:
            ExceptionGroup: `play` raised, which is a fault of the program.
        """
        async with asyncio.TaskGroup() as workers:
            for _ in range(self._concurrency):
                workers.create_task(self._work())

    async def _work(self) -> None:
        while True:
            episode = await self._queue.get()
            trajectory = await self._play(episode)
            for _ in range(self._retries):
                if trajectory.outcome is not Outcome.INFRASTRUCTURE_ERROR:
                    break
                trajectory = await self._play(episode)
            self._finish(episode, trajectory)

    def _finish(self, episode: Episode, trajectory: Trajectory) -> None:
        group = self._open[episode.group_id]
        group.trajectories.append(trajectory)
        group.missing -= 1
        if group.missing == 0:
            del self._open[episode.group_id]
            self._done.put_nowait(GroupResult(group.item, tuple(group.trajectories)))

"""Which sample comes next: an endless, seeded order over several tasks."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from agentrl_core import ConfigError, SampleIndex


@dataclass(frozen=True, slots=True)
class Item:
    """One group's sample."""

    position: int
    """Place in the order, counted from 0; names the group."""
    task: str
    """Task name."""
    index: SampleIndex
    """Sample of the task."""


class Mixture:
    """Tasks in proportion to their weights, each one's samples shuffled anew every epoch.

    The order depends on the arguments alone, so a position is enough to go on from.

    Raises:
        ConfigError: a task has no samples.
    """

    def __init__(
        self, indices: Mapping[str, Sequence[SampleIndex]], weights: Mapping[str, float], *, seed: int
    ) -> None:
        for task, samples in indices.items():
            if not samples:
                raise ConfigError(f"task `{task}` has no samples in the chosen split")
        self._indices = {task: list(samples) for task, samples in indices.items()}
        self._weights = {task: weights[task] for task in indices}
        self._seed = seed
        self._credit = dict.fromkeys(indices, 0.0)
        self._drawn = dict.fromkeys(indices, 0)
        self.position = 0

    def next(self) -> Item:
        """The item at `position`, which moves on."""
        for task, weight in self._weights.items():
            self._credit[task] += weight
        task = max(self._credit, key=lambda name: self._credit[name])
        self._credit[task] -= sum(self._weights.values())
        item = Item(position=self.position, task=task, index=self._sample(task, self._drawn[task]))
        self._drawn[task] += 1
        self.position += 1
        return item

    def skip_to(self, position: int) -> None:
        """Move on to a position, as after that many calls of `next`."""
        while self.position < position:
            self.next()

    def _sample(self, task: str, number: int) -> SampleIndex:
        samples = self._indices[task]
        epoch, place = divmod(number, len(samples))
        order = list(range(len(samples)))
        random.Random(f"{self._seed}/{task}/{epoch}").shuffle(order)
        return samples[order[place]]

"""The samples of a task by index."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from agentrl_core import ConfigError, SampleIndex
from agentrl_env_sdk.task import Task


class Samples:
    """The samples of a task by index.

    Attributes:
        count: how many there are.
        splits: indices of each split.

    Raises:
        ConfigError: a split is neither a count, a sequence nor a mapping, a name comes twice, or there is
            no sample.
    """

    def __init__(self, task: Task) -> None:
        self.splits: dict[str, list[SampleIndex]] = {}
        self._splits: dict[str, _Split] = {}
        self.count = 0
        if not isinstance(task.splits, Mapping):
            rule = "must be samples by split, such as `{'train': 80, 'test': 20}`"
            raise ConfigError(f"`splits` of `{task.task_name}` {rule}, got {task.splits!r}")
        for name, given in task.splits.items():
            if not _is_split(given):
                rule = "must be a count, a sequence or a mapping"
                raise ConfigError(f"split `{name}` of `{task.task_name}` {rule}, got {given!r}")
            split = _Split(self.count, range(given) if isinstance(given, int) else given)
            self._splits[name] = split
            self.splits[name] = split.indices
            self.count += len(split.data)
        if self.count == 0:
            raise ConfigError(f"task `{task.task_name}` has no samples; set `splits`")
        every = [index for indices in self.splits.values() for index in indices]
        if len(set(every)) < len(every):
            twice = next(index for index, times in Counter(every).items() if times > 1)
            raise ConfigError(f"task `{task.task_name}` has two samples called `{twice}`; rename one")

    def find(self, index: SampleIndex) -> tuple[str, Any] | None:
        """Split and data of a sample; None for an unknown index."""
        for name, split in self._splits.items():
            if split.holds(index):
                return name, split.sample(index)
        return None


class _Split:
    """A split whose samples have names, or count from `start`."""

    def __init__(self, start: int, data: Sequence[Any] | Mapping[SampleIndex, Any]) -> None:
        self._start = start
        self.data = data

    @property
    def indices(self) -> list[SampleIndex]:
        if isinstance(self.data, Mapping):
            return list(self.data)
        return list(range(self._start, self._start + len(self.data)))

    def holds(self, index: SampleIndex) -> bool:
        if isinstance(self.data, Mapping):
            return index in self.data
        return isinstance(index, int) and self._start <= index < self._start + len(self.data)

    def sample(self, index: Any) -> Any:
        return self.data[index] if isinstance(self.data, Mapping) else self.data[index - self._start]


def _is_split(given: Any) -> bool:
    if isinstance(given, int):
        return given >= 0 and not isinstance(given, bool)
    if isinstance(given, Mapping):
        return all(isinstance(name, str | int) for name in given)
    # Data sets of other libraries are sequences without being called so.
    return hasattr(given, "__len__") and hasattr(given, "__getitem__") and not isinstance(given, str)

"""Which episodes a plan means, in which order and with which seeds: pure."""

import zlib
from collections.abc import Sequence
from dataclasses import dataclass

from agentrl_core import ConfigError, SampleIndex
from agentrl_eval.plan import Plan


@dataclass(frozen=True, slots=True)
class Sample:
    """One episode to play."""

    task: str
    """Task name."""
    index: SampleIndex
    """Sample of the task."""
    repeat: int
    """Which of the sample's episodes, from 0."""

    def seed(self, base: int) -> int:
        """Seed of the episode below 2**32: its own, the same in every run of the plan."""
        return zlib.crc32(f"{base}/{self.task}/{self.index!r}/{self.repeat}".encode("utf-8", "surrogatepass"))


def samples_of(plan: Plan, *, task: str, available: Sequence[SampleIndex]) -> list[Sample]:
    """The episodes of a task, in the order of its samples.

    Raises:
        ConfigError: there are no samples, fewer than asked for, or not the named ones.
    """
    where = f"split `{plan.split}` of `{task}`" if plan.split else f"task `{task}`"
    if not available:
        raise ConfigError(f"{where} has no samples; choose another `--split`")
    chosen = list(available if plan.indices is None else plan.indices)
    known = set(available)
    for index in chosen:
        if index not in known:
            raise ConfigError(
                f"{where} has no sample {index!r}; its {len(available)} start with {available[0]!r}"
            )
    if plan.samples is not None and plan.samples > len(chosen):
        named = "" if plan.indices is None else f", `--indices` names {len(chosen)} of them"
        raise ConfigError(
            f"{where} has {len(available)} samples{named}, but {plan.samples} are asked for; "
            "`--repeats` plays each more than once"
        )
    return [Sample(task, index, repeat) for index in chosen[: plan.samples] for repeat in range(plan.repeats)]

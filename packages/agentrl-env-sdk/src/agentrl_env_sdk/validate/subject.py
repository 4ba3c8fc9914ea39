"""The task under validation: which samples, which agents, and the episodes that checks share."""

import copy
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from agentrl_core import SampleIndex, SampleStatus
from agentrl_env_sdk.oracle import Action, Oracle, oracle_of
from agentrl_env_sdk.recording import Recording
from agentrl_env_sdk.task import Task
from agentrl_env_sdk.testing.agents import Agent, DoNothingAgent, OracleAgent, RandomAgent
from agentrl_env_sdk.testing.episode import Episode, begin, choose
from agentrl_env_sdk.validate.report import Finding, Verdict
from agentrl_env_sdk.worker.runner import Runner

_CONCURRENCY = 64
SEED = 1
"""Of every episode that does not ask for another."""


@dataclass(frozen=True, slots=True)
class Settings:
    """How a validation is done."""

    num_samples: int = 8
    """Samples that each check plays at most."""
    split: str | None = None
    """Where they come from; all splits where it is absent."""
    grace_s: float = 5.0
    """How long what a cancelled episode held may take to be released."""
    timeout_s: float = 2.0
    """`turn_timeout_s` while it is looked at what a time-out leaves behind."""
    lag_s: float = 0.25
    """How long a step may hold up the event loop."""
    max_await_points: int = 64
    """At how many of an episode's await points it is cancelled."""


@dataclass(slots=True)
class Play:
    """An episode that was played to its end, or as far as the agent went."""

    recording: Recording
    """What happened."""
    status: SampleStatus
    """How it stands."""
    score: float | None
    """Its headline result."""
    metrics: dict[str, Any]
    """What was reported of it."""
    actions: list[Action] = field(default_factory=list)
    """What the agent did, to be done again."""

    @property
    def error(self) -> str | None:
        """What the task failed of."""
        return str(self.metrics.get("error")) if self.status is SampleStatus.TASK_ERROR else None


class Subject:
    """A task under validation.

    Args:
        task: the task; one instance plays all episodes, as on a worker.
        oracle: plays it best; the task's own where it is absent.
        settings: how it is done.
        source: what `load_task` finds the same task with in another process; empty where nothing does.

    Attributes:
        task: the task, its blocking code on threads.
        samples: indices that are played.
        has_process: whether the task wants a process for each episode.
    """

    def __init__(
        self,
        task: Task,
        *,
        oracle: Oracle | None = None,
        settings: Settings | None = None,
        source: Sequence[str] = (),
    ) -> None:
        self.source = source
        self.settings = settings or Settings()
        self.has_process = task.isolation == "process"
        self._given = task
        # Oracles and checks look at what the task keeps, which another process would hide.
        self.task = self.variant(isolation="thread") if self.has_process else task
        self.oracle = oracle or oracle_of(self.task)
        self.samples = _spread(Runner(self.task), self.settings)
        self._plays: dict[str, list[Play]] = {}

    def variant(self, **attributes: Any) -> Task:
        """A copy of the task with other settings."""
        changed = copy.copy(self._given)
        changed.__dict__.pop("bound_tools", None)  # which would call the original's methods
        for name, value in attributes.items():
            setattr(changed, name, value)
        return changed

    def runner(self, task: Task | None = None) -> Runner:
        """A runner with room for all that a check plays at once."""
        return Runner(task or self.task, concurrency=_CONCURRENCY)

    @property
    def agents(self) -> list[str]:
        """The agents whose episodes checks look at."""
        return [*(["oracle"] if self.oracle else []), "random", "do-nothing"]

    async def plays(self, agent: str) -> list[Play]:
        """An agent's episode of each sample; played once and shared."""
        if agent not in self._plays:
            self._plays[agent] = [await self.play(agent, index) for index in self.samples]
        return self._plays[agent]

    async def script(self, index: SampleIndex, *, seed: int = SEED) -> list[Action]:
        """Actions that lead through an episode, the oracle's where there is one."""
        return (await self.play(self.agents[0], index, seed=seed)).actions

    async def play(self, agent: str, index: SampleIndex, *, seed: int = SEED, agent_seed: int = 0) -> Play:
        """Play an episode."""
        episode = await begin(self.runner(), index, seed=seed)
        return await self.finish(episode, self._agent(agent, agent_seed))

    async def finish(self, episode: Episode, agent: Agent) -> Play:
        """Let an agent play an episode on, break it off where it goes no further, and write it down."""
        try:
            await episode.play(agent)
        finally:
            await episode.cancel()
        return Play(
            recording=Recording.of(episode),
            status=episode.status,
            score=episode.score,
            metrics=episode.metrics,
            actions=[*episode.actions],
        )

    def _agent(self, name: str, seed: int) -> Agent:
        if name == "oracle":
            assert self.oracle is not None
            return OracleAgent(self.oracle)
        return RandomAgent(seed) if name == "random" else DoNothingAgent()

    @property
    def where(self) -> str:
        """The samples in words."""
        return counted(len(self.samples), "sample")


Check = Callable[[Subject], Any]
"""Looks at one property of a task; returns a `Finding` when awaited."""


def counted(number: int, noun: str) -> str:
    """A number of things in words."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def judged(
    check: str, did: str, problems: list[str], *, notes: list[str] | None = None, most: int = 5
) -> Finding:
    """What a check found: failed where it has problems."""
    if len(problems) > most:
        problems = [*problems[:most], f"and {len(problems) - most} more"]
    verdict = Verdict.FAILED if problems else Verdict.PASSED
    return Finding(check, verdict, did, tuple(problems), tuple(notes or ()))


def skipped(check: str, why: str) -> Finding:
    """That nothing can be told."""
    return Finding(check, Verdict.SKIPPED, why)


def _spread(runner: Runner, settings: Settings) -> list[SampleIndex]:
    """Samples from all over the splits, the same ones each time."""
    splits = runner.samples.splits
    if settings.split is not None:
        choose(runner, index=None, split=settings.split)
        splits = {settings.split: splits[settings.split]}
    indices = [index for found in splits.values() for index in found]
    count = min(settings.num_samples, len(indices))
    chosen = sorted(random.Random(0).sample(range(len(indices)), count))
    return [indices[position] for position in chosen]

"""One episode of a task in memory, played turn by turn."""

from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from agentrl_core import CUSTOM_INDEX, ConfigError, Message, SampleIndex, SampleStatus, Tool, ToolCall
from agentrl_env_sdk.oracle import Action, Observation, act
from agentrl_env_sdk.session import Exchange, Session
from agentrl_env_sdk.target import load_task
from agentrl_env_sdk.task import Task
from agentrl_env_sdk.testing.agents import Agent
from agentrl_env_sdk.worker.runner import Runner, SessionId

Playable = Task | type[Task] | str
"""A task, its class, or a target such as `file.py` or `package.module:Class`."""

_MAX_TURNS = 10_000


class EpisodeError(AssertionError):
    """An episode went otherwise than its test expected; the text tells what happened."""


class Episode:
    """An episode that is being played.

    Attributes:
        runner: plays it.
        id: its session id there.
        index: which sample.
        seed: the seed it was begun with; None where that is known to nobody any more.
        observations: everything the agent got to see, the opening first.
        actions: what the agent did, a message a turn.
        transcript: all messages, the agent's and the environment's.
        tools: what may be called now.
        reward: the return so far.
    """

    def __init__(self, runner: Runner, session_id: SessionId, index: SampleIndex, opening: Exchange) -> None:
        self.runner = runner
        self.id = session_id
        self.index = index
        self._session = None if opening.finish else runner.session(session_id)
        self.seed = self._session.seed if self._session else None
        self.observations: list[Observation] = []
        self.actions: list[Message] = []
        self.transcript: list[Message] = []
        self.tools: tuple[Tool, ...] = ()
        self.reward = 0.0
        self._num_calls = 0
        self._is_cancelled = False
        self._see(opening)

    @property
    def session(self) -> Session:
        """What the task sees, also once the episode has ended; its `state` is there to be looked at.

        Raises:
            EpisodeError: the episode ended at its start.
        """
        if self._session is None:
            raise EpisodeError(f"the episode ended at its start as `{self.status}`: {self.last.text!r}")
        return self._session

    @property
    def opening(self) -> Observation:
        """What the agent saw first."""
        return self.observations[0]

    @property
    def last(self) -> Observation:
        """What the agent saw last."""
        return self.observations[-1]

    @property
    def finished(self) -> bool:
        """Whether the episode has ended."""
        return self.last.finish or self._is_cancelled

    @property
    def status(self) -> SampleStatus:
        """State of the episode."""
        return SampleStatus.CANCELLED if self._is_cancelled else self.last.status

    @property
    def metrics(self) -> dict[str, Any]:
        """What has been reported of it so far."""
        return self.last.metrics

    @property
    def score(self) -> float | None:
        """Its headline result; None until one is reported, at the end at the latest."""
        return self.metrics.get("score")

    async def call(self, tool: str, /, **arguments: Any) -> Observation:
        """Call a tool, as a model would.

        Raises:
            EpisodeError: the episode has ended.
        """
        return await self.act(act(tool, **arguments))

    async def say(self, text: str) -> Observation:
        """Reply with a text.

        Raises:
            EpisodeError: the episode has ended.
        """
        return await self.act(text)

    async def act(self, action: Action) -> Observation:
        """Do anything that an agent can do.

        Raises:
            EpisodeError: the episode has ended.
        """
        if self.finished:
            raise EpisodeError(f"the episode has ended as `{self.status}`: {self.last.text!r}; start another")
        message = self._message(action)
        exchange = await self.runner.interact(self.id, [message])
        self.actions.append(message)
        self.transcript.append(message)
        return self._see(exchange)

    async def play(self, agent: Agent) -> Observation:
        """Let an agent play until the episode ends or it has nothing more to do.

        Raises:
            EpisodeError: it does not end.
        """
        for _ in range(_MAX_TURNS):
            action = None if self.finished else await agent(self, self.last)
            if action is None:
                return self.last
            await self.act(action)
        raise EpisodeError(f"the episode goes on after {_MAX_TURNS} turns; set `max_turns`")

    async def cancel(self) -> None:
        """Break it off; nothing happens to one that has ended."""
        if not self.finished:
            await self.runner.cancel(self.id)
            self._is_cancelled = True

    async def fork(self) -> "Episode":
        """Another episode that begins where this one stands.

        Raises:
            SessionError: the task makes no snapshots, or the episode has ended.
        """
        fork_id, exchange = await self.runner.fork(self.id)
        twin = Episode(self.runner, fork_id, self.index, exchange)
        twin.observations = [*self.observations, *twin.observations[1:]]
        twin.actions, twin.transcript = list(self.actions), list(self.transcript)
        twin.tools, twin.reward, twin._num_calls = self.tools, self.reward, self._num_calls
        return twin

    async def on_thread(self, function: Callable[..., Any], *args: Any) -> Any:
        """Call a function where the task's own code of this episode runs; sync ones on its thread."""
        return await self.runner.on_thread(self.id, function, *args)

    def _see(self, exchange: Exchange) -> Observation:
        seen = Observation.of(exchange)
        self.observations.append(seen)
        self.transcript += seen.messages
        self.reward += seen.reward
        if seen.tools is not None:
            self.tools = seen.tools
        return seen

    def _message(self, action: Action) -> Message:
        if isinstance(action, Message):
            return action
        if isinstance(action, str):
            return Message(role="assistant", content=action)
        calls = [self._numbered(made) for made in ([action] if isinstance(action, ToolCall) else action)]
        return Message(role="assistant", content="", tool_calls=calls)

    def _numbered(self, made: ToolCall) -> ToolCall:
        self._num_calls += 1
        return made if made.id is not None else made.model_copy(update={"id": f"call_{self._num_calls}"})


@asynccontextmanager
async def play(
    task: Playable,
    index: SampleIndex | None = None,
    *,
    seed: int | None = None,
    split: str | None = None,
    sample: Any = None,
    runner: Runner | None = None,
) -> AsyncIterator[Episode]:
    """An episode of a task; broken off at the end of the block where it still runs.

    Args:
        task: what to play.
        index: which sample; the split's first where it is absent.
        seed: of the episode; the sample's own where it is absent.
        split: where the sample comes from; the first where it is absent.
        sample: a sample of one's own instead, as `custom_task` on the wire.
        runner: plays it; one of its own where it is absent.

    Raises:
        ConfigError: the task cannot be loaded, or the split or the sample is unknown.
        EpisodeError: the task fails at the start.
    """
    runner = Runner(as_task(task)) if runner is None else runner
    chosen = CUSTOM_INDEX if sample is not None else choose(runner, index=index, split=split)
    episode = await begin(runner, chosen, seed=seed, custom_task=sample)
    try:
        if episode.status is SampleStatus.TASK_ERROR:
            raise EpisodeError(f"sample {chosen!r} fails at its start: {episode.metrics.get('error')}")
        yield episode
    finally:
        await episode.cancel()


async def begin(runner: Runner, index: SampleIndex, **options: Any) -> Episode:
    """Start an episode on a runner, options as `Runner.start` takes them."""
    session_id, exchange = await runner.start(index, **options)
    episode = Episode(runner, session_id, index, exchange)
    episode.seed = episode.seed if episode.seed is not None else options.get("seed")
    return episode


def as_task(task: Playable) -> Task:
    """The task that is meant.

    Raises:
        ConfigError: the target holds no task.
    """
    if isinstance(task, str):
        return load_task(task)
    return task if isinstance(task, Task) else task()


def choose(runner: Runner, *, index: SampleIndex | None, split: str | None) -> SampleIndex:
    """The sample that is meant.

    Raises:
        ConfigError: the split or the sample is unknown.
    """
    splits = runner.samples.splits
    if split is not None and split not in splits:
        raise ConfigError(f"there is no split `{split}`; the task has {sorted(splits)}")
    indices: Sequence[SampleIndex] = splits[split] if split is not None else _first(splits.values())
    if index is None:
        return indices[0]
    if runner.samples.find(index) is None and runner.samples.find(str(index)) is not None:
        index = str(index)  # a name that consists of digits
    if runner.samples.find(index) is None or (split is not None and index not in indices):
        where = f"split `{split}`" if split else "the task"
        raise ConfigError(f"{where} has no sample {index!r}")
    return index


def _first(lists: Iterable[Sequence[SampleIndex]]) -> Sequence[SampleIndex]:
    return next(indices for indices in lists if indices)

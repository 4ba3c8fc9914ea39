"""The same without `await`: an episode whose event loop runs on a thread of its own."""

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from agentrl_core import Message, SampleIndex, SampleStatus, Tool
from agentrl_env_sdk.oracle import Action, Observation
from agentrl_env_sdk.session import Session
from agentrl_env_sdk.testing.agents import Agent
from agentrl_env_sdk.testing.episode import Episode, Playable, play

T = TypeVar("T")
Wait = Callable[[Coroutine[Any, Any, T]], T]
"""Runs a coroutine on the loop and returns what it returns."""


class SyncEpisode:
    """`Episode` for plain code; see there.

    Args:
        episode: the episode.
        wait: runs its coroutines.
    """

    def __init__(self, episode: Episode, wait: Wait[Any]) -> None:
        self._episode = episode
        self._wait = wait

    def call(self, tool: str, /, **arguments: Any) -> Observation:
        """Call a tool, as a model would."""
        return self._wait(self._episode.call(tool, **arguments))

    def say(self, text: str) -> Observation:
        """Reply with a text."""
        return self._wait(self._episode.say(text))

    def act(self, action: Action) -> Observation:
        """Do anything that an agent can do."""
        return self._wait(self._episode.act(action))

    def play(self, agent: Agent) -> Observation:
        """Let an agent play until the episode ends or it has nothing more to do."""
        return self._wait(self._episode.play(agent))

    def cancel(self) -> None:
        """Break it off."""
        self._wait(self._episode.cancel())

    def fork(self) -> "SyncEpisode":
        """Another episode that begins where this one stands."""
        return SyncEpisode(self._wait(self._episode.fork()), self._wait)

    @property
    def session(self) -> Session:
        """What the task sees."""
        return self._episode.session

    @property
    def index(self) -> SampleIndex:
        """Which sample."""
        return self._episode.index

    @property
    def opening(self) -> Observation:
        """What the agent saw first."""
        return self._episode.opening

    @property
    def last(self) -> Observation:
        """What the agent saw last."""
        return self._episode.last

    @property
    def observations(self) -> list[Observation]:
        """Everything the agent got to see, the opening first."""
        return self._episode.observations

    @property
    def transcript(self) -> list[Message]:
        """All messages, the agent's and the environment's."""
        return self._episode.transcript

    @property
    def tools(self) -> tuple[Tool, ...]:
        """What may be called now."""
        return self._episode.tools

    @property
    def reward(self) -> float:
        """The return so far."""
        return self._episode.reward

    @property
    def finished(self) -> bool:
        """Whether the episode has ended."""
        return self._episode.finished

    @property
    def status(self) -> SampleStatus:
        """State of the episode."""
        return self._episode.status

    @property
    def metrics(self) -> dict[str, Any]:
        """What has been reported of it so far."""
        return self._episode.metrics

    @property
    def score(self) -> float | None:
        """Its headline result; None until one is reported."""
        return self._episode.score


@contextmanager
def play_sync(task: Playable, index: SampleIndex | None = None, **options: Any) -> Iterator[SyncEpisode]:
    """An episode of a task, without `await`; arguments as `play` takes them.

    Raises:
        ConfigError: the task cannot be loaded, or the split or the sample is unknown.
        EpisodeError: the task fails at the start.
    """
    with _loop() as wait:
        playing = play(task, index, **options)
        episode = wait(playing.__aenter__())
        try:
            yield SyncEpisode(episode, wait)
        finally:
            wait(playing.__aexit__(None, None, None))


@contextmanager
def _loop() -> Iterator[Wait[Any]]:
    """A loop that also runs between the calls, so that the task's own clocks go on."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="episode", daemon=True)
    thread.start()
    try:
        yield lambda work: asyncio.run_coroutine_threadsafe(work, loop).result()
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()

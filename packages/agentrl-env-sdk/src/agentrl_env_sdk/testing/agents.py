"""Agents that play without a model: nothing, chance, a script, and what the task itself knows best."""

import random
import re
from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING

from agentrl_env_sdk.oracle import Action, Observation, Oracle, Player, act
from agentrl_env_sdk.testing.values import Values

if TYPE_CHECKING:
    from agentrl_env_sdk.testing.episode import Episode

Agent = Callable[["Episode", Observation], Awaitable[Action | None]]
"""Takes an episode and what was seen last, and returns what to do; None where it has nothing more to do."""

_WORD = re.compile(r"-?\d+|\w+")
_MAX_WORDS = 2000


class DoNothingAgent:
    """Says nothing, turn after turn."""

    async def __call__(self, episode: "Episode", seen: Observation) -> Action | None:  # noqa: ARG002
        """An empty reply."""
        return ""


class RandomAgent:
    """Calls tools by chance, with words and numbers that it has read; says such a word where there are none.

    Args:
        seed: of its chance; the same agent plays the same episode the same way.
    """

    def __init__(self, seed: int = 0) -> None:
        self._chance = random.Random(seed)
        self._words: list[str] = []

    async def __call__(self, episode: "Episode", seen: Observation) -> Action | None:
        """A tool and arguments that fit its schema."""
        self._words += _WORD.findall(seen.text)
        del self._words[:-_MAX_WORDS]
        if not episode.tools:
            return self._chance.choice(self._words or ["word"])
        function = self._chance.choice(episode.tools).function
        values = Values(self._chance, self._words)
        return act(function.name, **values.draw({"type": "object"} | function.parameters))


class ScriptedAgent:
    """Does what it was told, whatever it sees.

    Args:
        actions: an action a turn.
    """

    def __init__(self, actions: Iterable[Action]) -> None:
        self._actions = iter(actions)

    async def __call__(self, episode: "Episode", seen: Observation) -> Action | None:  # noqa: ARG002
        """The next action."""
        return next(self._actions, None)


class OracleAgent:
    """Plays what an oracle tells, on the session's own thread.

    Args:
        oracle: takes the session and returns the plan.
    """

    def __init__(self, oracle: Oracle) -> None:
        self._oracle = oracle
        self._player: Player | None = None

    async def __call__(self, episode: "Episode", seen: Observation) -> Action | None:
        """The plan's next action."""
        if self._player is None:
            self._player = Player(await episode.on_thread(self._oracle, episode.session))
        if self._player.is_async:
            return await self._player.anext(seen)
        return await episode.on_thread(self._player.next, seen)

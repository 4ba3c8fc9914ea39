"""Scripted players of the quickstart's tasks, skilled or clumsy, that see only what an agent sees."""

import json
import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from agentrl_core import Message

Move = tuple[str, dict[str, Any]]
"""A tool's name and its arguments."""

Play = Callable[[Sequence[Message], float, random.Random], Move]
"""Chooses the next move from the conversation so far, skilfully with the given probability."""

_WORDS = [
    "gem",
    "drum",
    "lamp",
    "rope",
    "coin",
    "bell",
    "fork",
    "sail",
    "tent",
    "book",
    "door",
    "harp",
    "kite",
    "leaf",
    "moon",
    "nest",
    "oven",
    "pipe",
    "ring",
    "seed",
]
"""What a clumsy player of `trail` may try to read besides what it has seen."""


@dataclass(frozen=True, slots=True)
class Skill:
    """How well a task is played in the demonstrations."""

    play: Play
    """The player."""
    clumsy: float
    """Share of good moves in an ordinary episode."""
    expert_share: float
    """Share of episodes that are played nearly without a fault."""

    def draw(self, chance: random.Random) -> float:
        """Share of good moves in the next episode."""
        return _EXPERT if chance.random() < self.expert_share else self.clumsy


_EXPERT = 0.95


def play_guess(history: Sequence[Message], skill: float, chance: random.Random) -> Move:
    """Halve what the answers leave; else any number of the range, or of three digits."""
    low, high = _range(history[0].text)
    first, last = low, high
    for call, answer in zip(_moves(history), history[2::2], strict=True):
        number = int(call[1]["number"])
        if answer.text == "higher":
            low = max(low, number + 1)
        elif answer.text == "lower":
            high = min(high, number - 1)
    if chance.random() < skill:
        return "guess", {"number": (low + high) // 2}
    if chance.random() < 0.6:
        return "guess", {"number": chance.randint(first, last)}
    return "guess", {"number": chance.randint(100, 999)}


def play_trail(history: Sequence[Message], skill: float, chance: random.Random) -> Move:
    """Read what was found last and answer with the number; else read any key or give any number."""
    found = [re.findall(r"\w+", history[0].text)[1]]
    found += [message.text for message in history[2::2] if " " not in message.text]
    if chance.random() < skill:
        if found[-1].isdigit():
            return "answer", {"number": int(found[-1])}
        return "read", {"key": found[-1]}
    if chance.random() < 0.6:
        return "read", {"key": chance.choice([*found[:-1], *_WORDS])}
    return "answer", {"number": chance.randint(0, 9)}


SKILLS = {
    "guess": Skill(play_guess, clumsy=0.1, expert_share=0.25),
    "trail": Skill(play_trail, clumsy=0.4, expert_share=0.2),
}
"""Tuned so that the demonstrations succeed about a third of the time."""


def _range(question: str) -> tuple[int, int]:
    low, high = (int(number) for number in re.findall(r"\d+", question))
    return low, high


def _moves(history: Sequence[Message]) -> list[Move]:
    calls = [message.tool_calls[0] for message in history if message.tool_calls]
    return [(call.function.name, json.loads(str(call.function.arguments))) for call in calls]

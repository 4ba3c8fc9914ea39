"""The task: a number between two others, and whether it is higher or lower than a guess."""

import math
import random

from agentrl_core import ConfigError
from agentrl_env_sdk import Generated, Session, Task, metric, tool
from agentrl_env_sdk.oracle import Plan, act

_PARTIAL = 0.3
LEVELS = {"easy": 10, "medium": 1_000, "hard": 1_000_000}
"""Numbers that are possible."""


class Guess(Task):
    """`guess`: 1 for the number, else up to 0.3 for how far it has been narrowed down.

    Args:
        difficulty: `easy` (10 possible numbers), `medium` (1,000) or `hard` (1,000,000); there are as many
            guesses as halving needs.

    Raises:
        ConfigError: there is no such difficulty.
    """

    optimum = 1.0

    def __init__(self, difficulty: str = "easy") -> None:
        if difficulty not in LEVELS:
            raise ConfigError(f"`difficulty` must be one of {sorted(LEVELS)}, got {difficulty!r}")
        self._count = LEVELS[difficulty]
        self.name = "guess-number" if difficulty == "easy" else f"guess-number-{difficulty}"
        self.max_turns = math.floor(math.log2(self._count)) + 1
        self.splits = {"train": Generated(self._train, 2000), "test": Generated(self._test, 500)}

    def setup(self, session: Session) -> str:
        """Tell the range."""
        low, _ = session.sample
        session.state.update(low=low, high=low + self._count - 1)
        return f"find the number from {low} to {low + self._count - 1}"

    @tool
    def guess(self, session: Session, number: int) -> str:
        """guess the number

        Args:
            number: your guess
        """
        state, (first, hidden) = session.state, session.sample
        if not first <= number < first + self._count:
            return "out of range"
        if number == hidden:
            session.finish(reward=1.0 - session.earned, score=1.0)
            return "right"
        before = math.log2(state["high"] - state["low"] + 1)
        if number < hidden:
            state["low"] = max(state["low"], number + 1)
        else:
            state["high"] = min(state["high"], number - 1)
        narrowed = before - math.log2(state["high"] - state["low"] + 1)
        session.reward(_PARTIAL * narrowed / math.log2(self._count), score=0.0)
        return "higher" if number < hidden else "lower"

    @metric
    def left(self, session: Session) -> int:
        """Numbers that are still possible."""
        return session.state["high"] - session.state["low"] + 1

    def oracle(self, session: Session) -> Plan:
        """Halve what is left."""
        low, high = session.state["low"], session.state["high"]
        while True:
            middle = (low + high) // 2
            seen = yield act("guess", number=middle)
            if "higher" in seen.text:
                low = middle + 1
            else:
                high = middle - 1

    def _train(self, position: int) -> tuple[int, int]:
        return self._sample(f"train/{position}")

    def _test(self, position: int) -> tuple[int, int]:
        return self._sample(f"test/{position}")

    def _sample(self, seed: str) -> tuple[int, int]:
        """First possible number and the hidden one, which is none of the two that are told."""
        chance = random.Random(f"{self.name}/{seed}")
        low = self._count * chance.randint(1, 9)
        return low, low + chance.randrange(1, self._count - 1)

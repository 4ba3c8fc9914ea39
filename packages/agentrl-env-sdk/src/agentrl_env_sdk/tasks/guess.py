"""Find a hidden number from higher and lower.

The number has three digits and the first two are told, so ten are possible. Four guesses are allowed:
halving what is left finds any of ten numbers in at most four, so the optimum is 1.0.
"""

import random

from agentrl_env_sdk.oracle import Plan, act
from agentrl_env_sdk.session import Session
from agentrl_env_sdk.task import Task
from agentrl_env_sdk.tools import tool

_CANDIDATES = 10
_PARTIAL = 0.2


def _numbers() -> list[int]:
    numbers = list(range(100, 1000))
    random.Random(0).shuffle(numbers)
    return numbers


class Guess(Task):
    """`guess`: 1 for the number, else up to 0.2 for the candidates that the answers excluded."""

    name = "guess"
    splits = {"train": _numbers()[:700], "test": _numbers()[700:]}
    optimum = 1.0
    max_turns = 4

    def setup(self, session: Session) -> str:
        """Tell the range."""
        low = session.sample // _CANDIDATES * _CANDIDATES
        session.state.update(first=low, low=low, high=low + _CANDIDATES - 1)
        return f"find the number from {low} to {low + _CANDIDATES - 1}"

    @tool
    def guess(self, session: Session, number: int) -> str:
        """guess the number

        Args:
            number: your guess
        """
        state = session.state
        if not state["first"] <= number < state["first"] + _CANDIDATES:
            return "out of range"
        if number == session.sample:
            session.finish(reward=1.0 - session.earned, score=1.0)
            return "correct"
        before = state["high"] - state["low"]
        if number < session.sample:
            state["low"] = max(state["low"], number + 1)
        else:
            state["high"] = min(state["high"], number - 1)
        excluded = before - (state["high"] - state["low"])
        session.reward(_PARTIAL * excluded / _CANDIDATES, score=0.0)
        return "higher" if number < session.sample else "lower"

    def oracle(self, session: Session) -> Plan:
        """Halve what is left; this needs no more than an agent knows."""
        low = session.state["first"]
        high = low + _CANDIDATES - 1
        while True:
            middle = (low + high) // 2
            seen = yield act("guess", number=middle)
            if seen.finish:
                return
            low, high = (middle + 1, high) if seen.text == "higher" else (low, middle - 1)

"""The task: a calculator that does one operation at a time, and an expression of several."""

from dataclasses import dataclass
from typing import Any, Literal

from agentrl_core import ConfigError
from agentrl_env_sdk import Generated, Session, Task, tool
from agentrl_env_sdk.oracle import Plan, act
from agentrl_task_calculator.expressions import OPERATIONS, Expression, generate

_PARTIAL = 0.3
_LARGEST = 10**12
_SPARE_TURNS = 2


@dataclass(frozen=True, slots=True)
class Level:
    """What expressions of a difficulty are like."""

    operations: int
    signs: str
    largest: int


LEVELS = {
    "easy": Level(1, "+-", 9),
    "medium": Level(3, "+-*", 99),
    "hard": Level(7, "+-*/", 999),
}


class Calculator(Task):
    """`calculator`: 1 for the right number, else up to 0.3 for the operations that lead to it.

    Args:
        difficulty: `easy` (one operation on digits), `medium` (three) or `hard` (seven, with brackets and
            division).

    Raises:
        ConfigError: there is no such difficulty.
    """

    name = "calculator"
    optimum = 1.0

    def __init__(self, difficulty: str = "easy") -> None:
        if difficulty not in LEVELS:
            raise ConfigError(f"`difficulty` must be one of {sorted(LEVELS)}, got {difficulty!r}")
        self._level = LEVELS[difficulty]
        self.name = "calculator" if difficulty == "easy" else f"calculator-{difficulty}"
        self.max_turns = self._level.operations + 1 + _SPARE_TURNS
        self.splits = {
            "train": Generated(lambda position: f"train/{position}", 2000),
            "test": Generated(lambda position: f"test/{position}", 500),
        }

    def setup(self, session: Session) -> str:
        """Tell the expression."""
        expression = self._expression(session.sample)
        session.state["left"] = list(expression.steps())
        session.state["answer"] = expression.value
        return f"work out {expression}"

    @tool
    def compute(self, session: Session, a: int, op: Literal["+", "-", "*", "/"], b: int) -> str:
        """do one operation

        Args:
            a: first number
            op: what to do
            b: second number
        """
        if max(abs(a), abs(b)) > _LARGEST:
            return "too large"
        if op == "/" and (b == 0 or a % b):
            return "not whole"
        left: list[tuple[int, str, int]] = session.state["left"]
        step = (a, op, b)
        if step in left:
            left.remove(step)
            session.reward(_PARTIAL / self._level.operations, score=0.0)
        return str(OPERATIONS[op](a, b))

    @tool
    def answer(self, session: Session, number: int) -> str:
        """give the result

        Args:
            number: the result
        """
        if number == session.state["answer"]:
            session.finish(reward=1.0 - session.earned, score=1.0)
            return "right"
        session.finish(score=0.0)
        return "wrong"

    def oracle(self, session: Session) -> Plan:
        """One operation after the other, then the result."""
        expression = self._expression(session.sample)
        for a, sign, b in expression.steps():
            yield act("compute", a=a, op=sign, b=b)
        yield act("answer", number=expression.value)

    def _expression(self, sample: Any) -> Expression:
        level = self._level
        seed = f"{self.name}/{sample}"
        return generate(seed, operations=level.operations, signs=level.signs, largest=level.largest)

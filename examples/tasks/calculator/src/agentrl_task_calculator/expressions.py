"""Expressions over whole numbers whose every intermediate result is whole."""

import operator
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass

OPERATIONS: dict[str, Callable[[int, int], int]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.floordiv,
}
_BINDING = {"+": 1, "-": 1, "*": 2, "/": 2}


@dataclass(frozen=True, slots=True)
class Expression:
    """A number, or an operation on two expressions."""

    value: int
    """What it comes to."""
    sign: str = ""
    """`+`, `-`, `*` or `/`; empty for a number."""
    left: "Expression | None" = None
    """First operand."""
    right: "Expression | None" = None
    """Second operand."""

    def __str__(self) -> str:
        return self._text(0)

    @property
    def numbers(self) -> list[int]:
        """The numbers that it is written with."""
        if self.left is None or self.right is None:
            return [self.value]
        return self.left.numbers + self.right.numbers

    def steps(self) -> Iterator[tuple[int, str, int]]:
        """The operations in an order in which they can be worked out."""
        if self.left is not None and self.right is not None:
            yield from self.left.steps()
            yield from self.right.steps()
            yield self.left.value, self.sign, self.right.value

    def _text(self, binding: int) -> str:
        if self.left is None or self.right is None:
            return str(self.value)
        own = _BINDING[self.sign]
        # What stands to the right of a sign of the same strength is worked out first only in brackets.
        text = f"{self.left._text(own)} {self.sign} {self.right._text(own + 1)}"
        return f"({text})" if own < binding else text


def generate(seed: str, *, operations: int, signs: str, largest: int) -> Expression:
    """An expression whose result is none of the numbers that it is written with.

    Args:
        seed: the same one gives the same expression.
        operations: how many.
        signs: which may occur.
        largest: greatest number that it is written with.
    """
    chance = random.Random(seed)
    while True:
        made = _tree(chance, operations, signs, largest)
        if made is not None and made.value not in made.numbers and abs(made.value) < 10**9:
            return made


def _tree(chance: random.Random, operations: int, signs: str, largest: int) -> Expression | None:
    if operations == 0:
        return Expression(chance.randint(1, largest))
    below = chance.randrange(operations)
    left = _tree(chance, below, signs, largest)
    right = _tree(chance, operations - 1 - below, signs, largest)
    sign = chance.choice(signs)
    if left is None or right is None or left.value < 0 or right.value < 0:
        return None
    if sign == "/" and (right.value < 2 or left.value % right.value):
        return None
    if sign == "-" and left.value < right.value:
        return None
    return Expression(OPERATIONS[sign](left.value, right.value), sign, left, right)

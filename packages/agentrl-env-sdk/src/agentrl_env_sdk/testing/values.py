"""Values that fit a JSON schema, drawn by chance."""

import random
from collections.abc import Mapping, Sequence
from typing import Any

_MAX_DEPTH = 6
_RANGE = 10


class Values:
    """Draws arguments for tools.

    Args:
        chance: where they come from.
        words: strings and numbers that have been seen; most of what is drawn comes from them.
    """

    def __init__(self, chance: random.Random, words: Sequence[str]) -> None:
        self._chance = chance
        self._words = list(words) or ["word"]
        self._numbers = [int(word) for word in self._words if _is_number(word)]

    def draw(
        self, schema: Mapping[str, Any], *, root: Mapping[str, Any] | None = None, depth: int = 0
    ) -> Any:
        """A value that fits the schema; constraints beyond type, enum and range are not looked at."""
        root = schema if root is None else root
        if "$ref" in schema:
            target = root.get("$defs", {}).get(str(schema["$ref"]).rsplit("/", 1)[-1], {})
            return None if depth > _MAX_DEPTH else self.draw(target, root=root, depth=depth + 1)
        if "const" in schema:
            return schema["const"]
        if schema.get("enum"):
            return self._chance.choice(schema["enum"])
        options = schema.get("anyOf") or schema.get("oneOf")
        if options:
            # Deep down the last option ends a recursion where any does: pydantic puts `null` there.
            chosen = options[-1] if depth > _MAX_DEPTH else self._chance.choice(options)
            return self.draw(chosen, root=root, depth=depth + 1)
        return self._of_type(schema, root, depth)

    def _of_type(self, schema: Mapping[str, Any], root: Mapping[str, Any], depth: int) -> Any:
        kind = schema.get("type")
        if isinstance(kind, list):
            kind = self._chance.choice(kind)
        if kind == "object":
            return self._object(schema, root, depth)
        if kind == "array":
            drawn = 0 if depth > _MAX_DEPTH else self._chance.randint(0, 2)
            count = max(schema.get("minItems", 0), min(drawn, schema.get("maxItems", drawn)))
            return [self.draw(schema.get("items", {}), root=root, depth=depth + 1) for _ in range(count)]
        if kind == "boolean":
            return self._chance.random() < 0.5
        if kind == "null":
            return None
        return (
            self._number(schema, kind) if kind in ("integer", "number") else self._chance.choice(self._words)
        )

    def _object(self, schema: Mapping[str, Any], root: Mapping[str, Any], depth: int) -> dict[str, Any]:
        needed = schema.get("required", [])
        return {
            name: self.draw(inner, root=root, depth=depth + 1)
            for name, inner in schema.get("properties", {}).items()
            if name in needed or self._chance.random() < 0.5
        }

    def _number(self, schema: Mapping[str, Any], kind: str) -> int | float:
        low = schema.get("minimum", schema.get("exclusiveMinimum"))
        high = schema.get("maximum", schema.get("exclusiveMaximum"))
        if low is None and high is None and self._numbers and self._chance.random() < 0.7:
            drawn = self._chance.choice(self._numbers) + self._chance.randint(-2, 2)
            return drawn if kind == "integer" else float(drawn)
        low = low if low is not None else (high - _RANGE if high is not None else 0)
        high = high if high is not None else low + _RANGE
        return (
            self._chance.randint(int(low), int(high))
            if kind == "integer"
            else self._chance.uniform(low, high)
        )


def _is_number(word: str) -> bool:
    return word.lstrip("-").isdecimal() and len(word) < 16

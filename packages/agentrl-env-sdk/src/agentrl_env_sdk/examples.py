"""A value that fits a JSON schema, to show what is meant."""

import math
from collections.abc import Mapping
from typing import Any

_MAX_DEPTH = 8


def example_of(schema: Mapping[str, Any]) -> Any:
    """A value that fits; required properties only. Patterns, formats and multiples are not looked at."""
    return _value(schema, schema, 0)


def _value(schema: Mapping[str, Any], root: Mapping[str, Any], depth: int) -> Any:
    if depth > _MAX_DEPTH:
        return None
    if "$ref" in schema:
        target = root.get("$defs", {}).get(str(schema["$ref"]).rsplit("/", 1)[-1], {})
        return _value(target, root, depth + 1)
    given = [schema[key] for key in ("default", "const") if key in schema]
    given += [schema[key][0] for key in ("examples", "enum") if schema.get(key)]
    if given:
        return given[0]
    options = schema.get("anyOf") or schema.get("oneOf")
    if options:
        return _value(options[0], root, depth + 1)
    kind = schema.get("type")
    if kind in ("object", "array"):
        return (_object if kind == "object" else _array)(schema, root, depth)
    if kind in ("integer", "number"):
        return _number(schema)
    if kind in ("boolean", "null"):
        return True if kind == "boolean" else None
    return "text".ljust(schema.get("minLength", 0), ".")[: schema.get("maxLength")]


def _object(schema: Mapping[str, Any], root: Mapping[str, Any], depth: int) -> dict[str, Any]:
    inner = schema.get("properties", {})
    return {name: _value(inner.get(name, {}), root, depth + 1) for name in schema.get("required", [])}


def _array(schema: Mapping[str, Any], root: Mapping[str, Any], depth: int) -> list[Any]:
    placed = schema.get("prefixItems", [])
    more = max(schema.get("minItems", 1), 1) - len(placed)
    items = [*placed, *[schema.get("items", {})] * max(more, 0)]
    return [_value(item, root, depth + 1) for item in items]


def _number(schema: Mapping[str, Any]) -> int | float:
    example, step = (1, 1) if schema["type"] == "integer" else (1.5, 0)
    low = schema.get("minimum", schema.get("exclusiveMinimum", -math.inf) + step)
    high = schema.get("maximum", schema.get("exclusiveMaximum", math.inf) - step)
    if low < example < high or example in (schema.get("minimum"), schema.get("maximum")):
        return example
    if math.inf in (-low, high):
        return low + 1 if low > -math.inf else high - 1
    return low if step else (low + high) / 2

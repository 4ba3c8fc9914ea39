"""Strict JSON in both directions: what one end could not read never goes out."""

import json
from typing import Any


def decode(text: bytes | str) -> Any:
    """Parse JSON; empty text is an empty object.

    Raises:
        ValueError: it is no JSON, has a number that is none, or is nested too deeply.
    """
    if not text.strip():
        return {}
    try:
        return json.loads(text, parse_constant=_refuse)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def encode(content: Any) -> bytes:
    """Write JSON.

    Raises:
        ValueError: it has a number that is none, or is nested too deeply.
    """
    try:
        return json.dumps(content, allow_nan=False, separators=(",", ":")).encode()
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is no number")

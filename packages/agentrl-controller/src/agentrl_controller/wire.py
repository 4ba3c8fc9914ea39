"""Strict JSON in both directions: what one end could not read never goes out."""

import json
from typing import Any


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is no number")


# Made once: making them costs more than a short text does.
_decode = json.JSONDecoder(parse_constant=_refuse).decode
_encode = json.JSONEncoder(allow_nan=False, separators=(",", ":")).encode


def decode(text: bytes | str) -> Any:
    """Parse JSON; empty text is an empty object.

    Raises:
        ValueError: it is no JSON, has a number that is none, or is nested too deeply.
    """
    if not text.strip():
        return {}
    try:
        return _decode(text if isinstance(text, str) else text.decode())
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def encode(content: Any) -> bytes:
    """Write JSON.

    Raises:
        ValueError: it has a number that is none, or is nested too deeply.
    """
    try:
        return _encode(content).encode()
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error

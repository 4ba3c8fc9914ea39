"""Values and texts as a message shows them: briefly."""

from typing import Any

_SHOWN_CHARACTERS = 80
"""Of what a model wrote; it may have written a lot."""


def shown(value: Any) -> str:
    """A value's representation."""
    try:
        return short(repr(value))
    except RecursionError:
        return f"a deeply nested {type(value).__name__}"


def short(text: str) -> str:
    """A text, cut where it is long."""
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[: _SHOWN_CHARACTERS - 3]}..."

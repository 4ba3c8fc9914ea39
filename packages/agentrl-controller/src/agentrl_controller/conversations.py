"""Transcripts made readable: what was said, what was earned, nothing larger than a page can show."""

import math
from collections.abc import Sequence
from typing import Any

from agentrl_controller.transcripts import Entry
from agentrl_controller.wire import decode

MAX_BODY_BYTES = 2**20
"""Larger bodies are named, not shown: reading them would hold up every session."""
MAX_TEXT = 20_000
"""Longer texts are cut."""
_MAX_DATA_URL = 200
_SHOWN = ("messages", "tools", "status", "finish", "metrics")


class Conversation:
    """One session's entries as JSON-able rows; each entry is read once, however often it is shown."""

    def __init__(self) -> None:
        self._read: list[tuple[Entry, dict[str, Any]]] = []

    def rows(self, entries: Sequence[Entry]) -> list[dict[str, Any]]:
        """A row for each entry: time, kind, content, reward and the rewards so far."""
        known = 0
        while known < min(len(entries), len(self._read)) and entries[known] is self._read[known][0]:
            known += 1
        del self._read[known:]
        for entry in entries[known:]:
            total = self._read[-1][1]["total"] if self._read else 0.0
            self._read.append((entry, _row(entry, total)))
        return [row for _, row in self._read]


def _row(entry: Entry, total: float) -> dict[str, Any]:
    row: dict[str, Any] = {"at": round(entry.at, 3), "kind": entry.kind, "total": total}
    if len(entry.body) > MAX_BODY_BYTES:
        return row | {"too_large_bytes": len(entry.body)}
    try:
        body = decode(entry.body)
        if not isinstance(body, dict):
            raise ValueError("it is no object")
        shown = {key: clip(body[key]) for key in _SHOWN if body.get(key)}
        reward = body.get("reward")
    except (ValueError, RecursionError):
        return row | {"raw": clip(entry.body.decode(errors="replace"))}
    if entry.kind != "agent" and isinstance(reward, int | float):
        row |= {"reward": reward, "total": total + reward}
    return row | shown


def clip(value: Any) -> Any:
    """The same with long texts cut and embedded files named by their size.

    Raises:
        RecursionError: it is nested too deeply.
    """
    if isinstance(value, str):
        if value.startswith("data:") and len(value) > _MAX_DATA_URL:
            return f"{value.partition(',')[0][:_MAX_DATA_URL]}, {len(value):,} characters"
        is_long = len(value) > MAX_TEXT
        return f"{value[:MAX_TEXT]}\n… {len(value) - MAX_TEXT:,} more characters" if is_long else value
    if isinstance(value, list):
        return [clip(each) for each in value]
    if isinstance(value, dict):
        return {key: clip(each) for key, each in value.items()}
    # Numbers that JavaScript would round, or JSON does not have, are shown as text.
    is_odd = isinstance(value, int | float) and (abs(value) > 2**53 or not math.isfinite(value))
    return str(value) if is_odd else value

"""What was said in the sessions of late, for people who look."""

import time
from dataclasses import dataclass
from typing import Literal

Kind = Literal["start", "agent", "environment"]


@dataclass(slots=True)
class Entry:
    """One message body."""

    at: float
    """Wall-clock time."""
    kind: Kind
    """Who said it: the environment at the start, the agent, or the environment in answer."""
    body: bytes
    """JSON, as it went over the wire."""


class Transcripts:
    """Conversations within a budget of memory: those that began first go first.

    Args:
        max_bytes: bodies that are kept, in all.
    """

    def __init__(self, *, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._size = 0
        # Plain tuples: there are many, and the garbage collector need not look at them.
        self._kept: dict[int, list[tuple[float, Kind, bytes]]] = {}

    def add(self, session_id: int, kind: Kind, body: bytes) -> None:
        """Keep a body; an oversized one is dropped."""
        size = len(body)
        if size > self._max_bytes:
            return
        said = self._kept.get(session_id)
        if said is None:
            said = self._kept[session_id] = []
        said.append((time.time(), kind, body))
        self._size += size
        while self._size > self._max_bytes:
            first = next(iter(self._kept))
            self._size -= sum(len(dropped) for _, _, dropped in self._kept.pop(first))

    def read(self, session_id: int) -> list[Entry]:
        """What a session's participants said, as far as it is still kept."""
        return [Entry(*said) for said in self._kept.get(session_id, ())]

"""What was said in the sessions of late, for people who look."""

import time
from collections import OrderedDict
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
    """Conversations within a budget of memory: the sessions that have been quiet longest go first.

    Args:
        max_bytes: bodies that are kept, in all.
    """

    def __init__(self, *, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._size = 0
        self._sizes: dict[int, int] = {}
        self._entries: OrderedDict[int, list[Entry]] = OrderedDict()

    def add(self, session_id: int, kind: Kind, body: bytes) -> None:
        """Keep a body; an oversized one is dropped."""
        size = len(body)
        if size > self._max_bytes:
            return
        entries = self._entries.get(session_id)
        if entries is None:
            entries = self._entries[session_id] = []
            self._sizes[session_id] = 0
        else:
            self._entries.move_to_end(session_id)
        entries.append(Entry(time.time(), kind, body))
        self._sizes[session_id] += size
        self._size += size
        while self._size > self._max_bytes:
            oldest, _ = self._entries.popitem(last=False)
            self._size -= self._sizes.pop(oldest)

    def read(self, session_id: int) -> list[Entry]:
        """What a session's participants said, as far as it is still kept."""
        return list(self._entries.get(session_id, ()))

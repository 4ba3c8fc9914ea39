"""What outlives a controller: sessions, workers and tasks as records, and where they are kept."""

from typing import Protocol

import msgspec

SampleIndex = int | str


class SessionRecord(msgspec.Struct, omit_defaults=True):
    """A session, live or lately ended."""

    id: int
    """Identity."""
    task: str
    """Task name."""
    index: SampleIndex
    """Sample."""
    worker: str
    """Address of the worker that plays it."""
    state: str
    """Where it was in its life."""
    started: float
    """Wall-clock time of the start."""
    updated: float
    """Wall-clock time of this record."""
    custom_task: bytes | None = None
    """The caller's own sample, as JSON."""
    client: str = ""
    """Who started it."""
    start_id: str | None = None
    """Request id of the start."""
    reason: str = ""
    """Why it ended, where nobody wanted it to."""
    request_id: str | None = None
    """Id of the newest request."""
    answer: bytes | None = None
    """Answer to it."""
    owner: str = ""
    """The replica that has it, where controllers share the store."""


class WorkerRecord(msgspec.Struct, omit_defaults=True):
    """A task worker."""

    id: int
    """Identity at the controller."""
    task: str
    """What it serves."""
    address: str
    """Where it is reached."""
    capacity: int
    """Sessions it holds at most."""
    native: bool = False
    """Whether it takes the controller's own bodies."""
    instance: str | None = None
    """Identity of its process."""
    stale: bool = False
    """Whether it is drained."""
    owner: str = ""
    """The replica that holds its stream, where it has one."""


class TaskRecord(msgspec.Struct, omit_defaults=True):
    """A task: its samples are stored once, not with each worker."""

    name: str
    """Its name."""
    indices: list[SampleIndex]
    """Every sample."""
    splits: dict[str, list[SampleIndex]] = {}
    """Named subsets."""


Record = SessionRecord | WorkerRecord | TaskRecord
KINDS: dict[str, type[Record]] = {"session": SessionRecord, "worker": WorkerRecord, "task": TaskRecord}
"""Kinds of records by name."""


class Store(Protocol):
    """Keeps records by kind and key."""

    is_lasting: bool
    """Whether what is kept outlives the controller."""
    replica: str
    """Identity of this controller among those that share the store; empty where none do."""

    async def open(self) -> dict[str, dict[str, Record]]:
        """Begin, and return what was kept, by kind and key.

        Raises:
            ConfigError: the store cannot be used.
        """
        ...

    def put(self, kind: str, key: str, record: Record) -> None:
        """Keep a record instead of an older one; `flush` tells when it is safe."""
        ...

    def drop(self, kind: str, key: str) -> None:
        """Forget a record."""
        ...

    async def flush(self) -> None:
        """Return when everything so far is safe from the end of this process.

        Raises:
            StoreError: it cannot be kept.
        """
        ...

    async def close(self) -> None:
        """Flush and let go."""
        ...

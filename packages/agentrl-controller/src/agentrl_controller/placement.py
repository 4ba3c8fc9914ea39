"""Which worker gets a new session: a pure decision."""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Slots:
    """A worker's room."""

    worker_id: int
    """Identity of the worker."""
    capacity: int
    """Sessions it holds at most."""
    current: int
    """Sessions it holds now."""
    available: bool
    """Whether it lives and is not being drained."""

    @property
    def free(self) -> int:
        """Sessions it can take."""
        return max(0, self.capacity - self.current) if self.available else 0


def place(workers: Iterable[Slots], *, home: int | None = None) -> int | None:
    """The worker with most free slots; among equals the one that serves the group, then the oldest.

    Args:
        workers: the task's workers.
        home: the worker that has the group's other sessions.

    Returns:
        Its id; None where no slot is free.
    """
    free = [slots for slots in workers if slots.free > 0]
    if not free:
        return None
    best = max(free, key=lambda slots: (slots.free, slots.worker_id == home, -slots.worker_id))
    return best.worker_id

"""Task workers as their heartbeats tell of them."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from agentrl_controller.addresses import AllowList
from agentrl_controller.placement import Slots
from agentrl_core import ErrorCode, Heartbeat, SampleIndex, SessionError, WorkerStatus


@dataclass(slots=True, eq=False)
class Worker:
    """A task worker."""

    id: int
    """Identity here."""
    task: str
    """What it serves."""
    address: str
    """Where it is reached."""
    capacity: int
    """Sessions it holds at most."""
    last_visit: float
    """When its last heartbeat came, on the monotonic clock."""
    native: bool = False
    """Whether it takes the controller's own bodies and answers repeated request ids as before."""
    instance: str | None = None
    """Identity of its process."""
    stale: bool = False
    """Whether it is drained: it keeps its sessions and gets no new one."""
    status: WorkerStatus = WorkerStatus.ALIVE
    """Whether its heartbeats come."""
    reason: str = ""
    """Why it was given up."""
    full_until: float = 0.0
    """It said that it is full, so it is not asked before this time on the monotonic clock."""
    heard: float = 0.0
    """When it last answered anything, on the monotonic clock."""
    is_known: bool = False
    """Whether it has been asked which sessions it plays; one that is new here may play some."""
    sessions: set[int] = field(default_factory=set)
    """Sessions that hold a slot of it."""
    num_elsewhere: int = 0
    """Slots that other replicas of the controller have taken."""
    via: str = ""
    """The other replica that holds its stream; this one cannot reach it."""

    @property
    def about(self) -> dict[str, object]:
        """What a line of the log says of it."""
        return {"task": self.task, "worker": self.address}

    @property
    def is_alive(self) -> bool:
        """Whether it has not been given up."""
        return self.status is WorkerStatus.ALIVE

    @property
    def num_taken(self) -> int:
        """Slots that are taken."""
        return len(self.sessions) + self.num_elsewhere

    def slots(self, *, now: float) -> Slots:
        """Its room, for placement."""
        available = not self.via and self.is_alive and not self.stale and now >= self.full_until
        return Slots(self.id, self.capacity, self.num_taken, available)

    def __str__(self) -> str:
        return f"worker {self.id} of `{self.task}`"


@dataclass(slots=True)
class TaskRecord:
    """A task that some worker serves."""

    indices: list[SampleIndex]
    """Every sample, the same on each worker."""
    splits: dict[str, list[SampleIndex]]
    """Named subsets."""
    workers: dict[int, Worker]
    """Its workers by id."""
    known: frozenset[SampleIndex] = field(init=False)
    """The indices, for look-up."""
    by_position: bool = field(init=False)
    """Whether all indices are strings, so that a number means a position."""

    def __post_init__(self) -> None:
        self.known = frozenset(self.indices)
        self.by_position = bool(self.indices) and all(isinstance(index, str) for index in self.indices)


class Registry:
    """Workers by task.

    Args:
        allowed: addresses that workers may have.

    Attributes:
        tasks: tasks by name.
        number: gives a worker of a task and an address its number; they are counted where it is absent.
    """

    def __init__(self, allowed: AllowList) -> None:
        self.tasks: dict[str, TaskRecord] = {}
        self.number: Callable[[str, str], int] | None = None
        self._allowed = allowed
        self._next_id = 1

    def check(self, beat: Heartbeat, *, peer: str | None = None) -> None:
        """Whether a heartbeat makes sense.

        Args:
            beat: what the worker says.
            peer: the host that it comes from; None where it is this program itself.

        Raises:
            SessionError: the address or the capacity is none, or a worker may not be there.
        """
        self._allowed.check(beat.address, peer=peer)
        if beat.concurrency < 0:
            message = f"`concurrency` must be >= 0, got {beat.concurrency}"
            raise SessionError(message, code=ErrorCode.BAD_REQUEST)

    def at(self, task: str, address: str) -> Worker | None:
        """The worker of a task at an address."""
        record = self.tasks.get(task)
        workers = record.workers.values() if record else ()
        return next((worker for worker in workers if worker.address == address), None)

    def heartbeat(self, beat: Heartbeat, *, now: float) -> Worker:
        """Take in a heartbeat; returns the worker, new or known.

        Raises:
            SessionError: its indices differ from those of the task's other workers.
        """
        record = self._record(beat)
        worker = self.at(beat.name, beat.address)
        if worker is None or not worker.is_alive:
            # A worker that was given up begins anew: its sessions here have ended.
            if worker is not None:
                del record.workers[worker.id]
            number = self.number(beat.name, beat.address) if self.number else self._next_id
            worker = self.add(Worker(number, beat.name, beat.address, beat.concurrency, last_visit=now))
        worker.capacity = beat.concurrency
        worker.native, worker.instance = beat.native, beat.instance
        worker.last_visit = worker.heard = now
        return worker

    def add(self, worker: Worker) -> Worker:
        """Add a worker of a task that is known."""
        self.tasks[worker.task].workers[worker.id] = worker
        self._next_id = max(self._next_id, worker.id) + 1
        return worker

    def _record(self, beat: Heartbeat) -> TaskRecord:
        record = self.tasks.get(beat.name)
        if record is not None and record.indices == beat.indices:
            record.splits = beat.splits or record.splits
            return record
        others = [w for w in record.workers.values() if w.address != beat.address] if record else []
        if any(worker.is_alive for worker in others):
            raise SessionError(
                f"the {len(beat.indices)} indices of `{beat.address}` differ from those of other workers of "
                f"`{beat.name}`; every worker of a task sends the same list in the same order",
                code=ErrorCode.BAD_REQUEST,
            )
        workers = record.workers if record else {}
        record = TaskRecord(beat.indices, beat.splits or {}, workers)
        self.tasks[beat.name] = record
        return record

    def task(self, name: str) -> TaskRecord:
        """A task by name.

        Raises:
            SessionError: no worker serves it.
        """
        record = self.tasks.get(name)
        if record is None:
            known = ", ".join(sorted(self.tasks)) or "none"
            raise SessionError(
                f"no worker serves task `{name}`; served: {known}", code=ErrorCode.UNKNOWN_TASK
            )
        return record

    def worker(self, task: str, worker_id: int) -> Worker:
        """A worker of a task.

        Raises:
            SessionError: it is unknown.
        """
        worker = self.task(task).workers.get(worker_id)
        if worker is None:
            raise SessionError(f"task `{task}` has no worker {worker_id}", code=ErrorCode.BAD_REQUEST)
        return worker

    def silent(self, *, now: float, lease_s: float) -> list[Worker]:
        """Workers that live by name alone: no heartbeat, and no answer to anything, within the lease."""
        return [w for w in self.workers() if w.is_alive and now - max(w.last_visit, w.heard) > lease_s]

    def forget(self, *, now: float, forget_s: float) -> list[str]:
        """Drop workers that were lost long ago; returns the tasks that went with their last worker."""
        for worker in list(self.workers()):
            if not worker.is_alive and now - worker.last_visit > forget_s:
                del self.tasks[worker.task].workers[worker.id]
        gone = [name for name, record in self.tasks.items() if not record.workers]
        for name in gone:
            del self.tasks[name]
        return gone

    def workers(self) -> Iterable[Worker]:
        """Every worker of every task."""
        return (worker for record in self.tasks.values() for worker in record.workers.values())


def sample_of(record: TaskRecord, index: SampleIndex, *, task: str) -> SampleIndex:
    """The index as the worker knows it: a number means a position where all indices are strings.

    Raises:
        SessionError: the task has no such sample.
    """
    if isinstance(index, int) and record.by_position and 0 <= index < len(record.indices):
        return record.indices[index]
    if index not in record.known:
        message = f"task `{task}` has {len(record.indices)} samples, none is {index!r}"
        raise SessionError(message, code=ErrorCode.UNKNOWN_INDEX)
    return index

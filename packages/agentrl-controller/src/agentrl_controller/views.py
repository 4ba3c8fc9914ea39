"""What the dashboard shows of a controller, as JSON-able dicts.

    Controller --> overview, worker_list, session_page, session_detail --> View --changes--> browser

A view holds plain values, and tables: dicts of rows by id. `changes` says what became of one view since the
last look, so that a page of 50 among 10,000 sessions costs what happens on it.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from agentrl_controller.controller import Controller
from agentrl_controller.conversations import Conversation, clip
from agentrl_controller.history import History
from agentrl_controller.registry import TaskRecord, Worker
from agentrl_controller.sessions import Session, SessionState
from agentrl_controller.wire import encode
from agentrl_core import ErrorCode, SessionError, WorkerStatus

View = dict[str, Any]

MAX_WORKERS = 500
"""Workers that are listed at most; a search finds the others."""
MAX_PAGE = 200
"""Sessions on a page at most."""
MAX_ENTRIES = 300
"""Entries of a conversation that are shown at first."""
_EXAMPLES = 24
_RATE_WINDOW_S, _LATENCY_WINDOW_S = 10.0, 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionFilter:
    """Which sessions are asked for; None and empty ask for all."""

    task: str | None = None
    """Its name."""
    state: SessionState | None = None
    """Where in their life they are."""
    worker: str | None = None
    """Id of the worker that plays them."""
    search: str | None = None
    """Part of a session's id, or its whole sample."""

    def matches(self, session: Session) -> bool:
        """Whether a session is asked for."""
        if self.task and session.task != self.task:
            return False
        if self.state and session.state is not self.state:
            return False
        if self.worker and str(session.worker.id) != self.worker:
            return False
        return not self.search or self.search in str(session.id) or self.search == str(session.index)


def totals(controller: Controller) -> View:
    """The numbers that stand beside every view."""
    workers = list(controller.registry.workers())
    return {
        "live": len(controller.sessions.live),
        "waiting": waiting(controller),
        "workers_alive": sum(worker.status is WorkerStatus.ALIVE for worker in workers),
        "workers_total": len(workers),
    }


def waiting(controller: Controller) -> int:
    """Starts that wait for a slot, over all tasks."""
    return sum(controller.admission.depth(task) for task in controller.registry.tasks)


def overview(controller: Controller, history: History) -> View:
    """Load, rates, latencies and tasks."""
    states = Counter(str(session.state) for session in controller.sessions.live.values())
    rates, latencies = history.over(_RATE_WINDOW_S), history.over(_LATENCY_WINDOW_S)
    return {
        **totals(controller),
        "states": dict(sorted(states.items())),
        "requests_per_s": rates.get("requests_per_s"),
        "errors_per_s": rates.get("errors_per_s"),
        **{
            f"{name}_{rank}_s": latencies.get(f"{name}_{rank}_s")
            for name in ("interact", "worker")
            for rank in ("p50", "p99")
        },
        "points": dict(history.points),
        "tasks": {
            name: _task(controller, name, record) for name, record in controller.registry.tasks.items()
        },
    }


def _task(controller: Controller, name: str, record: TaskRecord) -> dict[str, Any]:
    alive = [worker for worker in record.workers.values() if worker.status is WorkerStatus.ALIVE]
    step = max(1, len(record.indices) // _EXAMPLES)
    return {
        "name": name,
        "workers_alive": len(alive),
        "workers_draining": sum(worker.stale for worker in alive),
        "workers_total": len(record.workers),
        "used": sum(len(worker.sessions) for worker in record.workers.values()),
        "capacity": sum(worker.capacity for worker in alive),
        "waiting": controller.admission.depth(name),
        "num_samples": len(record.indices),
        "examples": record.indices[::step][:_EXAMPLES],
    }


def worker_list(controller: Controller, *, epoch: float, search: str = "") -> View:
    """Workers by id: first those that are lost, then by task.

    Args:
        controller: whose workers.
        epoch: wall-clock time at which the monotonic clock stood at 0.
        search: part of a task's name or of an address, or an id.
    """
    found = [
        worker
        for worker in controller.registry.workers()
        if not search or search in worker.task or search in worker.address or search == str(worker.id)
    ]
    found.sort(key=lambda worker: (worker.status is WorkerStatus.ALIVE, worker.task, worker.id))
    shown = found[:MAX_WORKERS]
    return {
        **totals(controller),
        "found": len(found),
        "order": [_key(worker) for worker in shown],
        "workers": {_key(worker): _worker(worker, epoch) for worker in shown},
    }


def _key(worker: Worker) -> str:
    return f"{worker.task}/{worker.id}"


def _worker(worker: Worker, epoch: float) -> dict[str, Any]:
    return {
        "id": worker.id,
        "task": worker.task,
        "address": worker.address,
        "status": str(worker.status),
        "draining": worker.stale,
        "reason": worker.reason,
        "used": len(worker.sessions),
        "capacity": worker.capacity,
        "last_visit": round(epoch + worker.last_visit, 1),
    }


def session_page(
    controller: Controller,
    wanted: SessionFilter | None = None,
    *,
    epoch: float,
    cursor: str | None = None,
    limit: int = 50,
) -> View:
    """A page of live sessions, the newest first.

    Args:
        controller: whose sessions.
        wanted: which of them.
        epoch: wall-clock time at which the monotonic clock stood at 0.
        cursor: the page's `next` that came before; None for the first.
        limit: sessions on the page.

    Raises:
        SessionError: the cursor is none.
    """
    wanted = wanted or SessionFilter()
    found = [session for session in controller.sessions.live.values() if wanted.matches(session)]
    found.sort(key=_place, reverse=True)
    rest = found if cursor is None else _after(found, cursor)
    page = rest[:limit]
    return {
        **totals(controller),
        "found": len(found),
        "before": len(found) - len(rest),
        "order": [str(session.id) for session in page],
        "sessions": {str(session.id): _session(session, epoch) for session in page},
        "next": _cursor(page[-1]) if len(rest) > limit else None,
        "task_names": sorted(controller.registry.tasks),
    }


def _place(session: Session) -> tuple[float, int]:
    return session.started, session.id


def _cursor(session: Session) -> str:
    return f"{session.started!r}_{session.id}"


def _after(found: Iterable[Session], cursor: str) -> list[Session]:
    started, _, session_id = cursor.partition("_")
    try:
        place = float(started), int(session_id)
    except ValueError as error:
        message = f"`cursor` must be the `next` of a page, got {cursor[:50]!r}; leave it away for the first"
        raise SessionError(message, code=ErrorCode.BAD_REQUEST) from error
    return [session for session in found if _place(session) < place]


def _session(session: Session, epoch: float) -> dict[str, Any]:
    return {
        "id": str(session.id),
        "task": session.task,
        "index": session.index,
        "state": str(session.state),
        "worker": session.worker.id,
        "started": round(session.started, 1),
        "last_used": round(epoch + session.last_used, 1),
        "num_exchanges": session.num_exchanges,
    }


def session_detail(
    controller: Controller, session_id: int, conversation: Conversation, *, epoch: float, first: int = 0
) -> View:
    """A session, live or lately ended, with what was said in it.

    Args:
        controller: whose session.
        session_id: which.
        conversation: what has been read of it before.
        epoch: wall-clock time at which the monotonic clock stood at 0.
        first: entries before this one are left away.

    Raises:
        SessionError: it is unknown.
    """
    session = controller.sessions.find(session_id)
    rows = conversation.rows(controller.transcripts.read(session_id))
    return {
        **totals(controller),
        **_session(session, epoch),
        "worker_address": session.worker.address,
        "is_live": session.id in controller.sessions.live,
        "client": session.client,
        "reason": session.reason,
        "custom_task": None if session.custom_task is None else clip(encode(session.custom_task).decode()),
        "is_whole": session.num_exchanges == 0 or (bool(rows) and rows[0]["kind"] == "start"),
        "first": first,
        "num_entries": len(rows),
        "reward": rows[-1]["total"] if rows else 0.0,
        "rewards": [row["reward"] for row in rows if row["kind"] != "start" and "reward" in row],
        "entries": {str(n): row for n, row in enumerate(rows) if n >= first},
    }


def changes(before: View, after: View) -> View:
    """What the reader of one view must be told to have the other: `set`, `rows`, `gone`, none of it empty."""
    tables = {key: value for key, value in after.items() if isinstance(value, dict)}
    plain = {k: v for k, v in after.items() if k not in tables and (k not in before or before[k] != v)}
    rows: dict[str, dict[str, Any]] = {}
    gone: dict[str, list[str]] = {}
    for name, table in tables.items():
        known = before.get(name, {})
        rows[name] = {key: row for key, row in table.items() if key not in known or known[key] != row}
        gone[name] = [key for key in known if key not in table]
    told = {
        "set": plain,
        "rows": {name: table for name, table in rows.items() if table or name not in before},
        "gone": {name: keys for name, keys in gone.items() if keys},
    }
    return {key: value for key, value in told.items() if value}

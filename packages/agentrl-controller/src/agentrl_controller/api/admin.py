"""Routes for workers, for people and for what watches the controller."""

import time
from datetime import UTC, datetime
from typing import Annotated, Any

from fastapi import Body, FastAPI, Query, Request, Response
from fastapi.responses import JSONResponse, PlainTextResponse
from pydantic import BaseModel, Field

from agentrl_controller import metrics
from agentrl_controller.api.description import SessionHeader
from agentrl_controller.api.front import Front
from agentrl_controller.api.requests import body_of, session_id_of
from agentrl_controller.controller import Controller
from agentrl_controller.guard import ForbiddenError
from agentrl_controller.registry import Worker
from agentrl_controller.sessions import Session, SessionState
from agentrl_controller.store import SessionRecord
from agentrl_controller.wire import decode, encode
from agentrl_core import ErrorCode, Heartbeat, SampleIndex, SessionError, TaskInfo

_HEARTBEAT = {
    "requestBody": {
        "required": True,
        "content": {"application/json": {"schema": Heartbeat.model_json_schema()}},
    }
}
_METRICS: dict[int | str, dict[str, Any]] = {200: {"content": {"text/plain": {"schema": {"type": "string"}}}}}


class WorkerName(BaseModel):
    """Names a worker."""

    name: str
    """Task name."""
    worker_id: int
    """The worker's number in `list_workers`."""


class Draining(WorkerName):
    """Whether a worker is drained."""

    stale: bool = True
    """Drained, it keeps its sessions and gets no new one."""


class ListedSession(BaseModel):
    """A session in `list_sessions`."""

    name: str
    """Task name."""
    index: SampleIndex
    """Sample."""
    custom_task: Any = None
    """The caller's own sample."""
    start: datetime
    """When it started."""
    last_update: datetime
    """When it was last used."""
    worker_id: int
    """Who plays it."""
    locked: bool
    """Whether a request of it is under way."""
    cancelling: bool
    """Whether it is being cancelled."""
    state: SessionState
    """Where it is in its life."""


class Version(BaseModel):
    """What speaks here."""

    variant: str = "agentrl-python"
    """Which controller."""
    version: int = 1
    """Version of the wire."""


class Health(BaseModel):
    """How it is."""

    status: str = Field(examples=["ok", "ready", "stopping"])
    """In a word."""


def add_admin_routes(app: FastAPI, controller: Controller) -> None:
    """Add the routes to an app."""
    routes = _AdminRoutes(controller)
    for name in ("cancel_all", "cancel_notice", "mark_stale", "clean_worker", "clean_session", "sync_all"):
        app.add_api_route(f"/api/{name}", getattr(routes, name), methods=["POST"])
    app.add_api_route(
        "/api/receive_heartbeat", routes.receive_heartbeat, methods=["POST"], openapi_extra=_HEARTBEAT
    )
    app.add_api_route("/api/list_workers", routes.list_workers, response_model=dict[str, TaskInfo])
    app.add_api_route("/api/list_sessions", routes.list_sessions, response_model=dict[str, ListedSession])
    app.add_api_route("/api/get_indices", routes.get_indices, response_model=list[SampleIndex])
    app.add_api_route("/api/version", routes.version)
    app.add_api_route("/healthz", routes.healthz)
    app.add_api_route("/readyz", routes.readyz, response_model=Health, responses={503: {"model": Health}})
    app.add_api_route("/metrics", routes.metrics, responses=_METRICS, response_class=PlainTextResponse)


class _AdminRoutes:
    def __init__(self, controller: Controller) -> None:
        self._controller = controller
        self._max_bytes = controller.config.max_body_bytes

    async def cancel_all(
        self,
        name: Annotated[str | None, Query(description="Task name.")] = None,
        force: Annotated[bool, Query(description="Every task's.")] = False,
    ) -> None:
        """End the sessions of a task, or with `force` all of them."""
        if name is None and not force and len(self._controller.registry.tasks) > 1:
            message = "more than one task is served; say which by `name`, or all by `force=true`"
            raise ForbiddenError(message, code=ErrorCode.BAD_REQUEST)
        await self._controller.cancel_all(name)

    async def cancel_notice(self, request: Request, _: SessionHeader = 0) -> None:
        """A worker says that a cancelled session has ended there."""
        self._controller.cancel_notice(session_id_of(dict(request.scope["headers"])))

    async def receive_heartbeat(self, request: Request) -> None:
        """A worker says that it lives, and what it serves."""
        body = await body_of(request, max_bytes=self._max_bytes)
        peer = request.client.host if request.client else None
        self._controller.receive_heartbeat(body, peer=peer)

    async def mark_stale(self, body: Annotated[Draining, Body()]) -> None:
        """Drain a worker, or end its draining."""
        worker = self._controller.registry.worker(body.name, body.worker_id)
        self._controller.mark_stale(worker, stale=body.stale)

    async def clean_worker(self, body: Annotated[WorkerName, Body()]) -> None:
        """End the sessions of a worker."""
        worker = self._controller.registry.worker(body.name, body.worker_id)
        await self._controller.cancel_all(worker=worker)

    async def clean_session(self, request: Request, _: SessionHeader = 0) -> None:
        """End a session."""
        front: Front = request.app.state.front
        await front.sessions.cancel(dict(request.scope["headers"]), b"", "")

    async def sync_all(self) -> None:
        """Ask every worker which sessions it plays, and end those that it has forgotten."""
        await self._controller.sync_all()

    async def get_indices(
        self,
        name: Annotated[str, Query(description="Task name.")],
        split: Annotated[str | None, Query(description="Named subset, such as `test`.")] = None,
    ) -> Response:
        """The samples of a task."""
        record = self._controller.registry.task(name)
        if split is None:
            return _json(record.indices)
        if split not in record.splits:
            known = ", ".join(sorted(record.splits)) or "none"
            message = f"task `{name}` has no split `{split}`; it has: {known}"
            raise SessionError(message, code=ErrorCode.UNKNOWN_INDEX)
        return _json(record.splits[split])

    async def list_workers(self) -> Response:
        """Tasks and their workers."""
        tasks = self._controller.registry.tasks
        return _json(
            {
                name: {
                    "indices": record.indices,
                    "workers": {str(w.id): _worker(w) for w in record.workers.values()},
                }
                for name, record in tasks.items()
            }
        )

    async def list_sessions(self) -> Response:
        """Live sessions, those of every replica."""
        live = self._controller.sessions.live
        listed = {str(session.id): _session(session) for session in live.values()}
        for record in await self._elsewhere():
            worker = self._controller.registry.at(record.task, record.worker)
            listed.setdefault(str(record.id), _record(record, worker.id if worker else 0))
        return _json(listed)

    async def _elsewhere(self) -> list[SessionRecord]:
        peers = self._controller.peers
        records = [] if peers is None else await peers.others()
        return [record for record in records if not SessionState(record.state).has_ended]

    async def version(self) -> Version:
        """Which controller this is."""
        return Version()

    async def healthz(self) -> Health:
        """Whether the process answers."""
        return Health(status="ok")

    async def readyz(self) -> Response:
        """Whether it takes requests."""
        ready = self._controller.is_running
        content = {"status": "ready" if ready else "stopping"}
        return JSONResponse(content, status_code=200 if ready else 503)

    async def metrics(self) -> Response:
        """For Prometheus."""
        return PlainTextResponse(
            metrics.render(self._controller), media_type="text/plain; version=0.0.4; charset=utf-8"
        )


def _json(content: Any) -> Response:
    return Response(encode(content), media_type="application/json")


def _worker(worker: Worker) -> dict[str, Any]:
    return {
        "id": worker.id,
        "address": worker.address,
        "capacity": worker.capacity,
        "current": worker.num_taken,
        "last_visit": _date(worker.last_visit),
        "status": worker.status,
        "stale": worker.stale,
        "locked": False,
        "reason": worker.reason,
    }


def _session(session: Session) -> dict[str, Any]:
    return {
        "name": session.task,
        "index": session.index,
        "custom_task": session.custom_task,
        "start": datetime.fromtimestamp(session.started, UTC).isoformat(),
        "last_update": _date(session.last_used),
        "worker_id": session.worker.id,
        **_state(session.state),
    }


def _record(record: SessionRecord, worker_id: int) -> dict[str, Any]:
    return {
        "name": record.task,
        "index": record.index,
        "custom_task": None if record.custom_task is None else decode(record.custom_task),
        "start": datetime.fromtimestamp(record.started, UTC).isoformat(),
        "last_update": datetime.fromtimestamp(record.updated, UTC).isoformat(),
        "worker_id": worker_id,
        **_state(SessionState(record.state)),
    }


def _state(state: SessionState) -> dict[str, Any]:
    return {
        "locked": state in (SessionState.STARTING, SessionState.BUSY),
        "cancelling": state is SessionState.CANCELLING,
        "state": state,
    }


def _date(monotonic_s: float) -> str:
    return datetime.fromtimestamp(time.time() - time.monotonic() + monotonic_s, UTC).isoformat()

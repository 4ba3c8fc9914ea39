"""The controller's HTTP API: the published routes with their published shapes, and a little more."""

import contextlib
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse, PlainTextResponse
from pydantic import BaseModel

from agentrl_controller import metrics
from agentrl_controller.api.dashboard import add_dashboard
from agentrl_controller.api.description import describe_sessions
from agentrl_controller.api.errors import HANDLERS, Answer, respond
from agentrl_controller.api.front import Front
from agentrl_controller.api.requests import body_of, parsed, session_id_of
from agentrl_controller.controller import Controller
from agentrl_controller.registry import Worker
from agentrl_controller.sessions import Session, SessionState
from agentrl_controller.store import SessionRecord
from agentrl_controller.wire import decode
from agentrl_core import ErrorCode, SessionError


class _WorkerName(BaseModel):
    name: str
    worker_id: int


class _MarkStale(_WorkerName):
    stale: bool = True


def create_app(controller: Controller) -> FastAPI:
    """The API of a controller, which runs for as long as the app does."""

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        async with controller:
            yield

    app = FastAPI(title="AgentRL controller", version=version("agentrl-controller"), lifespan=lifespan)
    admin = _AdminRoutes(controller)
    describe_sessions(app)
    for name in (
        *("cancel_all", "cancel_notice", "receive_heartbeat"),
        *("mark_stale", "clean_worker", "clean_session", "sync_all"),
    ):
        app.add_api_route(f"/api/{name}", getattr(admin, name), methods=["POST"])
    for name in ("list_workers", "list_sessions", "get_indices", "version"):
        app.add_api_route(f"/api/{name}", getattr(admin, name), methods=["GET"])
    for name in ("healthz", "readyz", "metrics"):
        app.add_api_route(f"/{name}", getattr(admin, name), methods=["GET"])
    for kind, handler in HANDLERS.items():
        app.add_exception_handler(kind, handler)
    add_dashboard(app, controller)
    app.state.front = Front(app.build_middleware_stack(), controller=controller, public=("/",))
    app.middleware_stack = app.state.front
    return app


class _AdminRoutes:
    def __init__(self, controller: Controller) -> None:
        self._controller = controller
        self._max_bytes = controller.config.max_body_bytes

    async def cancel_all(self, request: Request, name: str | None = None, force: bool = False) -> Response:
        if name is None and not force and len(self._controller.registry.tasks) > 1:
            message = "more than one task is served; say which by `name`, or all by `force=true`"
            return JSONResponse({"message": message, "code": ErrorCode.BAD_REQUEST}, status_code=403)
        await self._controller.cancel_all(name)
        return respond(request, Answer(b"null"))

    async def cancel_notice(self, request: Request) -> None:
        self._controller.cancel_notice(session_id_of(dict(request.scope["headers"])))

    async def receive_heartbeat(self, request: Request) -> None:
        body = await body_of(request, max_bytes=self._max_bytes)
        peer = request.client.host if request.client else None
        self._controller.receive_heartbeat(body, peer=peer)

    async def mark_stale(self, request: Request) -> None:
        body = _MarkStale.model_validate(parsed(await body_of(request, max_bytes=self._max_bytes)))
        worker = self._controller.registry.worker(body.name, body.worker_id)
        self._controller.mark_stale(worker, stale=body.stale)

    async def clean_worker(self, request: Request) -> None:
        body = _WorkerName.model_validate(parsed(await body_of(request, max_bytes=self._max_bytes)))
        worker = self._controller.registry.worker(body.name, body.worker_id)
        await self._controller.cancel_all(worker=worker)

    async def clean_session(self, request: Request) -> Response:
        front: Front = request.app.state.front
        return respond(request, await front.sessions.cancel(dict(request.scope["headers"]), b"", ""))

    async def sync_all(self) -> None:
        await self._controller.sync_all()

    async def get_indices(self, name: str, split: str | None = None) -> Response:
        record = self._controller.registry.task(name)
        if split is None:
            return JSONResponse(record.indices)
        if split not in record.splits:
            known = ", ".join(sorted(record.splits)) or "none"
            message = f"task `{name}` has no split `{split}`; it has: {known}"
            raise SessionError(message, code=ErrorCode.UNKNOWN_INDEX)
        return JSONResponse(record.splits[split])

    async def list_workers(self) -> Response:
        tasks = self._controller.registry.tasks
        return JSONResponse(
            {
                name: {
                    "indices": record.indices,
                    "workers": {str(w.id): _worker(w) for w in record.workers.values()},
                }
                for name, record in tasks.items()
            }
        )

    async def list_sessions(self) -> Response:
        live = self._controller.sessions.live
        listed = {str(session.id): _session(session) for session in live.values()}
        for record in await self._elsewhere():
            worker = self._controller.registry.at(record.task, record.worker)
            listed.setdefault(str(record.id), _record(record, worker.id if worker else 0))
        return JSONResponse(listed)

    async def _elsewhere(self) -> list[SessionRecord]:
        """Live sessions of other replicas."""
        peers = self._controller.peers
        records = [] if peers is None else await peers.others()
        return [record for record in records if not SessionState(record.state).has_ended]

    async def version(self) -> dict[str, Any]:
        return {"variant": "agentrl-python", "version": 1}

    async def healthz(self) -> dict[str, str]:
        return {"status": "ok"}

    async def readyz(self) -> Response:
        ready = self._controller.is_running
        return JSONResponse({"status": "ready" if ready else "stopping"}, status_code=200 if ready else 503)

    async def metrics(self) -> Response:
        return PlainTextResponse(metrics.render(self._controller), media_type="text/plain; version=0.0.4")


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
        "locked": session.state in (SessionState.STARTING, SessionState.BUSY),
        "cancelling": session.state is SessionState.CANCELLING,
        "state": session.state,
    }


def _record(record: SessionRecord, worker_id: int) -> dict[str, Any]:
    state = SessionState(record.state)
    return {
        "name": record.task,
        "index": record.index,
        "custom_task": None if record.custom_task is None else decode(record.custom_task),
        "start": datetime.fromtimestamp(record.started, UTC).isoformat(),
        "last_update": datetime.fromtimestamp(record.updated, UTC).isoformat(),
        "worker_id": worker_id,
        "locked": state in (SessionState.STARTING, SessionState.BUSY),
        "cancelling": state is SessionState.CANCELLING,
        "state": state,
    }


def _date(monotonic_s: float) -> str:
    return datetime.fromtimestamp(time.time() - time.monotonic() + monotonic_s, UTC).isoformat()

"""The controller's HTTP API: the published routes with their published shapes, and a little more."""

import contextlib
import json
import secrets
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse, PlainTextResponse
from pydantic import BaseModel, ValidationError
from starlette.types import ASGIApp, Receive, Scope, Send

from agentrl_controller import metrics
from agentrl_controller.controller import Controller
from agentrl_controller.registry import Worker
from agentrl_controller.sessions import Session
from agentrl_core import (
    DEADLINE_HEADER,
    REQUEST_ID_HEADER,
    SESSION_HEADER,
    SESSION_HEADER_ALIAS,
    ErrorCode,
    Heartbeat,
    SessionError,
    StartRequest,
)

_HTTP_STATUS = {
    ErrorCode.UNAUTHORIZED: 401,
    ErrorCode.SESSION_BUSY: 409,
    ErrorCode.NO_CAPACITY: 503,
    ErrorCode.WORKER_LOST: 500,
    ErrorCode.WORKER_FAILED: 500,
    ErrorCode.DEADLINE_EXCEEDED: 504,
}


class _MarkStale(BaseModel):
    name: str
    worker_id: int
    stale: bool = True


class _CleanWorker(BaseModel):
    name: str
    worker_id: int


def create_app(controller: Controller) -> FastAPI:
    """The API of a controller, which lives as long as the app."""

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        async with controller:
            yield

    app = FastAPI(title="AgentRL controller", lifespan=lifespan)
    routes = _Routes(controller)
    for name in ("list_workers", "list_sessions", "get_indices", "version"):
        app.add_api_route(f"/api/{name}", getattr(routes, name), methods=["GET"])
    for name in (
        *("start_sample", "interact", "cancel", "cancel_all", "cancel_notice", "receive_heartbeat"),
        *("mark_stale", "clean_worker", "clean_session", "sync_all"),
    ):
        app.add_api_route(f"/api/{name}", getattr(routes, name), methods=["POST"])
    app.add_api_route("/healthz", routes.healthz, methods=["GET"])
    app.add_api_route("/readyz", routes.healthz, methods=["GET"])
    app.add_api_route("/metrics", routes.metrics, methods=["GET"])
    app.add_exception_handler(SessionError, _refused)
    app.add_exception_handler(ValidationError, _malformed)
    config = controller.config
    app.add_middleware(_Guard, token=config.token, max_body_bytes=config.max_body_bytes)
    return app


class _Routes:
    def __init__(self, controller: Controller) -> None:
        self._controller = controller

    async def start_sample(self, request: Request) -> Response:
        body = StartRequest.model_validate(await _json(request))
        session_id, answer = await self._controller.start(
            body, request_id=request.headers.get(REQUEST_ID_HEADER), deadline_s=_deadline_s(request)
        )
        content = {"messages": answer.get("messages"), "tools": answer.get("tools"), **_state(answer)}
        return _answer(
            request, content, **{SESSION_HEADER: str(session_id), SESSION_HEADER_ALIAS: str(session_id)}
        )

    async def interact(self, request: Request) -> Response:
        body = await _json(request)
        messages = body.get("messages") if isinstance(body, dict) else None
        if not isinstance(messages, list):
            raise SessionError("`messages` must be a list of messages", code=ErrorCode.BAD_REQUEST)
        answer = await self._controller.interact(
            _session_id(request),
            messages,
            request_id=request.headers.get(REQUEST_ID_HEADER),
            deadline_s=_deadline_s(request),
        )
        content = {"messages": answer.get("messages"), "tools": answer.get("tools"), **_state(answer)}
        return _answer(request, content)

    async def cancel(self, request: Request) -> None:
        await self._controller.cancel(_session_id(request))

    async def cancel_all(self, name: str | None = None, force: bool = False) -> Response:
        tasks = self._controller.registry.tasks
        if name is None and not force and len(tasks) > 1:
            message = "more than one task is served; say which by `name`, or all by `force=true`"
            return JSONResponse({"message": message, "code": ErrorCode.BAD_REQUEST}, status_code=403)
        await self._controller.cancel_all(name)
        return JSONResponse(None)

    async def cancel_notice(self, request: Request) -> None:
        self._controller.cancel_notice(_session_id(request))

    async def clean_session(self, request: Request) -> None:
        await self._controller.cancel(_session_id(request))

    async def receive_heartbeat(self, request: Request) -> None:
        self._controller.heartbeat(Heartbeat.model_validate(await _json(request)))

    async def mark_stale(self, request: Request) -> None:
        body = _MarkStale.model_validate(await _json(request))
        self._controller.registry.worker(body.name, body.worker_id).stale = body.stale

    async def clean_worker(self, request: Request) -> None:
        body = _CleanWorker.model_validate(await _json(request))
        worker = self._controller.registry.worker(body.name, body.worker_id)
        for session_id in list(worker.sessions):
            await self._controller.cancel(session_id)

    async def sync_all(self) -> None:
        """Nothing to do: heartbeats and answers keep the state."""

    async def get_indices(self, name: str, split: str | None = None) -> Any:
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
        return JSONResponse({str(session.id): _session(session) for session in live.values()})

    async def version(self) -> dict[str, Any]:
        return {"variant": "agentrl-python", "version": 1}

    async def healthz(self) -> dict[str, str]:
        return {"status": "ok"}

    async def metrics(self) -> Response:
        return PlainTextResponse(metrics.render(self._controller), media_type="text/plain; version=0.0.4")


async def _json(request: Request) -> Any:
    body = await request.body()
    try:
        return json.loads(body) if body.strip() else {}
    except (ValueError, RecursionError) as error:
        raise SessionError(f"the body is no JSON: {error}", code=ErrorCode.BAD_REQUEST) from error


def _session_id(request: Request) -> int:
    header = request.headers.get(SESSION_HEADER) or request.headers.get(SESSION_HEADER_ALIAS) or ""
    if not (header.isascii() and header.isdecimal()):
        message = f"the header `{SESSION_HEADER}` must name a session, got {header!r}"
        raise SessionError(message, code=ErrorCode.BAD_REQUEST)
    return int(header)


def _deadline_s(request: Request) -> float | None:
    header = request.headers.get(DEADLINE_HEADER, "")
    return int(header) / 1000.0 if header.isascii() and header.isdecimal() and header != "0" else None


def _state(answer: Any) -> dict[str, Any]:
    return {
        "status": answer.get("status", "running"),
        "finish": answer.get("finish", False),
        "reward": answer.get("reward") or 0.0,
        "metrics": answer.get("metrics") or answer.get("metric") or {},
    }


def _worker(worker: Worker) -> dict[str, Any]:
    return {
        "id": worker.id,
        "address": worker.address,
        "capacity": worker.capacity,
        "current": len(worker.sessions),
        "last_visit": worker.last_visit,
        "status": worker.status,
        "stale": worker.stale,
        "locked": False,
    }


def _session(session: Session) -> dict[str, Any]:
    return {
        "name": session.task,
        "index": session.index,
        "custom_task": session.custom_task,
        "start": datetime.fromtimestamp(session.started, UTC).isoformat(),
        "last_update": session.last_used,
        "worker_id": session.worker.id,
        "locked": session.state == "busy",
        "cancelling": session.state == "cancelling",
        "state": session.state,
    }


def _answer(request: Request, content: Any, **headers: str) -> Response:
    request_id = request.headers.get(REQUEST_ID_HEADER)
    if request_id is not None:
        headers[REQUEST_ID_HEADER] = request_id
    return JSONResponse(content, headers=headers)


async def _refused(_: Request, error: Exception) -> Response:
    assert isinstance(error, SessionError)
    headers = {"Retry-After": f"{error.retry_after_s:g}"} if error.retry_after_s is not None else None
    content = {"message": str(error), "code": error.code}
    return JSONResponse(content, status_code=_HTTP_STATUS.get(error.code, 400), headers=headers)


async def _malformed(_: Request, error: Exception) -> Response:
    assert isinstance(error, ValidationError)
    faults = "; ".join(f"`{'.'.join(map(str, fault['loc']))}`: {fault['msg']}" for fault in error.errors())
    return JSONResponse({"message": faults, "code": ErrorCode.BAD_REQUEST}, status_code=400)


class _Guard:
    """Refuses what lacks the token, and bodies that are too large; plain ASGI, as every request passes it."""

    def __init__(self, app: ASGIApp, *, token: str | None, max_body_bytes: int) -> None:
        self._app = app
        self._expected = f"Bearer {token}".encode() if token is not None else None
        self._limit = max_body_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refusal = self._refusal(scope) if scope["type"] == "http" else None
        await (refusal or self._app)(scope, receive, send)

    def _refusal(self, scope: Scope) -> Response | None:
        headers = dict(scope["headers"])
        given = headers.get(b"authorization", b"")
        is_open = self._expected is None or scope["path"] == "/healthz"
        if not is_open and not secrets.compare_digest(given, self._expected or b""):
            content = {"message": "the bearer token is missing or wrong", "code": ErrorCode.UNAUTHORIZED}
            return JSONResponse(content, status_code=401)
        length = headers.get(b"content-length", b"0")
        if length.isdigit() and int(length) > self._limit:
            message = f"the body has {int(length)} bytes, the limit is {self._limit}"
            return JSONResponse({"message": message, "code": ErrorCode.BAD_REQUEST}, status_code=413)
        return None

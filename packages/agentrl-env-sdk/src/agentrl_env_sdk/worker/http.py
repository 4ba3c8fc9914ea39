"""The worker's HTTP API: the published routes, and the controller's for agents that come without one."""

import asyncio
import json
import math
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from fastapi import FastAPI, Request, Response
from pydantic import BaseModel, ConfigDict, ValidationError

from agentrl_core import (
    DEADLINE_HEADER,
    FINISH_HEADER,
    REQUEST_ID_HEADER,
    SESSION_HEADER,
    SESSION_HEADER_ALIAS,
    ErrorCode,
    InteractRequest,
    SessionError,
    WorkerStatus,
)
from agentrl_env_sdk.session import Exchange
from agentrl_env_sdk.threads import call
from agentrl_env_sdk.worker.runner import Runner, SessionId

Cancelled = Callable[[SessionId], Awaitable[None]]

_HTTP_STATUS = {
    ErrorCode.NO_CAPACITY: 406,
    ErrorCode.SESSION_BUSY: 409,
}
"""Codes of the published wire; whatever else is refused is 400."""
_MAX_BODY_BYTES = 100 * 2**20
_LONGEST_DEADLINE_MS = 10**9
_DEEPEST = 50


class _Start(BaseModel):
    model_config = ConfigDict(extra="ignore")

    name: str | None = None
    index: int | str = -1
    session_id: int | str | None = None
    custom_task: Any = None
    seed: int | None = None


class _Interact(InteractRequest):
    session_id: int | str | None = None


class _Overall(BaseModel):
    model_config = ConfigDict(extra="ignore")

    results: list[dict[str, Any]] = []


class _SessionName(BaseModel):
    model_config = ConfigDict(extra="ignore")

    session_id: int | str | None = None


def create_app(runner: Runner, *, token: str | None = None, cancelled: Cancelled | None = None) -> FastAPI:
    """The API of a worker.

    Args:
        runner: plays the episodes.
        token: bearer token that every request must carry.
        cancelled: told of each session that `cancel_with_notice` has ended.
    """
    app = FastAPI(title=f"AgentRL task worker: {runner.task.task_name}", docs_url="/docs")
    api = _Api(runner, cancelled)
    routes: list[tuple[str, Any, str]] = [
        ("start_sample", api.start_sample, "POST"),
        ("interact", api.interact, "POST"),
        ("cancel", api.cancel, "POST"),
        ("cancel_with_notice", api.cancel_with_notice, "POST"),
        ("sample_status", api.sample_status, "POST"),
        ("cancel_all", api.cancel_all, "POST"),
        ("cancel_all_with_notice", api.cancel_all_with_notice, "POST"),
        ("calculate_overall", api.calculate_overall, "POST"),
        ("get_indices", api.get_indices, "GET"),
        ("get_sessions", api.get_sessions, "GET"),
        ("worker_status", api.worker_status, "GET"),
        ("list_workers", api.list_workers, "GET"),
    ]
    for name, handler, method in routes:
        app.add_api_route(f"/api/{name}", handler, methods=[method])
    app.add_api_route("/healthz", api.healthz, methods=["GET"])
    app.add_exception_handler(SessionError, _refused)
    app.add_exception_handler(ValidationError, _malformed)
    app.add_exception_handler(TimeoutError, _late)
    app.add_exception_handler(Exception, _failed)
    if token is not None:
        app.middleware("http")(_require(token))
    return app


class _Api:
    def __init__(self, runner: Runner, cancelled: Cancelled | None) -> None:
        self._runner = runner
        self._cancelled = cancelled
        self._notices: set[asyncio.Task[None]] = set()

    async def start_sample(self, request: Request) -> Response:
        body = _Start.model_validate(await _json(request))
        self._check_name(body.name)
        named = body.session_id
        session_id, exchange = await self._runner.start(
            body.index,
            session_id=named if named is not None else _header_id(request),
            custom_task=body.custom_task,
            seed=body.seed,
            request_id=request.headers.get(REQUEST_ID_HEADER),
            deadline_s=_deadline_s(request),
        )
        wire = _wire(exchange)
        content = {**wire, "metric": wire["metrics"]} if named is not None else wire
        headers = {SESSION_HEADER: str(session_id), **_finish(exchange)}
        return _answer(content, request, headers=headers)

    async def interact(self, request: Request) -> Response:
        body = _Interact.model_validate(await _json(request))
        named = body.session_id
        session_id = _session_id(request, named)
        exchange = await self._runner.interact(
            session_id,
            body.messages,
            request_id=request.headers.get(REQUEST_ID_HEADER),
            deadline_s=_deadline_s(request),
        )
        wire = _wire(exchange)
        # A controller names the session in the body and expects the answer below `env_out`; an agent that
        # comes without one names it in a header and expects the controller's flat answer.
        if named is None:
            content = wire
        else:
            content = {"session_id": session_id, "env_out": {**wire, "metric": wire["metrics"]}}
        return _answer(content, request, headers=_finish(exchange))

    async def cancel(self, request: Request) -> None:
        await self._runner.cancel(await self._named(request))

    async def cancel_with_notice(self, request: Request) -> None:
        session_id = await self._named(request)
        self._runner.status(session_id)
        self._end_and_tell(session_id)

    async def cancel_all(self) -> None:
        await self._runner.cancel_all()

    async def cancel_all_with_notice(self) -> None:
        for session_id in list(self._runner.sessions):
            self._end_and_tell(session_id)

    def _end_and_tell(self, session_id: SessionId) -> None:
        """Answer at once; the notice follows when the episode has ended."""

        async def work() -> None:
            await self._runner.cancel(session_id)
            if self._cancelled is not None:
                await self._cancelled(session_id)

        task = asyncio.create_task(work())
        self._notices.add(task)
        task.add_done_callback(self._notices.discard)

    async def sample_status(self, request: Request) -> dict[str, Any]:
        session_id = await self._named(request)
        return {"session_id": session_id, "status": self._runner.status(session_id)}

    async def calculate_overall(self, request: Request) -> Any:
        body = _Overall.model_validate(await _json(request))
        return _answer(await call(self._runner.task.calculate_overall, body.results), request)

    async def get_indices(self, name: str | None = None, split: str | None = None) -> Any:
        self._check_name(name)
        splits = self._runner.samples.splits
        if split is None:
            return [index for indices in splits.values() for index in indices]
        if split not in splits:
            message = f"task `{self._runner.task.task_name}` has no split `{split}`; it has {sorted(splits)}"
            raise SessionError(message, code=ErrorCode.BAD_REQUEST)
        return splits[split]

    async def get_sessions(self) -> dict[str, Any]:
        return {str(session_id): index for session_id, index in self._runner.sessions.items()}

    async def worker_status(self) -> dict[str, int]:
        return {"concurrency": self._runner.concurrency, "current": len(self._runner.sessions)}

    async def list_workers(self, request: Request) -> dict[str, Any]:
        worker = {
            "id": 0,
            "address": str(request.base_url) + "api",
            "capacity": self._runner.concurrency,
            "current": len(self._runner.sessions),
            "last_visit": time.monotonic(),
            "status": WorkerStatus.ALIVE,
            "stale": self._runner.is_draining,
            "locked": False,
        }
        return {self._runner.task.task_name: {"indices": await self.get_indices(), "workers": {"0": worker}}}

    async def healthz(self) -> dict[str, str]:
        return {"status": "ok"}

    def _check_name(self, name: str | None) -> None:
        """Refuse what is meant for another task; a controller does not say which it means."""
        own = self._runner.task.task_name
        if name not in (None, own):
            message = f"this worker serves task `{own}`, not `{name}`"
            raise SessionError(message, code=ErrorCode.UNKNOWN_TASK)

    async def _named(self, request: Request) -> SessionId:
        return _session_id(request, _SessionName.model_validate(await _json(request)).session_id)


async def _json(request: Request) -> Any:
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > _MAX_BODY_BYTES:
            raise SessionError(f"the body exceeds {_MAX_BODY_BYTES} bytes", code=ErrorCode.BAD_REQUEST)
    try:
        return json.loads(body) if body.strip() else {}
    except (ValueError, RecursionError) as error:
        raise _NoJsonError(f"the body is no JSON: {error}") from error


class _NoJsonError(SessionError):
    def __init__(self, message: str) -> None:
        super().__init__(message, code=ErrorCode.BAD_REQUEST)


def _session_id(request: Request, named: SessionId | None) -> SessionId:
    session_id = named if named is not None else _header_id(request)
    if session_id is None:
        message = "name the session: `session_id` in the body, or the header of that name"
        raise SessionError(message, code=ErrorCode.BAD_REQUEST)
    return session_id


def _header_id(request: Request) -> SessionId | None:
    header = request.headers.get(SESSION_HEADER) or request.headers.get(SESSION_HEADER_ALIAS)
    return int(header) if header and _is_number(header) else header


def _finish(exchange: Exchange) -> dict[str, str]:
    return {FINISH_HEADER: "1" if exchange.finish else "0"}


def _deadline_s(request: Request) -> float | None:
    header = request.headers.get(DEADLINE_HEADER, "")
    return min(int(header), _LONGEST_DEADLINE_MS) / 1000.0 if _is_number(header) else None


def _is_number(header: str) -> bool:
    return header.isdecimal() and len(header) < 20


def _wire(exchange: Exchange) -> dict[str, Any]:
    tools = exchange.tools
    return {
        "messages": [message.to_wire() for message in exchange.messages],
        "tools": [tool.model_dump(mode="json") for tool in tools] if tools is not None else None,
        "status": exchange.status,
        "finish": exchange.finish,
        "reward": exchange.reward,
        "metrics": exchange.metrics,
    }


def _answer(
    content: Any, request: Request, *, http_status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    request_id = request.headers.get(REQUEST_ID_HEADER)
    echo = {} if request_id is None else {REQUEST_ID_HEADER: request_id}
    return Response(
        _encode(content), http_status, headers={**(headers or {}), **echo}, media_type="application/json"
    )


def _encode(content: Any) -> bytes:
    """Strict JSON of whatever a task reports."""
    try:
        return json.dumps(content, allow_nan=False).encode()
    except (TypeError, ValueError, RecursionError):
        return json.dumps(_plain(content), allow_nan=False).encode()


def _plain(value: Any, depth: int = 0) -> Any:
    """Numbers that are none become null, numpy's become plain, anything else that JSON lacks its text."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if depth == _DEEPEST:
        return "..."
    if isinstance(value, Mapping):
        return {str(key): _plain(inner, depth + 1) for key, inner in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(inner, depth + 1) for inner in value]
    if callable(getattr(value, "tolist", None)):
        return _plain(value.tolist(), depth + 1)
    return str(value)


def _error(request: Request, message: str, code: ErrorCode, http_status: int) -> Response:
    return _answer({"detail": message, "code": code}, request, http_status=http_status)


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, SessionError)
    http_status = 422 if isinstance(error, _NoJsonError) else _HTTP_STATUS.get(error.code, 400)
    return _error(request, str(error), error.code, http_status)


async def _malformed(request: Request, error: Exception) -> Response:
    assert isinstance(error, ValidationError)
    faults = "; ".join(f"`{'.'.join(map(str, fault['loc']))}`: {fault['msg']}" for fault in error.errors())
    return _error(request, faults, ErrorCode.BAD_REQUEST, 422)


async def _late(request: Request, error: Exception) -> Response:
    del error
    message = "the deadline passed; an exchange's answer is kept for the same request id"
    return _error(request, message, ErrorCode.DEADLINE_EXCEEDED, 504)


async def _failed(request: Request, error: Exception) -> Response:
    """What the worker did not foresee, a summary that its task cannot compute for example."""
    return _error(request, f"{type(error).__name__}: {error}", ErrorCode.WORKER_FAILED, 500)


def _require(token: str) -> Callable[..., Awaitable[Any]]:
    expected = f"Bearer {token}".encode()

    async def check(request: Request, proceed: Callable[[Request], Awaitable[Any]]) -> Any:
        given = request.headers.get("Authorization", "").encode()
        if request.url.path.startswith("/api/") and not secrets.compare_digest(given, expected):
            return _error(request, "the bearer token is missing or wrong", ErrorCode.UNAUTHORIZED, 401)
        return await proceed(request)

    return check

"""The dashboard: its page, its files, and what they show, as JSON and as a stream of changes."""

import asyncio
import contextlib
import hashlib
import mimetypes
import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.responses import StreamingResponse

from agentrl_controller import views
from agentrl_controller.controller import Controller
from agentrl_controller.conversations import Conversation
from agentrl_controller.history import History
from agentrl_controller.sessions import SessionState
from agentrl_controller.views import SessionFilter, View
from agentrl_controller.wire import encode
from agentrl_core import ErrorCode, SessionError

TICK_S = 1.0
"""How often a stream looks for changes."""
_LOOKS = 5
_PING_TICKS = 5
_GUARD = {
    "Content-Security-Policy": (
        "default-src 'self'; object-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}
_FRESH = {"Cache-Control": "no-store"}
_MEDIA_TYPES = {".js": "text/javascript", ".css": "text/css", ".html": "text/html", ".svg": "image/svg+xml"}


def add_dashboard(app: FastAPI, controller: Controller) -> None:
    """Add the dashboard's routes to an app that runs a controller.

    Its charts begin with the app's lifespan, or with the first request where a host mounts the app.
    """
    dashboard = _Dashboard(controller)
    for path, handler in {
        "/": dashboard.index,
        "/dashboard/{name}": dashboard.asset,
        "/api/dashboard/overview": dashboard.overview,
        "/api/dashboard/workers": dashboard.workers,
        "/api/dashboard/sessions": dashboard.sessions,
        "/api/dashboard/sessions/{session_id}": dashboard.session,
        "/api/dashboard/events": dashboard.events,
    }.items():
        app.add_api_route(path, handler, methods=["GET"], include_in_schema=False)
    inner = app.router.lifespan_context

    @contextlib.asynccontextmanager
    async def lifespan(running: FastAPI) -> AsyncIterator[Any]:
        async with inner(running) as state:
            dashboard.begin()
            try:
                yield state
            finally:
                await dashboard.end()

    app.router.lifespan_context = lifespan


@dataclass(frozen=True, slots=True)
class _Asset:
    content: bytes
    media_type: str
    etag: str


def _assets() -> dict[str, _Asset]:
    folder = files("agentrl_controller") / "dashboard"
    return {file.name: _asset(file.name, file.read_bytes()) for file in folder.iterdir() if file.is_file()}


def _asset(name: str, content: bytes) -> _Asset:
    suffix = name[name.rfind(".") :]
    media_type = _MEDIA_TYPES.get(suffix) or mimetypes.guess_type(name)[0] or "application/octet-stream"
    return _Asset(content, media_type, f'"{hashlib.blake2b(content, digest_size=12).hexdigest()}"')


class _Dashboard:
    def __init__(self, controller: Controller) -> None:
        self._controller = controller
        self._history = History()
        self._epoch = time.time() - time.monotonic()
        self._assets = _assets()
        self._sampling: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """Sample every second from now on."""
        if self._sampling is None or self._sampling.done():
            self._sampling = asyncio.create_task(self._sample())

    async def end(self) -> None:
        """Sample no more."""
        if self._sampling is not None:
            self._sampling.cancel()
            await asyncio.gather(self._sampling, return_exceptions=True)

    async def _sample(self) -> None:
        controller = self._controller
        while controller.is_running:
            self._history.sample(
                self._now(),
                controller.statistics.snapshot(),
                live=len(controller.sessions.live),
                waiting=views.waiting(controller),
            )
            await asyncio.sleep(TICK_S)

    def _now(self) -> float:
        return self._epoch + time.monotonic()

    async def index(self, request: Request) -> Response:
        """The page."""
        return self._file(request, "index.html")

    async def asset(self, request: Request, name: str) -> Response:
        """A file of the page."""
        return self._file(request, name)

    def _file(self, request: Request, name: str) -> Response:
        asset = self._assets.get(name)
        if asset is None:
            message = f"the dashboard has no file {name[:50]!r}"
            return _json({"message": message, "code": ErrorCode.BAD_REQUEST}, http_status=404)
        headers = {**_GUARD, "ETag": asset.etag, "Cache-Control": "no-cache"}
        if request.headers.get("If-None-Match") == asset.etag:
            return Response(status_code=304, headers=headers)
        return Response(asset.content, headers=headers, media_type=asset.media_type)

    async def overview(self, request: Request) -> Response:
        """Load, rates, latencies and tasks."""
        return self._shown(self._view_of(request, "overview"))

    async def workers(self, request: Request) -> Response:
        """Workers, found by `search`."""
        return self._shown(self._view_of(request, "workers"))

    async def sessions(self, request: Request) -> Response:
        """A page of sessions, found by `task`, `state`, `worker`, `search`; `cursor` and `limit` turn it."""
        return self._shown(self._view_of(request, "sessions"))

    async def session(self, request: Request, session_id: str) -> Response:
        """A session and its conversation from the entry `first` on."""
        return self._shown(self._session_view(session_id, request.query_params.get("first")))

    def _shown(self, view: Callable[[], View]) -> Response:
        self.begin()
        return _json({"now": self._now(), **view()})

    async def events(self, request: Request) -> Response:
        """Server-sent events: one of the views by `view` with its parameters, then what changes in it."""
        self.begin()
        view = self._view_of(request, request.query_params.get("view", "overview"))
        view()  # What is asked for wrongly is refused before the stream begins.
        headers = {**_GUARD, **_FRESH, "X-Accel-Buffering": "no"}
        return StreamingResponse(self._changes(view), headers=headers, media_type="text/event-stream")

    async def _changes(self, view: Callable[[], View]) -> AsyncIterator[bytes]:
        before: View = {}
        quiet = 0
        while self._controller.is_running:
            try:
                after = view()
            except SessionError as error:
                yield _event({"error": str(error), "code": error.code})
                return
            changes = views.changes(before, after)
            if changes:
                yield _event({"now": self._now(), **changes})
            elif quiet >= _PING_TICKS:
                yield b": all quiet\n\n"
            quiet = quiet + 1 if not changes and quiet < _PING_TICKS else 0
            before = after
            await self._tick()

    async def _tick(self) -> None:
        """Wait a second, or less where the controller stops: open streams must not hold up its end."""
        for _ in range(_LOOKS):
            if self._controller.is_running:
                await asyncio.sleep(TICK_S / _LOOKS)

    def _view_of(self, request: Request, name: str) -> Callable[[], View]:
        query = request.query_params
        controller, epoch = self._controller, self._epoch
        if name == "overview":
            return lambda: views.overview(controller, self._history)
        if name == "workers":
            search = query.get("search", "")
            return lambda: views.worker_list(controller, epoch=epoch, search=search)
        if name == "sessions":
            wanted, limit, cursor = _filter(query), _limit(query), query.get("cursor")
            return lambda: views.session_page(controller, wanted, epoch=epoch, cursor=cursor, limit=limit)
        if name == "session":
            return self._session_view(query.get("id", ""), query.get("first"))
        message = f"`view` must be overview, workers, sessions or session, got {name[:50]!r}"
        raise SessionError(message, code=ErrorCode.BAD_REQUEST)

    def _session_view(self, session_id: str, first: str | None) -> Callable[[], View]:
        controller, conversation = self._controller, Conversation()
        number = _number("id", session_id)
        # The window stays where it began, so that a growing conversation is not taken away at its top.
        num_entries = len(controller.transcripts.read(number))
        start = max(0, num_entries - views.MAX_ENTRIES) if first is None else _number("first", first)
        return lambda: views.session_detail(controller, number, conversation, epoch=self._epoch, first=start)


def _json(content: dict[str, Any], *, http_status: int = 200) -> Response:
    return Response(encode(content), http_status, _GUARD | _FRESH, media_type="application/json")


def _event(content: dict[str, Any]) -> bytes:
    return b"data: " + encode(content) + b"\n\n"


def _filter(query: Mapping[str, str]) -> SessionFilter:
    state = query.get("state")
    if state and state not in list(SessionState):
        known = ", ".join(SessionState)
        message = f"`state` must be one of {known}, got {state[:50]!r}"
        raise SessionError(message, code=ErrorCode.BAD_REQUEST)
    return SessionFilter(
        task=query.get("task"),
        state=SessionState(state) if state else None,
        worker=query.get("worker"),
        search=query.get("search", "").strip(),
    )


def _limit(query: Mapping[str, str]) -> int:
    limit = _number("limit", query.get("limit", "50"))
    if not 1 <= limit <= views.MAX_PAGE:
        message = f"`limit` must be from 1 to {views.MAX_PAGE}, got {limit}"
        raise SessionError(message, code=ErrorCode.BAD_REQUEST)
    return limit


def _number(name: str, text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) <= 16):
        raise SessionError(f"`{name}` must be a number, got {text[:50]!r}", code=ErrorCode.BAD_REQUEST)
    return int(text)

"""What every request passes first: who may do what, and how much of it; and the session routes themselves."""

from collections.abc import Awaitable, Callable, Mapping

from fastapi import Request
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from agentrl_controller.api.errors import Answer, BodyTooLargeError, refusal, respond
from agentrl_controller.api.requests import body_of, while_connected
from agentrl_controller.api.sessions import SessionRoutes
from agentrl_controller.config import Scope as TokenScope
from agentrl_controller.controller import Controller
from agentrl_core import ErrorCode, SessionError

_PUBLIC = ("/healthz", "/readyz")
_SCOPES = {
    **dict.fromkeys(("/api/receive_heartbeat", "/api/cancel_notice"), TokenScope.WORKER),
    **dict.fromkeys(("/api/get_indices", "/api/list_workers", "/api/version"), TokenScope.CLIENT),
}
"""What a route asks for; the session routes ask for themselves, and all others for `admin`."""

Handler = Callable[[Mapping[bytes, bytes], bytes, str], Awaitable[Answer]]


class Front:
    """Plain ASGI in front of the app, since its routing costs more than all else that a busy route does.

    Args:
        app: what answers every request that is none of a session's.
        controller: whose sessions they are.
        public: paths that need no token, beside the probes.

    Attributes:
        sessions: the session routes.
        fast_paths: their paths.
        max_body_bytes: largest body.
    """

    def __init__(self, app: ASGIApp, *, controller: Controller, public: tuple[str, ...] = ()) -> None:
        self._app = app
        self._controller = controller
        self._guard = controller.guard
        self._public = (*_PUBLIC, *public)
        self.max_body_bytes = controller.config.max_body_bytes
        sessions = self.sessions = SessionRoutes(controller, self._guard)
        self._routes: dict[str, Handler] = {
            "/api/start_sample": sessions.start_sample,
            "/api/interact": sessions.interact,
            "/api/cancel": sessions.cancel,
        }
        self.fast_paths = frozenset(path.encode() for path in self._routes)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        path = scope["path"].removeprefix(scope.get("root_path", ""))
        request = Request(scope, receive)
        headers = dict(scope["headers"])
        handler = self._routes.get(path) if scope["method"] == "POST" else None
        try:
            self._check_length(headers)
            if handler is not None:
                answer = await self._handle(handler, request, headers)
                await respond(request, answer)(scope, receive, send)
                return
            self._check(headers, path)
            if scope["method"] == "POST":
                receive = _again(await body_of(request, max_bytes=self.max_body_bytes), receive)
        except ClientDisconnect:
            return  # Nobody is left to be told.
        except (SessionError, ValueError) as error:
            await respond(request, self.refusal(error))(scope, receive, send)
            return
        await self._app(scope, receive, send)

    async def _handle(self, handler: Handler, request: Request, headers: Mapping[bytes, bytes]) -> Answer:
        body = await body_of(request, max_bytes=self.max_body_bytes)
        peer = request.client.host if request.client else ""
        work = handler(headers, body, peer)
        if handler == self.sessions.start_sample:
            return await while_connected(request, work)  # type: ignore[arg-type]
        return await work

    def refusal(self, error: Exception) -> Answer:
        """What a request is told that ended in an error, which is counted."""
        code = error.code if isinstance(error, SessionError) else ErrorCode.BAD_REQUEST
        self._controller.statistics.errors[code] += 1
        return refusal(error)

    def expire(self, session_id: int, limit_s: float, *, cancels: bool) -> SessionError:
        """The deadline of an exchange's caller passed; returns what it is told."""
        return self._controller.expire(session_id, limit_s, cancels=cancels)

    def _check(self, headers: Mapping[bytes, bytes], path: str) -> None:
        if path in self._public or path.startswith("/dashboard/"):
            self._guard.check_page(headers)
        else:
            self._guard.check(headers, _SCOPES.get(path, TokenScope.ADMIN))

    def _check_length(self, headers: Mapping[bytes, bytes]) -> None:
        length = headers.get(b"content-length", b"0")
        if len(length) > 15 or (length.isdigit() and int(length) > self.max_body_bytes):
            raise BodyTooLargeError(self.max_body_bytes)


def _again(body: bytes, receive: Receive) -> Receive:
    """Receives a body that has been read, then whatever else comes."""
    message: Message | None = {"type": "http.request", "body": body, "more_body": False}

    async def replay() -> Message:
        nonlocal message
        if message is None:
            return await receive()
        once, message = message, None
        return once

    return replay

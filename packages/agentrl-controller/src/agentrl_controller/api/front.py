"""What every request passes first: the token, the size of its body, and a short way to the busiest routes."""

import secrets
from collections.abc import Awaitable, Callable, Mapping

from fastapi import Request, Response
from pydantic import ValidationError
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Receive, Scope, Send

from agentrl_controller.api.errors import BodyTooLargeError, malformed, refused
from agentrl_core import ErrorCode, SessionError

_OPEN_PATHS = ("/healthz", "/readyz")

Handler = Callable[[Request], Awaitable[Response]]


class Front:
    """Plain ASGI in front of the app, since its routing costs more than all else that a busy route does.

    Args:
        app: what answers every other request.
        shortcuts: POST routes by path that are answered here.
        token: bearer token that a request must carry; None asks for none.
        max_body_bytes: largest body.
    """

    def __init__(
        self, app: ASGIApp, *, shortcuts: Mapping[str, Handler], token: str | None, max_body_bytes: int
    ) -> None:
        self._app = app
        self._shortcuts = shortcuts
        self._expected = f"Bearer {token}".encode() if token is not None else None
        self._limit = max_body_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        path = scope["path"].removeprefix(scope.get("root_path", ""))
        request = Request(scope, receive)
        try:
            self._check(request, path)
            shortcut = self._shortcuts.get(path) if scope["method"] == "POST" else None
            await (await shortcut(request) if shortcut else self._app)(scope, receive, send)
        except SessionError as error:
            await (await refused(request, error))(scope, receive, send)
        except ValidationError as error:
            await (await malformed(request, error))(scope, receive, send)
        except ClientDisconnect:
            return  # Nobody is left to be told.

    def _check(self, request: Request, path: str) -> None:
        """Whether a request may come in.

        Raises:
            SessionError: it may not.
        """
        if self._expected is not None and path not in _OPEN_PATHS:
            given = request.headers.get("Authorization", "").encode("latin-1")
            if not secrets.compare_digest(given, self._expected):
                message = "the bearer token is missing or wrong"
                raise SessionError(message, code=ErrorCode.UNAUTHORIZED)
        length = request.headers.get("Content-Length", "")
        if len(length) > len(str(self._limit)) or (length.isdecimal() and int(length) > self._limit):
            raise BodyTooLargeError(self._limit)

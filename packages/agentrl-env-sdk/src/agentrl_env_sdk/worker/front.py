"""What every HTTP request of a worker passes first: the token, the body's limit, a short way for its routes.

FastAPI's own way to a route costs several times what a short turn of a task does.
"""

import ipaddress
import secrets
from collections.abc import Iterable
from urllib.parse import parse_qsl, urlsplit

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from agentrl_core import (
    DEADLINE_HEADER,
    FINISH_HEADER,
    REQUEST_ID_HEADER,
    SESSION_HEADER,
    SESSION_HEADER_ALIAS,
    ErrorCode,
    SessionError,
)
from agentrl_env_sdk.worker.routes import Answer, Ask, Routes, refusal, refused
from agentrl_env_sdk.worker.runner import SessionId

MAX_BODY_BYTES = 100 * 2**20
_PREFIX = "/api/"
_LONGEST_DEADLINE_MS = 10**9
_SESSION, _ALIAS = SESSION_HEADER.lower().encode(), SESSION_HEADER_ALIAS.lower().encode()
_REQUEST_ID = REQUEST_ID_HEADER.lower().encode()
_DEADLINE = DEADLINE_HEADER.lower().encode()
_FINISH = FINISH_HEADER.lower().encode()
_JSON = (b"content-type", b"application/json")

Headers = dict[bytes, bytes]


class ClientGoneError(Exception):
    """The client left before its request was read."""


class Front:
    """Plain ASGI that answers a worker's routes itself, and hands on everything else.

    Args:
        app: what answers every request of no route.
        routes: the routes.
        token: bearer token that the routes and `/metrics` ask for.
        max_body_bytes: largest body.
    """

    def __init__(
        self,
        app: ASGIApp,
        routes: Routes,
        *,
        token: str | None = None,
        max_body_bytes: int = MAX_BODY_BYTES,
    ) -> None:
        self._app = app
        self._routes = routes
        self._paths = {
            (method, f"{_PREFIX}{name}"): (name, method == "POST") for name, method in routes.methods.items()
        }
        self._authorization = None if token is None else f"Bearer {token}".encode()
        self._max_body_bytes = max_body_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers: Headers = dict(scope["headers"])
        found = self._paths.get((scope["method"], scope["path"]))
        refused_as = self._check(scope, headers)
        if refused_as is not None:
            answer = refused_as
        elif found is None:
            await self._app(scope, receive, send)
            return
        else:
            try:
                answer = await self._answer(*found, scope, headers, receive)
            except ClientGoneError:
                return
        await _respond(answer, headers, send)

    async def _answer(
        self, name: str, has_body: bool, scope: Scope, headers: Headers, receive: Receive
    ) -> Answer:
        ask = _ask(headers)
        if has_body:
            try:
                ask.body = await self._body(headers, receive)
            except SessionError as error:
                return refused(error)
        else:
            ask.query = dict(parse_qsl(scope["query_string"].decode("latin-1")))
            ask.address = f"{scope['scheme']}://{headers.get(b'host', b'').decode('latin-1')}/api"
        return await self._routes.answer(name, ask)

    async def _body(self, headers: Headers, receive: Receive) -> bytes:
        length = headers.get(b"content-length", b"")
        if length.isdigit() and (len(length) > 15 or int(length) > self._max_body_bytes):
            raise self._too_large()
        message = await receive()
        if message["type"] == "http.request" and not message.get("more_body"):
            body = message.get("body", b"")
        else:
            body = await self._rest(message, receive)
        if len(body) > self._max_body_bytes:
            raise self._too_large()
        return body

    async def _rest(self, message: Message, receive: Receive) -> bytes:
        body = bytearray()
        while True:
            if message["type"] == "http.disconnect":
                raise ClientGoneError
            body += message.get("body", b"")
            if not message.get("more_body") or len(body) > self._max_body_bytes:
                return bytes(body)
            message = await receive()

    def _too_large(self) -> SessionError:
        return SessionError(f"the body exceeds {self._max_body_bytes} bytes", code=ErrorCode.BAD_REQUEST)

    def _check(self, scope: Scope, headers: Headers) -> Answer | None:
        """Refuse who has no token, and pages of other sites that a browser on this machine shows."""
        path = scope["path"]
        is_guarded = path.startswith(_PREFIX) or path == "/metrics"
        if not is_guarded:
            return None
        expected = self._authorization
        if expected is not None and not secrets.compare_digest(headers.get(b"authorization", b""), expected):
            return refusal("the bearer token is missing or wrong", ErrorCode.UNAUTHORIZED, 401)
        origin = headers.get(b"origin")
        if origin is not None and _host(origin) != headers.get(b"host"):
            return refusal("pages of other sites may not ask a worker", ErrorCode.UNAUTHORIZED, 403)
        if origin is not None and expected is None and _may_be_rebound(origin):
            # Its owner may have had the name point to this machine after a browser loaded the page.
            message = "a page may ask a worker without a token by an address or a name without dots alone"
            return refusal(message, ErrorCode.UNAUTHORIZED, 403)
        return None


def _may_be_rebound(origin: bytes) -> bool:
    """Whether the site is a public name, which can be made to mean any address."""
    name = urlsplit(origin.decode("latin-1")).hostname or ""
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return "." in name.rstrip(".")
    return False


def _host(origin: bytes) -> bytes:
    return urlsplit(origin.decode("latin-1")).netloc.encode("latin-1")


def _ask(headers: Headers) -> Ask:
    request_id = headers.get(_REQUEST_ID)
    return Ask(
        session_id=_session_id(headers.get(_SESSION) or headers.get(_ALIAS)),
        request_id=None if request_id is None else request_id.decode("latin-1"),
        deadline_s=_deadline_s(headers.get(_DEADLINE)),
    )


def _session_id(given: bytes | None) -> SessionId | None:
    if given is None:
        return None
    return int(given) if _is_number(given) else given.decode("latin-1")


def _deadline_s(given: bytes | None) -> float | None:
    if given is None or not _is_number(given):
        return None
    return min(int(given), _LONGEST_DEADLINE_MS) / 1000.0


def _is_number(given: bytes) -> bool:
    return given.isdigit() and len(given) < 20


def _headers(answer: Answer, asked: Headers) -> Iterable[tuple[bytes, bytes]]:
    yield _JSON
    yield b"content-length", b"%d" % len(answer.body)
    if answer.session_id is not None:
        yield _SESSION, str(answer.session_id).encode("latin-1", "replace")
    if answer.finish is not None:
        yield _FINISH, b"1" if answer.finish else b"0"
    if (request_id := asked.get(_REQUEST_ID)) is not None:
        yield _REQUEST_ID, request_id


async def _respond(answer: Answer, asked: Headers, send: Send) -> None:
    headers = list(_headers(answer, asked))
    await send({"type": "http.response.start", "status": answer.http_status, "headers": headers})
    await send({"type": "http.response.body", "body": answer.body})

"""Answers and refusals as HTTP responses; a refusal is always `{"message", "code"}`."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError
from starlette.exceptions import HTTPException

from agentrl_controller.admission import NoSlotError
from agentrl_controller.guard import ForbiddenError
from agentrl_controller.wire import encode
from agentrl_core import REQUEST_ID_HEADER, ErrorCode, SessionError

POSITION_HEADER = "X-Queue-Position"
"""Place in line of a start that got no slot."""

_HTTP_STATUS = {
    ErrorCode.UNAUTHORIZED: 401,
    ErrorCode.SESSION_BUSY: 409,
    ErrorCode.NO_CAPACITY: 503,
    ErrorCode.WORKER_LOST: 500,
    ErrorCode.WORKER_FAILED: 500,
    ErrorCode.INTERNAL: 500,
    ErrorCode.DEADLINE_EXCEEDED: 504,
}
"""Whatever else is refused is 400, as on the published wire."""


class Answer(NamedTuple):
    """A JSON response."""

    body: bytes
    """JSON."""
    http_status: int = 200
    """HTTP status."""
    headers: Mapping[str, str] = {}
    """Further headers."""


class BodyTooLargeError(SessionError):
    """A request body exceeds the limit."""

    def __init__(self, limit_bytes: int) -> None:
        super().__init__(f"the body has more than {limit_bytes} bytes", code=ErrorCode.BAD_REQUEST)


def refusal(error: Exception) -> Answer:
    """What a request is told that ended in an error."""
    if isinstance(error, ValidationError | RequestValidationError):
        faults = "; ".join(
            f"`{'.'.join(map(str, fault['loc'])) or 'body'}`: {fault['msg']}" for fault in error.errors()
        )
        error = SessionError(faults, code=ErrorCode.BAD_REQUEST)
    if not isinstance(error, SessionError):
        # The server logs it; the client need not know its insides.
        message = f"the controller failed with {type(error).__name__}; its log says where"
        error = SessionError(message, code=ErrorCode.INTERNAL)
    headers = {} if error.retry_after_s is None else {"Retry-After": f"{error.retry_after_s:g}"}
    content: dict[str, Any] = {"message": str(error), "code": error.code}
    if isinstance(error, NoSlotError):
        content["position"] = error.position
        headers[POSITION_HEADER] = str(error.position)
    if error.code is ErrorCode.UNAUTHORIZED:
        headers["WWW-Authenticate"] = "Bearer"
    return Answer(encode(content), _status(error), headers)


def _status(error: SessionError) -> int:
    if isinstance(error, BodyTooLargeError):
        return 413
    return 403 if isinstance(error, ForbiddenError) else _HTTP_STATUS.get(error.code, 400)


def respond(request: Request, answer: Answer) -> Response:
    """A JSON response that echoes the request's id."""
    request_id = request.headers.get(REQUEST_ID_HEADER)
    echo = {} if request_id is None else {REQUEST_ID_HEADER: request_id}
    return Response(
        answer.body, answer.http_status, {**answer.headers, **echo}, media_type="application/json"
    )


async def refused(request: Request, error: Exception) -> Response:
    """What the controller refuses on purpose, what is malformed, and what nobody foresaw."""
    return respond(request, refusal(error))


async def no_route(request: Request, error: Exception) -> Response:
    """Paths and methods that do not exist."""
    assert isinstance(error, HTTPException)
    message = f"{request.method} {request.url.path}: {error.detail}; /docs lists the routes"
    body = encode({"message": message, "code": ErrorCode.BAD_REQUEST})
    return respond(request, Answer(body, error.status_code, error.headers or {}))


HANDLERS: dict[Any, Any] = {
    SessionError: refused,
    ValidationError: refused,
    RequestValidationError: refused,
    HTTPException: no_route,
    Exception: refused,
}
"""Who answers which error."""

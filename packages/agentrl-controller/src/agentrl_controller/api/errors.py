"""Refusals as HTTP responses: always `{"message", "code"}`."""

from collections.abc import Mapping
from typing import Any

from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError
from starlette.exceptions import HTTPException

from agentrl_controller.wire import encode
from agentrl_core import REQUEST_ID_HEADER, ErrorCode, SessionError

_HTTP_STATUS = {
    ErrorCode.UNAUTHORIZED: 401,
    ErrorCode.SESSION_BUSY: 409,
    ErrorCode.NO_CAPACITY: 503,
    ErrorCode.WORKER_LOST: 500,
    ErrorCode.WORKER_FAILED: 500,
    ErrorCode.DEADLINE_EXCEEDED: 504,
}
"""Whatever else is refused is 400, as on the published wire."""


class BodyTooLargeError(SessionError):
    """A request body exceeds the limit."""

    def __init__(self, limit_bytes: int) -> None:
        super().__init__(f"the body has more than {limit_bytes} bytes", code=ErrorCode.BAD_REQUEST)


def answer(
    request: Request, body: bytes, *, http_status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    """A JSON response that echoes the request's id."""
    request_id = request.headers.get(REQUEST_ID_HEADER)
    echo = {} if request_id is None else {REQUEST_ID_HEADER: request_id}
    return Response(body, http_status, {**(headers or {}), **echo}, media_type="application/json")


async def refused(request: Request, error: Exception) -> Response:
    """What the controller refuses on purpose."""
    assert isinstance(error, SessionError)
    http_status = 413 if isinstance(error, BodyTooLargeError) else _HTTP_STATUS.get(error.code, 400)
    headers = {} if error.retry_after_s is None else {"Retry-After": f"{error.retry_after_s:g}"}
    body = encode({"message": str(error), "code": error.code})
    return answer(request, body, http_status=http_status, headers=headers)


async def malformed(request: Request, error: Exception) -> Response:
    """Fields that are missing or wrong."""
    assert isinstance(error, ValidationError | RequestValidationError)
    faults = "; ".join(f"`{'.'.join(map(str, fault['loc']))}`: {fault['msg']}" for fault in error.errors())
    return await refused(request, SessionError(faults, code=ErrorCode.BAD_REQUEST))


async def no_route(request: Request, error: Exception) -> Response:
    """Paths and methods that do not exist."""
    assert isinstance(error, HTTPException)
    message = f"{request.method} {request.url.path}: {error.detail}; /docs lists the routes"
    body = encode({"message": message, "code": ErrorCode.BAD_REQUEST})
    return answer(request, body, http_status=error.status_code, headers=error.headers)


async def failed(request: Request, error: Exception) -> Response:
    """What nobody foresaw; the server logs it, the client need not know its insides."""
    message = f"the controller failed with {type(error).__name__}; its log says where"
    body = encode({"message": message, "code": ErrorCode.WORKER_FAILED})
    return answer(request, body, http_status=500)


HANDLERS: dict[Any, Any] = {
    SessionError: refused,
    ValidationError: malformed,
    RequestValidationError: malformed,
    HTTPException: no_route,
    Exception: failed,
}
"""Who answers which error."""

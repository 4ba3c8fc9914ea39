"""What requests carry: body, session, deadline. Header names are lower-case bytes."""

import asyncio
from collections.abc import Coroutine, Mapping
from typing import Any, TypeVar

from fastapi import Request

from agentrl_controller.api.errors import BodyTooLargeError
from agentrl_controller.wire import decode
from agentrl_core import (
    DEADLINE_HEADER,
    ON_DEADLINE_HEADER,
    REQUEST_ID_HEADER,
    SESSION_HEADER,
    SESSION_HEADER_ALIAS,
    ErrorCode,
    SessionError,
)

Headers = Mapping[bytes, bytes]

_SESSION, _ALIAS, _REQUEST_ID, _DEADLINE, _ON_DEADLINE = (
    name.lower().encode()
    for name in (
        *(SESSION_HEADER, SESSION_HEADER_ALIAS),
        *(REQUEST_ID_HEADER, DEADLINE_HEADER, ON_DEADLINE_HEADER),
    )
)
_MAX_DIGITS = 16
_ON_DEADLINE_VALUES = (b"continue", b"cancel")

_T = TypeVar("_T")


async def body_of(request: Request, *, max_bytes: int) -> bytes:
    """The body, read no further than the limit.

    Raises:
        SessionError: it is too large.
    """
    chunks: list[bytes] = []
    size = 0
    async for chunk in request.stream():
        size += len(chunk)
        if size > max_bytes:
            raise BodyTooLargeError(max_bytes)
        chunks.append(chunk)
    return b"".join(chunks)


def parsed(body: bytes) -> Any:
    """The parsed body; an empty one is an empty object.

    Raises:
        SessionError: it is no JSON.
    """
    try:
        return decode(body)
    except ValueError as error:
        raise SessionError(f"the body is no JSON: {error}", code=ErrorCode.BAD_REQUEST) from error


def session_id_of(headers: Headers) -> int:
    """The session that a request names.

    Raises:
        SessionError: it names none.
    """
    header = headers.get(_SESSION) or headers.get(_ALIAS) or b""
    if not (header.isdigit() and len(header) <= _MAX_DIGITS):
        shown = header[:50].decode("latin-1")
        message = f"the header `{SESSION_HEADER}` must hold a session's number, got {shown!r}"
        raise SessionError(message, code=ErrorCode.BAD_REQUEST)
    return int(header)


def request_id_of(headers: Headers) -> str | None:
    """The identity of a request, where it has one."""
    header = headers.get(_REQUEST_ID)
    return header.decode("latin-1") if header is not None else None


def trace_of(headers: Headers) -> str | None:
    """The caller's place in a trace, where it has one."""
    header = headers.get(b"traceparent")
    return header.decode("latin-1") if header is not None else None


def deadline_s_of(headers: Headers) -> float | None:
    """How long the caller waits; None where it does not say.

    Raises:
        SessionError: it says so unclearly.
    """
    header = headers.get(_DEADLINE)
    if header is None:
        return None
    if not (header.isdigit() and len(header) <= _MAX_DIGITS) or int(header) == 0:
        shown = header[:50].decode("latin-1")
        message = f"the header `{DEADLINE_HEADER}` must be a positive number of milliseconds, got {shown!r}"
        raise SessionError(message, code=ErrorCode.BAD_REQUEST)
    return int(header) / 1000.0


def cancels(headers: Headers) -> bool:
    """Whether the session ends when the deadline passes.

    Raises:
        SessionError: the caller says so unclearly.
    """
    header = headers.get(_ON_DEADLINE)
    if header is None:
        return False
    if header not in _ON_DEADLINE_VALUES:
        shown = header[:50].decode("latin-1")
        message = f"the header `{ON_DEADLINE_HEADER}` must be continue or cancel, got {shown!r}"
        raise SessionError(message, code=ErrorCode.BAD_REQUEST)
    return header == b"cancel"


async def while_connected(request: Request, work: Coroutine[Any, Any, _T]) -> _T:
    """Do work for as long as the client stays; it is cancelled when the client goes away.

    The request's body must have been read.
    """
    working = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_gone(request))
    try:
        await asyncio.wait((working, gone), return_when=asyncio.FIRST_COMPLETED)
    finally:
        gone.cancel()
        if not working.done():
            working.cancel()
    return await working


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass

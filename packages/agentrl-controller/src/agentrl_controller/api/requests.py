"""What requests carry: body, session, deadline."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from fastapi import Request

from agentrl_controller.api.errors import BodyTooLargeError
from agentrl_controller.wire import decode
from agentrl_core import DEADLINE_HEADER, SESSION_HEADER, SESSION_HEADER_ALIAS, ErrorCode, SessionError

_MAX_DIGITS = 16

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


async def json_of(request: Request, *, max_bytes: int) -> Any:
    """The parsed body; an empty one is an empty object.

    Raises:
        SessionError: it is too large or no JSON.
    """
    try:
        return decode(await body_of(request, max_bytes=max_bytes))
    except ValueError as error:
        raise SessionError(f"the body is no JSON: {error}", code=ErrorCode.BAD_REQUEST) from error


def session_id_of(request: Request) -> int:
    """The session that a request names.

    Raises:
        SessionError: it names none.
    """
    header = request.headers.get(SESSION_HEADER) or request.headers.get(SESSION_HEADER_ALIAS) or ""
    if not _is_number(header):
        message = f"the header `{SESSION_HEADER}` must hold a session's number, got {header[:50]!r}"
        raise SessionError(message, code=ErrorCode.BAD_REQUEST)
    return int(header)


def deadline_s_of(request: Request) -> float | None:
    """How long the caller waits; None where it does not say.

    Raises:
        SessionError: it says so unclearly.
    """
    header = request.headers.get(DEADLINE_HEADER)
    if header is None:
        return None
    if not _is_number(header) or int(header) == 0:
        message = (
            f"the header `{DEADLINE_HEADER}` must be a positive number of milliseconds, got {header[:50]!r}"
        )
        raise SessionError(message, code=ErrorCode.BAD_REQUEST)
    return int(header) / 1000.0


def _is_number(header: str) -> bool:
    return header.isascii() and header.isdecimal() and len(header) <= _MAX_DIGITS


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

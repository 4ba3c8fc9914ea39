"""The session routes as OpenAPI describes them; the front answers them before FastAPI sees them."""

from typing import Annotated, Any

from fastapi import FastAPI, Header, Response

from agentrl_core import InteractRequest, Reply, StartRequest

_Session = Annotated[int, Header(alias="session_id", description="The session; `session-id` means the same.")]
_RequestId = Annotated[
    str | None,
    Header(alias="X-Request-Id", description="A repeated id gets the answer of the first request."),
]
_Deadline = Annotated[
    int | None, Header(alias="X-Deadline-Ms", ge=1, description="How long the caller waits, in milliseconds.")
]
_OnDeadline = Annotated[
    str | None,
    Header(alias="X-On-Deadline", pattern="^(continue|cancel)$", description="What becomes of it."),
]
_Client = Annotated[str | None, Header(alias="X-Client-Id", description="Who asks, for its turn in line.")]
_REFUSALS: dict[int | str, dict[str, Any]] = {
    400: {"description": "Malformed, or an unknown task, sample or session"},
    401: {"description": "The token is missing or wrong"},
    403: {"description": "The token lacks the scope, or another web page asks"},
    409: {"description": "Another request of the session is running"},
    413: {"description": "The body is too large"},
    500: {"description": "The worker failed or is lost"},
    503: {"description": "No slot came free in time; `Retry-After` says when to ask again"},
    504: {"description": "The deadline passed"},
}


def describe_sessions(app: FastAPI) -> None:
    """Add the session routes to an app's description."""
    for path, handler in (
        ("/api/start_sample", start_sample),
        ("/api/interact", interact),
        ("/api/cancel", cancel),
    ):
        app.add_api_route(path, handler, methods=["POST"], responses=_REFUSALS)


async def start_sample(
    body: StartRequest,
    response: Response,
    request_id: _RequestId = None,
    deadline_ms: _Deadline = None,
    client: _Client = None,
) -> Reply:
    """Open a session, waiting in line for a slot; the answer's header `session_id` names it."""
    raise _answered(body, response, request_id, deadline_ms, client)


async def interact(
    body: InteractRequest,
    session_id: _Session,
    request_id: _RequestId = None,
    deadline_ms: _Deadline = None,
    on_deadline: _OnDeadline = None,
) -> Reply:
    """Send messages to a session and wait for the environment's answer."""
    raise _answered(body, session_id, request_id, deadline_ms, on_deadline)


async def cancel(session_id: _Session) -> None:
    """End a session; nothing happens to one that has ended."""
    raise _answered(session_id)


def _answered(*_: object) -> RuntimeError:
    return RuntimeError("the front answers the session routes")

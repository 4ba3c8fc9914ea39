"""The session routes as OpenAPI describes them; the front answers them before FastAPI sees them."""

from typing import Annotated, Any

from fastapi import FastAPI, Header, Response
from pydantic import BaseModel

from agentrl_core import ErrorCode, InteractRequest, Reply, StartRequest

SessionHeader = Annotated[
    int,
    Header(
        alias="session_id",
        convert_underscores=False,
        ge=0,
        lt=2**53,
        description="The session; `session-id` too.",
    ),
]
"""Header that names a session."""
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


class Refusal(BaseModel):
    """Why a request was refused or failed."""

    message: str
    """For people."""
    code: ErrorCode
    """For programs."""
    position: int | None = None
    """Place in line of a start that got no slot."""


REFUSALS: dict[int | str, dict[str, Any]] = {
    "4XX": {"model": Refusal, "description": "Refused: the request is wrong, or may not be made now."},
    "5XX": {"model": Refusal, "description": "The worker failed, no slot came free, or the deadline passed."},
}
"""How every route refuses."""


def describe_sessions(app: FastAPI) -> None:
    """Add the session routes to an app's description."""
    for path, handler in (
        ("/api/start_sample", start_sample),
        ("/api/interact", interact),
        ("/api/cancel", cancel),
    ):
        app.add_api_route(path, handler, methods=["POST"])


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
    session_id: SessionHeader,
    request_id: _RequestId = None,
    deadline_ms: _Deadline = None,
    on_deadline: _OnDeadline = None,
) -> Reply:
    """Send messages to a session and wait for the environment's answer."""
    raise _answered(body, session_id, request_id, deadline_ms, on_deadline)


async def cancel(session_id: SessionHeader) -> None:
    """End a session; nothing happens to one that has ended."""
    raise _answered(session_id)


def _answered(*_: object) -> RuntimeError:
    return RuntimeError("the front answers the session routes")

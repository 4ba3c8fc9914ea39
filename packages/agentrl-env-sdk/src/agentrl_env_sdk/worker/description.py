"""The worker's routes as OpenAPI describes them; the front answers them before FastAPI sees them."""

from typing import Annotated, Any

from fastapi import FastAPI, Header, Response
from pydantic import BaseModel, Field

from agentrl_core import ErrorCode, Reply, SampleIndex, SampleStatus, TaskInfo
from agentrl_env_sdk.worker.routes import (
    ForkBody,
    InteractBody,
    OverallBody,
    Routes,
    SessionBody,
    StartBody,
)

_Session = Annotated[
    int | str | None,
    Header(alias="session_id", convert_underscores=False, description="The session; `session-id` too."),
]
_RequestId = Annotated[
    str | None,
    Header(alias="X-Request-Id", description="A repeated id gets the answer of the first request."),
]
_Deadline = Annotated[
    int | None, Header(alias="X-Deadline-Ms", ge=1, description="How long the caller waits, in milliseconds.")
]


class Refusal(BaseModel):
    """Why a request was refused or failed."""

    detail: str
    """For people."""
    code: ErrorCode
    """For programs."""


class WorkerReply(Reply):
    """Answer to an exchange."""

    metric: dict[str, Any] = Field(default_factory=dict)
    """`metrics` by the published name, where the body named the session."""


class EnvOut(BaseModel):
    """Answer to an exchange whose body named the session."""

    session_id: int | str
    """The session."""
    env_out: WorkerReply
    """What the environment says."""


class WorkerState(BaseModel):
    """How busy the worker is."""

    concurrency: int
    """Episodes at the same time."""
    current: int
    """Episodes that are being played."""


class SessionState(BaseModel):
    """State of an episode."""

    session_id: int | str
    """The episode."""
    status: SampleStatus
    """How it stands, or how it ended."""


REFUSALS: dict[int | str, dict[str, Any]] = {
    "4XX": {"model": Refusal, "description": "Refused: the request is wrong, or may not be made now."},
    "5XX": {"model": Refusal, "description": "The task failed, or the deadline passed."},
}
"""How every route refuses."""


def describe(app: FastAPI, routes: Routes) -> None:
    """Add the routes to an app's description."""
    described = (
        *(start_sample, interact, fork, cancel, cancel_with_notice, sample_status, cancel_all),
        *(cancel_all_with_notice, calculate_overall, get_indices, get_sessions, worker_status, list_workers),
    )
    for handler in described:
        name = handler.__name__
        app.add_api_route(f"/api/{name}", handler, methods=[routes.methods[name]], responses=REFUSALS)


async def start_sample(
    body: StartBody,
    response: Response,
    session_id: _Session = None,
    request_id: _RequestId = None,
    deadline_ms: _Deadline = None,
) -> WorkerReply:
    """Begin an episode; the answer's header `session_id` names it."""
    raise _answered(body, response, session_id, request_id, deadline_ms)


async def interact(
    body: InteractBody,
    session_id: _Session = None,
    request_id: _RequestId = None,
    deadline_ms: _Deadline = None,
) -> WorkerReply | EnvOut:
    """Hand an agent's messages to an episode and wait for the environment's answer."""
    raise _answered(body, session_id, request_id, deadline_ms)


async def fork(
    body: ForkBody,
    session_id: _Session = None,
    request_id: _RequestId = None,
    deadline_ms: _Deadline = None,
) -> WorkerReply:
    """Begin another episode where one stands, if its task makes snapshots."""
    raise _answered(body, session_id, request_id, deadline_ms)


async def cancel(body: SessionBody, session_id: _Session = None) -> None:
    """End an episode, and answer when it has ended."""
    raise _answered(body, session_id)


async def cancel_with_notice(body: SessionBody, session_id: _Session = None) -> None:
    """End an episode; answered at once, and its end is told to the controller."""
    raise _answered(body, session_id)


async def sample_status(body: SessionBody, session_id: _Session = None) -> SessionState:
    """State of an episode."""
    raise _answered(body, session_id)


async def cancel_all() -> None:
    """End every episode."""
    raise _answered()


async def cancel_all_with_notice() -> None:
    """End every episode; answered at once, and each end is told to the controller."""
    raise _answered()


async def calculate_overall(body: OverallBody) -> Any:
    """A summary of results, by the task."""
    raise _answered(body)


async def get_indices(name: str | None = None, split: str | None = None) -> list[SampleIndex]:
    """Every sample of the task, or of a split."""
    raise _answered(name, split)


async def get_sessions() -> dict[str, SampleIndex]:
    """Sample of each episode that is being played."""
    raise _answered()


async def worker_status() -> WorkerState:
    """How busy the worker is."""
    raise _answered()


async def list_workers() -> dict[str, TaskInfo]:
    """The task and this worker, as a controller lists them."""
    raise _answered()


def _answered(*_: object) -> RuntimeError:
    return RuntimeError("the front answers the worker's routes")

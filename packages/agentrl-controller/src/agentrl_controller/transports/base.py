"""What the controller asks of a task worker, whatever carries it."""

import asyncio
from dataclasses import dataclass
from typing import Protocol

from agentrl_core import AgentRLError


@dataclass(slots=True)
class Call:
    """A request to a worker's API."""

    address: str
    """The worker's, as its heartbeats give it: `http://host:port/api` or `grpc://id`."""
    route: str
    """Name of the route, such as `interact`."""
    body: bytes = b""
    """JSON; nothing where the route takes nothing."""
    timeout_s: float = 5.0
    """Longest wait for the answer."""
    method: str = "POST"
    """HTTP method."""
    session_id: int | None = None
    """Session that the body does not name, for workers that take the controller's own bodies."""
    request_id: str | None = None
    """Identity of the request; a repeated one may get the same answer again."""
    deadline_s: float | None = None
    """Longest wait that the worker is told; `timeout_s` where it is absent."""
    headers: tuple[tuple[str, str], ...] = ()
    """Further headers."""


@dataclass(slots=True)
class WorkerReply:
    """A worker's answer, good or bad, as it came."""

    http_status: int
    """200, or the worker's refusal."""
    body: bytes
    """JSON."""
    finish: bool | None = None
    """Whether it ends the session, where the worker says so outside the body."""
    session_id: int | None = None
    """The session that it began, where it is another controller's."""


class WorkerError(AgentRLError):
    """A worker did not do what it was asked.

    Attributes:
        http_status: what it answered; None where no answer came.
        code: the class of failure that it named, if it did.
        unreachable: whether it takes no connections, so that it has not seen the request.
    """

    def __init__(
        self,
        message: str,
        *,
        http_status: int | None = None,
        code: str | None = None,
        unreachable: bool = False,
    ) -> None:
        super().__init__(message)
        self.http_status = http_status
        self.code = code
        self.unreachable = unreachable


class Transport(Protocol):
    """Carries calls to workers; as many at once as sessions need."""

    async def send(self, call: Call) -> WorkerReply:
        """Make a call once and return what the worker answered, a refusal too.

        Raises:
            WorkerError: it is unreachable or broke off, so no answer came.
            SessionError: this machine has no descriptors left.
            TimeoutError: no answer in time.
        """
        ...

    def try_send(self, call: Call) -> "asyncio.Future[WorkerReply] | None":
        """Make a call at once, if that is possible without waiting; the future holds what `send` returns or
        raises."""
        ...

    async def close(self) -> None:
        """Let go of every connection."""
        ...

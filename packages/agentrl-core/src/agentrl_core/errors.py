"""What can go wrong between an agent and its environment, as types and wire codes."""

from enum import StrEnum


class ErrorCode(StrEnum):
    """Machine-readable class of an error, sent beside the message in every error body."""

    BAD_REQUEST = "bad_request"
    """The request is malformed; sending it again cannot help."""
    UNAUTHORIZED = "unauthorized"
    """The token is missing, wrong or lacks the scope."""
    UNKNOWN_TASK = "unknown_task"
    """No worker serves a task of this name."""
    UNKNOWN_INDEX = "unknown_index"
    """The task has no sample of this index."""
    UNKNOWN_SESSION = "unknown_session"
    """The session never existed or is no longer kept."""
    SESSION_BUSY = "session_busy"
    """Another request of the same session is running."""
    SESSION_FINISHED = "session_finished"
    """The session has ended and takes no more messages."""
    NO_CAPACITY = "no_capacity"
    """Every worker of the task is full; try again after `Retry-After` seconds."""
    WORKER_LOST = "worker_lost"
    """The worker that held the session died."""
    WORKER_FAILED = "worker_failed"
    """The worker answered with an error that is not the caller's fault."""
    DEADLINE_EXCEEDED = "deadline_exceeded"
    """The caller's deadline passed before an answer came."""
    CANCELLED = "cancelled"
    """Somebody cancelled the session while the request waited."""
    INTERNAL = "internal"
    """The controller itself failed; its log says where."""
    UNREACHABLE = "unreachable"
    """No connection to the server; only the client reports this one."""


class AgentRLError(Exception):
    """Base of every error that AgentRL raises on purpose."""


class ConfigError(AgentRLError):
    """A setting is wrong; the message gives the value, the rule and the way out."""


class SessionError(AgentRLError):
    """A session request failed.

    Attributes:
        code: the class of the failure.
        retry_after_s: seconds to wait before another try, where the server named them.
    """

    def __init__(self, message: str, *, code: ErrorCode, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.retry_after_s = retry_after_s

"""The session wire: what agents, controllers and task workers send each other.

A session is one episode of one sample of a task. `start_sample` opens it and brings the first
messages and the tools; each `interact` takes the agent's new messages and brings the environment's
answer, until a reply says `finish`.
"""

from enum import StrEnum
from typing import Any

from pydantic import AliasChoices, BaseModel, ConfigDict, Field

from agentrl_core.messages import Message
from agentrl_core.tools import Tool

SESSION_HEADER = "session_id"
"""Header that names the session, as published clients send it."""
SESSION_HEADER_ALIAS = "session-id"
"""The same without an underscore, for proxies that drop headers with one."""
REQUEST_ID_HEADER = "X-Request-Id"
"""A repeated id gets the stored answer of the first request."""
DEADLINE_HEADER = "X-Deadline-Ms"
"""Milliseconds that the caller is willing to wait from now on."""
ON_DEADLINE_HEADER = "X-On-Deadline"
"""What an exchange whose deadline passes does to its session: `continue` (the default) or `cancel`."""
CLIENT_HEADER = "X-Client-Id"
"""Who asks; starts of several clients get their turns fairly."""
FINISH_HEADER = "X-Session-Finish"
"""On a native worker's answers: `1` with a session's last one, else `0`."""

SampleIndex = int | str
"""Identity of a sample within its task; -1 stands for a custom task."""

CUSTOM_INDEX = -1
"""The index that goes with `custom_task`."""


class SampleStatus(StrEnum):
    """State of a session as task workers report it (the published values)."""

    RUNNING = "running"
    COMPLETED = "completed"
    AGENT_CONTEXT_LIMIT = "agent context limit"
    AGENT_VALIDATION_FAILED = "agent validation failed"
    AGENT_INVALID_ACTION = "agent invalid action"
    TASK_LIMIT_REACHED = "task limit reached"
    UNKNOWN = "unknown"
    TASK_ERROR = "task error"
    CANCELLED = "cancelled"


class WorkerStatus(StrEnum):
    """Liveness of a task worker as the controller sees it."""

    ALIVE = "ALIVE"
    COMA = "COMA"
    DEAD = "DEAD"


class _Request(BaseModel):
    model_config = ConfigDict(extra="ignore")


class StartRequest(_Request):
    """Body of `start_sample`, from an agent to the controller."""

    name: str
    """Task name."""
    index: SampleIndex = CUSTOM_INDEX
    """Which sample; -1 with `custom_task`."""
    custom_task: Any = None
    """A sample of the caller's own instead of one of the task's."""
    seed: int | None = None
    """Seed for the episode's randomness; the task picks one where it is absent."""
    group_id: str | None = None
    """Episodes of one group compare with each other; a hint for placement."""


class InteractRequest(_Request):
    """Body of `interact`, from an agent to the controller."""

    messages: list[Message]
    """The agent's new messages, usually one assistant message."""


class Reply(BaseModel):
    """Answer to `start_sample` and `interact`; workers say `metric`, the controller `metrics`."""

    # An infinite or undefined reward would poison the whole batch it is trained in.
    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False)

    messages: list[Message] = Field(default_factory=list)
    """What the environment says since the last exchange."""
    tools: list[Tool] | None = None
    """The tools, on start and whenever they change."""
    status: SampleStatus = SampleStatus.RUNNING
    """State of the session after this exchange."""
    finish: bool = False
    """Whether the session has ended."""
    reward: float = 0.0
    """Reward earned since the last exchange."""
    metrics: dict[str, Any] = Field(default_factory=dict, validation_alias=AliasChoices("metrics", "metric"))
    """Numbers about the episode; `score` is the headline where the task sets it."""


class Heartbeat(_Request):
    """Body of `receive_heartbeat`, from a task worker to the controller."""

    name: str
    """Task name."""
    address: str
    """Where the controller reaches the worker: `http://host:port/api` or `grpc://id`."""
    concurrency: int
    """Sessions that the worker holds at most."""
    indices: list[SampleIndex]
    """Every sample of the task, the same list in the same order on each worker."""
    splits: dict[str, list[SampleIndex]] | None = None
    """Named subsets of `indices`, such as `train` and `test`."""
    native: bool = False
    """Whether the worker takes and gives the controller's own bodies (the session in a header,
    `FINISH_HEADER` on answers) and answers a repeated request id as before. Published workers do not."""
    instance: str | None = None
    """Random identity of the worker's process; another one means that it began anew, without its sessions."""


class WorkerInfo(BaseModel):
    """A task worker in `list_workers`."""

    model_config = ConfigDict(extra="allow")

    id: int | str
    """Identity the controller gave it."""
    address: str
    """Where the controller reaches it."""
    capacity: int
    """Sessions it holds at most."""
    current: int
    """Sessions it holds now."""
    status: WorkerStatus
    """Liveness by its heartbeats."""
    stale: bool = False
    """Whether it is drained: it keeps its sessions and gets no new one."""


class TaskInfo(BaseModel):
    """A task in `list_workers`."""

    model_config = ConfigDict(extra="allow")

    indices: list[SampleIndex]
    """Every sample of the task."""
    workers: dict[str, WorkerInfo]
    """Its workers by id."""

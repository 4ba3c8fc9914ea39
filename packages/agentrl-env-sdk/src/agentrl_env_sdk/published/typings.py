"""`agentrl.worker.typings`: what tasks of the published SDK take and return."""

import builtins
import importlib
from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, Field, RootModel, field_validator, model_validator

from agentrl_core import Message, SampleStatus, Tool

__all__ = [
    "AgentCancelledException",
    "AgentOutput",
    "AgentOutputStatus",
    "ChatHistory",
    "ChatHistoryItem",
    "FullHistory",
    "HistoryItem",
    "InstanceFactory",
    "JSONSerializable",
    "RewardHistoryItem",
    "SampleIndex",
    "SampleStatus",
    "TaskOutput",
    "TaskSampleExecutionResult",
    "ToolList",
]

JSONSerializable = Any
"""Whatever JSON can hold; what it cannot is sent as its text."""
SampleIndex = int | str
"""A sample's number or name; -1 stands for a custom task."""

_ROLES = ("developer", "system", "user", "assistant", "tool", "function")


class AgentCancelledException(BaseException):
    """Raised where a task waits for an agent that has gone; no `Exception`, so that nobody swallows it."""

    def __init__(self, detail: str | None = None) -> None:
        super().__init__("agent_cancelled", detail)


class AgentOutputStatus(StrEnum):
    """How the agent's turn went."""

    NORMAL = "normal"
    CANCELLED = "cancelled"


class RewardHistoryItem(BaseModel):
    """A reward in a session's history; the last one since the agent was answered counts."""

    reward: float
    """What the agent's last messages earned."""
    score: float | None = None
    """The headline result, copied into the metrics unless they have one."""
    metrics: dict[str, Any] = Field(default_factory=dict)
    """Other numbers about the episode."""

    def model_post_init(self, context: Any, /) -> None:
        """Copy the score into the metrics."""
        del context
        if self.score is not None:
            self.metrics.setdefault("score", self.score)


def as_message(value: Any) -> dict[str, Any]:
    """A chat message in the OpenAI shape, as it came.

    Raises:
        ValueError: it is none.
    """
    value = getattr(value, "root", value)
    if not isinstance(value, Mapping):
        raise ValueError(f"a message is a mapping with `role` and `content`, got {type(value).__name__}")
    if value.get("role") not in _ROLES:
        raise ValueError(f"`role` of a message must be one of {_ROLES}, got {value.get('role')!r}")
    content = value.get("content")
    if content is not None and not isinstance(content, str):
        value = {**value, "content": list(content)}
    Message.model_validate(value)
    return value if isinstance(value, dict) else dict(value)


def as_reward(value: Any) -> RewardHistoryItem | None:
    """A history item as a reward; None where it is a message."""
    value = getattr(value, "root", value)
    if isinstance(value, RewardHistoryItem):
        return value
    if isinstance(value, Mapping) and "reward" in value and "role" not in value:
        return RewardHistoryItem.model_validate(value)
    return None


def _as_item(value: Any) -> Any:
    return as_reward(value) or as_message(value)


def as_tool(value: Any) -> Tool:
    """A tool in the OpenAI shape; Anthropic's shape is translated.

    Raises:
        ValueError: it has neither shape.
    """
    if isinstance(value, Mapping) and "function" not in value and "name" in value:
        spec = {"name": value["name"], "description": value.get("description") or ""}
        return Tool.model_validate({"function": {**spec, "parameters": value.get("input_schema") or {}}})
    return Tool.model_validate(value)


_ChatMessage = Annotated[dict[str, Any], BeforeValidator(as_message)]
_Item = Annotated[Any, BeforeValidator(_as_item)]

ChatHistoryItem = RootModel[_ChatMessage]
"""A message."""
ChatHistory = RootModel[list[_ChatMessage]]
"""Messages."""
HistoryItem = RootModel[_Item]
"""A message or a reward."""
FullHistory = RootModel[list[_Item]]
"""Messages and rewards."""
ToolList = RootModel[list[Annotated[Any, BeforeValidator(as_tool)]] | None]
"""Tools, or none."""


class AgentOutput(BaseModel):
    """What the agent answered."""

    status: AgentOutputStatus = AgentOutputStatus.NORMAL
    """Whether it did."""
    messages: list[dict[str, Any]] | None = None
    """Its messages in the OpenAI shape, usually one."""

    @model_validator(mode="after")
    def _has_messages(self) -> "AgentOutput":
        if self.status is AgentOutputStatus.NORMAL and not self.messages:
            raise ValueError("an output with status `normal` needs `messages`")
        return self


class TaskSampleExecutionResult(BaseModel):
    """How an episode ended."""

    status: SampleStatus = SampleStatus.COMPLETED
    """The session's last status."""
    result: JSONSerializable = None
    """The task's own account; it stays on the worker."""


class TaskOutput(BaseModel):
    """A played sample, as `calculate_overall` gets it."""

    index: SampleIndex | None = None
    """Which sample."""
    status: SampleStatus = SampleStatus.RUNNING
    """How it ended."""
    result: JSONSerializable = None
    """What the evaluation kept of it."""
    history: list[HistoryItem] = Field(default_factory=list)
    """Its messages and rewards."""
    history_ptr: int = 0
    """How many of them the agent knew before the last exchange."""


class InstanceFactory(BaseModel):
    """A class by its address, and what it is made with."""

    module: str
    """Such as `package.module.Class`."""
    parameters: dict[str, Any] = Field(default_factory=dict)
    """Keyword arguments."""

    @field_validator("parameters", mode="before")
    @classmethod
    def _absent_is_empty(cls, value: Any) -> Any:
        return {} if value is None else value

    def create(self) -> Any:
        """The instance.

        Raises:
            ImportError: there is no such module.
            AttributeError: there is no such class in it.
        """
        path, _, name = self.module.rpartition(".")
        home = importlib.import_module(path) if path else builtins
        return getattr(home, name)(**self.parameters)

"""Chat messages in the OpenAI shape; whatever else a message holds passes through untouched."""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict


class _Tolerant(BaseModel):
    """Read generously: models and other people's workers add fields that must survive the journey."""

    model_config = ConfigDict(frozen=True, extra="allow")

    def to_wire(self) -> dict[str, Any]:
        """The JSON object as it came, without the fields that were never set."""
        return self.model_dump(mode="json", exclude_unset=True)


class FunctionCall(_Tolerant):
    """Which function the model calls, with what."""

    name: str
    """Name of the tool, exactly as the model wrote it."""
    arguments: str | dict[str, Any]
    """A JSON object as text (OpenAI's form); an object is accepted too."""


class ToolCall(_Tolerant):
    """One call of a tool inside an assistant message."""

    id: str | None = None
    """Links the tool's answer to the call; unique within the session."""
    type: Literal["function"] = "function"
    """OpenAI's discriminator; functions are the only kind."""
    function: FunctionCall
    """The call itself."""


class Message(_Tolerant):
    """One message of a conversation."""

    role: str
    """`system`, `user`, `assistant` or `tool`; others pass through."""
    content: str | list[dict[str, Any]] | None = None
    """Text, or a list of multimodal parts."""
    tool_calls: list[ToolCall] | None = None
    """Calls that an assistant message makes."""
    tool_call_id: str | None = None
    """The call that a tool message answers."""
    name: str | None = None
    """Name of the speaker or of the tool."""

    @property
    def text(self) -> str:
        """The text of the content, its parts joined; empty where there is none."""
        if isinstance(self.content, str):
            return self.content
        return "".join(str(part.get("text") or "") for part in self.content or [])

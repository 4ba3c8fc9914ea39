"""Tool descriptions in the OpenAI function-calling shape."""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field


class ToolFunction(BaseModel):
    """Name, purpose and parameters of a function that a model may call."""

    model_config = ConfigDict(frozen=True, extra="allow")

    name: str
    """What the model writes to call it."""
    description: str = ""
    """What the model reads to decide on it."""
    parameters: dict[str, Any] = Field(default_factory=lambda: {"type": "object", "properties": {}})
    """JSON schema of the arguments, an object."""


class Tool(BaseModel):
    """A tool as it stands in a chat request."""

    model_config = ConfigDict(frozen=True, extra="allow")

    type: Literal["function"] = "function"
    """OpenAI's discriminator; functions are the only kind."""
    function: ToolFunction
    """The function."""

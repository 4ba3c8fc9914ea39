"""What every model takes and gives: a conversation in, an assistant message out."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from agentrl_core import AgentRLError, Message, Tool


class ModelUnavailableError(AgentRLError):
    """The endpoint failed for now: unreachable, overloaded, or it answered nonsense."""


class ModelRefusedError(AgentRLError):
    """The endpoint will refuse every request like this one; asking again cannot help."""


class ContextLimitError(AgentRLError):
    """The conversation no longer fits the model's context."""


@dataclass(frozen=True, slots=True)
class ModelReply:
    """An assistant message and what it took."""

    message: Message
    """The message, as it came."""
    truncated: bool
    """Whether the longest reply cut it off."""
    prompt_tokens: int
    """Tokens of the conversation."""
    completion_tokens: int
    """Tokens of the reply."""


class Model(Protocol):
    """Answers conversations."""

    async def reply(
        self, messages: Sequence[Message], tools: Sequence[Tool] | None, *, seed: int
    ) -> ModelReply:
        """The next assistant message.

        Raises:
            ModelUnavailableError: the endpoint failed.
            ModelRefusedError: it refuses for good.
            ContextLimitError: the conversation is too long.
        """
        ...

    async def close(self) -> None:
        """Release connections."""
        ...

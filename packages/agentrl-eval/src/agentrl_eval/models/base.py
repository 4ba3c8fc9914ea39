"""What every model takes and gives: a conversation in, an assistant message out."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from agentrl_core import AgentRLError, Message, Tool


class ModelUnavailableError(AgentRLError):
    """The model gave no usable reply to this conversation; another try may help."""


class ModelUnusableError(AgentRLError):
    """The model will answer no conversation at all; the run had better stop."""


class ContextLimitError(AgentRLError):
    """The conversation no longer fits the model's context."""


@dataclass(frozen=True, slots=True)
class ModelReply:
    """An assistant message and what it took."""

    message: Message
    """The message, as it came."""
    truncated: bool = False
    """Whether the longest reply cut it off."""
    prompt_tokens: int = 0
    """Tokens of the conversation."""
    completion_tokens: int = 0
    """Tokens of the reply."""


class Model(Protocol):
    """Answers conversations."""

    async def reply(
        self, messages: Sequence[Message], *, tools: Sequence[Tool] | None, seed: int
    ) -> ModelReply:
        """The next assistant message.

        Raises:
            ModelUnavailableError: no usable reply this time.
            ModelUnusableError: there will be none for any conversation.
            ContextLimitError: the conversation is too long.
        """
        ...

    async def close(self) -> None:
        """Release connections."""
        ...

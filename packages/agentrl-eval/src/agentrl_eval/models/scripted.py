"""A policy in Python or in a file, for baselines and tests."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Self

from agentrl_core import ConfigError, Message, Tool
from agentrl_eval.models.base import ModelReply

Policy = Callable[[Sequence[Message], Sequence[Tool] | None, int], Message]
"""Chooses the next message from the conversation, the tools and a seed."""


class ScriptedModel:
    """Answers with a function's messages."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy

    @classmethod
    def from_file(cls, path: Path) -> Self:
        """A model that says a file's lines in order, in every episode, and then its last line for ever.

        Args:
            path: JSON lines, an assistant message each.

        Raises:
            ConfigError: the file is missing, empty, or holds something else.
        """
        try:
            lines = [line for line in path.read_text().splitlines() if line.strip()]
            replies = [Message.model_validate_json(line) for line in lines]
        except (OSError, ValueError) as error:  # ValueError: no UTF-8, no JSON, no message
            raise ConfigError(f"`{path}` must hold an assistant message in JSON a line: {error}") from error
        if not replies:
            raise ConfigError(f"`{path}` is empty; it must hold an assistant message in JSON a line")

        def policy(messages: Sequence[Message], _tools: Sequence[Tool] | None, _seed: int) -> Message:
            turn = sum(message.role == "assistant" for message in messages)
            return replies[min(turn, len(replies) - 1)]

        return cls(policy)

    async def reply(
        self, messages: Sequence[Message], *, tools: Sequence[Tool] | None, seed: int
    ) -> ModelReply:
        """The function's message."""
        return ModelReply(self._policy(messages, tools, seed))

    async def close(self) -> None:
        """Nothing to release."""

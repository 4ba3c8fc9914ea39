"""A policy in Python, for baselines and tests."""

from collections.abc import Callable, Sequence

from agentrl_core import Message, Tool
from agentrl_eval.models.base import ModelReply

Policy = Callable[[Sequence[Message], Sequence[Tool] | None, int], Message]
"""Chooses the next message from the conversation, the tools and a seed."""


class ScriptedModel:
    """Answers with a function's messages."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy

    async def reply(
        self, messages: Sequence[Message], tools: Sequence[Tool] | None, *, seed: int
    ) -> ModelReply:
        """The function's message."""
        message = self._policy(messages, tools, seed)
        return ModelReply(message, truncated=False, prompt_tokens=0, completion_tokens=0)

    async def close(self) -> None:
        """Nothing to release."""

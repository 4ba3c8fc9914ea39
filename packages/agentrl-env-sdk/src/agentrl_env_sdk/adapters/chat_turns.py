"""Requests for completions as turns of a session, which only ever goes on."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from agentrl_core import Message
from agentrl_env_sdk.session import AgentReply, TaskFailedError


def new_messages(seen: Sequence[Mapping[str, Any]], messages: Sequence[Mapping[str, Any]]) -> list[Message]:
    """What a request adds to the conversation.

    Args:
        seen: the conversation so far, the last reply included.
        messages: those of the request.

    Raises:
        TaskFailedError: it tells another conversation than the one so far.
    """
    if [_trace(each) for each in messages[: len(seen)]] != [_trace(each) for each in seen]:
        raise TaskFailedError(
            f"the environment rewrote its conversation of {len(seen)} messages, or lets several agents play; "
            "a session only goes on"
        )
    return [Message.model_validate(each) for each in messages[len(seen) :]]


def message_of(reply: AgentReply) -> dict[str, Any]:
    """The agent's reply as one assistant message in OpenAI's form."""
    calls = [call.to_wire() for message in reply.messages for call in message.tool_calls or []]
    for place, call in enumerate(calls):
        arguments = call["function"]["arguments"]
        call["id"] = call.get("id") or f"call_{place}"
        call["type"] = "function"
        call["function"]["arguments"] = arguments if isinstance(arguments, str) else json.dumps(arguments)
    said: dict[str, Any] = {"role": "assistant", "content": reply.text}
    return {**said, "tool_calls": calls} if calls else said


def _trace(message: Mapping[str, Any]) -> tuple[Any, ...]:
    """What stays of a message when it is written anew."""
    calls = [call.get("function", {}).get("name") for call in message.get("tool_calls") or []]
    return message["role"], Message.model_validate(message).text, calls

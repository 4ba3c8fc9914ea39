"""Reads the tool calls out of a reply in the Hermes format, which Qwen models use too."""

import json
import re
from typing import Any

from agentrl_core import FunctionCall, Message, ToolCall

_BLOCK = re.compile(r"<tool_call>(.*?)(?:</tool_call>|\Z)", re.DOTALL)
_NAME = re.compile(r'"name"\s*:\s*"([^"]+)"')
_ARGUMENTS = re.compile(r'"arguments"\s*:\s*(.*)\Z', re.DOTALL)


def parse_reply(text: str, *, call_prefix: str) -> Message:
    """An assistant message with the calls that the reply makes.

    A call whose JSON is broken is passed on as the model wrote it, so that the environment can say what is
    wrong with it; a block without even a name stays text.

    Args:
        text: the reply without its end marker.
        call_prefix: makes the calls' ids unique within the session.
    """
    calls = []
    for block in _BLOCK.findall(text):
        call = _call(block.strip())
        if call is not None:
            calls.append(ToolCall(id=f"{call_prefix}{len(calls)}", type="function", function=call))
    if not calls:
        return Message(role="assistant", content=text)
    return Message(role="assistant", content=_BLOCK.sub("", text).strip(), tool_calls=calls)


def _call(block: str) -> FunctionCall | None:
    try:
        value: Any = json.loads(block)
    except ValueError:
        value = None
    if isinstance(value, dict) and isinstance(value.get("name"), str):
        arguments = value.get("arguments", {})
        text = arguments if isinstance(arguments, str) else json.dumps(arguments)
        return FunctionCall(name=value["name"], arguments=text)
    name = _NAME.search(block)
    if name is None:
        return None
    arguments = _ARGUMENTS.search(block)
    return FunctionCall(name=name.group(1), arguments=arguments.group(1).strip() if arguments else block)

"""Assistant messages as OpenAI's chat completions, whole or streamed.

Only the standard library is imported: `verifiers_bridge` uses this in an interpreter that has none of ours.
"""

import json
import secrets
import time
from collections.abc import Iterator, Mapping
from typing import Any

NO_USAGE: Mapping[str, int] = {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}
"""How many tokens there were is for whoever sampled them to say."""


def completion(message: Mapping[str, Any], body: Mapping[str, Any]) -> dict[str, Any]:
    """A message as the answer to a request.

    Args:
        message: an assistant message in OpenAI's form.
        body: the request.
    """
    choice = {"index": 0, "message": _said(message), "logprobs": None, "finish_reason": _reason(message)}
    return {**_head("chat.completion", body), "choices": [choice], "usage": dict(NO_USAGE)}


def events(message: Mapping[str, Any], body: Mapping[str, Any]) -> str:
    """A message as the server-sent events that answer a request which wants a stream."""
    head = _head("chat.completion.chunk", body)
    chunks: list[dict[str, Any]] = [
        {**head, "choices": [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason}]}
        for delta, reason in _deltas(message)
    ]
    if (body.get("stream_options") or {}).get("include_usage"):
        chunks.append({**head, "choices": [], "usage": dict(NO_USAGE)})
    return "".join(f"data: {text}\n\n" for text in [*map(json.dumps, chunks), "[DONE]"])


def _deltas(message: Mapping[str, Any]) -> Iterator[tuple[dict[str, Any], str | None]]:
    said = _said(message)
    calls = said.pop("tool_calls", [])
    yield said, None
    for place, call in enumerate(calls):
        function = call["function"]
        begun = {"index": place, **call, "function": {**function, "arguments": ""}}
        yield {"tool_calls": [begun]}, None
        rest = {"index": place, "function": {"arguments": function["arguments"]}}
        yield {"tool_calls": [rest]}, None
    yield {}, _reason(message)


def _said(message: Mapping[str, Any]) -> dict[str, Any]:
    calls = message.get("tool_calls")
    content = message.get("content")
    if not calls:
        return {"role": "assistant", "content": content or ""}
    return {"role": "assistant", "content": content or None, "tool_calls": calls}


def _reason(message: Mapping[str, Any]) -> str:
    return "tool_calls" if message.get("tool_calls") else "stop"


def _head(kind: str, body: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "id": f"chatcmpl-{secrets.token_hex(8)}",
        "object": kind,
        "created": int(time.time()),
        "model": body.get("model", "agent"),
    }

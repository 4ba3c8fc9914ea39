"""What an MCP tool answered, as the content of a tool message."""

import base64
import json
from collections.abc import Callable, Mapping
from typing import Any

from agentrl_env_sdk.content import Part, image_part, text_part


def content_of_result(result: Any) -> str | list[Part]:
    """The content of a `CallToolResult`: a text where there is nothing but text, else parts.

    Structured content is told as JSON where the result has no text of its own; servers repeat it as text.
    """
    parts = [
        _PARTS[block.type](block) if block.type in _PARTS else _unknown(block) for block in result.content
    ]
    structured = result.structured_content
    if structured is not None and not any(part["type"] == "text" for part in parts):
        parts.append(text_part(json.dumps(structured, ensure_ascii=False)))
    if result.is_error:
        parts = _as_error(parts)
    if all(part["type"] == "text" for part in parts):
        return "\n".join(part["text"] for part in parts)
    return parts


def _as_error(parts: list[Part]) -> list[Part]:
    for place, part in enumerate(parts):
        if part["type"] == "text":
            return [*parts[:place], text_part(f"error: {part['text']}"), *parts[place + 1 :]]
    return [text_part("error"), *parts]


def _text(block: Any) -> Part:
    return text_part(block.text)


def _image(block: Any) -> Part:
    return image_part(f"data:{block.mime_type};base64,{block.data}")


def _audio(block: Any) -> Part:
    return text_part(f"[audio, {block.mime_type}, {_size(block.data)} bytes]")


def _link(block: Any) -> Part:
    told = [block.name, block.uri, block.mime_type, block.description]
    return text_part(f"[link: {', '.join(str(each) for each in told if each)}]")


def _resource(block: Any) -> Part:
    resource = block.resource
    if hasattr(resource, "text"):
        return text_part(f"{resource.uri}:\n{resource.text}")
    kind = resource.mime_type or "unknown type"
    if kind.startswith("image/"):
        return image_part(f"data:{kind};base64,{resource.blob}")
    return text_part(f"[{resource.uri}, {kind}, {_size(resource.blob)} bytes]")


def _unknown(block: Any) -> Part:
    return text_part(f"[{block.type}]")


def _size(data: str) -> int:
    try:
        return len(base64.b64decode(data))
    except ValueError:
        return len(data)


_PARTS: Mapping[str, Callable[[Any], Part]] = {
    "text": _text,
    "image": _image,
    "audio": _audio,
    "resource_link": _link,
    "resource": _resource,
}

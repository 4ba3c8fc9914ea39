"""What messages hold: text that every JSON reader takes, and multimodal parts in the OpenAI shape."""

import base64
import json
import math
import mimetypes
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pydantic_core

Part = dict[str, Any]
"""One part of a multimodal content."""

_DEEPEST = 64

_SIGNATURES = {
    b"\x89PNG": "image/png",
    b"\xff\xd8\xff": "image/jpeg",
    b"GIF8": "image/gif",
    b"RIFF": "image/webp",
}


def encodable(text: str) -> str:
    """The text with halves of characters, which no JSON reader takes, replaced."""
    return text.encode("utf-8", "replace").decode()


def text_part(text: str) -> Part:
    """A text beside other parts."""
    return {"type": "text", "text": encodable(text)}


def image_part(image: bytes | Path | str, *, mime: str | None = None) -> Part:
    """An image: its bytes, a file, or the address of one that the model's server fetches.

    Raises:
        ValueError: the kind of image cannot be told.
    """
    if isinstance(image, str) and image.startswith(("http://", "https://", "data:")):
        return {"type": "image_url", "image_url": {"url": image}}
    data = image if isinstance(image, bytes) else Path(image).read_bytes()
    guessed = next((kind for start, kind in _SIGNATURES.items() if data.startswith(start)), None)
    if guessed is None and not isinstance(image, bytes):
        guessed = mimetypes.guess_type(str(image))[0]
    kind = mime or guessed
    if kind is None:
        raise ValueError('what kind of image these bytes are is unknown; say so, as in `mime="image/png"`')
    url = f"data:{kind};base64,{base64.b64encode(data).decode()}"
    return {"type": "image_url", "image_url": {"url": url}}


def content_of(result: Any) -> str | list[Part]:
    """What a tool returned as a message's content: text and multimodal parts as they are, else JSON."""
    if isinstance(result, str):
        return encodable(result)
    if isinstance(result, list) and result and all(isinstance(p, dict) and "type" in p for p in result):
        return plain(result)
    try:
        return pydantic_core.to_json(result, fallback=_listed, inf_nan_mode="null").decode()
    except pydantic_core.PydanticSerializationError:
        return json.dumps(plain(result), ensure_ascii=False)


def plain(value: Any, depth: int = 0) -> Any:
    """Whatever it is as JSON can hold it: numbers that are none become null, numpy's become plain ones, and
    what JSON lacks its text."""
    if isinstance(value, str):
        return encodable(value)
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if depth == _DEEPEST:
        return "..."
    if isinstance(value, Mapping):
        return {encodable(str(key)): plain(inner, depth + 1) for key, inner in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(inner, depth + 1) for inner in value]
    listed = _listed(value)
    return listed if isinstance(listed, str) else plain(listed, depth + 1)


def _listed(value: Any) -> Any:
    return value.tolist() if callable(getattr(value, "tolist", None)) else encodable(str(value))

"""Observations as an agent sees them: text with few digits, and pictures.

Needs the extra `gymnasium`.
"""

import json
import re
import struct
import zlib
from collections.abc import Callable, Mapping
from typing import Any

from agentrl_env_sdk.content import Part, encodable, image_part, text_part
from agentrl_env_sdk.extras import extra

with extra("gymnasium"):
    import numpy as np
    from gymnasium import spaces

_MIN_IMAGE_SIDE = 16
_COLOURS = ("gray", "red", "green", "yellow", "blue", "magenta", "cyan", "white", "crimson")
_ESCAPE = re.compile(r"\x1b\[([\d;]*)m")


def shown(value: Any, *, digits: int = 4) -> str | list[Part]:
    """An observation as text, or as text and pictures.

    Texts stay as they are, floats have `digits` significant digits, a dictionary has a line for each key;
    arrays of bytes in the shape of a picture (height, width, and 1, 3 or 4 channels; 16 pixels at least)
    become one.
    """
    if is_image(value):
        return [image_part(png_of(value))]
    if not isinstance(value, Mapping):
        return _text_of(value, digits)
    pictures = {key: inner for key, inner in value.items() if is_image(inner)}
    lines = [f"{key}: {_text_of(inner, digits)}" for key, inner in value.items() if key not in pictures]
    text = "\n".join(lines)
    if not pictures:
        return text
    parts = [text_part(text)] if text else []
    for key, picture in pictures.items():
        parts += [text_part(f"{key}:"), image_part(png_of(picture))]
    return parts


def is_image(value: Any) -> bool:
    """Whether it is an array that looks like a picture."""
    return (
        isinstance(value, np.ndarray)
        and value.dtype == np.uint8
        and value.ndim == 3
        and value.shape[2] in (1, 3, 4)
        and min(value.shape[:2]) >= _MIN_IMAGE_SIDE
    )


def png_of(pixels: Any) -> bytes:
    """A picture (height, width, channels; bytes) as a PNG file."""
    height, width, channels = pixels.shape
    rows = np.zeros((height, 1 + width * channels), np.uint8)  # each row begins with its filter, 0
    rows[:, 1:] = pixels.reshape(height, -1)
    header = struct.pack(">IIBBBBB", width, height, 8, {1: 0, 3: 2, 4: 6}[channels], 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(rows.tobytes())), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(kind, data) for kind, data in chunks)


def uncoloured(text: str) -> str:
    """Text for a terminal with its colours as tags, `<red>S</red>`, since they may be all that tells."""
    parts = _ESCAPE.split(text)
    told = [parts[0]]
    is_open: str | None = None
    for codes, plain in zip(parts[1::2], parts[2::2], strict=True):
        if is_open is not None:
            told.append(f"</{is_open}>")
        is_open = _colour(codes)
        told.append(f"<{is_open}>{plain}" if is_open else plain)
    return "".join([*told, f"</{is_open}>" if is_open else ""])


def _colour(codes: str) -> str | None:
    numbers = [int(code) for code in codes.split(";") if code]
    for number in numbers:
        for first in (30, 40):
            if first <= number < first + len(_COLOURS):
                return _COLOURS[number - first]
    return "bold" if 1 in numbers else None


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def _text_of(value: Any, digits: int) -> str:
    if isinstance(value, str):
        return encodable(value)
    return json.dumps(_compact(value, digits), ensure_ascii=False)


def _compact(value: Any, digits: int) -> Any:
    """Numbers with few digits, in lists and dictionaries."""
    if isinstance(value, str):
        return encodable(value)
    if isinstance(value, Mapping):
        return {str(key): _compact(inner, digits) for key, inner in value.items()}
    if isinstance(value, spaces.GraphInstance):
        return _compact(value._asdict(), digits)
    if isinstance(value, np.ndarray | np.generic):
        return listed(np.asarray(value), lambda one: _compact(one.item(), digits))
    if isinstance(value, list | tuple):
        return [_compact(inner, digits) for inner in value]
    if isinstance(value, float):
        return float(f"{value:.{digits}g}")
    return value if value is None or isinstance(value, bool | int) else encodable(str(value))


def listed(array: Any, leaf: Callable[[Any], Any]) -> Any:
    """An array as nested lists."""
    if array.ndim == 0:
        return leaf(array[()])
    return [listed(inner, leaf) if array.ndim > 1 else leaf(inner) for inner in array]

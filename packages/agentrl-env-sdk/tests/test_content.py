import base64
import json

import pytest

from agentrl_env_sdk import image_part, text_part
from agentrl_env_sdk.content import content_of

PNG = b"\x89PNG\r\n\x1a\n..."


def test_an_image_goes_as_data_or_by_its_address(tmp_path):
    url = f"data:image/png;base64,{base64.b64encode(PNG).decode()}"
    path = tmp_path / "shot.png"
    path.write_bytes(PNG)
    for given in (PNG, path, str(path)):
        assert image_part(given) == {"type": "image_url", "image_url": {"url": url}}
    assert image_part("https://here/x.png")["image_url"]["url"] == "https://here/x.png"
    assert image_part(b"?", mime="image/bmp")["image_url"]["url"] == "data:image/bmp;base64,Pw=="
    with pytest.raises(ValueError, match="say so"):
        image_part(b"?")


def test_halves_of_characters_are_replaced():
    assert text_part("a\ud800") == {"type": "text", "text": "a?"}
    assert content_of("\udfff") == "?"


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        ({"\ud800": ["\udfff"]}, {"?": ["?"]}),
        (b"\xff", "b'\\xff'"),
        ({"a": 1}, {"a": 1}),
        ([1, 2], [1, 2]),
        (None, None),
        ({"n": float("nan")}, {"n": None}),
        ({1}, [1]),
    ],
)
def test_anything_else_becomes_json(result, expected):
    assert json.loads(content_of(result)) == expected


def test_arrays_and_numbers_of_numpy_become_plain():
    numpy = pytest.importorskip("numpy")
    result = {"a": numpy.arange(3), "b": numpy.float32(0.5), "c": [numpy.int64(7)]}
    assert json.loads(content_of(result)) == {"a": [0, 1, 2], "b": 0.5, "c": [7]}


def test_parts_are_cleaned_too_and_what_holds_itself_ends():
    assert content_of([{"type": "text", "text": "\ud800"}]) == [{"type": "text", "text": "?"}]
    endless: list = []
    endless.append(endless)
    assert content_of(endless).count("[") == 64

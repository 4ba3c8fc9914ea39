"""Gymnasium's spaces as JSON and back, for spaces of all kinds."""

import json
import struct
import zlib
from typing import Any

import jsonschema
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.utils import colorize
from gymnasium.vector.utils import iterate
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl_core import ConfigError
from agentrl_env_sdk.adapters import observations
from agentrl_env_sdk.adapters import spaces as forms
from agentrl_env_sdk.adapters.spaces import Action, form_of

SEEDS = st.integers(0, 2**31 - 1)
INTEGERS = ("int8", "uint8", "int32", "int64", "uint64")


@st.composite
def boxes(draw: Any) -> spaces.Box:
    dtype = draw(st.sampled_from(["float16", "float32", "float64", "bool", *INTEGERS]))
    shape = tuple(draw(st.lists(st.integers(1, 3), max_size=3)))
    if dtype == "bool":
        return spaces.Box(0, 1, shape, np.bool_)
    count = int(np.prod(shape))
    least = 0 if dtype.startswith("u") else -100
    pairs = draw(st.lists(st.tuples(*[st.integers(least, 100)] * 2), min_size=count, max_size=count))
    scale = draw(st.sampled_from([1, 0.1, 1 / 3])) if "float" in dtype else 1
    low = np.array([min(pair) * scale for pair in pairs]).reshape(shape).astype(dtype)
    high = np.array([max(pair) * scale for pair in pairs]).reshape(shape).astype(dtype)
    if "float" in dtype:
        low[draw(st.booleans()) & (low < -50)] = -np.inf
        high[draw(st.booleans()) & (high > 50)] = np.inf
    return spaces.Box(low, high, shape, getattr(np, dtype))


@st.composite
def multi_discretes(draw: Any) -> spaces.MultiDiscrete:
    counts = draw(st.lists(st.integers(1, 9), min_size=1, max_size=4))
    starts = draw(st.lists(st.integers(-9, 9), min_size=len(counts), max_size=len(counts)))
    shape = draw(st.sampled_from([(len(counts),), (1, len(counts))]))
    dtype = draw(st.sampled_from([np.int64, np.int32]))
    return spaces.MultiDiscrete(np.reshape(counts, shape), dtype, start=np.reshape(starts, shape))


def discretes() -> Any:
    return st.builds(
        spaces.Discrete,
        st.integers(1, 20),
        start=st.integers(-20, 20),
        dtype=st.sampled_from([np.int64, np.int32]),
    )


def texts() -> Any:
    charsets = st.sampled_from(["ab", "a-z]^\\", "äß🙂", ".*+[](){}|$"])
    return st.builds(
        lambda least, more, charset: spaces.Text(least + more, min_length=least, charset=charset),
        st.integers(0, 3),
        st.integers(0, 5),
        charsets,
    )


def leaves() -> Any:
    shapes = st.lists(st.integers(1, 3), min_size=1, max_size=2)
    return st.one_of(boxes(), multi_discretes(), discretes(), texts(), st.builds(spaces.MultiBinary, shapes))


def composed(inner: Any) -> Any:
    keys = st.text("abc. /", min_size=1, max_size=4)
    return st.one_of(
        st.builds(spaces.Tuple, st.lists(inner, min_size=1, max_size=3)),
        st.builds(spaces.Dict, st.dictionaries(keys, inner, min_size=1, max_size=3)),
        st.builds(spaces.OneOf, st.lists(inner, min_size=1, max_size=3)),
        st.builds(spaces.Sequence, inner),
        st.builds(lambda box: spaces.Sequence(box, stack=True), boxes()),
    )


def any_space() -> Any:
    return st.recursive(leaves(), composed, max_leaves=5)


def same(one: Any, other: Any) -> bool:
    """Equal in value, type and shape."""
    if isinstance(one, dict):
        return set(one) == set(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, tuple):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, np.ndarray | np.generic):
        return one.dtype == other.dtype and one.shape == other.shape and np.array_equal(one, other)
    return one == other


@settings(max_examples=300, deadline=None)
@given(any_space(), SEEDS)
def test_what_a_space_contains_survives_json(space: Any, seed: int):
    space.seed(seed)
    sample = space.sample()
    action = Action(form_of(space))
    arguments = json.loads(json.dumps(action.arguments(action.form.encode(sample))))
    jsonschema.Draft202012Validator.check_schema(action.schema)
    jsonschema.validate(arguments, action.schema)
    read = action.read(arguments)
    assert space.contains(read)
    assert same(read, tuple(sample) if isinstance(sample, list) else sample)


@settings(max_examples=200, deadline=None)
@given(any_space())
def test_the_example_is_in_the_space_and_the_schema(space: Any):
    action = Action(form_of(space))
    arguments = json.loads(json.dumps(action.arguments(action.form.example)))
    jsonschema.validate(arguments, action.schema)
    assert space.contains(action.read(arguments))


JSON = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(),
        st.integers(-100, 100),
        st.floats(allow_nan=True),
        st.text("ab^🙂", max_size=4),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.sampled_from(["0", "1", "a", "choice", "value"]), inner),
    ),
    max_leaves=8,
)


@settings(max_examples=400, deadline=None)
@given(leaves(), JSON)
def test_whatever_is_read_is_in_the_space(space: Any, value: Any):
    try:
        read = form_of(space).read(value)
    except ValueError as error:
        told = str(error)
        assert told.startswith("argument `action")
        return
    assert space.contains(read)
    assert not (isinstance(read, np.ndarray) and read.dtype.kind == "f" and not np.isfinite(read).all())


@pytest.mark.parametrize(
    ("space", "value", "told"),
    [
        (spaces.Discrete(3, start=2), 5, "argument `action` must be from 2 to 4, got 5"),
        (spaces.Discrete(3), 1.5, "argument `action` must be an integer, got 1.5"),
        (spaces.Discrete(3), True, "argument `action` must be an integer, got True"),
        (spaces.Box(-1, 1, (2,)), [0.5, 1.5], "argument `action[1]` must be from -1.0 to 1.0, got 1.5"),
        (spaces.Box(-1, 1, (2,)), [0.5], "argument `action` must be a list of 2, got [0.5]"),
        (
            spaces.Box(-np.inf, np.inf, (1,)),
            [float("inf")],
            "argument `action[0]` must be a finite number that float32 holds, got inf",
        ),
        (
            spaces.Box(-np.inf, np.inf, (1,)),
            [1e39],
            "argument `action[0]` must be a finite number that float32 holds, got 1e+39",
        ),
        (
            spaces.Box(-1, 1, ()),
            float("nan"),
            "argument `action` must be a finite number that float32 holds, got nan",
        ),
        (
            spaces.Box(0, 255, (1, 2), np.uint8),
            [[1, 256]],
            "argument `action[0][1]` must be from 0 to 255, got 256",
        ),
        (spaces.MultiDiscrete([2, 5]), [2, 0], "argument `action[0]` must be from 0 to 1, got 2"),
        (spaces.MultiBinary(2), [0, 2], "argument `action[1]` must be from 0 to 1, got 2"),
        (
            spaces.Text(3, charset="ab"),
            "abc",
            "argument `action` must be a text of 1 to 3 characters of `ab`, got 'abc'",
        ),
        (
            spaces.Dict({"move": spaces.Discrete(2)}),
            {"move": 7},
            "argument `action.move` must be from 0 to 1, got 7",
        ),
        (
            spaces.Tuple([spaces.Discrete(2), spaces.Discrete(2)]),
            {"0": 1, "1": 2},
            "argument `action.1` must be from 0 to 1, got 2",
        ),
        (
            spaces.OneOf([spaces.Discrete(2), spaces.Discrete(3)]),
            {"choice": 2, "value": 0},
            "argument `action.choice` must be from 0 to 1, got 2",
        ),
    ],
)
def test_a_fault_names_the_place_the_rule_and_the_value(space: Any, value: Any, told: str):
    with pytest.raises(ValueError, match=r"^argument") as caught:
        form_of(space).read(value)
    assert str(caught.value) == told


def test_schemas_are_those_that_models_know():
    box = spaces.Box(np.array([-1, 0], np.float32), np.array([0.7, 2], np.float32))
    assert Action(form_of(spaces.Discrete(4))).schema == {
        "type": "object",
        "properties": {
            "action": {
                "type": "integer",
                "minimum": 0,
                "maximum": 3,
                "description": "an integer from 0 to 3",
            }
        },
        "required": ["action"],
        "additionalProperties": False,
    }
    assert form_of(box).schema == {
        "type": "array",
        "items": {"type": "number", "minimum": -1.0, "maximum": 2.0},
        "minItems": 2,
        "maxItems": 2,
        "description": "2 numbers: from -1.0 to 0.7, from 0.0 to 2.0",
        "examples": [[0.0, 0.0]],
    }
    both = spaces.Dict({"move": spaces.Discrete(2), "say": spaces.Text(5)})
    assert set(Action(form_of(both)).schema["properties"]) == {"move", "say"}
    # Services take no such name for an argument, but inside of one they do.
    spaced = spaces.Dict({"a key": spaces.Discrete(2)})
    assert set(Action(form_of(spaced)).schema["properties"]) == {"action"}


def test_a_bound_is_what_a_model_would_write():
    """The float32 nearest to 0.7 is less than 0.7, and 0.7 stands for it."""
    space = spaces.Box(0, 0.7, (1,))
    assert float(space.high[0]) < 0.7
    jsonschema.validate([0.7], form_of(space).schema)
    assert form_of(space).read([0.7])[0] == space.high[0]


def test_actions_may_have_names():
    space = spaces.Dict({"move": spaces.Discrete(2, start=1), "power": spaces.Box(0, 1, (1,))})
    form = form_of(space, names={"move": ["left", "right"]})
    assert form.encode({"move": np.int64(2), "power": np.array([0.5], np.float32)}) == {
        "move": "right",
        "power": [0.5],
    }
    assert form.read({"move": "right", "power": [0.5]})["move"] == 2
    with pytest.raises(ValueError, match="must be one of left, right, got 'up'"):
        form.read({"move": "up", "power": [0.5]})


@pytest.mark.parametrize(
    ("space", "names"),
    [
        (spaces.Discrete(3), ["a", "b"]),
        (spaces.Discrete(2), ["a", "a"]),
        (spaces.Discrete(2), "ab"),
        (spaces.Box(0, 1), ["a"]),
        (spaces.Dict({"x": spaces.Discrete(2)}), ["a", "b"]),
        (spaces.Dict({"x": spaces.Discrete(2)}), {"y": ["a", "b"]}),
    ],
)
def test_names_that_do_not_fit_are_refused(space: Any, names: Any):
    with pytest.raises(ConfigError, match="`names`"):
        form_of(space, names=names)


def test_a_graph_can_be_seen_but_not_written():
    graph = spaces.Graph(spaces.Discrete(3), spaces.Box(0, 1, (1,)))
    with pytest.raises(ConfigError, match=r"`Graph` has no JSON form here; .*TransformAction"):
        form_of(spaces.Tuple([graph]))
    value = spaces.GraphInstance(np.array([1, 2]), np.array([[0.5]], np.float32), np.array([[0, 1]]))
    assert json.loads(str(observations.shown(value))) == {
        "nodes": [1, 2],
        "edges": [[0.5]],
        "edge_links": [[0, 1]],
    }


def test_masks_say_what_is_legal():
    form = form_of(spaces.Discrete(3, start=1), names=["a", "b", "c"])
    mask = np.array([1, 0, 1], np.int8)
    assert forms.legal(form, mask) == ["a", "c"]
    assert forms.refusal(form, mask, 3) is None
    assert forms.refusal(form, mask, 2) == "argument `action`: b is not legal now; legal actions: a, c"
    assert forms.legal(form, np.ones(3)) is None
    assert forms.legal(form, np.zeros(3)) is None  # A mask that allows nothing would end nowhere.
    with pytest.raises(ValueError, match="2 entries for 3 actions"):
        forms.legal(form, [1, 1])
    several = form_of(spaces.MultiDiscrete([2, 3]))
    masks = (np.array([1, 1]), np.array([0, 1, 0]))
    assert forms.refusal(several, masks, np.array([1, 1])) is None
    assert "[1, 2] is not legal now; legal actions: any, [1]" in str(
        forms.refusal(several, masks, np.array([1, 2]))
    )


@settings(max_examples=50, deadline=None)
@given(SEEDS, st.lists(st.booleans(), min_size=4, max_size=4).filter(any))
def test_what_is_drawn_by_chance_is_legal(seed: int, mask: list[bool]):
    space = spaces.Discrete(4, start=-1)
    assert forms.misfit(space, mask, forms.drawn(space, mask, seed=seed)) is None
    assert forms.drawn(space, mask, seed=seed) == forms.drawn(space, mask, seed=seed)


def test_observations_are_short():
    assert observations.shown("as it is") == "as it is"
    assert (
        observations.shown(np.array([0.123456, -1e-7, np.pi * 1e6], np.float32))
        == "[0.1235, -1e-07, 3142000.0]"
    )
    assert observations.shown((np.int64(14), 10, np.bool_(False))) == "[14, 10, false]"
    assert observations.shown({"a": np.zeros((2, 2), np.int8), "b": "text"}) == "a: [[0, 0], [0, 0]]\nb: text"
    assert observations.shown(np.float64("nan")) == "NaN"
    assert observations.shown(1 / 3, digits=2) == "0.33"


def test_pictures_become_parts():
    pixels = np.arange(16 * 17 * 3, dtype=np.uint8).reshape(16, 17, 3)
    (part,) = observations.shown(pixels)
    assert part["image_url"]["url"].startswith("data:image/png;base64,iVBOR")
    parts = observations.shown({"camera": pixels, "speed": 3})
    assert [part.get("text", "picture") for part in parts] == ["speed: 3", "camera:", "picture"]
    assert isinstance(observations.shown(pixels[:8]), str)  # too small for a picture: a grid of codes


def test_a_png_holds_the_pixels():
    pixels = np.arange(16 * 20 * 3, dtype=np.uint8).reshape(16, 20, 3)
    data = observations.png_of(pixels)
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    assert struct.unpack(">II", data[16:24]) == (20, 16)
    length = struct.unpack(">I", data[33:37])[0]
    assert data[37:41] == b"IDAT"
    rows = np.frombuffer(zlib.decompress(data[41 : 41 + length]), np.uint8).reshape(16, 1 + 20 * 3)
    assert (rows[:, 0] == 0).all()
    assert (rows[:, 1:].reshape(16, 20, 3) == pixels).all()
    assert struct.unpack(">I", data[41 + length : 45 + length])[0] == zlib.crc32(data[37 : 41 + length])


def test_colours_become_tags():
    text = f"a{colorize('S', 'red', highlight=True)}b{colorize('x', 'blue', bold=True)}"
    assert observations.uncoloured(text) == "a<red>S</red>b<blue>x</blue>"
    assert observations.uncoloured("plain") == "plain"
    assert observations.uncoloured("\x1b[1mopen") == "<bold>open</bold>"


def test_stacked_sequences_come_back_as_arrays():
    space = spaces.Sequence(spaces.Box(0, 1, (2,)), stack=True, seed=1)
    sample = space.sample()
    read = form_of(space).read(form_of(space).encode(sample))
    assert read.dtype == np.float32
    assert np.array_equal(read, sample)
    assert len(list(iterate(space.stacked_feature_space, read))) == len(sample)
    assert form_of(space).read([]).shape == (0, 2)

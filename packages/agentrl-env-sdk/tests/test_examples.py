"""What an error shows as an example is a call that would have been right."""

from typing import Annotated

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field

from agentrl_env_sdk import Session
from agentrl_env_sdk.examples import example_of
from agentrl_env_sdk.tools import BadCallError, bind


class Narrow(BaseModel):
    x: Annotated[float, Field(gt=0, lt=0.5)]
    y: Annotated[int, Field(ge=7)]


@given(st.data())
def test_the_example_in_an_error_fits_the_schema(data):
    low = data.draw(st.integers(-50, 50))
    high = low + data.draw(st.integers(2, 60))
    bounds = data.draw(
        st.sampled_from([{"ge": low}, {"gt": low}, {"le": high}, {"lt": high}, {"ge": low, "le": high}])
        | st.just({"gt": low, "lt": high})
    )
    length = data.draw(st.integers(0, 7))

    def act(
        whole: Annotated[int, Field(**bounds)],
        part: Annotated[float, Field(**bounds)],
        word: Annotated[str, Field(min_length=length, max_length=length + 1)],
        row: Annotated[list[Narrow], Field(min_length=length)],
        pair: tuple[int, str],
        flag: bool,
    ) -> str:
        """Act."""
        return ""

    tool = bind(act, session_type=Session)
    with pytest.raises(BadCallError) as caught:
        tool.parse("{}")
    example = str(caught.value).split("example: ", 1)[1]
    assert tool.parse(example)


@pytest.mark.parametrize(
    ("schema", "example"),
    [
        ({"type": "integer"}, 1),
        ({"type": "number"}, 1.5),
        ({"type": "array", "items": {"type": "number"}, "minItems": 2}, [1.5, 1.5]),
        ({"type": "array", "items": {}, "examples": [["red", "blue"]]}, ["red", "blue"]),
        ({"type": "array", "prefixItems": [{"type": "boolean"}, {"type": "null"}]}, [True, None]),
        ({"anyOf": [{"type": "string", "minLength": 6}, {"type": "null"}]}, "text.."),
        ({"$ref": "#/$defs/A", "$defs": {"A": {"enum": ["x", "y"]}}}, "x"),
        ({"type": "object", "properties": {"a": {"const": 3}, "b": {}}, "required": ["a"]}, {"a": 3}),
        ({}, "text"),
    ],
)
def test_examples_by_hand(schema, example):
    assert example_of(schema) == example

"""Messages carry what they do not know."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from agentrl_core import FunctionCall, Message, Tool, ToolCall

# JSON's own numbers: floats that are neither infinite nor undefined.
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


def extras(model: type) -> st.SearchStrategy[dict]:
    known = set(model.model_fields)
    return st.dictionaries(st.text().filter(lambda key: key not in known), json_values, max_size=5)


@given(extra=extras(Message))
def test_message_returns_any_extra_json_as_it_came(extra):
    wire = {"role": "assistant", "content": "hi", **extra}
    assert Message.model_validate(wire).to_wire() == wire


@given(call=extras(ToolCall), function=extras(FunctionCall))
def test_extra_fields_inside_tool_calls_come_back(call, function):
    wire = {
        "role": "assistant",
        "tool_calls": [{"function": {"name": "f", "arguments": "{}", **function}, **call}],
    }
    assert Message.model_validate_json(json.dumps(wire)).to_wire() == wire


@given(parts=st.lists(st.dictionaries(st.text(), json_values, max_size=3), max_size=3))
def test_multimodal_parts_pass_through(parts):
    wire = {"role": "user", "content": parts}
    assert Message.model_validate(wire).to_wire() == wire


def test_wire_has_nulls_that_were_set_and_no_fields_that_were_not():
    wire = {"role": "assistant", "content": None}
    assert Message.model_validate(wire).to_wire() == wire


def test_arguments_stay_the_text_that_the_model_wrote():
    call = FunctionCall(name="f", arguments=' {"a":1, "a":2} ')
    assert call.arguments == ' {"a":1, "a":2} '


def test_arguments_may_be_an_object():
    assert FunctionCall(name="f", arguments={"a": [1]}).to_wire() == {"name": "f", "arguments": {"a": [1]}}


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("plain", "plain"),
        (None, ""),
        ([], ""),
        ([{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {}}, {"text": "b"}], "ab"),
        ([{"type": "text", "text": None}], ""),
    ],
)
def test_text_joins_the_text_of_the_parts(content, text):
    assert Message(role="user", content=content).text == text


@pytest.mark.parametrize(
    "wire", [{}, {"role": 3}, {"role": "user", "content": 3}, {"role": "user", "tool_calls": 1}]
)
def test_message_without_the_openai_shape_is_refused(wire):
    with pytest.raises(ValidationError):
        Message.model_validate(wire)


def test_message_is_immutable():
    with pytest.raises(ValidationError):
        Message(role="user").role = "system"


def test_tool_keeps_unknown_fields_and_defaults_to_no_parameters():
    tool = Tool.model_validate({"function": {"name": "look", "strict": True}, "cache": 1})
    assert tool.model_dump() == {
        "type": "function",
        "cache": 1,
        "function": {
            "name": "look",
            "description": "",
            "parameters": {"type": "object", "properties": {}},
            "strict": True,
        },
    }

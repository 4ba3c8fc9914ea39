import asyncio
import contextlib
import enum
import inspect
import json
import re
from typing import Annotated, Any, Literal, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field, create_model
from typing_extensions import TypedDict

from agentrl_core import ConfigError, FunctionCall, ToolCall
from agentrl_env_sdk import Session, tool
from agentrl_env_sdk.content import content_of
from agentrl_env_sdk.tools import BadCallError, bind, described, resolve_call, tools_of


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Point(BaseModel):
    x: int
    y: int = 0


class Options(TypedDict):
    depth: int


def bound(function: Any):
    return bind(function, session_type=Session)


def move(
    session: Session,
    to: Point,
    colour: Colour = Colour.RED,
    mode: Literal["fast", "slow"] = "slow",
    tags: list[str] | None = None,
    weights: dict[str, float] | None = None,
) -> str:
    """Move the piece.

    Args:
        to: where it goes
        colour: whose it is
    """
    return f"{to.x},{to.y} {colour.value} {mode} {tags} {weights}"


def test_a_schema_comes_from_signature_and_docstring_and_hides_the_session():
    spec = bound(move).spec.function
    assert (spec.name, spec.description) == ("move", "Move the piece.")
    assert list(spec.parameters["properties"]) == ["to", "colour", "mode", "tags", "weights"]
    assert spec.parameters["required"] == ["to"]
    assert spec.parameters["properties"]["mode"]["enum"] == ["fast", "slow"]
    assert spec.parameters["properties"]["to"]["description"] == "where it goes"
    assert spec.parameters["$defs"]["Point"]["properties"]["x"] == {"type": "integer"}
    assert spec.parameters["$defs"]["Colour"]["enum"] == ["red", "blue"]
    assert spec.parameters["additionalProperties"] is False
    json.dumps(spec.parameters)


async def test_arguments_arrive_as_the_types_that_were_declared():
    found = bound(move)
    arguments = found.parse('{"to": {"x": 3}, "colour": "blue", "tags": ["a"], "weights": {"b": 1}}')
    assert arguments["to"] == Point(x=3)
    assert arguments["colour"] is Colour.BLUE
    assert await found.call(None, arguments) == "3,0 blue slow ['a'] {'b': 1.0}"


def test_typed_dicts_and_optional_arguments_are_understood():
    def look(options: Options, where: str | None = None) -> str:
        """Look."""
        return f"{options} {where}"

    found = bound(look)
    assert found.parse('{"options": {"depth": 2}}') == {"options": {"depth": 2}, "where": None}
    with pytest.raises(BadCallError, match=r"argument `options\.depth` is missing"):
        found.parse('{"options": {}}')


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "argument `number` is missing"),
        ("{}", "argument `number` is missing"),
        ('{"number": 1, "n": 2}', "argument `n` is unknown"),
        ('{"number": "many"}', "argument `number`: Input should be a valid integer"),
        ("{number: 1}", "arguments must be a JSON object"),
        ("[1]", "arguments must be a JSON object, got list"),
        ("3", "arguments must be a JSON object, got int"),
        ('"{\\"number\\": 1}"', "arguments are JSON inside a string"),
        ("[" * 100_000, "arguments must be a JSON object"),
    ],
)
def test_a_bad_call_names_the_argument_and_the_rule_and_shows_an_example(text, message):
    def guess(number: int) -> str:
        """Guess."""
        return str(number)

    with pytest.raises(BadCallError) as caught:
        bound(guess).parse(text)
    assert message in str(caught.value)
    assert 'example: {"number": 1}' in str(caught.value)


def test_a_bad_call_is_answered_briefly_however_long_it_is():
    def put(numbers: list[int]) -> str:
        """Put."""
        return ""

    found = bound(put)
    with pytest.raises(BadCallError) as caught:
        found.parse(json.dumps({"numbers": ["a" * 10_000] * 10_000}))
    assert "and 9997 more" in str(caught.value)
    assert len(str(caught.value)) < 1000
    with pytest.raises(BadCallError) as caught:
        resolve_call(ToolCall(function=FunctionCall(name="z" * 50_000, arguments="")), {"put": found})
    assert len(str(caught.value)) < 200


def test_numbers_that_json_lacks_are_refused():
    def weigh(grams: float) -> str:
        """Weigh."""
        return ""

    with pytest.raises(BadCallError, match="`NaN` is no JSON number"):
        bound(weigh).parse('{"grams": NaN}')


async def test_a_parameter_may_have_any_name():
    def look(schema: int, copy: str, model_config: int = 1, _hidden: int = 2) -> str:
        """Look."""
        return f"{schema} {copy} {model_config} {_hidden}"

    found = bound(look)
    assert list(found.spec.function.parameters["properties"]) == ["schema", "copy", "model_config", "_hidden"]
    assert await found.call(None, found.parse('{"schema": 1, "copy": "a", "_hidden": 3}')) == "1 a 1 3"
    with pytest.raises(BadCallError, match="argument `copy` is missing"):
        found.parse('{"schema": 1}')


def test_the_whole_description_reaches_the_model():
    def search(text: Annotated[str, Field(description="what to find")], limit: int = 3) -> str:
        """Search the web.

        The best page comes first.

        Args:
            limit: pages at most
        """
        return ""

    spec = bound(search).spec.function
    assert spec.description == "Search the web.\n\nThe best page comes first."
    texts = {name: schema["description"] for name, schema in spec.parameters["properties"].items()}
    assert texts == {"text": "what to find", "limit": "pages at most"}


def take_any(*numbers: int) -> str:
    return ""


def take_options(**options: int) -> str:
    return ""


def take_position(number: int, /) -> str:
    return ""


def take_unknown(thing: "Nowhere") -> str:  # noqa: F821 # pyright: ignore
    return ""


@pytest.mark.parametrize("function", [take_any, take_options, take_position, take_unknown])
def test_a_tool_that_no_model_could_call_is_refused_by_name(function):
    with pytest.raises(ConfigError, match=f"tool `{function.__name__}` cannot be described"):
        bound(function)


@pytest.mark.parametrize(
    ("result", "content"),
    [
        ("as it is", "as it is"),
        (7, "7"),
        (True, "true"),
        ({"a": [1, None]}, '{"a":[1,null]}'),
        (["x", "y"], '["x","y"]'),
        ([], "[]"),
        (Point(x=1), '{"x":1,"y":0}'),
        (Colour.BLUE, '"blue"'),
        ([{"type": "text", "text": "hi"}], [{"type": "text", "text": "hi"}]),
    ],
)
def test_what_a_tool_returns_is_text_parts_or_json(result, content):
    assert content_of(result) == content


def test_an_unknown_tool_is_answered_with_the_ones_that_exist():
    call = ToolCall(function=FunctionCall(name="jump", arguments="{}"))
    with pytest.raises(BadCallError, match=r"there is no tool `jump`; tools: move\(to, colour, mode"):
        resolve_call(call, {"move": bound(move)})


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


@given(st.text() | json_values.map(json.dumps))
def test_whatever_a_model_writes_is_parsed_or_a_bad_call(text):
    with contextlib.suppress(BadCallError):
        assert isinstance(bound(move).parse(text)["to"], Point)


def test_tools_are_found_in_order_and_through_inheritance():
    class Base:
        @tool
        def first(self) -> str:
            """First."""
            return "1"

        @tool
        async def second(self) -> str:
            """Second."""
            return "2"

    class Derived(Base):
        @tool
        def third(self) -> str:
            """Third."""
            return "3"

        def no_tool(self) -> str:
            return ""

    found = tools_of(Derived(), session_type=Session)
    assert list(found) == ["first", "second", "third"]
    assert asyncio.run(found["second"].call(None, {})) == "2"


async def test_a_tool_may_be_described_by_a_schema():
    schema = {
        "type": "object",
        "properties": {"city": {"type": "string"}, "days": {"type": "integer", "minimum": 1}},
        "required": ["city"],
        "additionalProperties": False,
    }
    found = described("weather", "tell the weather", schema, lambda **given: given)
    assert found.spec.function.parameters == schema
    assert await found.call(None, found.parse('{"city": "Oslo", "days": 2}')) == {"city": "Oslo", "days": 2}
    for bad, said in [
        ("{}", "argument `city` is missing"),
        ('{"city": 1}', "argument `city`: 1 is not of type 'string'"),
        ('{"city": "Oslo", "days": 0}', "argument `days`: 0 is less than the minimum of 1"),
        ('{"city": "Oslo", "extra": 1}', "'extra' was unexpected"),
    ]:
        with pytest.raises(BadCallError, match=re.escape(said)):
            found.parse(bad)


def test_a_schema_that_is_none_is_refused():
    with pytest.raises(ConfigError, match="schema of tool `x` is no JSON schema"):
        described(
            "x", "", {"type": "object", "properties": {"a": {"type": "number", "minimum": "one"}}}, print
        )


@pytest.mark.parametrize("ref", ["http://127.0.0.1:9/schema.json", "#/$defs/Missing", "other.json"])
def test_a_schema_that_refers_to_what_is_elsewhere_is_refused_and_nothing_is_fetched(ref):
    items = {"type": "array", "items": {"$ref": ref}}
    schema = {"properties": {"points": items}, "$defs": {"Point": {"type": "number"}}}
    with pytest.raises(ConfigError, match=rf"`plot` refers to `{re.escape(ref)}`, which is not in it"):
        described("plot", "Plot.", schema, lambda points: "")


@pytest.mark.parametrize("root", [{}, {"$id": "https://example.org/plot.json"}])
def test_a_schema_may_refer_to_its_own_parts(root):
    tree = {"type": "object", "properties": {"left": {"$ref": "#/$defs/Tree"}}}
    schema = {**root, "properties": {"tree": {"$ref": "#/$defs/Tree"}}, "$defs": {"Tree": tree}}
    plot = described("plot", "Plot.", schema, lambda tree: "")
    assert plot.parse('{"tree": {"left": {"left": {}}}}') == {"tree": {"left": {"left": {}}}}
    with pytest.raises(BadCallError, match=r"argument `tree\.left\.left`: 3 is not of type 'object'"):
        plot.parse('{"tree": {"left": {"left": 3}}}')


def act(
    whole: int = 0,
    part: float = 0.0,
    flag: bool = False,
    word: str = "",
    maybe: int | None = None,
    either: int | list[int] = 0,
    many: list[int] = [],  # noqa: B006
    named: dict[str, float] = {},  # noqa: B006
    numbered: dict[int, int] = {},  # noqa: B006
    pair: tuple[int, str] = (0, ""),
    bounded: Annotated[int, Field(ge=1)] = 1,
) -> str:
    """Act."""
    return ""


@pytest.mark.parametrize(
    "arguments",
    [
        {"whole": "3"},
        {"whole": True},
        {"whole": 1.5},
        {"part": "0.5"},
        {"part": True},
        {"flag": "yes"},
        {"flag": 1},
        {"word": 3},
        {"maybe": "3"},
        {"either": "3"},
        {"either": ["3"]},
        {"many": [1, "2"]},
        {"named": {"a": "1"}},
        {"numbered": {"1": "1"}},
        {"pair": ["1", "x"]},
        {"bounded": "1"},
    ],
)
def test_a_value_of_another_type_is_refused_and_not_converted(arguments):
    (name,) = arguments
    with pytest.raises(BadCallError, match=f"argument `{name}"):
        bound(act).parse(json.dumps(arguments))


@pytest.mark.parametrize(
    ("arguments", "value"),
    [
        ({"whole": 3.0}, 3),
        ({"part": 3}, 3.0),
        ({"maybe": None}, None),
        ({"either": [1]}, [1]),
        ({"numbered": {"1": 1}}, {1: 1}),
        ({"pair": [1, "x"]}, (1, "x")),
    ],
)
def test_what_json_calls_the_same_is_taken(arguments, value):
    (name,) = arguments
    assert bound(act).parse(json.dumps(arguments))[name] == value


def test_the_schema_is_that_of_the_annotations_as_they_stand():
    hints = get_type_hints(act, include_extras=True)
    defaults = {name: parameter.default for name, parameter in inspect.signature(act).parameters.items()}
    fields: Any = {name: (hints[name], default) for name, default in defaults.items()}
    plain = create_model("act", **fields)
    properties = bound(act).spec.function.parameters["properties"]
    for name, schema in plain.model_json_schema()["properties"].items():
        assert properties[name] == {key: value for key, value in schema.items() if key != "title"}

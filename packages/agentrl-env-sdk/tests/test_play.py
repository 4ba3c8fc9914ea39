import pytest

from agentrl_env_sdk.play import _message


@pytest.mark.parametrize(
    ("line", "name", "arguments"),
    [
        ("guess number=5", "guess", '{"number": 5}'),
        ('guess {"number": 5}', "guess", '{"number": 5}'),
        ('answer text="hello there" loud=true', "answer", '{"text": "hello there", "loud": true}'),
        ("look", "look", "{}"),
        ("  guess   number=5 ", "guess", '{"number": 5}'),
    ],
)
def test_a_line_that_looks_like_a_call_is_one(line, name, arguments):
    (made,) = _message(line, 3).tool_calls or []
    assert (made.function.name, made.function.arguments, made.id) == (name, arguments, "call_3")


@pytest.mark.parametrize("line", ["hello there", "I don't know", "is x = 3 ?", "what?", ""])
def test_any_other_line_is_said(line):
    message = _message(line, 0)
    assert (message.content, message.tool_calls) == (line, None)

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl_core import ConfigError, FunctionCall, Message, Tool, ToolCall, ToolFunction
from agentrl_workers.chat import ChatRenderer, parse_reply
from agentrl_workers.warmstart.tokenizer import train_tokenizer

TOOL = Tool(function=ToolFunction(name="read", description="read it", parameters={"properties": {"key": {}}}))


def block(text):
    return f"<tool_call>\n{text}\n</tool_call>"


def test_a_reply_with_a_call_becomes_a_message_with_it():
    message = parse_reply("so " + block('{"name": "read", "arguments": {"key": "gem"}}'), call_prefix="c_")
    (call,) = message.tool_calls
    assert message.content == "so"
    assert (call.id, call.function.name, json.loads(call.function.arguments)) == (
        "c_0",
        "read",
        {"key": "gem"},
    )


def test_parallel_calls_have_ids_of_their_own():
    text = block('{"name": "a", "arguments": {}}') + block('{"name": "b"}')
    calls = parse_reply(text, call_prefix="call_3_").tool_calls
    assert [(call.id, call.function.name, call.function.arguments) for call in calls] == [
        ("call_3_0", "a", "{}"),
        ("call_3_1", "b", "{}"),
    ]


@pytest.mark.parametrize(
    ("text", "name", "arguments"),
    [
        (block('{"name": "read", "arguments": {"key": '), "read", '{"key":'),
        (block('{"name": "read", "arguments": "{\\"key\\": 1}"}'), "read", '{"key": 1}'),
        ('<tool_call>{"name": "read", "arguments": [1]}', "read", "[1]"),
        (block('{"name": "read" nonsense'), "read", '{"name": "read" nonsense'),
    ],
)
def test_broken_arguments_pass_as_they_were_written(text, name, arguments):
    (call,) = parse_reply(text, call_prefix="").tool_calls
    assert (call.function.name, call.function.arguments) == (name, arguments)


@pytest.mark.parametrize("text", ["no call at all", block("nothing"), block("[1, 2]"), "<tool_call>", ""])
def test_what_is_no_call_stays_text(text):
    message = parse_reply(text, call_prefix="")
    assert (message.content, message.tool_calls) == (text, None)


@given(st.text())
def test_whatever_a_model_writes_becomes_a_message(text):
    assert parse_reply(f"<tool_call>{text}</tool_call>", call_prefix="").role == "assistant"


@given(st.text(alphabet=st.characters(codec="utf-8", exclude_characters="<|>"), max_size=20))
@settings(max_examples=40)
def test_a_conversation_rendered_turn_by_turn_equals_the_whole(shared, text):
    call = ToolCall(id="c", type="function", function=FunctionCall(name="read", arguments='{"key": "gem"}'))
    question = Message(role="user", content=text)
    replies = [
        Message(role="assistant", content="", tool_calls=[call]),
        Message(role="assistant", content=text),
    ]
    answer = Message(role="tool", content=text, tool_call_id="c")
    more = Message(role="user", content="more")
    whole = shared.prompt([question, replies[0], answer, replies[1], more], [TOOL])
    parts = shared.prompt([question], [TOOL]) + shared.reply(replies[0]) + shared.extension([answer])
    assert parts + shared.reply(replies[1]) + shared.extension([more]) == whole
    assert shared.text(shared.prompt([question])).count("<|im_start|>") == 2


@pytest.fixture(scope="module")
def shared():
    return ChatRenderer(train_tokenizer(["find read gem more"] * 9, vocabulary=300))


@pytest.mark.parametrize(
    ("template", "message"),
    [
        (None, "has no chat template"),
        ("{% for m in messages %}{{ m.content }}{% endfor %}", "must end an assistant message with"),
    ],
)
def test_a_template_that_cannot_be_extended_is_refused(template, message):
    tokenizer = train_tokenizer(["x"] * 9, vocabulary=300)
    tokenizer.chat_template = template
    with pytest.raises(ConfigError, match=message):
        ChatRenderer(tokenizer)


def test_a_template_that_rewrites_what_was_said_is_refused_when_it_does():
    tokenizer = train_tokenizer(["x"] * 9, vocabulary=300)
    tokenizer.chat_template = (
        "{{ messages | length }}{% for m in messages %}{{ m.content }}<|im_end|>{% endfor %}"
    )
    renderer = ChatRenderer(tokenizer)
    with pytest.raises(ConfigError, match=r"rewrites earlier messages when \['user'\] follow"):
        renderer.extension([Message(role="user", content="more")])

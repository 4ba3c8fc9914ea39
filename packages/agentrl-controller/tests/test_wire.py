import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl_controller.answers import answer_body
from agentrl_controller.transports import WorkerError
from agentrl_controller.wire import decode, encode

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
)


@given(JSON)
def test_whatever_is_json_goes_through_unchanged(content):
    assert decode(encode(content)) == content
    assert json.loads(encode(content)) == content


@pytest.mark.parametrize("text", ["{", "NaN", '{"a": Infinity}', "[" * 100_000, b"\xff"])
def test_what_is_no_json_is_a_value_error(text):
    with pytest.raises(ValueError, match=r".+"):
        decode(text)


def test_numbers_that_are_none_never_go_out():
    with pytest.raises(ValueError, match="not JSON compliant"):
        encode({"a": float("nan")})


@given(
    st.dictionaries(st.text(), JSON, max_size=4),
    st.dictionaries(st.sampled_from(["score", "n"]), st.floats(-1, 1)),
)
def test_an_answer_keeps_what_the_worker_says(fields, metrics):
    own = {"messages", "tools", "status", "finish", "reward", "metric", "metrics", "env_out"}
    fields = {key: value for key, value in fields.items() if key not in own}
    messages = [{"role": "user", "content": None, "odd": fields}]
    reply = {**fields, "messages": messages, "finish": True, "reward": -0.5, "metric": metrics}
    body, finished = answer_body({"session_id": 1, "env_out": reply})
    assert finished
    assert json.loads(body) == {
        **fields,
        "messages": messages,
        "tools": None,
        "status": "running",
        "finish": True,
        "reward": -0.5,
        "metrics": metrics,
    }


def test_an_answer_that_would_be_no_json_is_the_workers_fault():
    with pytest.raises(WorkerError, match="the answer is no JSON"):
        answer_body({"messages": [], "reward": float("inf")})

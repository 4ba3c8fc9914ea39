import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl_controller.answers import answer_of
from agentrl_controller.registry import Worker
from agentrl_controller.transports import WorkerError, WorkerReply
from agentrl_controller.wire import decode, encode

PUBLISHED = Worker(1, "t", "http://w/api", 1, last_visit=0.0)
NATIVE = Worker(2, "t", "http://v/api", 1, last_visit=0.0, native=True)

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
    worker_said = encode({"session_id": 1, "env_out": reply})
    body, finished = answer_of(WorkerReply(200, worker_said), PUBLISHED)
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


@pytest.mark.parametrize("worker", [PUBLISHED, NATIVE])
@pytest.mark.parametrize("body", [b'{"reward": Infinity}', b"{", b"[]", b"", b"\xff"])
def test_an_answer_that_is_none_is_the_workers_fault(worker, body):
    if worker is PUBLISHED and not body:
        return  # An empty body is an empty object on the published wire.
    with pytest.raises(WorkerError, match="the answer is n"):
        answer_of(WorkerReply(200, body), worker)


@given(JSON, st.booleans())
def test_a_native_answer_goes_through_as_it_is(content, finish):
    body = encode({"messages": [content], "finish": finish, "metrics": {"a": content}})
    assert answer_of(WorkerReply(200, body), NATIVE) == (body, finish)
    assert answer_of(WorkerReply(200, b"not read", finish), NATIVE) == (b"not read", finish)

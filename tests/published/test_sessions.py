"""Sessions of published workers: what the task says is what the agent gets, and the other way round."""

import asyncio
import json

import pytest

pytestmark = pytest.mark.timeout(300)


def lookup(thing: str, call_id: str = "call_1") -> dict:
    function = {"name": "price", "arguments": json.dumps({"thing": thing})}
    call = {"id": call_id, "type": "function", "function": function}
    return {"role": "assistant", "content": None, "tool_calls": [call]}


async def test_a_worker_registers(client, shop, over):
    (listed,) = await client.workers(shop.name)
    assert listed["address"].startswith("grpc://") if over == "grpc" else listed["address"] == shop.url
    assert {key: listed[key] for key in ("capacity", "current", "status", "stale", "locked")} == {
        "capacity": 4,
        "current": 0,
        "status": "ALIVE",
        "stale": False,
        "locked": False,
    }
    assert await client.get("get_indices", name=shop.name) == [-1, 0, 1, 2]
    assert (await client.get("version"))["version"] == 1


async def test_a_session_from_start_to_finish(client, shop):
    session_id, opening = await client.start(shop.name, 1)
    assert 0 < int(session_id) < 2**53
    assert opening["messages"] == [
        {"role": "system", "content": "Look prices up."},
        {"role": "user", "content": "What is the price of the flute?"},
    ]
    assert [tool["function"]["name"] for tool in opening["tools"]] == ["price"]
    listed = (await client.get("list_sessions"))[session_id]
    assert (listed["name"], listed["index"], listed["cancelling"]) == (shop.name, 1, False)
    answer = await client.interact(session_id, lookup("flute"))
    assert answer["messages"] == [{"role": "tool", "tool_call_id": "call_1", "content": "12"}]
    assert (answer["status"], answer["finish"]) == ("running", False)
    assert (answer["reward"], answer["metrics"]) == (0.25, {"looked_up": "flute"})
    answer = await client.interact(session_id, "12")
    assert answer["messages"] == [{"role": "user", "content": "Right."}]
    assert (answer["status"], answer["finish"], answer["reward"]) == ("completed", True, 1.0)
    assert answer["metrics"] == {"lookups": 1, "trace": [{"kind": "judged", "right": True}], "score": 1.0}
    assert await shop.current() == 0
    assert session_id not in await client.get("list_sessions")


async def test_a_custom_task(client, shop):
    session_id, opening = await client.start(shop.name, -1, {"thing": "lute", "price": 99})
    assert opening["messages"][1]["content"] == "What is the price of the lute?"
    listed = (await client.get("list_sessions"))[session_id]
    assert (listed["index"], listed["custom_task"]) == (-1, {"thing": "lute", "price": 99})
    answer = await client.interact(session_id, "98")
    assert (answer["finish"], answer["reward"], answer["metrics"]["score"]) == (True, 0.0, 0.5)


async def test_string_indices_by_name_and_by_position(client, shared):
    worker = await shared("Shop", 2, by_name=True)
    assert await client.get("get_indices", name=worker.name) == ["drum", "flute", "harp"]
    for index in ("harp", 2):
        session_id, opening = await client.start(worker.name, index)
        assert opening["messages"][1]["content"] == "What is the price of the harp?"
        assert (await client.get("list_sessions"))[session_id]["index"] == "harp"
        assert (await client.interact(session_id, "30"))["reward"] == 1.0


PICTURE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo=", "detail": "low"}}
SAYS = [
    [
        {"role": "system", "content": 'Zürich 🥁 \u2028 \\ "', "x_seed": 2**63 + 5},
        {"role": "user", "name": "guest", "content": [{"type": "text", "text": "Look:"}, PICTURE]},
    ],
    [{"role": "user", "content": "{heard}"}],
    [{"role": "user", "content": "{heard}", "x_origin": {"page": 3, "scores": [0.1, None, 1e-9]}}],
    [{"role": "user", "content": "That is all."}],
]
TOOLS = [
    {
        "type": "function",
        "function": {"name": "shout", "description": "", "parameters": {"type": "object", "x-unit": "dB"}},
    }
]
REPLIES = [
    {
        "role": "assistant",
        "content": [{"type": "text", "text": "A drum 🥁"}],
        "reasoning_content": "It is round,\nso it is a drum.",
        "x_logprobs": [-0.25, None, {"deep": [[1]]}],
    },
    {"role": "assistant", "content": "Yes.", "tool_calls": lookup("drum")["tool_calls"]},
    {"role": "assistant", "content": ""},
]


async def test_messages_arrive_as_they_were_sent_both_ways(client, script):
    rewards = [None, {"reward": 0.1, "metrics": {"steps": [1, 2]}}, None, {"reward": -2.5, "score": 0.75}]
    custom = {"says": SAYS, "rewards": rewards, "tools": TOOLS, "status": "agent context limit"}
    session_id, opening = await client.start(script.name, -1, custom)
    assert (opening["messages"], opening["tools"]) == (SAYS[0], TOOLS)
    answers = [await client.interact(session_id, reply) for reply in REPLIES]
    assert [json.loads(answer["messages"][0]["content"]) for answer in answers[:2]] == [
        [REPLIES[0]],
        [REPLIES[1]],
    ]
    assert answers[1]["messages"][0]["x_origin"] == SAYS[2][0]["x_origin"]
    assert answers[2]["messages"] == SAYS[3]
    assert [(answer["reward"], answer["metrics"]) for answer in answers] == [
        (0.1, {"steps": [1, 2]}),
        (0, {}),
        (-2.5, {"score": 0.75}),
    ]
    assert [answer["status"] for answer in answers] == ["running", "running", "agent context limit"]
    assert [answer["finish"] for answer in answers] == [False, False, True]


async def test_several_messages_of_an_agent_go_as_one_turn(client, script):
    custom = {"says": [[{"role": "user", "content": "Go on."}], [{"role": "user", "content": "{heard}"}]]}
    session_id, _ = await client.start(script.name, -1, custom)
    said = [{"role": "assistant", "content": "One."}, {"role": "assistant", "content": "Two."}]
    answer = await client.interact(session_id, *said)
    assert json.loads(answer["messages"][0]["content"]) == said


async def test_messages_of_many_megabytes(client, script):
    large = "data:image/png;base64," + "iVBORw0K" * 1_000_000
    picture = [{"type": "image_url", "image_url": {"url": large}}]
    custom = {
        "says": [[{"role": "user", "content": picture}], [{"role": "user", "content": "{heard}"}]],
    }
    session_id, opening = await client.start(script.name, -1, custom)
    assert opening["messages"][0]["content"] == picture
    answer = await client.interact(session_id, large)
    assert json.loads(answer["messages"][0]["content"])[0]["content"] == large


async def test_a_sample_that_ends_at_its_start(client, script):
    session_id, answer = await client.start(script.name, 0)
    assert answer["messages"] == [{"role": "user", "content": "Too late."}]
    assert (answer["status"], answer["finish"]) == ("task limit reached", True)
    assert (answer["reward"], answer["metrics"]) == (-0.5, {"score": 0.1})
    refusal = await client.post("interact", {"messages": [REPLIES[2]]}, session_id=session_id)
    assert (refusal.status_code, session_id in refusal.json()["message"]) == (400, True)
    assert await script.current() == 0


async def test_a_sample_that_fails(client, script):
    _, answer = await client.start(script.name, 1)
    assert (answer["status"], answer["finish"]) == ("task error", True)
    assert await script.current() == 0
    (listed,) = await client.workers(script.name)
    assert (listed["status"], listed["current"]) == ("ALIVE", 0)


@pytest.mark.parametrize(
    ("route", "body", "session_id"),
    [
        ("start_sample", {"name": "nothing", "index": 0}, None),
        ("start_sample", {"name": "TASK", "index": 3}, None),
        ("start_sample", {"name": "TASK", "index": "drum"}, None),
        ("start_sample", {"name": "TASK", "index": -1}, None),
        ("start_sample", {"name": "TASK", "index": -1, "custom_task": None}, None),
        ("interact", {"messages": [{"role": "assistant", "content": "12"}]}, "12345"),
        ("interact", {"messages": [{"role": "assistant", "content": "12"}]}, None),
        ("cancel", None, "12345"),
    ],
)
async def test_what_makes_no_sense_is_refused_with_a_message(client, shop, route, body, session_id):
    if body and body.get("name") == "TASK":
        body = {**body, "name": shop.name}
    refusal = await client.post(route, body, session_id=session_id)
    assert refusal.status_code == 400, refusal.text
    assert isinstance(refusal.json()["message"], str)
    assert await shop.current() == 0


async def test_many_sessions_at_once_do_not_mix(client, script):
    async def play(number: int) -> None:
        says = [[{"role": "user", "content": f"{number}-{turn}"}] for turn in range(4)]
        session_id, opening = await client.start(script.name, -1, {"says": says})
        answers = [await client.interact(session_id, str(turn)) for turn in range(3)]
        assert [answer["messages"] for answer in (opening, *answers)] == says

    await asyncio.gather(*(play(number) for number in range(40)))
    assert await script.current() == 0
    (listed,) = await client.workers(script.name)
    assert listed["current"] == 0

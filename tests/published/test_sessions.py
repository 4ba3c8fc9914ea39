"""Sessions of published workers: what the task says is what the agent gets, and the other way round."""

import json


def lookup(thing: str, call_id: str = "call_1") -> dict:
    function = {"name": "price", "arguments": json.dumps({"thing": thing})}
    call = {"id": call_id, "type": "function", "function": function}
    return {"role": "assistant", "content": None, "tool_calls": [call]}


async def test_a_worker_registers(client, shop, over):
    await client.until_served(shop)
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


async def test_a_session_from_start_to_finish(client, shop):
    await client.until_served(shop)
    session_id, opening = await client.start(shop.name, 1)
    assert 0 < int(session_id) < 2**53
    assert opening["messages"] == [
        {"role": "system", "content": "Look prices up."},
        {"role": "user", "content": "What is the price of the flute?"},
    ]
    assert [tool["function"]["name"] for tool in opening["tools"]] == ["price"]
    assert (await client.get("list_sessions"))[session_id]["index"] == 1
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

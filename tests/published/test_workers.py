"""Published workers fill up, drain and die; their sessions and slots are accounted for."""

import asyncio
from pathlib import Path

import httpx
import pytest

pytestmark = pytest.mark.timeout(300)

ANSWER = {"messages": [{"role": "assistant", "content": "12"}]}


def gated(gate: Path, **more: bool) -> dict:
    """The custom task of `Slow`."""
    return {"gate": str(gate), **more}


async def is_locked(client, session_id: str) -> bool:
    return (await client.get("list_sessions"))[session_id]["locked"]


async def test_a_cancelled_session_frees_its_slot_on_both_sides(client, shop, eventually):
    session_id, _ = await client.start(shop.name, 0)
    (listed,) = await client.workers(shop.name)
    assert (listed["current"], await shop.current()) == (1, 1)
    await client.cancel(session_id)
    await eventually(lambda: client.is_idle(shop), within_s=5)
    refusal = await client.post("interact", ANSWER, session_id=session_id)
    assert (refusal.status_code, "cancelled" in refusal.json()["message"]) == (400, True)
    await client.cancel(session_id)


async def test_cancelling_answers_who_waits_for_the_worker(client, slow, tmp_path, eventually):
    session_id, _ = await client.start(slow.name, -1, gated(tmp_path / "gate"))
    waiting = asyncio.create_task(client.post("interact", ANSWER, session_id=session_id))
    await eventually(lambda: is_locked(client, session_id))
    await client.cancel(session_id)
    refusal = await waiting
    assert (refusal.status_code, "cancelled" in refusal.json()["message"]) == (400, True)
    await eventually(lambda: client.is_idle(slow), within_s=5)


async def test_messages_that_come_while_others_are_answered_are_refused(client, slow, tmp_path, eventually):
    session_id, _ = await client.start(slow.name, -1, gated(tmp_path / "gate"))
    waiting = asyncio.create_task(client.interact(session_id, "12"))
    await eventually(lambda: is_locked(client, session_id))
    assert (await client.post("interact", ANSWER, session_id=session_id)).status_code == 409
    (tmp_path / "gate").touch()
    answer = await waiting
    assert (answer["messages"][0]["content"], answer["finish"], answer["reward"]) == ("Done.", True, 1.0)


async def test_messages_that_a_worker_cannot_take_end_their_session_alone(client, shop, eventually):
    kept, _ = await client.start(shop.name, 0)
    session_id, _ = await client.start(shop.name, 1)
    odd = {"messages": [{"role": "user", "content": "I am no assistant."}]}
    refusal = await client.post("interact", odd, session_id=session_id)
    assert (refusal.status_code, session_id in refusal.json()["message"]) == (500, True)
    assert session_id not in await client.get("list_sessions")
    assert (await client.interact(kept, "7"))["reward"] == 1.0
    await eventually(lambda: client.is_idle(shop), within_s=5)


async def test_everything_is_cancelled_at_once(client, slow, shop, tmp_path, eventually):
    for _ in range(2):
        await client.start(slow.name, -1, gated(tmp_path / "gate"))
    kept, _ = await client.start(shop.name, 0)
    assert (await client.http.post("/cancel_all")).status_code == 403
    assert (await client.http.post("/cancel_all", params={"name": slow.name})).status_code == 200
    await eventually(lambda: client.is_idle(slow), within_s=5)
    assert (await client.interact(kept, "7"))["reward"] == 1.0


async def test_a_start_that_nobody_waits_for_leaves_no_session(client, slow, tmp_path, eventually):
    custom = gated(tmp_path / "gate", at_start=True)
    starting = asyncio.create_task(client.start(slow.name, -1, custom))

    async def has_begun() -> bool:
        return await slow.current() == 1

    await eventually(has_begun)
    starting.cancel()
    await eventually(lambda: client.is_idle(slow), within_s=5)


async def test_when_all_is_full_starts_get_the_next_free_slots_in_turn(client, slow, tmp_path, eventually):
    gates = [tmp_path / str(number) for number in range(4)]
    held = [(await client.start(slow.name, -1, gated(gate)))[0] for gate in gates[:2]]
    starts = []
    for number in (2, 3):
        starts.append(asyncio.create_task(client.start(slow.name, -1, gated(gates[number]))))

        async def is_queued(depth: int = number - 1) -> bool:
            return await client.depth(slow.name) == depth

        await eventually(is_queued)
    for session_id, gate, start in zip(held, gates, starts, strict=False):
        assert not start.done()
        gate.touch()
        assert (await client.interact(session_id, "12"))["messages"][0]["content"] == "Done."
        new_id, opening = await asyncio.wait_for(start, 5)
        assert opening["messages"][0]["content"] == "Ready."
        held.append(new_id)
        (listed,) = await client.workers(slow.name)
        assert (listed["current"], await slow.current()) == (2, 2)
    for session_id in held[2:]:
        await client.cancel(session_id)
    await eventually(lambda: client.is_idle(slow), within_s=5)


async def test_a_stale_worker_keeps_its_sessions_and_gets_no_new_one(client, slow, tmp_path, eventually):
    gate = tmp_path / "gate"
    session_id, _ = await client.start(slow.name, -1, gated(gate))
    (listed,) = await client.workers(slow.name)
    drained = {"name": slow.name, "worker_id": listed["id"], "stale": True}
    assert (await client.post("mark_stale", drained)).status_code == 200
    start = asyncio.create_task(client.start(slow.name, -1, gated(gate)))

    async def is_queued() -> bool:
        return await client.depth(slow.name) == 1

    await eventually(is_queued)
    gate.touch()
    assert (await client.interact(session_id, "12"))["status"] == "completed"
    (listed,) = await client.workers(slow.name)
    assert (listed["stale"], listed["current"], start.done()) == (True, 0, False)
    assert (await client.post("mark_stale", {**drained, "stale": False})).status_code == 200
    new_id, _ = await asyncio.wait_for(start, 5)
    assert (await client.interact(new_id, "12"))["finish"] is True


async def test_workers_of_one_task_are_filled_by_their_capacities(client, serve, over, eventually):
    small = serve(over, "Shop", 1)
    big = serve(over, "Shop", 3, name=small.name)
    await client.until_served(small, big)
    sessions = [(await client.start(small.name, 0))[0] for _ in range(2)]
    assert [await worker.current() for worker in (small, big)] == [0, 2]
    sessions += [(await client.start(small.name, 0))[0] for _ in range(2)]
    assert [await worker.current() for worker in (small, big)] == [1, 3]
    listed = await client.workers(small.name)
    assert sorted((each["capacity"], each["current"]) for each in listed) == [(1, 1), (3, 3)]
    ids = {each["capacity"]: each["id"] for each in listed}
    places = {key: each["worker_id"] for key, each in (await client.get("list_sessions")).items()}
    (on_small,) = (session_id for session_id in sessions if places[session_id] == ids[1])
    start = asyncio.create_task(client.start(small.name, 1))
    await client.interact(on_small, "7")
    new_id, _ = await asyncio.wait_for(start, 5)
    assert (await client.get("list_sessions"))[new_id]["worker_id"] == ids[1]
    big.kill()
    lost = await client.post(
        "interact", ANSWER, session_id=next(each for each in sessions if each != on_small)
    )
    assert lost.status_code == 500
    assert (await client.interact(new_id, "12"))["reward"] == 1.0
    session_id, _ = await asyncio.wait_for(client.start(small.name, 2), 5)
    assert (await client.get("list_sessions"))[session_id]["worker_id"] == ids[1]


async def test_sessions_of_a_killed_worker_end_as_lost_within_seconds(
    client, serve, over, tmp_path, eventually
):
    worker = serve(over, "Slow", 2)
    await client.until_served(worker)
    busy, _ = await client.start(worker.name, -1, gated(tmp_path / "gate"))
    quiet, _ = await client.start(worker.name, -1, gated(tmp_path / "gate"))
    waiting = asyncio.create_task(client.post("interact", ANSWER, session_id=busy))
    await eventually(lambda: is_locked(client, busy))
    worker.kill()
    lost = await asyncio.wait_for(waiting, 5)
    assert (lost.status_code, busy in lost.json()["message"]) == (500, True)

    async def are_gone() -> bool:
        return not {busy, quiet} & (await client.get("list_sessions")).keys()

    await eventually(are_gone, within_s=12)
    (listed,) = await client.workers(worker.name)
    assert (listed["status"] in ("DEAD", "COMA"), listed["current"]) == (True, 0)
    refusal = await client.post("interact", ANSWER, session_id=quiet)
    assert (refusal.status_code, "lost" in refusal.json()["message"]) == (500, True), refusal.text


async def test_sessions_outlive_a_controller_that_is_killed(
    start_controller, client_of, serve, over, tmp_path
):
    options = ("--store", f"sqlite:{tmp_path / 'sessions.sqlite'}")
    first = start_controller(*options)
    worker = serve(over, "Shop", 2, to=first)
    async with client_of(first) as client:
        await client.until_served(worker)
        session_id, _ = await client.start(worker.name, 1)
    ports = tuple(httpx.URL(first.urls[transport]).port for transport in ("http", "grpc"))
    first.kill()
    second = start_controller(*options, ports=ports)
    async with client_of(second) as client:
        assert session_id in await client.get("list_sessions")
        answer = await client.interact(session_id, "12")
        assert (answer["finish"], answer["reward"]) == (True, 1.0)
        new_id, _ = await client.start(worker.name, 0)
        assert (await client.interact(new_id, "7"))["reward"] == 1.0
        assert await worker.current() == 0


@pytest.mark.parametrize("over", ["http"])
async def test_slots_that_a_worker_never_frees_hold_up_nobody_for_long(client, serve, over, eventually):
    worker = serve(over, "Naive", 2)
    await client.until_served(worker)
    leaking, _ = await client.start(worker.name, 0)
    await client.cancel(leaking)

    async def is_given_up() -> bool:
        return leaking not in await client.get("list_sessions")

    await eventually(is_given_up)
    assert await worker.current() == 1
    held, _ = await client.start(worker.name, 0)
    start = asyncio.create_task(client.start(worker.name, 0))

    async def was_refused() -> bool:
        return "406" in worker.log.read_text()

    await eventually(was_refused)
    await client.interact(held, "12")
    new_id, _ = await asyncio.wait_for(start, 10)
    assert (await client.interact(new_id, "12"))["finish"] is True

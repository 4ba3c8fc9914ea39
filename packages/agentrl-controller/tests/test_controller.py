import asyncio
import json
import time

import pytest

from agentrl_controller import Controller, ControllerConfig
from agentrl_core import ErrorCode, SessionError, StartRequest, WorkerStatus

SAID = [{"role": "assistant", "content": "hi", "odd": {"kept": 1}}]


def start_request(**fields):
    return StartRequest.model_validate({"name": "task", "index": 0} | fields)


async def start(controller, *, request_id=None, deadline_s=None, **fields):
    session_id, body = await controller.start(
        start_request(**fields), request_id=request_id, deadline_s=deadline_s
    )
    return session_id, json.loads(body)


async def interact(controller, session_id, *, messages=SAID, **options):
    return json.loads(await controller.interact(session_id, {"messages": messages}, **options))


async def until(condition):
    async with asyncio.timeout(5):
        while not condition():
            await asyncio.sleep(0.005)


def used(controller):
    return sum(
        len(w.sessions) for record in controller.registry.tasks.values() for w in record.workers.values()
    )


async def test_a_session_is_started_played_and_ends(controller, make_worker):
    worker = await make_worker()
    worker.finish_at = 2
    session_id, opening = await start(controller, seed=3)
    assert opening["messages"] == [{"role": "user", "content": "go", "odd": [1]}]
    assert worker.seen[0][1] == {"index": 0, "session_id": session_id, "seed": 3}
    first = await interact(controller, session_id)
    assert worker.seen[1][1] == {"session_id": session_id, "messages": SAID}
    assert first["messages"][0]["reasoning"] == {"kept": True}
    last = await interact(controller, session_id)
    assert last["finish"]
    assert used(controller) == 0
    with pytest.raises(SessionError) as caught:
        await interact(controller, session_id)
    assert caught.value.code is ErrorCode.SESSION_FINISHED


async def test_sessions_stay_with_their_worker_and_spread_over_all(controller, make_worker):
    workers = [await make_worker(capacity=2), await make_worker(capacity=2)]
    started = [(await start(controller))[0] for _ in range(4)]
    assert [len(worker.live) for worker in workers] == [2, 2]
    for session_id in started * 2:
        await interact(controller, session_id)
    for worker in workers:
        played = {body["session_id"] for route, body, _ in worker.seen if route == "interact"}
        assert played == worker.live


async def test_a_start_waits_for_a_slot_and_gets_the_first_that_is_freed(controller, make_worker):
    await make_worker(capacity=1)
    first, _ = await start(controller)
    waiting = [asyncio.create_task(start(controller, index=n)) for n in (1, 2)]
    await until(lambda: controller.admission.depth("task") == 2)
    await controller.cancel(first)
    second, _ = await asyncio.wait_for(waiting[0], 5)
    assert not waiting[1].done()
    await controller.cancel(second)
    third, _ = await asyncio.wait_for(waiting[1], 5)
    assert controller.sessions.find(third).index == 2


async def test_no_slot_in_time_is_no_capacity_and_leaks_nothing(controller, make_worker):
    await make_worker(capacity=1)
    session_id, _ = await start(controller)
    with pytest.raises(SessionError) as caught:
        await start(controller, deadline_s=0.05)
    assert caught.value.code is ErrorCode.NO_CAPACITY
    await controller.cancel(session_id)
    await until(lambda: used(controller) == 0)
    await start(controller)


async def test_a_worker_that_is_fuller_than_known_is_asked_again(controller, make_worker):
    worker = await make_worker(capacity=1)
    worker.live.add(12345)
    starting = asyncio.create_task(start(controller))
    await until(lambda: len(worker.seen) >= 1)
    worker.live.clear()
    session_id, _ = await asyncio.wait_for(starting, 5)
    assert worker.live == {session_id}


async def test_a_dead_worker_is_left_for_a_living_one(controller, make_worker):
    dead = await make_worker(capacity=9)
    alive = await make_worker(capacity=1)
    await dead.close()
    session_id, _ = await start(controller)
    assert alive.live == {session_id}
    statuses = [w.status for w in controller.registry.task("task").workers.values()]
    assert statuses == [WorkerStatus.DEAD, WorkerStatus.ALIVE]


async def test_a_worker_that_dies_ends_its_sessions_and_tells_who_waits(controller, make_worker):
    worker = await make_worker()
    worker.gate.clear()
    one, two = [(await start(controller))[0] for _ in range(2)]
    waiting = asyncio.create_task(interact(controller, one))
    await until(lambda: worker.seen[-1][0] == "interact")
    await worker.close()
    with pytest.raises(SessionError) as caught:
        await asyncio.wait_for(waiting, 5)
    assert caught.value.code is ErrorCode.WORKER_LOST
    with pytest.raises(SessionError) as caught:
        await interact(controller, two)
    assert caught.value.code is ErrorCode.WORKER_LOST
    assert used(controller) == 0


async def test_silence_beyond_the_lease_ends_sessions(fake_worker):
    worker = fake_worker
    async with Controller(ControllerConfig(lease_s=0.2)) as controller:
        worker.beat(controller)
        worker.gate.clear()
        session_id, _ = await start(controller)
        began = time.monotonic()
        with pytest.raises(
            SessionError, match=r"is lost with worker 1 of `task`: no heartbeat for 0\.2 s"
        ) as caught:
            await interact(controller, session_id)
        assert caught.value.code is ErrorCode.WORKER_LOST
        assert time.monotonic() - began < 3.0
        assert used(controller) == 0


async def test_a_session_that_its_worker_forgot_is_lost(controller, make_worker):
    worker = await make_worker()
    session_id, _ = await start(controller)
    worker.fail["interact"] = (400, "session is unknown here")
    with pytest.raises(SessionError) as caught:
        await interact(controller, session_id)
    assert caught.value.code is ErrorCode.WORKER_LOST
    assert used(controller) == 0


async def test_a_worker_that_fails_is_named(controller, make_worker):
    worker = await make_worker()
    worker.fail["start_sample"] = (500, "out of memory")
    with pytest.raises(SessionError, match=r"worker 1 of `task`: .* refused: out of memory") as caught:
        await start(controller)
    assert caught.value.code is ErrorCode.WORKER_FAILED
    assert used(controller) == 0


async def test_a_repeated_request_acts_once_and_gets_the_same_answer(controller, make_worker):
    worker = await make_worker()
    one, two = await asyncio.gather(start(controller, request_id="s"), start(controller, request_id="s"))
    assert one == two
    assert len(worker.live) == 1
    first = await interact(controller, one[0], request_id="a")
    assert await interact(controller, one[0], request_id="a") == first
    second = await interact(controller, one[0], request_id="b")
    assert [first["messages"][0]["content"], second["messages"][0]["content"]] == ["answer 1", "answer 2"]


async def test_another_request_while_one_runs_is_refused(controller, make_worker):
    worker = await make_worker()
    session_id, _ = await start(controller)
    worker.gate.clear()
    running = asyncio.create_task(interact(controller, session_id, request_id="a"))
    await until(lambda: worker.seen[-1][0] == "interact")
    with pytest.raises(SessionError) as caught:
        await interact(controller, session_id, request_id="b")
    assert caught.value.code is ErrorCode.SESSION_BUSY
    worker.gate.set()
    assert (await running)["messages"][0]["content"] == "answer 1"


async def test_after_a_deadline_the_same_request_asks_again(controller, make_worker):
    worker = await make_worker()
    session_id, _ = await start(controller)
    worker.gate.clear()
    with pytest.raises(SessionError) as caught:
        await interact(controller, session_id, request_id="a", deadline_s=0.05)
    assert caught.value.code is ErrorCode.DEADLINE_EXCEEDED
    worker.gate.set()
    answer = await interact(controller, session_id, request_id="a")
    assert answer["messages"][0]["content"].startswith("answer")
    sent = {headers["X-Request-Id"] for route, _, headers in worker.seen if route == "interact"}
    assert sent == {"a"}


async def test_cancelling_tells_worker_and_caller_and_frees_the_slot(controller, make_worker):
    worker = await make_worker()
    session_id, _ = await start(controller)
    worker.gate.clear()
    waiting = asyncio.create_task(interact(controller, session_id))
    await until(lambda: worker.seen[-1][0] == "interact")
    await controller.cancel(session_id)
    await controller.cancel(session_id)
    with pytest.raises(SessionError) as caught:
        await asyncio.wait_for(waiting, 5)
    assert caught.value.code is ErrorCode.CANCELLED
    worker.gate.set()
    await until(lambda: used(controller) == 0)
    assert worker.live == set()
    assert [route for route, *_ in worker.seen].count("cancel_with_notice") == 1


async def test_a_cancelled_slot_is_kept_until_the_worker_says_that_it_is_free(controller, make_worker):
    worker = await make_worker(capacity=1)
    worker.notice = None
    session_id, _ = await start(controller)
    await controller.cancel(session_id)
    assert used(controller) == 1
    controller.cancel_notice(session_id)
    await until(lambda: used(controller) == 0)


async def test_a_start_whose_deadline_passes_is_cancelled_on_the_worker(controller, make_worker):
    worker = await make_worker()
    worker.start_gate.clear()
    with pytest.raises(SessionError) as caught:
        await start(controller, deadline_s=0.1)
    assert caught.value.code is ErrorCode.DEADLINE_EXCEEDED
    worker.start_gate.set()
    await until(lambda: used(controller) == 0)
    assert any(route == "cancel_with_notice" for route, *_ in worker.seen)


async def test_idle_sessions_are_cancelled(fake_worker):
    worker = fake_worker
    async with Controller(ControllerConfig(idle_timeout_s=0.01)) as controller:
        worker.notice = controller.cancel_notice
        worker.beat(controller)
        await start(controller)
        await until(lambda: used(controller) == 0)
        assert worker.live == set()


async def test_a_drained_worker_keeps_its_sessions_and_gets_no_new_one(controller, make_worker):
    worker = await make_worker()
    session_id, _ = await start(controller)
    next(iter(controller.registry.task("task").workers.values())).stale = True
    assert (await interact(controller, session_id))["reward"] == 0.5
    with pytest.raises(SessionError):
        await start(controller, deadline_s=0.05)
    assert len(worker.live) == 1


async def test_slots_return_to_the_baseline_whatever_happens(controller, make_worker):
    workers = [await make_worker(capacity=3) for _ in range(2)]

    async def one(number):
        session_id, _ = await start(controller, index=number % 4)
        for _ in range(number % 3):
            await interact(controller, session_id)
        if number % 5 == 0:
            asyncio.get_running_loop().call_soon(workers[0].gate.set)
        await controller.cancel(session_id)

    await asyncio.gather(*(one(number) for number in range(60)))
    await until(lambda: used(controller) == 0)
    assert all(worker.live == set() for worker in workers)
    assert controller.sessions.live == {}
    assert controller.admission.depth("task") == 0

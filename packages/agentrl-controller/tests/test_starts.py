import asyncio
import time

import pytest

from agentrl_controller import Controller, ControllerConfig
from agentrl_core import ErrorCode, SessionError


async def test_a_full_worker_is_passed_over_for_one_with_room(agent, make_worker):
    full, free = await make_worker(capacity=8), await make_worker(capacity=1)
    full.live.update(range(8))
    full.hidden = set(range(8))
    session_id, _ = await agent.start(deadline_s=5)
    assert free.live == {session_id}
    assert full.count("start_sample") == 1
    assert agent.used == 1


async def test_a_full_worker_does_not_outlast_the_deadline(agent, make_worker):
    worker = await make_worker(capacity=2)
    worker.live.update({1, 2})
    worker.hidden = {1, 2}
    began = time.monotonic()
    with pytest.raises(SessionError) as caught:
        await agent.start(deadline_s=0.3)
    assert caught.value.code is ErrorCode.NO_CAPACITY
    assert time.monotonic() - began < 2.0
    assert worker.count("start_sample") == 1
    assert agent.used == 0


async def test_a_start_whose_caller_leaves_is_cancelled_on_the_worker(agent, make_worker, until):
    worker = await make_worker()
    worker.start_gate.clear()
    starting = asyncio.create_task(agent.start())
    await until(lambda: worker.count("start_sample"))
    starting.cancel()
    await until(lambda: worker.count("cancel_with_notice"))
    worker.start_gate.set()
    await until(lambda: worker.num_opened == 1)
    await until(lambda: agent.used == 0 and worker.live == set())


async def test_a_caller_that_leaves_the_line_leaves_nothing(controller, agent, make_worker, until):
    worker = await make_worker(capacity=1)
    holder, _ = await agent.start()
    waiting = asyncio.create_task(agent.start())
    await until(lambda: controller.admission.depth("task") == 1)
    waiting.cancel()
    await until(lambda: controller.admission.depth("task") == 0)
    await controller.cancel(holder)
    await until(lambda: agent.used == 0)
    assert worker.count("start_sample") == 1


async def test_with_a_request_id_a_caller_that_left_finds_its_session_again(agent, make_worker, until):
    worker = await make_worker()
    worker.start_gate.clear()
    starting = asyncio.create_task(agent.start(request_id="s"))
    await until(lambda: worker.count("start_sample"))
    starting.cancel()
    worker.start_gate.set()
    session_id, opening = await agent.start(request_id="s")
    assert worker.live == {session_id}
    assert opening["messages"][0]["content"] == "go"
    assert worker.count("start_sample") == 1


async def test_a_session_that_is_not_asked_for_again_is_cancelled(agent_of, fake_worker, until):
    worker = fake_worker
    async with Controller(ControllerConfig(reclaim_s=0.05)) as controller:
        worker.notice = controller.cancel_notice
        worker.beat(controller)
        agent = agent_of(controller)
        worker.start_gate.clear()
        starting = asyncio.create_task(agent.start(request_id="s"))
        await until(lambda: worker.count("start_sample"))
        starting.cancel()
        worker.start_gate.set()
        await until(lambda: worker.count("cancel_with_notice"))
        await until(lambda: agent.used == 0 and worker.live == set())


async def test_one_of_two_callers_may_leave(agent, make_worker, until):
    worker = await make_worker()
    worker.start_gate.clear()
    leaving = asyncio.create_task(agent.start(request_id="s"))
    staying = asyncio.create_task(agent.start(request_id="s"))
    await until(lambda: worker.count("start_sample"))
    leaving.cancel()
    worker.start_gate.set()
    session_id, _ = await asyncio.wait_for(staying, 5)
    assert worker.live == {session_id}


async def test_a_refused_start_may_be_asked_for_anew(agent, make_worker):
    worker = await make_worker()
    worker.fail["start_sample"] = (500, "out of memory")
    with pytest.raises(SessionError):
        await agent.start(request_id="s")
    worker.fail.clear()
    session_id, _ = await agent.start(request_id="s")
    assert session_id in worker.live


async def test_a_session_that_ends_as_it_starts_tells_all_and_takes_no_slot(agent, make_worker):
    worker = await make_worker()
    worker.replies["start_sample"] = (
        '{"messages": null, "tools": null, "status": "completed", "finish": true, "reward": 0.5,'
        ' "metric": {"score": 1.0}, "new": [1]}'
    )
    session_id, opening = await agent.start()
    assert opening == {
        "messages": [],
        "tools": None,
        "status": "completed",
        "finish": True,
        "reward": 0.5,
        "metrics": {"score": 1.0},
        "new": [1],
    }
    assert agent.used == 0
    with pytest.raises(SessionError) as caught:
        await agent.interact(session_id)
    assert caught.value.code is ErrorCode.SESSION_FINISHED


async def test_a_connection_that_breaks_during_a_start_gets_another_try_and_no_second_slot(
    agent, make_worker, until
):
    worker = await make_worker()
    worker.broken["start_sample"] = 1
    session_id, _ = await agent.start()
    await until(lambda: worker.live == {session_id})
    assert agent.used == 1
    assert worker.count("cancel_with_notice") == 1


async def test_a_worker_that_always_breaks_off_is_an_error_soon(agent, make_worker, until):
    worker = await make_worker(capacity=9)
    worker.broken["start_sample"] = 99
    with pytest.raises(SessionError) as caught:
        await agent.start()
    assert caught.value.code is ErrorCode.WORKER_LOST
    assert worker.count("start_sample") == 5
    await until(lambda: agent.used == 0 and worker.live == set())


async def test_cancelling_a_session_that_is_being_started_reaches_the_worker(
    controller, agent, make_worker, until
):
    worker = await make_worker()
    worker.start_gate.clear()
    starting = asyncio.create_task(agent.start())
    await until(lambda: worker.count("start_sample"))
    await controller.cancel_all("task")
    with pytest.raises(SessionError) as caught:
        await asyncio.wait_for(starting, 5)
    assert caught.value.code is ErrorCode.CANCELLED
    worker.start_gate.set()  # Only now does the worker know the session; it must not keep it.
    await until(lambda: worker.num_opened == 1)
    await until(lambda: agent.used == 0 and worker.live == set())


async def test_the_worker_is_told_what_is_left_of_the_deadline(agent, make_worker):
    worker = await make_worker()
    session_id, _ = await agent.start(deadline_s=5.0)
    await agent.interact(session_id, deadline_s=3.0)
    told = [int(headers["X-Deadline-Ms"]) for _, _, headers in worker.seen]
    assert 4000 < told[0] <= 5000
    assert 2000 < told[1] <= 3000


async def test_a_custom_task_goes_to_the_worker_as_it_is(agent, make_worker):
    worker = await make_worker()
    custom = {"any": [1, None, {"thing": "ü"}]}
    await agent.start(index=-1, custom_task=custom)
    assert worker.seen[0][1]["custom_task"] == custom
    assert worker.seen[0][1]["index"] == -1

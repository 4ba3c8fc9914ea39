import asyncio

import pytest

from agentrl_controller import Controller, ControllerConfig
from agentrl_core import ErrorCode, SessionError, WorkerStatus


async def test_sessions_that_a_restarted_worker_has_forgotten_are_lost(controller, agent, make_worker):
    worker = await make_worker()
    one, other = [(await agent.start())[0] for _ in range(2)]
    worker.live.discard(one)
    await controller.sync_all()
    with pytest.raises(SessionError, match="does not know it any more") as caught:
        await agent.interact(one)
    assert caught.value.code is ErrorCode.WORKER_LOST
    assert (await agent.interact(other))["reward"] == 0.5
    assert agent.used == 1


async def test_workers_are_compared_with_now_and_then(agent_of, fake_worker, until):
    worker = fake_worker
    async with Controller(ControllerConfig(audit_s=0.01)) as controller:
        worker.beat(controller)
        agent = agent_of(controller)
        await agent.start()
        worker.live.clear()
        await until(lambda: agent.used == 0)


async def test_a_worker_that_answers_is_not_judged_by_its_list(controller, agent, make_worker, until):
    worker = await make_worker()
    session_id, _ = await agent.start()
    worker.gate.clear()
    answering = asyncio.create_task(agent.interact(session_id))
    await until(lambda: worker.count("interact"))
    worker.hidden.add(session_id)
    await controller.sync_all()
    worker.gate.set()
    assert (await answering)["reward"] == 0.5


async def test_a_session_that_goes_on_during_the_comparison_is_not_judged(
    controller, agent, make_worker, until
):
    worker = await make_worker()
    busy, done = [(await agent.start())[0] for _ in range(2)]
    worker.hidden.update((busy, done))
    worker.list_gate.clear()
    comparing = asyncio.create_task(controller.sync_all())
    await until(lambda: worker.num_lists == 1)
    await agent.interact(done)
    worker.gate.clear()
    answering = asyncio.create_task(agent.interact(busy))
    await until(lambda: worker.count("interact") == 2)
    worker.list_gate.set()
    await comparing
    worker.gate.set()
    assert (await answering)["reward"] == 0.5
    assert (await agent.interact(done))["reward"] == 0.5


async def test_a_worker_that_comes_back_is_rid_of_what_was_given_up(controller, agent, make_worker, until):
    worker = await make_worker()
    await agent.start()
    known = controller.registry.worker("task", 1)
    known.last_visit = known.heard = known.last_visit - 60.0
    await until(lambda: known.status is WorkerStatus.COMA)
    assert agent.used == 0
    assert len(worker.live) == 1
    worker.beat(controller)
    await until(lambda: worker.live == set())


async def test_one_broken_connection_tells_of_a_dead_worker(controller, agent, make_worker, until):
    worker = await make_worker()
    one, idle = [(await agent.start())[0] for _ in range(2)]
    worker.dies_at = "interact"
    with pytest.raises(SessionError):
        await agent.interact(one)
    await until(lambda: controller.registry.worker("task", 1).status is WorkerStatus.DEAD)
    assert agent.used == 0
    with pytest.raises(SessionError) as caught:
        await agent.interact(idle)
    assert caught.value.code is ErrorCode.WORKER_LOST


async def test_a_worker_that_lists_nonsense_keeps_its_sessions(controller, agent, make_worker):
    worker = await make_worker()
    session_id, _ = await agent.start()
    worker.replies["get_sessions"] = "[]"
    await controller.sync_all()
    assert (await agent.interact(session_id))["reward"] == 0.5

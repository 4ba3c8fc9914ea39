"""A controller that ends and the one that comes after it, on the same store or on what workers report."""

import asyncio

import pytest

from agentrl_controller import Controller, ControllerConfig
from agentrl_controller.sessions import SessionState
from agentrl_controller.store import SqliteStore
from agentrl_core import ErrorCode, SessionError


@pytest.fixture
def make_controller(tmp_path):
    def make(**settings):
        config = ControllerConfig(start_timeout_s=5.0, interact_timeout_s=5.0, **settings)
        return Controller(config, store=SqliteStore(tmp_path / "store.sqlite"))

    return make


@pytest.fixture(params=[False, True], ids=["published", "native"])
async def worker(request, fake_worker):
    fake_worker.replays = request.param
    return fake_worker


async def end(controller):
    """End as a killed process does: nobody is told anything more."""
    for session in list(controller.sessions.live.values()):
        if session.job is not None:
            session.job.cancel()
    await controller.__aexit__()


async def killed_while_it_answers(controller, agent_of, worker, until):
    """Let a controller end between a request and its answer; returns the session."""
    await controller.__aenter__()
    worker.beat(controller)
    session_id, _ = await agent_of(controller).start()
    worker.gate.clear()
    asking = asyncio.create_task(agent_of(controller).interact(session_id, request_id="a"))
    await until(lambda: worker.count("interact") == 1)
    await end(controller)
    with pytest.raises((SessionError, asyncio.CancelledError)):
        await asking
    worker.gate.set()
    return session_id


async def test_live_sessions_go_on(make_controller, agent_of, worker):
    async with make_controller() as first:
        worker.beat(first)
        agent = agent_of(first)
        session_id, _ = await agent.start(request_id="s", index=1)
        await agent.interact(session_id, request_id="a")
    assert worker.count("cancel_with_notice") == 0
    async with make_controller() as second:
        agent = agent_of(second)
        session = second.sessions.live[session_id]
        assert (session.task, session.index, session.state) == ("task", 1, SessionState.IDLE)
        assert session.worker.sessions == {session_id}
        assert (await agent.interact(session_id, request_id="b"))["messages"][0]["content"] == "answer 2"
        worker.finish_at = 3
        assert (await agent.interact(session_id, request_id="c"))["finish"]
        assert agent.used == 0


async def test_a_last_answer_can_still_be_asked_for(make_controller, agent_of, worker):
    worker.finish_at = 1
    async with make_controller() as first:
        worker.beat(first)
        session_id, _ = await agent_of(first).start()
        answer = await agent_of(first).interact(session_id, request_id="a")
        assert answer["finish"]
    async with make_controller() as second:
        assert await agent_of(second).interact(session_id, request_id="a") == answer
        with pytest.raises(SessionError, match="has finished") as caught:
            await agent_of(second).interact(session_id, request_id="b")
        assert caught.value.code is ErrorCode.SESSION_FINISHED


async def test_an_answer_that_came_after_the_end_is_asked_for_again(
    make_controller, agent_of, fake_worker, until
):
    worker = fake_worker
    worker.replays = True
    session_id = await killed_while_it_answers(make_controller(), agent_of, worker, until)
    async with make_controller() as second:
        answer = await agent_of(second).interact(session_id, request_id="a")
        assert answer["messages"][0]["content"] == "answer 1"
        assert worker.count("interact") == 2
        assert worker.live == {session_id}


async def test_an_answer_that_cannot_be_had_again_ends_the_session_and_says_why(
    make_controller, agent_of, fake_worker, until
):
    worker = fake_worker
    session_id = await killed_while_it_answers(make_controller(), agent_of, worker, until)
    async with make_controller() as second:
        with pytest.raises(SessionError, match="the worker gives an answer only once") as caught:
            await agent_of(second).interact(session_id, request_id="a")
        assert caught.value.code is ErrorCode.WORKER_LOST
        await until(lambda: worker.live == set())
        assert agent_of(second).used == 0


async def test_a_start_is_asked_for_again_and_opens_one_session(make_controller, agent_of, fake_worker):
    worker = fake_worker
    worker.replays = True
    async with make_controller() as first:
        worker.beat(first)
        session_id, opening = await agent_of(first).start(request_id="s")
    async with make_controller() as second:
        assert await agent_of(second).start(request_id="s") == (session_id, opening)
        assert await agent_of(second).start(request_id="s") == (session_id, opening)
        assert worker.num_opened == 1
        other, _ = await agent_of(second).start(request_id="t")
        assert other != session_id


async def test_a_start_that_was_under_way_leaves_nothing(make_controller, agent_of, worker, until):
    first = make_controller()
    await first.__aenter__()
    worker.beat(first)
    worker.start_gate.clear()
    starting = asyncio.create_task(agent_of(first).start(request_id="s"))
    await until(lambda: worker.count("start_sample") == 1)
    await first._store.flush()
    await first._background.close()
    await first._store.close()
    starting.cancel()
    worker.start_gate.set()
    await until(lambda: worker.num_opened == 1)
    async with make_controller() as second:
        worker.notice = second.cancel_notice
        await until(lambda: worker.live == set() and agent_of(second).used == 0)


async def test_a_worker_that_does_not_come_back_is_lost_with_its_sessions(
    make_controller, agent_of, fake_worker, until
):
    async with make_controller() as first:
        fake_worker.beat(first)
        session_id, _ = await agent_of(first).start()
    await fake_worker.close()
    async with make_controller(lease_s=0.3, probe_s=60.0) as second:
        await until(lambda: not second.sessions.live)
        with pytest.raises(SessionError, match=r"no heartbeat for 0\.3 s") as caught:
            await agent_of(second).interact(session_id)
        assert caught.value.code is ErrorCode.WORKER_LOST


async def test_drained_workers_stay_drained_and_samples_are_known(make_controller, agent_of, fake_worker):
    async with make_controller() as first:
        first.mark_stale(fake_worker.beat(first), stale=True)
    async with make_controller() as second:
        record = second.registry.task("task")
        (worker,) = record.workers.values()
        assert (worker.stale, worker.capacity, record.indices) == (True, 2, [0, 1, 2, 3])
        assert fake_worker.beat(second) is worker


async def test_without_a_store_sessions_that_workers_report_are_taken_up(agent_of, worker, until):
    first = Controller()
    await first.__aenter__()
    worker.beat(first)
    session_id, _ = await agent_of(first).start(index=2)
    await first._background.close()  # Killed, not stopped: the worker still plays.
    async with Controller() as second:
        worker.beat(second)
        await until(lambda: session_id in second.sessions.live)
        assert second.sessions.live[session_id].task == "task"
        assert (await agent_of(second).interact(session_id))["messages"][0]["content"] == "answer 1"
        worker.live.add(12345)  # What begins later without the controller is none of its business.
        await second.sync_all()
        assert 12345 not in second.sessions.live

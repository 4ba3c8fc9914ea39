import asyncio
import time

import pytest

from agentrl_controller import Controller, ControllerConfig
from agentrl_core import ErrorCode, Heartbeat, SessionError, WorkerStatus


async def test_a_session_is_started_played_and_ends(controller, agent, make_worker, until):
    worker = await make_worker()
    worker.finish_at = 2
    session_id, opening = await agent.start(seed=3)
    assert opening["messages"] == [{"role": "user", "content": "go", "odd": [1]}]
    assert worker.seen[0][1] == {"index": 0, "session_id": session_id, "seed": 3}
    first = await agent.interact(session_id)
    assert worker.seen[1][1] == {"session_id": session_id, "messages": agent.SAID}
    assert first["messages"][0]["reasoning"] == {"kept": True}
    last = await agent.interact(session_id)
    assert last["finish"]
    assert agent.used == 0
    with pytest.raises(SessionError) as caught:
        await agent.interact(session_id)
    assert caught.value.code is ErrorCode.SESSION_FINISHED


async def test_sessions_stay_with_their_worker_and_spread_over_all(controller, agent, make_worker, until):
    workers = [await make_worker(capacity=2), await make_worker(capacity=2)]
    started = [(await agent.start())[0] for _ in range(4)]
    assert [len(worker.live) for worker in workers] == [2, 2]
    for session_id in started * 2:
        await agent.interact(session_id)
    for worker in workers:
        played = {body["session_id"] for route, body, _ in worker.seen if route == "interact"}
        assert played == worker.live


async def test_a_start_waits_for_a_slot_and_gets_the_first_that_is_freed(
    controller, agent, make_worker, until
):
    await make_worker(capacity=1)
    first, _ = await agent.start()
    waiting = [asyncio.create_task(agent.start(index=n)) for n in (1, 2)]
    await until(lambda: controller.admission.depth("task") == 2)
    await controller.cancel(first)
    second, _ = await asyncio.wait_for(waiting[0], 5)
    assert not waiting[1].done()
    await controller.cancel(second)
    third, _ = await asyncio.wait_for(waiting[1], 5)
    assert controller.sessions.find(third).index == 2


async def test_no_slot_in_time_is_no_capacity_and_leaks_nothing(controller, agent, make_worker, until):
    await make_worker(capacity=1)
    session_id, _ = await agent.start()
    with pytest.raises(SessionError) as caught:
        await agent.start(deadline_s=0.05)
    assert caught.value.code is ErrorCode.NO_CAPACITY
    await controller.cancel(session_id)
    await until(lambda: agent.used == 0)
    await agent.start()


async def test_a_worker_that_is_fuller_than_known_is_asked_again(controller, agent, make_worker, until):
    worker = await make_worker(capacity=1)
    worker.live.add(12345)
    starting = asyncio.create_task(agent.start())
    await until(lambda: len(worker.seen) >= 1)
    worker.live.clear()
    session_id, _ = await asyncio.wait_for(starting, 5)
    assert worker.live == {session_id}


async def test_a_dead_worker_is_left_for_a_living_one(controller, agent, make_worker, until):
    dead = await make_worker(capacity=9)
    alive = await make_worker(capacity=1)
    await dead.close()
    session_id, _ = await agent.start()
    assert alive.live == {session_id}
    statuses = [w.status for w in controller.registry.task("task").workers.values()]
    assert statuses == [WorkerStatus.DEAD, WorkerStatus.ALIVE]


async def test_a_worker_that_dies_ends_its_sessions_and_tells_who_waits(
    controller, agent, make_worker, until
):
    worker = await make_worker()
    worker.gate.clear()
    one, two = [(await agent.start())[0] for _ in range(2)]
    waiting = asyncio.create_task(agent.interact(one))
    await until(lambda: worker.seen[-1][0] == "interact")
    await worker.close()
    with pytest.raises(SessionError) as caught:
        await asyncio.wait_for(waiting, 5)
    assert caught.value.code is ErrorCode.WORKER_LOST
    with pytest.raises(SessionError) as caught:
        await agent.interact(two)
    assert caught.value.code is ErrorCode.WORKER_LOST
    assert agent.used == 0


async def test_silence_beyond_the_lease_ends_sessions(agent_of, fake_worker, until):
    worker = fake_worker
    async with Controller(ControllerConfig(lease_s=0.2)) as controller:
        worker.beat(controller)
        agent = agent_of(controller)
        worker.gate.clear()
        session_id, _ = await agent.start()
        began = time.monotonic()
        with pytest.raises(
            SessionError, match=r"is lost with worker 1 of `task`: no heartbeat for 0\.2 s"
        ) as caught:
            await agent.interact(session_id)
        assert caught.value.code is ErrorCode.WORKER_LOST
        assert time.monotonic() - began < 3.0
        assert agent.used == 0


async def test_a_session_that_its_worker_forgot_is_lost(controller, agent, make_worker, until):
    worker = await make_worker()
    session_id, _ = await agent.start()
    worker.fail["interact"] = (400, "session is unknown here")
    with pytest.raises(SessionError) as caught:
        await agent.interact(session_id)
    assert caught.value.code is ErrorCode.WORKER_LOST
    assert agent.used == 0


async def test_a_worker_that_fails_is_named(controller, agent, make_worker, until):
    worker = await make_worker()
    worker.fail["start_sample"] = (500, "out of memory")
    with pytest.raises(SessionError, match=r"worker 1 of `task`: .* refused: out of memory") as caught:
        await agent.start()
    assert caught.value.code is ErrorCode.WORKER_FAILED
    assert agent.used == 0


async def test_a_repeated_request_acts_once_and_gets_the_same_answer(controller, agent, make_worker, until):
    worker = await make_worker()
    one, two = await asyncio.gather(agent.start(request_id="s"), agent.start(request_id="s"))
    assert one == two
    assert len(worker.live) == 1
    first = await agent.interact(one[0], request_id="a")
    assert await agent.interact(one[0], request_id="a") == first
    second = await agent.interact(one[0], request_id="b")
    assert [first["messages"][0]["content"], second["messages"][0]["content"]] == ["answer 1", "answer 2"]


async def test_another_request_while_one_runs_is_refused(controller, agent, make_worker, until):
    worker = await make_worker()
    session_id, _ = await agent.start()
    worker.gate.clear()
    running = asyncio.create_task(agent.interact(session_id, request_id="a"))
    await until(lambda: worker.seen[-1][0] == "interact")
    with pytest.raises(SessionError) as caught:
        await agent.interact(session_id, request_id="b")
    assert caught.value.code is ErrorCode.SESSION_BUSY
    worker.gate.set()
    assert (await running)["messages"][0]["content"] == "answer 1"


async def test_after_a_deadline_the_same_request_asks_again(controller, agent, make_worker, until):
    worker = await make_worker()
    session_id, _ = await agent.start()
    worker.gate.clear()
    with pytest.raises(SessionError) as caught:
        await agent.interact(session_id, request_id="a", deadline_s=0.05)
    assert caught.value.code is ErrorCode.DEADLINE_EXCEEDED
    worker.gate.set()
    answer = await agent.interact(session_id, request_id="a")
    assert answer["messages"][0]["content"].startswith("answer")
    sent = {headers["X-Request-Id"] for route, _, headers in worker.seen if route == "interact"}
    assert sent == {"a"}


async def test_cancelling_tells_worker_and_caller_and_frees_the_slot(controller, agent, make_worker, until):
    worker = await make_worker()
    session_id, _ = await agent.start()
    worker.gate.clear()
    waiting = asyncio.create_task(agent.interact(session_id))
    await until(lambda: worker.seen[-1][0] == "interact")
    await controller.cancel(session_id)
    await controller.cancel(session_id)
    with pytest.raises(SessionError) as caught:
        await asyncio.wait_for(waiting, 5)
    assert caught.value.code is ErrorCode.CANCELLED
    worker.gate.set()
    await until(lambda: agent.used == 0)
    assert worker.live == set()
    assert [route for route, *_ in worker.seen].count("cancel_with_notice") == 1


async def test_a_cancelled_slot_is_kept_until_the_worker_says_that_it_is_free(
    controller, agent, make_worker, until
):
    worker = await make_worker(capacity=1)
    worker.notice = None
    session_id, _ = await agent.start()
    await controller.cancel(session_id)
    assert agent.used == 1
    controller.cancel_notice(session_id)
    await until(lambda: agent.used == 0)


async def test_the_slot_of_a_session_that_its_worker_forgot_is_free_at_once(
    controller, agent, make_worker, until
):
    worker = await make_worker()
    session_id, _ = await agent.start()
    worker.live.clear()
    await controller.cancel(session_id)
    await until(lambda: agent.used == 0)
    assert worker.count("cancel_with_notice") == 1


async def test_a_start_whose_deadline_passes_is_cancelled_on_the_worker(
    controller, agent, make_worker, until
):
    worker = await make_worker()
    worker.start_gate.clear()
    with pytest.raises(SessionError) as caught:
        await agent.start(deadline_s=0.1)
    assert caught.value.code is ErrorCode.DEADLINE_EXCEEDED
    worker.start_gate.set()
    await until(lambda: agent.used == 0)
    assert any(route == "cancel_with_notice" for route, *_ in worker.seen)


async def test_idle_sessions_are_cancelled(agent_of, fake_worker, until):
    worker = fake_worker
    async with Controller(ControllerConfig(idle_timeout_s=0.01)) as controller:
        worker.notice = controller.cancel_notice
        worker.beat(controller)
        agent = agent_of(controller)
        await agent.start()
        await until(lambda: agent.used == 0)
        assert worker.live == set()


async def test_a_drained_worker_keeps_its_sessions_and_gets_no_new_one(controller, agent, make_worker, until):
    worker = await make_worker()
    session_id, _ = await agent.start()
    next(iter(controller.registry.task("task").workers.values())).stale = True
    assert (await agent.interact(session_id))["reward"] == 0.5
    with pytest.raises(SessionError):
        await agent.start(deadline_s=0.05)
    assert len(worker.live) == 1


async def test_slots_return_to_the_baseline_whatever_happens(controller, agent, make_worker, until):
    workers = [await make_worker(capacity=3) for _ in range(2)]

    async def one(number):
        session_id, _ = await agent.start(index=number % 4)
        for _ in range(number % 3):
            await agent.interact(session_id)
        if number % 5 == 0:
            asyncio.get_running_loop().call_soon(workers[0].gate.set)
        await controller.cancel(session_id)

    await asyncio.gather(*(one(number) for number in range(60)))
    await until(lambda: agent.used == 0)
    assert all(worker.live == set() for worker in workers)
    assert controller.sessions.live == {}
    assert controller.admission.depth("task") == 0


async def test_a_worker_that_began_anew_loses_only_what_it_does_not_play(
    controller, agent, make_worker, until
):
    worker = await make_worker(capacity=4)
    worker.beat(controller, instance="one")
    await until(lambda: worker.num_lists == 1)
    before, _ = await agent.start()
    worker.live.clear()  # Its process ends and begins anew before its next heartbeat,
    after, _ = await agent.start()  # and somebody starts there at once.
    worker.beat(controller, instance="two")
    await until(lambda: before not in controller.sessions.live)
    assert after in controller.sessions.live
    assert (await agent.interact(after))["messages"][0]["content"] == "answer 1"


async def test_a_worker_of_a_stream_that_no_port_is_open_for_is_unreachable(controller, agent, monkeypatch):
    monkeypatch.setattr("agentrl_controller.transports.gateway._PATIENCE_S", {})
    beat = {"name": "task", "address": "grpc://w", "concurrency": 1, "indices": [0], "native": True}
    worker = controller.heartbeat(Heartbeat.model_validate(beat))
    with pytest.raises(SessionError, match="no port for grpc is open here"):
        await agent.start(deadline_s=2.0)
    assert worker.sessions == set()
    assert controller.num_in_flight == 0


async def test_leases_run_out_whatever_else_fails(controller, make_worker, monkeypatch, until):
    worker = await make_worker()
    failed = []

    def idle(**_):
        if not failed:
            failed.append(True)
            raise RuntimeError("once")
        return iter(())

    monkeypatch.setattr(controller.sessions, "idle", idle)
    known = controller.registry.at("task", worker.address)
    await until(lambda: failed)
    known.last_visit = known.heard = known.last_visit - 60.0
    await until(lambda: not known.is_alive)

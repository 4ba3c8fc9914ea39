import asyncio
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl_controller import ControllerConfig
from agentrl_controller.admission import Ticket
from agentrl_controller.journal import Journal
from agentrl_controller.pool import Pool
from agentrl_controller.sessions import SessionState
from agentrl_controller.statistics import Statistics
from agentrl_controller.store import MemoryStore
from agentrl_core import ErrorCode, Heartbeat, SessionError, StartRequest, WorkerStatus


def beat(number, capacity, *, task="t"):
    address = f"http://w{number}/api"
    return Heartbeat(name=task, address=address, concurrency=capacity, indices=[0])


def make_pool(**settings):
    return Pool(ControllerConfig(**settings), Journal(MemoryStore()), Statistics())


def take(pool, *, wait_s=60.0, again=False, client="", task="t", **fields):
    ticket = Ticket(StartRequest(name=task, index=0, **fields), 0, client)
    return asyncio.create_task(pool.take(ticket, end=time.monotonic() + wait_s, again=again))


async def settle():
    for _ in range(5):
        await asyncio.sleep(0)


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("take"), st.integers(0, 3)),
        st.tuples(st.sampled_from(["end", "go", "lose", "full", "drain"]), st.integers(0, 9)),
        st.tuples(st.just("beat"), st.integers(0, 2), st.integers(0, 3)),
    ),
    max_size=40,
)


@given(STEPS)
@settings(max_examples=150, deadline=None)
def test_slots_are_never_oversold_the_line_is_in_order_and_nothing_leaks(steps):
    asyncio.run(_play(steps))


async def _play(steps):
    play = Play()
    for name, *numbers in steps:
        getattr(play, name)(*numbers)
        before = {worker.id: len(worker.sessions) for worker in play.workers}
        await settle()
        play.check(before)
    for task in play.waiting:
        task.cancel()
    await settle()
    for session in play.seated:
        play.pool.end(session, SessionState.LOST)
    assert play.pool.sessions.live == {}
    assert play.pool.admission.depth("t") == 0


class Play:
    """A pool, those who wait for a slot and those who have one."""

    def __init__(self):
        self.pool = make_pool(max_queue=100)
        self.pool.heartbeat(beat(0, 2))
        self.waiting, self.seated = [], []

    @property
    def workers(self):
        return list(self.pool.registry.workers())

    def take(self, group):
        self.waiting.append(take(self.pool, group_id=f"g{group}"))

    def beat(self, number, capacity):
        self.pool.heartbeat(beat(number, capacity))

    def end(self, number):
        for session in pick(self.seated, number):
            self.pool.end(session, SessionState.LOST)

    def go(self, number):
        for task in pick(self.waiting, number):
            task.cancel()

    def lose(self, number):
        for worker in pick(self.workers, number):
            self.pool.lose_worker(worker, WorkerStatus.DEAD, "gone")

    def full(self, number):
        for worker in pick(self.workers, number):
            worker.full_until = time.monotonic() + 60.0

    def drain(self, number):
        for worker in pick(self.workers, number):
            worker.stale = not worker.stale
            self.pool.admit("t")

    def check(self, before):
        stayed = [task for task in self.waiting if not task.cancelled()]
        served = [task.done() for task in stayed]
        assert served == sorted(served, reverse=True), "somebody was served before one who came earlier"
        self.seated += [task.result() for task in stayed if task.done()]
        self.seated = [session for session in self.seated if not session.state.has_ended]
        self.waiting = [task for task in stayed if not task.done()]
        for worker in self.workers:
            # A worker that comes back with fewer slots may hold more for a while, but gets no more.
            assert len(worker.sessions) <= max(worker.capacity, before[worker.id])
            assert worker.sessions == {session.id for session in self.seated if session.worker is worker}
        free = any(worker.slots(now=time.monotonic()).free for worker in self.workers)
        assert not (self.waiting and free), "somebody waits although a slot is free"
        assert self.pool.admission.depth("t") == len(self.waiting)


def pick(items, number):
    return items[number % len(items) :][:1] if items else []


async def test_a_turn_that_comes_as_its_caller_leaves_goes_to_the_next():
    pool = make_pool()
    pool.heartbeat(beat(0, 1))
    holder = await take(pool)
    leaving, staying = take(pool), take(pool)
    await settle()
    pool.end(holder, SessionState.LOST)
    leaving.cancel()
    session = await asyncio.wait_for(staying, 5)
    assert session.worker.sessions == {session.id}
    assert leaving.cancelled()


async def test_who_gets_no_slot_in_time_learns_how_the_workers_are():
    pool = make_pool()
    for number in range(5):
        pool.heartbeat(beat(number, 1))
    pool.lose_worker(pool.registry.worker("t", 1), WorkerStatus.DEAD, "it refuses connections")
    pool.registry.worker("t", 2).stale = True
    for _ in range(3):
        await take(pool)
    with pytest.raises(SessionError) as caught:
        await take(pool, wait_s=0.01)
    assert (caught.value.code, caught.value.retry_after_s) == (ErrorCode.NO_CAPACITY, 1.0)
    assert str(caught.value) == (
        "no slot of `t` came free within 0.0 s at place 1 of 1; "
        "worker 1 DEAD with 0 of 1 slots taken: it refuses connections; "
        "worker 2 ALIVE with 0 of 1 slots taken (drained); "
        "worker 3 ALIVE with 1 of 1 slots taken; 2 more"
    )


async def test_a_groups_sessions_stay_together_among_equals():
    pool = make_pool()
    for number in range(2):
        pool.heartbeat(beat(number, 10))
    first, second = await take(pool, group_id="a"), await take(pool, group_id="b")
    assert (first.worker.id, second.worker.id) == (1, 2)
    pool.end(first, SessionState.FINISHED)
    pool.end(second, SessionState.FINISHED)
    assert (await take(pool, group_id="b")).worker.id == 2


async def test_those_in_line_for_a_task_without_workers_are_told():
    pool = make_pool(forget_s=0.01)
    worker = pool.heartbeat(beat(0, 0))
    waiting = take(pool)
    await settle()
    pool.lose_worker(worker, WorkerStatus.COMA, "silent")
    worker.last_visit -= 1.0
    pool.forget(ControllerConfig(forget_s=0.01))
    with pytest.raises(SessionError, match="no worker serves task `t` any more") as caught:
        await asyncio.wait_for(waiting, 5)
    assert caught.value.code is ErrorCode.UNKNOWN_TASK


async def test_a_worker_that_said_it_is_full_is_passed_over_until_it_has_room():
    pool = make_pool()
    big, small = pool.heartbeat(beat(0, 9)), pool.heartbeat(beat(1, 1))
    first = await take(pool)
    assert first.worker is big
    first.is_open = True
    pool.mark_full(big)
    assert (await take(pool)).worker is small
    waiting = take(pool)
    await settle()
    assert not waiting.done()
    pool.end(first, SessionState.FINISHED)
    assert (await asyncio.wait_for(waiting, 5)).worker is big


async def test_limits_hold_starts_in_line_until_one_of_their_own_ends():
    pool = make_pool(max_client_sessions={"a": 1, "*": 2}, max_task_sessions={"u": 1})
    pool.heartbeat(beat(0, 9))
    pool.heartbeat(beat(0, 9, task="u"))
    first, second = take(pool, client="a"), take(pool, client="a")
    others = [take(pool, client="b") for _ in range(3)]
    await settle()
    assert [task.done() for task in (first, second, *others)] == [True, False, True, True, False]
    u_first, u_second = take(pool, client="c", task="u"), take(pool, client="d", task="u")
    await settle()
    assert (u_first.done(), u_second.done()) == (True, False)
    pool.end(first.result(), SessionState.LOST)
    await settle()
    assert (second.done(), others[2].done()) == (True, False)
    pool.end(u_first.result(), SessionState.LOST)
    await settle()
    assert u_second.done()
    with pytest.raises(SessionError, match="the limits of task `t` or client `a` are reached"):
        await take(pool, client="a", wait_s=0.01)


async def test_tasks_share_one_limit_fairly():
    pool = make_pool(max_sessions=2, task_weights={"t": 1.0, "u": 1.0})
    pool.heartbeat(beat(0, 9))
    pool.heartbeat(beat(0, 9, task="u"))
    running = [await take(pool), await take(pool)]
    waiting = [take(pool) for _ in range(4)] + [take(pool, task="u") for _ in range(4)]
    await settle()
    assert not any(task.done() for task in waiting)
    served = []
    while len(served) < 4:
        pool.end(running.pop(0), SessionState.FINISHED)
        await settle()
        (task,) = [task for task in waiting if task.done()]
        waiting.remove(task)
        running.append(task.result())
        served.append(task.result().task)
    assert sorted(served) == ["t", "t", "u", "u"]
    assert len(pool.sessions.live) == 2
    for task in waiting:
        task.cancel()


async def test_a_worker_that_spoke_since_is_not_given_up():
    pool = make_pool()
    worker = pool.heartbeat(beat(0, 2))
    session = await take(pool)
    asked = worker.heard
    pool.heartbeat(beat(0, 2))
    assert not pool.give_up(worker, "refused", asked=asked)
    assert session.id in pool.sessions.live
    assert pool.give_up(worker, "refused", asked=time.monotonic())
    assert (worker.status, session.state) == (WorkerStatus.DEAD, SessionState.LOST)

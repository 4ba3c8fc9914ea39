import asyncio
import subprocess
import sys
import threading

import pytest

from agentrl_env_sdk.threads import SessionThread, ThreadPool, call


async def test_results_and_errors_come_back():
    pool = ThreadPool(2)
    assert await pool.run(divmod, 7, 2) == (3, 1)
    with pytest.raises(ZeroDivisionError):
        await pool.run(divmod, 7, 0)
    with pytest.raises(RuntimeError, match="StopIteration"):  # which a future cannot hold
        await pool.run(next, iter(()))


async def test_no_more_than_the_limit_run_at_the_same_time_and_all_get_their_turn():
    pool, lock, running, most = ThreadPool(3), threading.Lock(), 0, 0
    together = threading.Barrier(3)

    def work(number):
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        together.wait(5)
        with lock:
            running -= 1
        return number

    assert await asyncio.gather(*(pool.run(work, n) for n in range(12))) == list(range(12))
    assert most == 3


async def test_hung_calls_that_nobody_waits_for_leave_their_places():
    pool, gate = ThreadPool(2), threading.Event()
    started: asyncio.Queue[int] = asyncio.Queue()
    loop = asyncio.get_running_loop()

    def hang(number):
        loop.call_soon_threadsafe(started.put_nowait, number)
        gate.wait()

    async with asyncio.timeout(5):
        for _ in range(3):
            hung = [asyncio.create_task(pool.run(hang, n)) for n in range(2)]
            assert {await started.get(), await started.get()} == {0, 1}
            for each in hung:
                each.cancel()
            await asyncio.wait(hung)
        assert await pool.run(lambda: "free") == "free"
        gate.set()
        assert await asyncio.gather(*(pool.run(int, n) for n in range(20))) == list(range(20))


async def test_a_call_that_is_cancelled_before_its_turn_never_runs():
    pool, gate, ran = ThreadPool(1), threading.Event(), []
    first = asyncio.create_task(pool.run(gate.wait, 5))
    second = asyncio.create_task(pool.run(ran.append, 1))
    await asyncio.sleep(0)
    second.cancel()
    await asyncio.wait([second])
    gate.set()
    assert await first
    assert await pool.run(lambda: "next") == "next"
    assert ran == []


async def test_a_sync_function_may_hand_out_something_to_wait_for():
    async def inner():
        return 5

    assert await call(lambda: inner()) == 5
    assert await call(inner) == 5


def test_a_hung_call_does_not_hold_up_the_exit():
    code = (
        "import asyncio, threading\n"
        "from agentrl_env_sdk.threads import call\n"
        "async def main(): await asyncio.wait_for(call(threading.Event().wait), 0.1)\n"
        "asyncio.run(main())"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=20, check=False)
    assert b"TimeoutError" in ended.stderr


async def test_a_session_keeps_its_thread_and_shares_it_only_where_there_are_too_few():
    pool = ThreadPool(2)
    sessions = [SessionThread(pool) for _ in range(4)]
    seen = [[await session.run(threading.get_ident) for session in sessions] for _ in range(3)]
    assert seen[0] == seen[1] == seen[2]
    assert seen[0][0] != seen[0][1]
    assert sorted(map(seen[0].count, seen[0])) == [2, 2, 2, 2]
    for session in sessions:
        session.release()
    assert await pool.run(threading.get_ident) in seen[0]


async def test_what_is_called_within_a_session_runs_on_its_thread():
    thread = SessionThread(ThreadPool(2))

    async def play():
        return {await call(threading.get_ident) for _ in range(5)}

    with thread.entered():
        playing = asyncio.create_task(play())
    assert await playing == {await thread.run(threading.get_ident)}


async def test_calls_behind_a_hung_one_get_a_new_thread():
    thread, gate = SessionThread(ThreadPool(1)), threading.Event()
    started, loop = asyncio.Event(), asyncio.get_running_loop()

    def hang():
        loop.call_soon_threadsafe(started.set)
        gate.wait()

    async with asyncio.timeout(5):
        hung = asyncio.create_task(thread.run(hang))
        await started.wait()
        behind = [asyncio.create_task(thread.run(lambda n=n: n)) for n in range(3)]
        await asyncio.sleep(0)
        hung.cancel()
        assert await asyncio.gather(*behind) == [0, 1, 2]
    gate.set()

"""What ends a server: this module runs last, because the first test ends the one that all others share."""

import asyncio
import os
import re
import signal
import time

import psutil
import pytest

from agentrl_workers.engines import EngineError, SamplingParams

from .conftest import full_logps, until  # isort: skip


async def test_a_killed_server_fails_what_runs_by_name_and_a_new_one_takes_over(engine, start, models):
    children = psutil.Process(engine.pid).children(recursive=True)
    memory = sum(process.memory_full_info().pss for process in (psutil.Process(engine.pid), *children))
    print(f"\nthe server's processes hold {memory / 2**30:.2f} GiB")
    streams = [None, lambda *_: None]
    calls = [
        asyncio.create_task(engine.generate([5, 6], SamplingParams(max_tokens=180), on_token=told))
        for told in streams
    ]

    async def all_run() -> bool:
        return await engine.num_running() == 2

    await until(all_run, "all requests run")
    os.kill(engine.pid, signal.SIGKILL)
    for call in calls:
        with pytest.raises(EngineError, match=r"is gone .* ended with exit code -9; it said last: \S"):
            await call
    assert not engine.alive()
    with pytest.raises(EngineError, match="the SGLang server ended with exit code -9; it said last"):
        await engine.generate([5, 6], SamplingParams())

    async def no_child_is_left() -> bool:
        return not any(map(_runs, children))

    await until(no_child_is_left, "the server's children are gone")
    await engine.close()
    started = time.monotonic()
    other = await start(version=3, transfer_timeout_s=5.0, control_timeout_s=20.0)
    print(f"\nthe second server was ready after {time.monotonic() - started:.0f} s")
    try:
        reply = await other.generate([5, 6], SamplingParams(max_tokens=8))
        assert [segment.version for segment in reply.segments] == [3]
        assert list(reply.logps) == pytest.approx(full_logps(models[0], [5, 6], reply.token_ids), abs=1e-4)
        await other.load_weights(models[1].state_dict(), version=4)
        await _a_server_that_hangs_in_a_broadcast_is_ended(other, models)
    finally:
        await other.close()


def _runs(process: psutil.Process) -> bool:
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE


async def _a_server_that_hangs_in_a_broadcast_is_ended(engine, models) -> None:
    """The scheduler stops for good as soon as the update is open."""
    schedulers = [
        process
        for process in psutil.Process(engine.pid).children(recursive=True)
        if re.search("scheduler", " ".join([process.name(), *process.cmdline()]))
    ]
    assert schedulers
    begin = engine._updates.begin

    async def begin_and_stop() -> None:
        await begin()
        for process in schedulers:
            process.suspend()

    engine._updates.begin = begin_and_stop
    started = time.monotonic()
    with pytest.raises(EngineError, match=r"(broadcasting|receiving) `\S+` to `\S+`: .* within 5 s"):
        await engine.load_weights(models[0].state_dict(), version=5)
    assert time.monotonic() - started < 30
    assert not engine.alive()
    assert not any(map(_runs, schedulers))

import asyncio
import contextlib
import gc
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from agentrl_core import SampleStatus
from agentrl_env_sdk import Session, Task, metric, reward, tool
from agentrl_env_sdk.worker import Runner

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


class Shop(Task):
    splits = {"train": ["apple", "pear"]}
    isolation = "process"
    max_turns = 5
    turn_timeout_s = 10.0

    def setup(self, session: Session) -> str:
        session.state["pid"] = os.getpid()
        return f"{session.sample} {session.seed} {os.getpid()} {session.random.random()}"

    @tool
    def buy(self, session: Session, count: int) -> str:
        session.reward(0.25, bought=count)
        return f"{count} in {os.getpid()}"

    @tool
    def leave(self, session: Session) -> str:
        session.finish(reward=0.5)
        return "bye"

    @tool
    def die(self, how: int) -> str:
        os.kill(os.getpid(), how)
        return "?"

    @tool
    def fail(self) -> str:
        raise LookupError("nothing there")

    @tool
    def hire(self, daemon: bool, path: str) -> str:
        """Start a process that goes on, and say which."""
        code = f"import os, time; open({path!r}, 'w').write(str(os.getpid())); time.sleep(600)"
        started = subprocess.Popen([sys.executable, "-c", code], start_new_session=daemon)
        while not (Path(path).exists() and Path(path).read_text()):
            time.sleep(0.01)
        return str(started.pid)

    @tool
    def hang(self) -> str:
        while True:
            pass

    @reward(weight=0.1)
    def gone(self, session: Session) -> bool:
        return session.state["pid"] == os.getpid()

    @metric
    def here(self, session: Session) -> int:
        return os.getpid()


@pytest.fixture
async def runner():
    runner = Runner(Shop())
    yield runner
    await runner.cancel_all()


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


async def until_gone(*pids: int) -> None:
    async with asyncio.timeout(10):
        while any(map(is_alive, pids)):
            await asyncio.sleep(0.01)


async def test_an_episode_in_a_process_is_an_episode(runner, call):
    session_id, opening = await runner.start(1, seed=7)
    name, seed, pid, _ = opening.messages[0].text.split()
    assert (name, seed) == ("pear", "7")
    assert int(pid) != os.getpid()
    assert [spec.function.name for spec in opening.tools][:2] == ["buy", "leave"]
    first = await runner.interact(session_id, [call("buy", count=2)])
    assert (first.messages[0].text, first.messages[0].tool_call_id) == (f"2 in {pid}", "c1")
    assert (first.reward, first.metrics, first.tools) == (0.25, {"bought": 2}, None)
    wrong = await runner.interact(session_id, [call("buy", count="x")])
    assert wrong.messages[0].text.startswith("error: argument `count`")
    last = await runner.interact(session_id, [call("leave")])
    assert (last.finish, last.status) == (True, SampleStatus.COMPLETED)
    assert last.reward == pytest.approx(0.6)
    assert last.metrics == {
        "bought": 2,
        "reward/gone": 1.0,
        "here": int(pid),
        "score": pytest.approx(0.85),
    }
    await until_gone(int(pid))


async def test_episodes_have_processes_of_their_own_and_the_same_chance(runner):
    texts = [(await runner.start(0, seed=5))[1].messages[0].text.split() for _ in range(3)]
    assert len({pid for _, _, pid, _ in texts}) == 3
    assert len({chance for *_, chance in texts}) == 1


async def test_a_custom_sample_reaches_the_process(runner):
    _, opening = await runner.start(-1, custom_task={"fig": 1})
    assert opening.messages[0].text.startswith("{'fig': 1}")


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV, signal.SIGTERM])
async def test_a_process_that_dies_is_told_and_the_others_go_on(runner, call, number):
    other, _ = await runner.start(0)
    session_id, _ = await runner.start(0)
    last = await runner.interact(session_id, [call("die", how=int(number))])
    assert last.status is SampleStatus.TASK_ERROR
    assert last.metrics["error"] == f"the episode's process died: signal {int(number)} ({number.name})"
    assert (await runner.interact(other, [call("buy", count=1)])).reward == 0.25


async def test_what_the_task_raises_is_told_as_elsewhere(runner, call):
    session_id, _ = await runner.start(0)
    last = await runner.interact(session_id, [call("fail")])
    assert (last.status, last.metrics["error"]) == (SampleStatus.TASK_ERROR, "LookupError: nothing there")


@pytest.mark.parametrize("daemon", [False, True])
@pytest.mark.parametrize("end", ["cancel", "leave", "die"])
async def test_what_an_episode_started_ends_with_it(runner, call, tmp_path, daemon, end):
    session_id, opening = await runner.start(0)
    hired = await runner.interact(session_id, [call("hire", daemon=daemon, path=str(tmp_path / "pid"))])
    pids = int(hired.messages[0].text), int(opening.messages[0].text.split()[2])
    assert all(map(is_alive, pids))
    if end == "cancel":
        await runner.cancel(session_id)
    elif end == "leave":
        await runner.interact(session_id, [call("leave")])
    else:
        await runner.interact(session_id, [call("die", how=9)])
    await until_gone(*pids)


async def test_a_call_that_hangs_is_killed_and_gives_its_slot_back(call):
    task = Shop()
    task.turn_timeout_s = 0.5
    runner = Runner(task, concurrency=1)
    session_id, opening = await runner.start(0)
    last = await runner.interact(session_id, [call("hang")])
    assert last.status is SampleStatus.TASK_ERROR
    assert "turn_timeout_s" in last.metrics["error"]
    await until_gone(int(opening.messages[0].text.split()[2]))
    await runner.start(0)
    await runner.cancel_all()


async def test_teardown_runs_in_the_process(call, tmp_path):
    class Tidy(Shop):
        def teardown(self, session: Session) -> None:
            (tmp_path / "torn").write_text(str(os.getpid()))

    runner = Runner(Tidy())
    session_id, opening = await runner.start(0)
    await runner.cancel(session_id)
    assert (tmp_path / "torn").read_text() == opening.messages[0].text.split()[2]


async def test_a_worker_that_is_killed_leaves_no_process(tmp_path):
    script = textwrap.dedent(
        """
        import asyncio, os, sys
        from agentrl_env_sdk import Session, Task
        from agentrl_env_sdk.worker import Runner

        class Slow(Task):
            isolation = "process"
            def setup(self, session: Session) -> str:
                return str(os.getpid())

        async def main():
            runner = Runner(Slow())
            _, opening = await runner.start(0)
            print(opening.messages[0].text, runner.task._nursery.pid, flush=True)
            await asyncio.Event().wait()

        asyncio.run(main())
        """
    )
    worker = await asyncio.create_subprocess_exec(
        sys.executable, "-c", script, stdout=asyncio.subprocess.PIPE, cwd=tmp_path
    )
    async with asyncio.timeout(20):
        pids = list(map(int, (await worker.stdout.readline()).split()))
    worker.kill()
    await worker.wait()
    await until_gone(*pids)


async def test_a_runner_that_is_forgotten_ends_its_nursery():
    runner = Runner(Shop())
    await runner.start(0)
    await runner.cancel_all()
    pid = runner.task._nursery.pid
    del runner
    gc.collect()
    await until_gone(pid)
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, 0)

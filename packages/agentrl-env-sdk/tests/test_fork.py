import asyncio
import copy

import pytest

from agentrl_core import ErrorCode, SessionError
from agentrl_env_sdk import Session, Task, tool
from agentrl_env_sdk.worker import Runner


class Walk(Task):
    max_turns = 4

    def setup(self, session: Session) -> str:
        session.state["path"] = []
        return "walk"

    @tool
    def step(self, session: Session, to: str) -> str:
        session.state["path"].append(to)
        session.reward(0.1, steps=len(session.state["path"]))
        return f"{'/'.join(session.state['path'])} {session.random.random()}"

    def snapshot(self, session: Session) -> object:
        return copy.deepcopy(session.state)


async def test_a_fork_goes_its_own_way_from_where_the_session_stood(call):
    runner = Runner(Walk())
    session_id, _ = await runner.start(0, seed=3)
    await runner.interact(session_id, [call("step", to="a")])
    fork_id, opening = await runner.fork(session_id)
    assert fork_id != session_id
    assert (opening.messages, opening.finish, opening.reward, opening.metrics) == (
        [],
        False,
        0.0,
        {"steps": 1},
    )
    assert [spec.function.name for spec in opening.tools] == ["step"]

    same = await runner.interact(session_id, [call("step", to="b")])
    twin = await runner.interact(fork_id, [call("step", to="b")])
    assert same.messages[0].text == twin.messages[0].text  # the same chance, too
    await runner.interact(session_id, [call("step", to="c")])
    other = await runner.interact(fork_id, [call("step", to="d")])
    assert other.messages[0].text.startswith("a/b/d ")
    last = await runner.interact(fork_id, [call("step", to="e")])
    assert last.finish  # Turns that were taken before count.
    assert last.metrics["score"] == pytest.approx(0.4)
    await runner.cancel_all()


async def test_a_task_without_snapshots_says_so(counter):
    runner = Runner(counter)
    session_id, _ = await runner.start(0)
    with pytest.raises(SessionError, match="task `counter` cannot be forked: it has no `snapshot`"):
        await runner.fork(session_id)
    await runner.cancel_all()


async def test_forks_take_slots_and_only_of_what_is_there(call):
    runner = Runner(Walk(), concurrency=1)
    session_id, _ = await runner.start(0)
    with pytest.raises(SessionError, match="all 1 slots") as caught:
        await runner.fork(session_id)
    assert caught.value.code is ErrorCode.NO_CAPACITY
    await runner.cancel(session_id)
    for unknown, code in ((session_id, ErrorCode.SESSION_FINISHED), (5, ErrorCode.UNKNOWN_SESSION)):
        with pytest.raises(SessionError) as caught:
            await runner.fork(unknown)
        assert caught.value.code is code


async def test_nothing_happens_in_a_session_while_it_is_copied(call):
    begun, gate = asyncio.Event(), asyncio.Event()

    class Slow(Walk):
        async def snapshot(self, session: Session) -> object:
            begun.set()
            await gate.wait()
            return copy.deepcopy(session.state)

    runner = Runner(Slow())
    session_id, _ = await runner.start(0)
    forking = asyncio.create_task(runner.fork(session_id))
    await begun.wait()
    with pytest.raises(SessionError) as caught:
        await runner.interact(session_id, [call("step", to="a")])
    assert caught.value.code is ErrorCode.SESSION_BUSY
    gate.set()
    fork_id, _ = await forking
    await runner.interact(session_id, [call("step", to="a")])
    assert set(runner.sessions) == {session_id, fork_id}
    await runner.cancel_all()


async def test_a_repeated_request_forks_once():
    runner = Runner(Walk())
    session_id, _ = await runner.start(0)
    first, _ = await runner.fork(session_id, request_id="r")
    again, _ = await runner.fork(session_id, request_id="r")
    assert first == again
    assert len(runner.sessions) == 2
    await runner.cancel_all()

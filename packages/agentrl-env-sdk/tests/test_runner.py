import asyncio
import gc
import json
import math
import random
import threading
import time
import weakref

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agentrl_core import ConfigError, ErrorCode, FunctionCall, Message, SampleStatus, SessionError, ToolCall
from agentrl_env_sdk import Session, Task, tool
from agentrl_env_sdk.worker import Runner


async def test_an_episode_runs_to_its_end_and_adds_up(counter, call):
    runner = Runner(counter)
    session_id, opening = await runner.start(1)
    assert opening.messages[0].text == "count to three, sample 1"
    assert [spec.function.name for spec in opening.tools] == ["add"]
    assert not opening.finish
    first = await runner.interact(session_id, [call("add", number=2)])
    assert (first.messages[0].role, first.messages[0].text, first.messages[0].tool_call_id) == (
        "tool",
        "2",
        "c1",
    )
    assert first.tools is None
    last = await runner.interact(session_id, [call("add", number=1)])
    assert (first.reward, last.reward) == (pytest.approx(0.1), pytest.approx(0.6))
    assert (last.finish, last.status) == (True, SampleStatus.COMPLETED)
    assert last.metrics["score"] == pytest.approx(0.7)
    assert runner.sessions == {}
    assert counter.torn_down == [session_id]


async def test_split_and_sample_reach_the_task(counter):
    runner = Runner(counter)
    assert runner.samples.splits == {"train": [0, 1, 2], "test": [3, 4]}
    _, opening = await runner.start(4)
    assert opening.messages[0].text == "count to three, sample b"
    await runner.cancel_all()


@pytest.mark.parametrize("index", [5, -2, "3", True and 99])
async def test_an_unknown_sample_is_refused(counter, index):
    with pytest.raises(SessionError, match="has 5 samples, none is"):
        await Runner(counter).start(index)


async def test_a_custom_sample_is_the_callers(counter):
    runner = Runner(counter)
    _, opening = await runner.start(-1, custom_task={"mine": 1})
    assert opening.messages[0].text == "count to three, sample {'mine': 1}"
    with pytest.raises(SessionError, match="`custom_task` is missing"):
        await runner.start(-1)
    await runner.cancel_all()


async def test_the_same_seed_gives_the_same_episode_and_another_another():
    class Dice(Task):
        def setup(self, session: Session) -> str:
            return str(session.random.random())

    runner = Runner(Dice())

    async def draw(seed):
        session_id, opening = await runner.start(0, seed=seed)
        await runner.cancel(session_id)
        return opening.messages[0].text

    assert await draw(1) == await draw(1)
    assert await draw(None) == await draw(None)
    assert len({await draw(seed) for seed in range(5)}) == 5


async def test_turns_are_limited(counter, call):
    runner = Runner(counter)
    session_id, _ = await runner.start(0)
    for _ in range(5):
        assert not (await runner.interact(session_id, [call("add", number=0)])).finish
    last = await runner.interact(session_id, [call("add", number=0)])
    assert (last.finish, last.status) == (True, SampleStatus.TASK_LIMIT_REACHED)
    assert last.metrics["score"] == pytest.approx(0.6)


async def test_unusable_replies_are_explained_and_end_the_episode_at_last(counter, call):
    runner = Runner(counter)
    session_id, _ = await runner.start(0)
    text = Message(role="assistant", content="I would add one.")
    first = await runner.interact(session_id, [text])
    assert (first.messages[0].role, first.messages[0].text) == ("user", "call a tool; tools: add(number)")
    second = await runner.interact(session_id, [call("remove", number=1)])
    assert second.messages[0].text == "error: there is no tool `remove`; tools: add(number)"
    third = await runner.interact(session_id, [call("add", number="x")])
    assert "argument `number`" in third.messages[0].text
    assert not third.finish
    last = await runner.interact(session_id, [text])
    assert (last.finish, last.status) == (True, SampleStatus.AGENT_INVALID_ACTION)
    assert last.metrics["score"] == 0.0


async def test_parallel_calls_are_answered_each_by_its_id(counter):
    calls = [
        ToolCall(
            id=f"c{n}", type="function", function=FunctionCall(name="add", arguments=f'{{"number": {n}}}')
        )
        for n in (1, 2, 3)
    ]
    runner = Runner(counter)
    session_id, _ = await runner.start(0)
    last = await runner.interact(session_id, [Message(role="assistant", content="", tool_calls=calls)])
    answers = [(message.tool_call_id, message.text) for message in last.messages]
    assert answers == [("c1", "1"), ("c2", "3"), ("c3", "the episode has ended")]
    assert last.finish


class Faulty(Task):
    """Fails in the way its sample names."""

    splits = {"train": ["setup", "nothing", "tool", "silent", "teardown", "nan", "stubborn", "sleeps"]}
    turn_timeout_s = 0.2

    def __init__(self) -> None:
        self.torn_down = 0

    async def setup(self, session: Session) -> str:
        if session.sample == "setup":
            raise RuntimeError("no database")
        return None if session.sample == "nothing" else "go"  # type: ignore[return-value]

    @tool
    async def act(self, session: Session) -> str:
        """Act."""
        match session.sample:
            case "tool":
                raise KeyError("lost")
            case "silent":
                return None  # type: ignore[return-value]
            case "nan":
                session.reward(math.nan)
            case "stubborn":
                try:
                    await asyncio.Event().wait()
                except asyncio.CancelledError:
                    return "I did it anyway"
            case "sleeps":
                await asyncio.Event().wait()
        return "done"

    async def teardown(self, session: Session) -> None:
        self.torn_down += 1
        if session.sample == "teardown":
            raise OSError("cannot clean up")


@pytest.mark.parametrize(
    ("sample", "reason"),
    [
        ("setup", "RuntimeError: no database"),
        ("nothing", "TypeError: `Faulty.setup` returned nothing; return the first message"),
    ],
)
async def test_a_task_that_fails_at_its_start_ends_as_task_error(sample, reason):
    task = Faulty()
    runner = Runner(task)
    _, opening = await runner.start(task.splits["train"].index(sample))
    assert (opening.finish, opening.status) == (True, SampleStatus.TASK_ERROR)
    assert opening.metrics == {"error": reason, "score": 0.0}
    assert runner.sessions == {}
    assert task.torn_down == 1


@pytest.mark.parametrize(
    ("sample", "reason"),
    [
        ("tool", "KeyError: 'lost'"),
        ("silent", "TypeError: tool `act` returned nothing; return what the agent should read"),
        ("nan", "ValueError: `reward` must be finite, got nan"),
        ("sleeps", "no answer within `turn_timeout_s` = 0.2 s"),
        ("stubborn", "no answer within `turn_timeout_s` = 0.2 s"),
    ],
)
async def test_a_task_that_fails_in_a_tool_ends_as_task_error(sample, reason, call):
    task = Faulty()
    runner = Runner(task)
    session_id, _ = await runner.start(task.splits["train"].index(sample))
    last = await runner.interact(session_id, [call("act")])
    assert (last.finish, last.status) == (True, SampleStatus.TASK_ERROR)
    assert last.metrics["error"] == reason
    assert runner.sessions == {}
    assert task.torn_down == 1


async def test_a_teardown_that_fails_frees_the_slot_all_the_same(call):
    task = Faulty()
    runner = Runner(task)
    session_id, _ = await runner.start(task.splits["train"].index("teardown"))
    await runner.cancel(session_id)
    assert runner.sessions == {}
    assert runner.status(session_id) is SampleStatus.CANCELLED


async def test_cancelling_tells_the_waiting_caller_at_once(counter, call):
    class Slow(type(counter)):
        @tool
        async def add(self, session: Session, number: int) -> str:
            """Add."""
            await asyncio.Event().wait()
            return ""

    task = Slow()
    runner = Runner(task)
    session_id, _ = await runner.start(0)
    waiting = asyncio.create_task(runner.interact(session_id, [call("add", number=1)]))
    await asyncio.sleep(0)
    await runner.cancel(session_id)
    last = await waiting
    assert (last.finish, last.status) == (True, SampleStatus.CANCELLED)
    assert task.torn_down == [session_id]


async def test_slots_come_back_whenever_a_cancel_comes(counter, call):
    runner = Runner(counter, concurrency=4)
    chance = random.Random(0)

    async def one(number):
        session_id, _ = await runner.start(number % 5)
        turns = chance.randrange(3)
        playing = asyncio.create_task(runner.interact(session_id, [call("add", number=0)])) if turns else None
        for _ in range(chance.randrange(12)):
            await asyncio.sleep(0)
        await runner.cancel(session_id)
        if playing is not None:
            await asyncio.gather(playing, return_exceptions=True)

    for _ in range(40):
        await asyncio.gather(*(one(number) for number in range(4)))
    assert runner.sessions == {}
    assert len(counter.torn_down) == len(set(counter.torn_down)) == 160


async def test_a_full_worker_refuses_with_406(counter):
    runner = Runner(counter, concurrency=1)
    await runner.start(0)
    with pytest.raises(SessionError) as caught:
        await runner.start(1)
    assert caught.value.code is ErrorCode.NO_CAPACITY
    await runner.cancel_all()
    await runner.start(1)
    await runner.cancel_all()


async def test_a_session_id_is_taken_once(counter):
    runner = Runner(counter)
    await runner.start(0, session_id=7)
    with pytest.raises(SessionError, match="session 7 exists already"):
        await runner.start(0, session_id=7)
    await runner.cancel(7)
    with pytest.raises(SessionError, match="session 8 is unknown here"):
        await runner.cancel(8)


async def test_a_repeated_request_gets_the_same_answer_and_acts_once(counter, call):
    runner = Runner(counter)
    one, two = await asyncio.gather(runner.start(0, request_id="s"), runner.start(0, request_id="s"))
    assert one == two
    session_id = one[0]
    assert len(runner.sessions) == 1
    first = await runner.interact(session_id, [call("add", number=2)], request_id="r1")
    again = await runner.interact(session_id, [call("add", number=2)], request_id="r1")
    assert first is again
    last = await runner.interact(session_id, [call("add", number=1)], request_id="r2")
    assert last.messages[0].text == "3"
    assert last is await runner.interact(session_id, [], request_id="r2")
    with pytest.raises(SessionError, match="has ended as `completed`"):
        await runner.interact(session_id, [], request_id="r3")


async def test_another_request_while_one_runs_is_refused_and_nothing_shifts(call):
    gate = asyncio.Event()

    class Gated(Task):
        def setup(self, session: Session) -> str:
            return "go"

        @tool
        async def act(self) -> str:
            """Act."""
            await gate.wait()
            return "first"

    runner = Runner(Gated())
    session_id, _ = await runner.start(0)
    running = asyncio.create_task(runner.interact(session_id, [call("act")], request_id="r1"))
    await asyncio.sleep(0)
    with pytest.raises(SessionError) as caught:
        await runner.interact(session_id, [call("act")], request_id="r2")
    assert caught.value.code is ErrorCode.SESSION_BUSY
    with pytest.raises(TimeoutError):
        await runner.interact(session_id, [], request_id="r1", deadline_s=0.01)
    gate.set()
    assert (await running).messages[0].text == "first"
    assert (await runner.interact(session_id, [], request_id="r1")).messages[0].text == "first"
    await runner.cancel_all()


async def test_idle_episodes_expire_but_busy_ones_do_not(call):
    gate = asyncio.Event()

    class Gated(Task):
        def setup(self, session: Session) -> str:
            return "go"

        @tool
        async def act(self) -> str:
            """Act."""
            await gate.wait()
            return "done"

    runner = Runner(Gated(), idle_timeout_s=0.0)
    idle, _ = await runner.start(0)
    busy, _ = await runner.start(0)
    playing = asyncio.create_task(runner.interact(busy, [call("act")]))
    await asyncio.sleep(0)
    end = time.monotonic() + 5
    while idle in runner.sessions:
        runner.expire()
        await asyncio.sleep(0)
        assert time.monotonic() < end
    assert list(runner.sessions) == [busy]
    gate.set()
    assert (await playing).messages[0].text == "done"
    await runner.cancel_all()


async def test_a_coroutine_task_talks_to_the_agent_itself():
    class Echo(Task):
        async def run(self, session: Session) -> None:
            session.say("hello")
            reply = await session.action()
            session.reward(0.25, score=0.5, letters=len(reply.text))
            reply = await session.action(f"you said {reply.text}")
            session.finish(reward=0.25)

    runner = Runner(Echo())
    session_id, opening = await runner.start(0)
    assert (opening.messages[0].text, opening.tools) == ("hello", None)
    middle = await runner.interact(session_id, [Message(role="assistant", content="abc")])
    assert (middle.messages[0].text, middle.reward) == ("you said abc", 0.25)
    last = await runner.interact(session_id, [Message(role="assistant", content="bye")])
    assert last.finish
    assert last.metrics == {"score": 0.5, "letters": 3}


async def test_a_system_prompt_comes_first_and_tools_can_change(counter, call):
    class Prompted(type(counter)):
        system_prompt = "be brief"

        @tool
        def add(self, session: Session, number: int) -> str:
            """Add."""
            session.set_tools([])
            return str(number)

    runner = Runner(Prompted())
    session_id, opening = await runner.start(0)
    assert [message.role for message in opening.messages] == ["system", "user"]
    assert (await runner.interact(session_id, [call("add", number=1)])).tools == []
    await runner.cancel_all()


async def test_text_that_no_json_reader_takes_is_mended(counter, call):
    class Odd(type(counter)):
        @tool
        def add(self, session: Session, number: int) -> str:
            """Add."""
            return "half \ud83d of it"

    runner = Runner(Odd())
    session_id, _ = await runner.start(0)
    reply = await runner.interact(session_id, [call("add", number=1)])
    assert reply.messages[0].text == "half ? of it"
    await runner.cancel_all()


class Closing(Task):
    """Ends with its first act, and takes its time to clean up."""

    turn_timeout_s = 0.2

    def __init__(self) -> None:
        self.tearing_down = asyncio.Event()
        self.may_end = asyncio.Event()

    def setup(self, session: Session) -> str:
        return "go"

    @tool
    async def act(self, session: Session) -> str:
        """Act."""
        session.finish(reward=1.0)
        return "done"

    async def teardown(self, session: Session) -> None:
        self.tearing_down.set()
        await self.may_end.wait()


async def test_a_cancel_before_the_first_step_gives_the_slot_back(counter):
    runner = Runner(counter)
    starting = asyncio.create_task(runner.start(0, session_id=1))
    cancelling = asyncio.create_task(runner.cancel(1))  # Its turn comes before that of the new episode.
    async with asyncio.timeout(5):
        _, opening = await starting
        await cancelling
    assert (opening.finish, opening.status) == (True, SampleStatus.CANCELLED)
    assert runner.sessions == {}
    assert counter.torn_down == [1]


async def test_a_cancel_during_the_teardown_waits_for_it_and_changes_nothing(call):
    task = Closing()
    runner = Runner(task)
    await runner.start(0, session_id=1)
    playing = asyncio.create_task(runner.interact(1, [call("act")]))
    async with asyncio.timeout(5):
        await task.tearing_down.wait()
        cancelling = asyncio.create_task(runner.cancel(1))
        await asyncio.sleep(0)
        assert not cancelling.done()
        task.may_end.set()
        await cancelling
        last = await playing
    assert (last.status, last.reward, runner.sessions) == (SampleStatus.COMPLETED, 1.0, {})


async def test_a_teardown_that_never_ends_keeps_neither_the_answer_nor_the_slot(call):
    runner = Runner(Closing())
    await runner.start(0, session_id=1)
    async with asyncio.timeout(5):
        last = await runner.interact(1, [call("act")])
    assert (last.status, last.reward, runner.sessions) == (SampleStatus.COMPLETED, 1.0, {})


async def test_an_episode_may_end_at_its_start():
    class Solved(Task):
        def setup(self, session: Session) -> str:
            session.finish(reward=1.0)
            return "nothing to do"

    runner = Runner(Solved())
    _, opening = await runner.start(0)
    assert (opening.finish, opening.reward, opening.messages[0].text) == (True, 1.0, "nothing to do")
    assert runner.sessions == {}


async def test_turns_are_limited_for_a_coroutine_task_too():
    class Talker(Task):
        max_turns = 2

        async def run(self, session: Session) -> None:
            while True:
                await session.action("and then?")

    runner = Runner(Talker())
    session_id, _ = await runner.start(0)
    story = [Message(role="assistant", content="...")]
    assert not (await runner.interact(session_id, story)).finish
    last = await runner.interact(session_id, story)
    assert (last.status, last.messages[0].text) == (SampleStatus.TASK_LIMIT_REACHED, "and then?")


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        (SystemExit(3), "RuntimeError: SystemExit: 3"),
        (asyncio.CancelledError(), "CancelledError: the task cancelled itself"),
        (StopIteration(), "RuntimeError: StopIteration: "),
    ],
)
async def test_no_way_out_of_a_tool_takes_the_worker_along(fault, reason, call):
    class Leaving(Task):
        def setup(self, session: Session) -> str:
            return "go"

        @tool
        def act(self) -> str:
            """Act."""
            raise fault

    runner = Runner(Leaving())
    session_id, _ = await runner.start(0)
    last = await runner.interact(session_id, [call("act")])
    assert (last.status, last.metrics["error"]) == (SampleStatus.TASK_ERROR, reason)


async def test_a_run_that_is_not_async_is_named():
    class Sync(Task):
        def run(self, session: Session) -> None:  # type: ignore[override]
            return None

    _, opening = await Runner(Sync()).start(0)
    assert opening.status is SampleStatus.TASK_ERROR
    assert opening.metrics["error"].endswith("Sync.run` must be `async def`")


async def test_a_score_outside_of_its_range_is_the_tasks_fault(call):
    class Proud(Closing):
        @tool
        async def act(self, session: Session) -> str:
            """Act."""
            session.finish(score=7.0)
            return "done"

    task = Proud()
    task.may_end.set()
    runner = Runner(task)
    session_id, _ = await runner.start(0)
    last = await runner.interact(session_id, [call("act")])
    assert last.metrics["error"].startswith("ValueError: `score` must be in [0, 1], got 7.0")


async def test_a_controller_that_counts_from_one_again_may_use_ids_of_ended_sessions(counter):
    runner = Runner(counter)
    await runner.start(0, session_id=1)
    await runner.cancel(1)
    _, opening = await runner.start(1, session_id=1)
    assert opening.messages[0].text == "count to three, sample 1"
    await runner.cancel_all()


async def test_a_start_that_is_repeated_too_late_does_not_get_anothers_answer(counter, call):
    runner = Runner(counter)
    session_id, _ = await runner.start(0, request_id="s")
    await runner.interact(session_id, [call("add", number=1)], request_id="r")
    with pytest.raises(SessionError, match="has gone on since request s"):
        await runner.start(0, request_id="s")
    await runner.cancel_all()


async def test_a_start_whose_deadline_passed_holds_no_slot():
    class Slow(Task):
        async def setup(self, session: Session) -> str:
            await asyncio.Event().wait()
            return ""

    runner = Runner(Slow())
    with pytest.raises(TimeoutError):
        await runner.start(0, deadline_s=0.01)
    async with asyncio.timeout(5):
        await runner.wait_until_empty()


async def test_a_worker_that_drains_takes_nothing_new_and_plays_on(counter, call):
    runner = Runner(counter)
    session_id, _ = await runner.start(0)
    runner.is_draining = True
    with pytest.raises(SessionError, match="about to stop"):
        await runner.start(0)
    emptying = asyncio.create_task(runner.wait_until_empty())
    assert (await runner.interact(session_id, [call("add", number=3)])).finish
    async with asyncio.timeout(5):
        await emptying


async def test_an_ended_episode_keeps_nothing_of_the_task_alive(counter):
    class Heavy:
        pass

    held = []

    class Holder(type(counter)):
        def setup(self, session: Session) -> str:
            session.state["heavy"] = heavy = Heavy()
            held.append(weakref.ref(heavy))
            return "go"

    runner = Runner(Holder())
    session_id, _ = await runner.start(0)
    await runner.cancel(session_id)
    await asyncio.sleep(0)
    gc.collect()
    assert held[0]() is None
    assert runner.status(session_id) is SampleStatus.CANCELLED


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
arguments = st.one_of(
    st.text(),
    json_values.map(json.dumps),
    json_values.map(lambda value: json.dumps(json.dumps(value))),
    st.dictionaries(st.sampled_from(["number", "n", "session", "self"]), json_values),
    st.integers(0, 2000).map(lambda depth: '{"number":' + "[" * depth),
)
made_calls = st.builds(
    lambda name, given, call_id: ToolCall(id=call_id, function=FunctionCall(name=name, arguments=given)),
    st.sampled_from(["add", "Add", "", "setup", "teardown", "__init__"]) | st.text(max_size=8),
    arguments,
    st.none() | st.text(max_size=4),
)
replies = st.builds(
    lambda role, content, calls: Message(role=role, content=content, tool_calls=calls),
    st.sampled_from(["assistant", "user", "tool", "?"]),
    st.none() | st.text(),
    st.none() | st.lists(made_calls, max_size=3),
)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(turns=st.lists(st.lists(replies, max_size=2), max_size=6))
def test_whatever_a_model_says_is_never_a_fault_of_the_task(counter, turns):
    async def play():
        runner = Runner(counter)
        session_id, exchange = await runner.start(0)
        for messages in turns:
            exchange = await runner.interact(session_id, messages)
            asked = [call.id for message in messages for call in message.tool_calls or []]
            answered = [message.tool_call_id for message in exchange.messages if message.role == "tool"]
            assert answered == asked
            assert sum(len(message.text) for message in exchange.messages) < 2000
            assert exchange.status is not SampleStatus.TASK_ERROR, exchange.metrics
            if exchange.finish:
                break
        else:
            await runner.cancel(session_id)
        assert runner.sessions == {}

    asyncio.run(play())


class Restless(Task):
    """Every step gives the others some turns, as its seed has it; some end, some fail, some clean up."""

    max_turns = 3
    concurrency = 8

    def __init__(self) -> None:
        self.torn_down: list[int | str] = []

    async def setup(self, session: Session) -> str:
        await self.rest(session)
        return "go"

    @tool
    async def act(self, session: Session) -> str:
        """Act."""
        await self.rest(session)
        match session.random.randrange(4):
            case 0:
                session.finish(reward=1.0)
            case 1:
                raise RuntimeError("no luck")
        return "done"

    async def teardown(self, session: Session) -> None:
        self.torn_down.append(session.id)
        await self.rest(session)

    async def rest(self, session: Session) -> None:
        for _ in range(session.random.randrange(4)):
            await asyncio.sleep(0)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(plans=st.lists(st.tuples(st.integers(0, 99), st.integers(0, 25), st.integers(1, 3)), max_size=8))
def test_a_cancel_at_any_point_never_keeps_a_slot(call, plans):
    async def agent(runner, session_id, seed):
        _, exchange = await runner.start(0, session_id=session_id, seed=seed)
        while not exchange.finish:
            exchange = await runner.interact(session_id, [call("act")])

    async def canceller(runner, session_id, pause, times):
        for _ in range(times):
            for _ in range(pause):
                await asyncio.sleep(0)
            await runner.cancel(session_id)

    async def play():
        task = Restless()
        runner = Runner(task)
        agents, cancellers = [], []
        for session_id, (seed, pause, times) in enumerate(plans):
            agents.append(asyncio.create_task(agent(runner, session_id, seed)))
            cancellers.append(asyncio.create_task(canceller(runner, session_id, pause, times)))
        async with asyncio.timeout(10):
            await asyncio.gather(*cancellers)
            outcomes = await asyncio.gather(*agents, return_exceptions=True)
        assert runner.sessions == {}
        assert sorted(task.torn_down) == list(range(len(plans)))
        for outcome in outcomes:
            assert outcome is None or outcome.code is ErrorCode.SESSION_FINISHED

    asyncio.run(play())


async def test_a_truncated_episode_is_told_from_one_that_ended(call):
    class Cut(Task):
        def setup(self, session: Session) -> str:
            return "go"

        @tool
        def go(self, session: Session) -> str:
            session.reward(0.25)
            session.truncate("world steps")
            return "dark"

    runner = Runner(Cut())
    session_id, _ = await runner.start(0)
    last = await runner.interact(session_id, [call("go")])
    assert (last.finish, last.status) == (True, SampleStatus.TASK_LIMIT_REACHED)
    assert last.metrics == {"truncated": "world steps", "score": 0.25}
    assert last.reward == 0.25


async def test_an_episode_whose_time_is_over_ends_with_the_agents_next_reply(counter, call, monkeypatch):
    counter.episode_timeout_s = 100.0
    now = time.monotonic()
    runner = Runner(counter)
    session_id, _ = await runner.start(0)
    await runner.interact(session_id, [call("add", number=1)])
    monkeypatch.setattr(time, "monotonic", lambda: now + 101.0)
    last = await runner.interact(session_id, [call("add", number=1)])
    assert (last.finish, last.status) == (True, SampleStatus.TASK_LIMIT_REACHED)
    assert last.metrics["truncated"] == "episode_timeout_s"
    assert last.reward == 0.0


async def test_tools_of_the_episodes_own_take_the_place_of_the_tasks(call):
    def shout(session: Session, text: str) -> str:
        """Say it loudly."""
        return f"{text.upper()} in {session.index}"

    class Own(Task):
        def setup(self, session: Session) -> str:
            session.set_tools([shout])
            return "go"

        @tool
        def whisper(self, text: str) -> str:
            return text.lower()

    runner = Runner(Own())
    session_id, opening = await runner.start(0)
    assert [(spec.function.name, spec.function.description) for spec in opening.tools] == [
        ("shout", "Say it loudly.")
    ]
    answer = await runner.interact(session_id, [call("shout", text="hi")])
    assert answer.messages[0].text == "HI in 0"
    refused = await runner.interact(session_id, [call("whisper", text="hi")])
    assert refused.messages[0].text == "error: there is no tool `whisper`; tools: shout(text)"
    await runner.cancel_all()


async def test_plain_functions_may_stand_beside_the_methods(call):
    def double(number: int) -> int:
        return 2 * number

    class Both(Task):
        tools = [double]

        def setup(self, session: Session) -> str:
            return "go"

        @tool
        def half(self, number: int) -> float:
            return number / 2

    runner = Runner(Both())
    session_id, opening = await runner.start(0)
    assert [spec.function.name for spec in opening.tools] == ["half", "double"]
    answer = await runner.interact(session_id, [call("double", number=4)])
    assert answer.messages[0].text == "8"
    await runner.cancel_all()

    class Twice(Both):
        tools = [double, double]

    with pytest.raises(ConfigError, match="two tools called `double`"):
        Runner(Twice())

    class Shut(Both):
        @tool
        def close(self, door: str) -> str:
            """Close a door."""
            return door

    with pytest.raises(ConfigError, match=r"`close` of `Shut` hides `Task.close`.*in `tools`"):
        Runner(Shut())


async def test_a_sessions_sync_code_keeps_to_one_thread_from_setup_to_teardown(call):
    threads = {}

    class Owner(Task):
        def setup(self, session: Session) -> str:
            threads[session.id] = {threading.get_ident()}
            return "go"

        @tool
        def go(self, session: Session) -> str:
            threads[session.id].add(threading.get_ident())
            return "on"

        def teardown(self, session: Session) -> None:
            threads[session.id].add(threading.get_ident())

    runner = Runner(Owner())
    ids = [(await runner.start(0))[0] for _ in range(5)]
    for _ in range(3):
        await asyncio.gather(*(runner.interact(session_id, [call("go")]) for session_id in ids))
    await runner.cancel_all()
    assert [len(seen) for seen in threads.values()] == [1] * 5
    assert len(set.union(*threads.values())) == 5


@pytest.mark.parametrize("is_async", [False, True])
async def test_a_runner_that_is_closed_ends_its_episodes_first_and_lets_the_task_go(counter, is_async):
    closed = []

    class Holder(type(counter)):
        def close(self):
            closed.append(len(self.torn_down))

    class AsyncHolder(type(counter)):
        async def close(self):
            closed.append(len(self.torn_down))

    runner = Runner(AsyncHolder() if is_async else Holder())
    await runner.start(0)
    await runner.start(1)
    await runner.close()
    assert closed == [2]


@pytest.mark.parametrize("given", [0, -1, "8", 1.5])
def test_a_concurrency_that_is_none_is_refused(given):
    task = Restless()
    task.concurrency = given
    with pytest.raises(ConfigError, match=r"`concurrency` of `.*` must be a whole number of at least 1, got"):
        Runner(task)


async def test_what_a_task_cannot_say_is_told():
    class Telling(Task):
        def setup(self, session: Session):
            return [{"role": "user", "content": "hello"}]

    _, opening = await Runner(Telling()).start(0)
    assert "a text, a Message or a list of Messages, got list of dict" in opening.metrics["error"]

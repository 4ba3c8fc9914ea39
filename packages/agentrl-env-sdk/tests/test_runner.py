import asyncio
import math
import random
import time

import pytest

from agentrl_core import ErrorCode, FunctionCall, Message, SampleStatus, SessionError, ToolCall
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

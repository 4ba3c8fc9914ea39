"""For each check a task that fails it, beside tasks that pass them all."""

import asyncio
import contextlib
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Literal

import pytest

from agentrl_core import ConfigError, Message, Tool, ToolFunction
from agentrl_env_sdk import Session, Task, tool
from agentrl_env_sdk.oracle import act
from agentrl_env_sdk.tasks import Guess, Trail
from agentrl_env_sdk.tools import described
from agentrl_env_sdk.validate import CHECKS, Settings, Subject, Verdict, check, validate
from agentrl_env_sdk.validate.checks.schemas import faults_of, faults_of_list, strict_notes
from agentrl_env_sdk.validate.resources import Resources, own_temporary_folder

LEFT_S = 43_217
"""A time that no other process sleeps for."""

QUICK = Settings(num_samples=6, grace_s=0.3, timeout_s=0.3, lag_s=0.05)


class Word(Task):
    """A good task: say the word that a tool tells."""

    splits = {"train": ["one", "two", "three", "four", "five", "six"]}
    optimum = 1.0
    max_turns = 4

    def setup(self, session: Session) -> str:
        return "read the word, then say it"

    @tool
    def read(self, session: Session) -> str:
        """Read the word."""
        return str(session.sample)

    @tool
    def say(self, session: Session, word: str) -> str:
        """Say the word."""
        session.finish(reward=float(word == session.sample))
        return "thank you"

    def oracle(self, session: Session):
        seen = yield act("read")
        yield act("say", word=seen.text)


async def find(name, task, settings=QUICK):
    return await check(name, Subject(task, settings=settings))


async def failing(name, task, *told, settings=QUICK):
    """The check fails and says all that is told."""
    finding = await find(name, task, settings)
    text = "\n".join(finding.problems)
    assert finding.verdict is Verdict.FAILED, finding
    assert [each for each in told if each not in text] == [], text
    return finding


async def passing(name, task, settings=QUICK):
    finding = await find(name, task, settings)
    assert finding.verdict is Verdict.PASSED, finding
    return finding


@pytest.mark.parametrize("task", [Guess, Trail, Word])
async def test_a_good_task_passes_every_check(task):
    report = await validate(task(), settings=Settings(num_samples=6))
    assert report.ok, report.table()
    assert [finding.check for finding in report.findings] == list(CHECKS)
    assert {finding.verdict for finding in report.findings} == {Verdict.PASSED}


# errors


async def test_a_task_that_fails_of_what_agents_do_is_found():
    class Picky(Word):
        @tool
        def say(self, session: Session, word: str) -> str:
            """Say the word."""
            session.finish(reward=float({"one": 1}[word]))
            return "thank you"

    await failing(
        "errors", Picky(), "sample 1 ends as `task error` after 2 turns of the oracle agent: KeyError"
    )


# same-seed


async def test_chance_that_is_not_the_session_s_is_found():
    class Dice(Word):
        def setup(self, session: Session) -> str:
            return f"the dice show {random.random()}"

    await failing(
        "same-seed", Dice(), "sample 0 with seed 1 is another one", "the dice show", "session.random"
    )


async def test_what_a_task_remembers_of_earlier_episodes_is_found():
    class Counting(Word):
        count = 0

        @tool
        def read(self, session: Session) -> str:
            """Read the word."""
            self.count += 1
            return str(session.sample) + " " * self.count

    await failing("same-seed", Counting(), "turn 1, message 1")


# different-seeds


async def test_a_task_that_is_always_the_same_is_found():
    class Constant(Word):
        splits = {"train": 6}

        @tool
        def read(self, session: Session) -> str:
            """Read the word."""
            return "word"

        @tool
        def say(self, session: Session, word: str) -> str:
            """Say the word."""
            session.finish(reward=float(word == "word"))
            return "thank you"

    await failing(
        "different-seeds", Constant(), "4 seeds of sample 0 and 6 samples all give the same episode"
    )


async def test_a_seed_that_changes_the_episode_is_seen():
    class Dice(Word):
        splits = {"train": 1}

        def setup(self, session: Session) -> str:
            return f"the dice show {session.random.randrange(1000)}"

    assert "4 of 4 seeds" in (await passing("different-seeds", Dice())).did


# no-leaks


async def test_state_on_the_task_that_other_episodes_change_is_found():
    class Shared(Word):
        def setup(self, session: Session) -> str:
            self.word = session.sample
            return "read the word, then say it"

        @tool
        def read(self, session: Session) -> str:
            """Read the word."""
            return str(self.word)

    await failing("no-leaks", Shared(), "played in turn with 12 others differs", "session.state")


async def test_state_of_the_class_that_changes_while_another_episode_waits_is_found():
    class Racing(Word):
        now = ""

        async def setup(self, session: Session) -> str:
            return "go"

        @tool
        async def read(self, session: Session) -> str:
            """Read the word."""
            Racing.now = session.sample
            await asyncio.sleep(0)
            return Racing.now

    finding = await failing("no-leaks", Racing(), "played at once with 12 others differs")
    assert not any("played in turn" in problem for problem in finding.problems)


# oracle, do-nothing, random


async def test_an_oracle_that_does_not_reach_the_optimum_is_found():
    class Weak(Word):
        def oracle(self, session: Session):
            yield act("say", word="one")

    await failing("oracle", Weak(), "the oracle's mean score is 0.167, the declared optimum 1", "in sample 1")


async def test_an_oracle_that_stops_before_the_end_is_found():
    class Half(Word):
        def oracle(self, session: Session):
            yield act("read")

    await failing("oracle", Half(), "the oracle stops after 1 turns of sample 0 and the episode goes on")


async def test_an_oracle_needs_an_optimum_that_is_one():
    class Undeclared(Word):
        optimum = None

    class Beyond(Word):
        optimum = 1.5

    await failing("oracle", Undeclared(), "`optimum` must be in (0, 1]", "got None")
    await failing("oracle", Beyond(), "got 1.5")


async def test_without_an_oracle_and_an_optimum_nothing_is_said_of_them():
    class Plain(Task):
        def setup(self, session: Session) -> str:
            return "hello"

    for name in ("oracle", "do-nothing", "random", "prompt"):
        assert (await find(name, Plain())).verdict is Verdict.SKIPPED


async def test_a_reward_for_nothing_is_found():
    class Generous(Word):
        def setup(self, session: Session) -> str:
            session.reward(0.95)
            return "read the word, then say it"

    await failing(
        "do-nothing", Generous(), "the do-nothing agent's mean score is 0.950", "below 0.9 x the optimum"
    )


async def test_a_reward_for_anything_is_found():
    class Easy(Word):
        @tool
        def say(self, session: Session, word: str) -> str:
            """Say the word."""
            session.finish(reward=1.0)
            return "thank you"

        tools = ()

    class EasyOnly(Task):
        optimum = 1.0

        def setup(self, session: Session) -> str:
            return "say"

        say = Easy.say

    await failing("random", EasyOnly(), "the random agent's mean score is 1.000")
    await passing("do-nothing", EasyOnly())


async def test_a_lucky_guess_is_no_way_to_win():
    class Coin(Task):
        optimum = 1.0

        def setup(self, session: Session) -> str:
            return "heads or tails?"

        @tool
        def call(self, session: Session, side: Literal["heads", "tails"]) -> str:
            """Call it."""
            session.finish(reward=float(side == "heads"))
            return "thank you"

    finding = await passing("random", Coin())
    assert "in 16 episodes of 1 sample" in finding.did


# rewards


async def test_a_reward_that_is_no_number_is_found():
    class Undefined(Word):
        @tool
        def read(self, session: Session) -> str:
            """Read the word."""
            session.reward(float("nan"))
            return "word"

    await failing("rewards", Undefined(), "`reward` must be finite, got nan")


async def test_a_return_out_of_range_is_found_unless_the_range_is_declared():
    class Points(Word):
        @tool
        def read(self, session: Session) -> str:
            """Read the word."""
            session.reward(30.0)
            return str(session.sample)

    await failing("rewards", Points(), "the return 31 must be in [-1, 1]", "reward_range = (low, high)")

    class Declared(Points):
        reward_range = (0.0, 200.0)

    await passing("rewards", Declared())


async def test_a_score_and_metrics_that_cannot_be_counted_are_found():
    class Odd(Word):
        @tool
        def read(self, session: Session) -> str:
            """Read the word."""
            session.metrics.update(score=7, ratio=float("inf"), who=self)
            return str(session.sample)

    await failing(
        "rewards", Odd(), "the score 7 must be in [0, 1]", "metric `ratio` is no JSON", "metric `who`"
    )


# prompt


async def test_an_answer_that_stands_in_the_prompt_is_found():
    class Telling(Word):
        def setup(self, session: Session) -> str:
            return f"read the word (debug: {session.sample!r}), then say it"

    await failing("prompt", Telling(), "after `", "wins 6 of 6 samples in one turn", "answer_is_shown")

    class Declared(Telling):
        answer_is_shown = True

    assert (await find("prompt", Declared())).verdict is Verdict.SKIPPED


async def test_an_answer_that_stands_in_a_tool_is_found():
    class Telling(Word):
        def setup(self, session: Session) -> str:
            spec = {"type": "object", "properties": {"word": {"type": "string", "default": session.sample}}}
            session.set_tools([described("say", "Say it.", spec, lambda word: self.say(session, word))])
            return "say the word"

        def oracle(self, session: Session):
            yield act("say", word=session.sample)

    await failing("prompt", Telling(), "wins 6 of 6 samples in one turn")


class Choice(Task):
    """The right answer is one of three that are shown."""

    splits = {"train": 12}
    optimum = 1.0

    def setup(self, session: Session) -> str:
        options = session.random.sample(
            ["Rome", "Paris", "Bern", "Oslo", "Lima", "Cairo", "Quito", "Seoul"], 3
        )
        session.state["right"] = session.random.choice(options)
        return f"Which one do I think of? A) {options[0]} B) {options[1]} C) {options[2]}"

    @tool
    def choose(self, session: Session, city: str) -> str:
        """Choose."""
        session.finish(reward=float(city == session.state["right"]))
        return "thank you"

    def oracle(self, session: Session):
        yield act("choose", city=session.state["right"])


async def test_an_answer_among_others_to_choose_from_is_none_that_stands_in_the_prompt():
    await passing("prompt", Choice(), Settings(num_samples=12))


async def test_a_right_answer_that_is_always_the_first_choice_is_found():
    class First(Choice):
        def setup(self, session: Session) -> str:
            said = super().setup(session)
            session.state["right"] = said.partition("A) ")[2].partition(" B)")[0]
            return said

    await failing("prompt", First(), "after `a )`", settings=Settings(num_samples=12))


async def test_a_goal_whose_last_step_is_named_needs_more_than_reading():
    class Fetch(Word):
        def setup(self, session: Session) -> str:
            return f"find the thing, then hand over {session.sample}"

        @tool
        def find(self, session: Session) -> str:
            """Find it."""
            session.state["found"] = True
            return "found"

        @tool
        def hand_over(self, session: Session, thing: str) -> str:
            """Hand it over."""
            if "found" not in session.state:
                return "you have nothing to hand over"
            session.finish(reward=float(thing == session.sample))
            return "thank you"

        def oracle(self, session: Session):
            yield act("find")
            yield act("hand_over", thing=session.sample)

    finding = await passing("prompt", Fetch())
    assert "does not win at once" in finding.notes[0]


# schemas


def named(name="look", description="Look.", **schema):
    return Tool(function=ToolFunction(name=name, description=description, parameters=schema))


@pytest.mark.parametrize(
    ("spec", "told"),
    [
        (named("look around", type="object"), "OpenAI: the tool name `look around` must match"),
        (named("look.around", type="object"), "Anthropic: the tool name `look.around` must match"),
        (named("x" * 129, type="object"), "MCP: the tool name"),
        (named(description="x" * 1025, type="object"), "has 1025 characters, 1024 at most"),
        (named(type="string"), "must be of type `object`, got 'string'"),
        (named(type="object", anyOf=[{"required": ["a"]}]), "have `anyOf` at the top"),
        (named(type="object", properties={"a b": {}}), "Anthropic: argument `a b` of `look` must match"),
        (named(type="object", properties={"a": {"type": "text"}}), "no JSON schema, at properties/a/type"),
        (named(type="object", properties={"a": {"$ref": "#/$defs/A"}}), "`#/$defs/A` in the parameters"),
        (named(type="object", properties={"a": {"$ref": "http://x/y"}}), "leads nowhere"),
    ],
)
def test_a_tool_that_an_interface_refuses_is_found(spec, told):
    assert told in "\n".join(faults_of(spec))


def test_a_tool_that_all_take_has_no_fault():
    assert (
        list(faults_of(named(type="object", properties={"a": {"$ref": "#/$defs/A"}}, **{"$defs": {"A": {}}})))
        == []
    )
    assert list(faults_of_list([named("a"), named("b")])) == []


def test_tools_of_one_name_and_too_many_are_found():
    assert "two tools are called `look`" in next(faults_of_list([named(), named()]))
    assert "there are 129 tools" in next(faults_of_list([named(f"t{n}") for n in range(129)]))


def test_what_strict_mode_does_not_take_is_noted():
    spec = named(type="object", properties={"a": {"oneOf": [{}]}, "b": {"type": "object"}}, required=["a"])
    (note,) = strict_notes(spec)
    assert "optional arguments (b), objects with any properties, `oneOf`" in note
    assert list(strict_notes(named(type="object", properties={}, additionalProperties=False))) == []


async def test_tools_of_an_episode_are_looked_at():
    class Own(Word):
        def setup(self, session: Session) -> str:
            session.set_tools([described("say it!", "Say.", {"type": "object"}, lambda: "said")])
            return "say"

        oracle = None

    await failing("schemas", Own(), "the tool name `say it!` must match")


# payloads


async def test_a_task_that_a_half_character_breaks_is_found():
    class Encoding(Word):
        @tool
        def say(self, session: Session, word: str) -> str:
            """Say the word."""
            session.finish(reward=float(word.encode() == session.sample.encode()))
            return "thank you"

    await failing("payloads", Encoding(), "`say` with a lone surrogate as `word` ends", "UnicodeEncodeError")


async def test_a_task_that_takes_texts_only_is_found():
    class Talking(Task):
        async def run(self, session: Session) -> None:
            reply = await session.action("hello")
            session.finish(reward=float(len(reply.messages[0].content) > 3))

    await failing("payloads", Talking(), "no content at all ends the episode as `task error`: TypeError")


async def test_an_answer_that_is_no_json_is_found():
    class Parts(Word):
        def setup(self, session: Session) -> Message:
            return Message(role="user", content=[{"type": "text", "text": "half \ud83d"}])

    await failing(
        "payloads", Parts(), "the answer of turn 0 does not survive the wire", "surrogates not allowed"
    )


async def test_a_number_that_is_too_large_is_found():
    class Sized(Word):
        @tool
        def grow(self, session: Session, count: int) -> str:
            """Grow."""
            return "x" * len(range(count))

    await failing("payloads", Sized(), "`grow` with an integer of 40 digits as `count`", "OverflowError")


# blocking


class Asynchronous(Word):
    def block(self) -> None:
        pass

    @tool
    async def read(self, session: Session) -> str:
        """Read the word."""
        self.block()
        return str(session.sample)


async def test_a_sleep_on_the_loop_is_found():
    class Sleeping(Asynchronous):
        def block(self) -> None:
            time.sleep(0)

    await failing("blocking", Sleeping(), "`time.sleep` blocks the event loop at", "in block", "plain `def`")
    await passing("blocking", Asynchronous())


async def test_a_connection_and_a_process_on_the_loop_are_found():
    import socket

    with socket.create_server(("127.0.0.1", 0)) as server:

        class Connecting(Asynchronous):
            def block(self) -> None:
                socket.create_connection(server.getsockname()).close()
                subprocess.run(["true"], check=True)

        await failing("blocking", Connecting(), "`socket.connect`", "`subprocess.Popen`")

        class Waiting(Asynchronous):
            @tool
            async def read(self, session: Session) -> str:
                """Read the word."""
                _, writer = await asyncio.open_connection(*server.getsockname())
                writer.close()
                process = await asyncio.create_subprocess_exec("true")
                await process.wait()
                return str(session.sample)

        await passing("blocking", Waiting(), Settings(num_samples=2, lag_s=30.0))


async def test_a_computation_on_the_loop_is_found():
    class Computing(Asynchronous):
        def block(self) -> None:
            began = time.thread_time()
            while time.thread_time() - began < 0.3:
                pass

    await failing("blocking", Computing(), "a step held up the event loop for", "in block")


async def test_what_blocks_a_thread_blocks_nobody():
    class Sleeping(Word):
        @tool
        def read(self, session: Session) -> str:
            """Read the word."""
            time.sleep(0.001)
            return str(session.sample)

    await passing("blocking", Sleeping(), Settings(num_samples=2, lag_s=30.0))


# cancellation


async def test_a_task_that_swallows_its_cancellation_is_found():
    class Stubborn(Word):
        @tool
        async def read(self, session: Session) -> str:
            """Read the word."""
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(0)
                return str(session.sample)
            await asyncio.Event().wait()
            return ""

    await failing(
        "cancellation", Stubborn(), "test_validate.py:", "in read: it goes on after 0.3 s and keeps its slot"
    )


@pytest.mark.parametrize("kind", ["descriptor", "process", "thread", "temporary file"])
async def test_what_a_cancelled_episode_leaves_behind_is_found(kind):
    kept = []
    over = threading.Event()

    def take():
        if kind == "descriptor":
            return os.open(os.devnull, os.O_RDONLY)
        if kind == "process":
            return subprocess.Popen(["sleep", "1000"])
        if kind == "thread":
            thread = threading.Thread(target=over.wait, name="mine")
            thread.start()
            return thread
        return tempfile.mkdtemp()

    class Leaking(Word):
        async def setup(self, session: Session) -> str:
            kept.append(take())
            await asyncio.sleep(0)
            return "go"

    try:
        await failing("cancellation", Leaking(), "sample 0, cancelled at", "in setup", kind)
    finally:
        over.set()
        for each in kept:
            if isinstance(each, int):
                os.close(each)
            elif isinstance(each, subprocess.Popen):
                each.kill()
                each.wait()


async def test_what_teardown_releases_is_no_leak():
    class Tidy(Word):
        async def setup(self, session: Session) -> str:
            session.state["folder"] = tempfile.TemporaryDirectory()
            session.state["process"] = await asyncio.create_subprocess_exec("sleep", "1000")
            return "go"

        async def teardown(self, session: Session) -> None:
            if "folder" in session.state:
                session.state["folder"].cleanup()
            if "process" in session.state:
                session.state["process"].kill()
                await session.state["process"].wait()

    finding = await passing("cancellation", Tidy(), Settings(num_samples=1))
    assert "await points" in finding.did


async def test_what_is_made_once_and_kept_is_no_leak():
    class Pooled(Word):
        connections = {}

        async def setup(self, session: Session) -> str:
            self.connections.setdefault("one", Path(os.devnull).open())  # noqa: SIM115
            return "go"

    try:
        await passing("cancellation", Pooled())
    finally:
        Pooled.connections["one"].close()


# timeouts

BRIEFLY = "import time; time.sleep(0.2)"
"""Long enough to be stopped on a busy machine."""


async def test_a_process_that_outlives_its_time_out_is_found():
    class Running(Word):
        @tool
        def read(self, session: Session) -> str:
            """Read the word."""
            subprocess.run([sys.executable, "-c", BRIEFLY], check=True)
            return str(session.sample)

    await failing(
        "timeouts",
        Running(),
        "sample 0: process",
        f"-c {BRIEFLY}`) goes on 0.3 s after the time-out",
        "isolation",
    )


async def test_a_process_that_teardown_kills_is_in_order():
    class Killing(Word):
        @tool
        async def read(self, session: Session) -> str:
            """Read the word."""
            session.state["process"] = await asyncio.create_subprocess_exec(sys.executable, "-c", BRIEFLY)
            await session.state["process"].wait()
            return str(session.sample)

        async def teardown(self, session: Session) -> None:
            if "process" in session.state and session.state["process"].returncode is None:
                session.state["process"].terminate()

    finding = await passing("timeouts", Killing())
    assert BRIEFLY in finding.did


# the frame around them


async def test_checks_are_chosen_by_name():
    report = await validate(Word(), target="word.py", only=["oracle", "random", "schemas"], skip=["random"])
    assert [finding.check for finding in report.findings] == ["oracle", "schemas"]
    with pytest.raises(ConfigError, match="there is no check `orakel`; there are errors, same-seed"):
        await validate(Word(), only=["orakel"])
    with pytest.raises(ConfigError, match="there is no split `dev`"):
        await validate(Word(), settings=Settings(split="dev"))


async def test_a_check_that_breaks_off_fails_with_its_reason():
    class Raising(Word):
        def oracle(self, session: Session):
            raise LookupError("no plan")
            yield

    finding = await find("oracle", Raising())
    assert finding.verdict is Verdict.FAILED
    assert "the check broke off with LookupError: no plan" in finding.problems[0]


async def test_an_oracle_may_lie_elsewhere():
    class Without(Word):
        oracle = None

    report = await validate(Without(), oracle=Word().oracle, only=["oracle"], settings=QUICK)
    assert report.finding("oracle").verdict is Verdict.PASSED
    assert (await find("oracle", Without())).verdict is Verdict.SKIPPED


async def test_samples_come_from_all_splits_or_from_one():
    class Split(Word):
        splits = {"train": 100, "test": {"a": 1, "b": 2, "c": 3}}

    assert len(Subject(Split(), settings=Settings(num_samples=8)).samples) == 8
    assert Subject(Split(), settings=Settings(split="test")).samples == ["a", "b", "c"]


class Apart(Word):
    isolation = "process"


async def test_a_task_that_asks_for_processes_is_checked_in_processes():
    settings = Settings(num_samples=2, grace_s=10.0)
    only = ["same-seed", "no-leaks", "oracle", "payloads", "blocking", "cancellation"]
    report = await validate(Apart(), only=only, settings=settings)
    verdicts = {finding.check: str(finding.verdict) for finding in report.findings}
    assert verdicts == dict.fromkeys(only, "passed") | {"blocking": "skipped"}, report.table()


class Leaving(Apart):
    """Ends the process that plays it, and leaves another behind."""

    @tool
    def read(self, session: Session) -> str:
        """Read the word."""
        subprocess.Popen([sys.executable, "-c", f"import time; time.sleep({LEFT_S})"], start_new_session=True)
        os._exit(0)


async def test_a_task_that_ends_its_process_fails_and_leaves_neither_the_suite_nor_a_process():
    only = ["errors", "oracle", "schemas"]
    report = await validate(Leaving(), only=only, settings=Settings(num_samples=1))
    verdicts = {finding.check: str(finding.verdict) for finding in report.findings}
    assert verdicts == {"errors": "failed", "oracle": "failed", "schemas": "passed"}, report.table()
    assert "ended before the check was over (exit code 0)" in report.finding("oracle").problems[0]
    commands = [path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline") if path.exists()]
    assert not [command for command in commands if str(LEFT_S).encode() in command]


async def test_a_process_of_an_episode_s_process_goes_with_it():
    class Running(Apart):
        @tool
        def read(self, session: Session) -> str:
            """Read the word."""
            subprocess.run([sys.executable, "-c", BRIEFLY], check=True)
            return str(session.sample)

    finding = await passing("timeouts", Running(), Settings(num_samples=1, timeout_s=0.6, grace_s=10.0))
    assert BRIEFLY in finding.did


def test_temporary_files_of_others_are_not_counted():
    with own_temporary_folder():
        before = Resources.now()
        folder = tempfile.mkdtemp()
        assert [line for line in Resources.now().beyond(before) if "temporary" in line] == [
            f"temporary file `{folder}`"
        ]
    assert not Path(folder).exists()
    assert tempfile.gettempdir() != str(Path(folder).parent)

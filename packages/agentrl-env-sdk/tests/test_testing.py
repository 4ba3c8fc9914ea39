import asyncio
import threading

import pytest

from agentrl_core import ConfigError, SampleStatus, SessionError
from agentrl_env_sdk import Session, Task, testing, tool
from agentrl_env_sdk.tasks import Guess, Trail
from agentrl_env_sdk.testing import act


def trail_plan(session):
    for key in session.state["keys"]:
        yield act("read", key=key)
    yield act("answer", number=int(session.state["number"]))


async def test_an_episode_is_played_turn_by_turn():
    async with testing.play(Guess, index=0, seed=1) as episode:
        hidden, low = episode.session.sample, episode.session.state["low"]
        assert episode.opening.text == f"find the number from {low} to {low + 9}"
        wrong = low if hidden != low else low + 1
        seen = await episode.call("guess", number=wrong)
        assert seen.text == ("higher" if wrong < hidden else "lower")
        assert seen is episode.last
        assert not episode.finished
        await episode.call("guess", number=hidden)
        assert (episode.last.text, episode.finished, episode.status) == ("correct", True, "completed")
        assert (episode.reward, episode.score) == (pytest.approx(1.0), 1.0)
        assert [message.role for message in episode.transcript] == [
            "user",
            "assistant",
            "tool",
            "assistant",
            "tool",
        ]
        with pytest.raises(testing.EpisodeError, match="has ended as `completed`: 'correct'; start another"):
            await episode.say("more")


def test_the_same_goes_without_await():
    with testing.play_sync(Guess(), index=0) as episode:
        assert episode.call("guess", number=5).text == "out of range"
        assert episode.say("five?").text.startswith("call a tool; tools: guess(number)")
        assert (
            episode.act([act("guess", number=1), act("guess", number=2)]).text == "out of range\nout of range"
        )
        assert [spec.function.name for spec in episode.tools] == ["guess"]
        assert episode.index == 0
        assert not episode.finished


def test_an_episode_is_broken_off_with_its_block():
    ended = threading.Event()

    class Lasting(Task):
        def setup(self, session: Session) -> str:
            return "hello"

        def teardown(self, session: Session) -> None:
            ended.set()

    with testing.play_sync(Lasting) as episode:
        assert not ended.is_set()
    assert ended.is_set()
    assert (episode.finished, episode.status) == (True, "cancelled")


def test_a_sample_of_ones_own_and_one_of_a_split():
    with testing.play_sync(Guess, sample=123) as episode:
        assert episode.call("guess", number=123).text == "correct"
    with testing.play_sync(Guess, split="test") as episode:
        assert (episode.index, episode.session.split) == (700, "test")
    with pytest.raises(ConfigError, match="there is no split `dev`"), testing.play_sync(Guess, split="dev"):
        pass
    with pytest.raises(ConfigError, match="has no sample 5000"), testing.play_sync(Guess, index=5000):
        pass


def test_a_task_that_fails_at_its_start_fails_the_test():
    class Broken(Task):
        def setup(self, session: Session) -> str:
            raise ValueError("no such file")

    told = "sample 0 fails at its start: ValueError: no such file"
    with pytest.raises(testing.EpisodeError, match=told), testing.play_sync(Broken):
        pass


@pytest.mark.parametrize("index", [0, 1, 2])
def test_an_oracle_reaches_the_end(index):
    with testing.play_sync(Trail, index=index) as episode:
        episode.play(testing.OracleAgent(trail_plan))
        assert (episode.finished, episode.score) == (True, 1.0)


def test_an_oracle_may_be_async_or_a_list():
    async def plan(session):
        for action in trail_plan(session):
            seen = yield action
            assert seen.messages[0].role == "tool"

    for oracle in (plan, lambda session: list(trail_plan(session))):
        with testing.play_sync(Trail, index=4) as episode:
            assert episode.play(testing.OracleAgent(oracle)).finish


def test_an_oracle_runs_where_the_task_runs():
    seen = []

    class Affine(Task):
        def setup(self, session: Session) -> str:
            session.state["thread"] = threading.get_ident()
            return "go"

        @tool
        def go(self, session: Session) -> str:
            """Go."""
            session.finish(reward=1.0)
            return "gone"

        def oracle(self, session: Session) -> testing.Plan:
            seen.append((threading.get_ident(), session.state["thread"]))
            yield act("go")

    task = Affine()
    with testing.play_sync(task) as episode:
        episode.play(testing.OracleAgent(task.oracle))
        assert episode.reward == 1.0
    assert seen[0][0] == seen[0][1] != threading.get_ident()


def test_an_agent_that_does_nothing_ends_as_one_that_cannot_be_used():
    with testing.play_sync(Trail) as episode:
        episode.play(testing.DoNothingAgent())
        assert (episode.status, episode.reward) == (SampleStatus.AGENT_INVALID_ACTION, 0.0)


def test_a_random_agent_plays_the_same_way_again_and_never_makes_a_bad_call():
    def transcript(seed):
        with testing.play_sync(Trail, index=2) as episode:
            episode.play(testing.RandomAgent(seed))
            assert episode.session.invalid_actions == 0
            return [message.to_wire() for message in episode.transcript]

    assert transcript(1) == transcript(1)
    assert len({str(transcript(seed)) for seed in range(4)}) > 1


def test_a_script_stops_where_it_ends():
    with testing.play_sync(Trail) as episode:
        episode.play(testing.ScriptedAgent([act("read", key="x"), "text"]))
        assert (len(episode.observations), episode.finished) == (3, False)


def test_a_task_that_talks_is_played_with_texts():
    class Interview(Task):
        async def run(self, session: Session) -> None:
            reply = await session.action("What is your name?")
            session.finish(reward=float("Ada" in reply.text))

    with testing.play_sync(Interview) as episode:
        assert episode.opening.tools is None
        assert episode.say("Ada Lovelace").reward == 1.0
    with testing.play_sync(Interview) as episode:
        assert episode.play(testing.RandomAgent(0)).reward == 0.0


async def test_a_fork_goes_on_by_itself():
    class Count(Task):
        def setup(self, session: Session) -> str:
            session.state["n"] = 0
            return "count"

        @tool
        async def add(self, session: Session) -> str:
            """Add one."""
            session.state["n"] += 1
            session.reward(0.1)
            return str(session.state["n"])

        def snapshot(self, session: Session) -> dict:
            return dict(session.state)

    async with testing.play(Count) as episode:
        await episode.call("add")
        fork = await episode.fork()
        await episode.call("add")
        assert (await fork.call("add")).text == "2"
        assert (fork.reward, fork.last.messages[0].tool_call_id) == (pytest.approx(0.2), "call_2")
        await fork.cancel()
    async with testing.play(Guess) as episode:
        with pytest.raises(SessionError, match="cannot be forked"):
            await episode.fork()


async def test_the_task_s_clocks_run_between_the_calls():
    class Hurried(Task):
        turn_timeout_s = 0.01

        async def setup(self, session: Session) -> str:
            return "go"

        @tool
        async def wait(self, session: Session) -> str:
            """Wait."""
            await asyncio.Event().wait()
            return "never"

    async with testing.play(Hurried) as episode:
        seen = await episode.call("wait")
        assert (seen.status, seen.metrics["score"]) == (SampleStatus.TASK_ERROR, 0.0)


def test_values_fit_their_schema():
    import random

    import jsonschema

    from agentrl_env_sdk.testing.values import Values

    schema = {
        "type": "object",
        "$defs": {
            "Node": {
                "type": "object",
                "properties": {
                    "next": {"anyOf": [{"$ref": "#/$defs/Node"}, {"type": "null"}]},
                    "colour": {"enum": ["red", "blue"]},
                },
                "required": ["next", "colour"],
            }
        },
        "properties": {
            "node": {"$ref": "#/$defs/Node"},
            "count": {"type": "integer", "minimum": 3, "maximum": 5},
            "share": {"type": "number", "minimum": 0, "maximum": 1},
            "names": {"type": "array", "items": {"type": "string"}, "minItems": 1},
            "kind": {"const": "x"},
            "either": {"type": ["integer", "string"]},
            "flag": {"type": "boolean"},
        },
        "required": ["node", "count", "share", "names", "kind", "either", "flag"],
    }
    chance = random.Random(0)
    for _ in range(200):
        jsonschema.validate(Values(chance, ["7", "seven"]).draw(schema), schema)

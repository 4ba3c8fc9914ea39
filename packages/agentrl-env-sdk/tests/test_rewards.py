import pytest

from agentrl_core import SampleStatus
from agentrl_env_sdk import Session, Task, metric, reward, tool
from agentrl_env_sdk.worker import Runner


class Graded(Task):
    max_turns = 3

    def setup(self, session: Session) -> str:
        session.state["said"] = []
        return "say something"

    @tool
    def say(self, session: Session, word: str) -> str:
        session.state["said"].append(word)
        session.reward(0.1)
        if word == "end":
            session.finish()
        return "heard"

    @reward(weight=0.5)
    def polite(self, session: Session) -> bool:
        return "please" in session.state["said"]

    @reward(weight=-0.01)
    async def length(self, session: Session) -> int:
        return len(session.state["said"])

    @metric
    def last(self, session: Session) -> str:
        return session.state["said"][-1]


async def test_parts_count_at_the_end_with_their_weights_beside_what_was_earned_before(call):
    runner = Runner(Graded())
    session_id, _ = await runner.start(0)
    first = await runner.interact(session_id, [call("say", word="please")])
    last = await runner.interact(session_id, [call("say", word="end")])
    assert first.reward == pytest.approx(0.1)
    assert last.reward == pytest.approx(0.1 + 0.5 * 1 - 0.01 * 2)
    assert last.metrics == {
        "reward/polite": 1.0,
        "reward/length": 2.0,
        "last": "end",
        "score": pytest.approx(0.68),
    }


async def test_parts_count_at_a_limit_too(call):
    runner = Runner(Graded())
    session_id, _ = await runner.start(0)
    for _ in range(3):
        exchange = await runner.interact(session_id, [call("say", word="please")])
    assert exchange.status is SampleStatus.TASK_LIMIT_REACHED
    assert exchange.metrics["reward/length"] == 3.0
    assert exchange.metrics["truncated"] == "max_turns"


async def test_a_cancelled_episode_is_not_graded():
    graded = []

    class Late(Graded):
        @reward(weight=1.0)
        def never(self, session: Session) -> float:
            graded.append(session.id)
            return 1.0

    runner = Runner(Late())
    session_id, _ = await runner.start(0)
    await runner.cancel(session_id)
    assert graded == []


@pytest.mark.parametrize("value", ["much", None, float("nan")])
async def test_a_part_that_is_no_number_fails_the_task_not_the_agent(call, value):
    class Odd(Graded):
        @reward(weight=1.0)
        def odd(self, session: Session) -> object:
            return value

    runner = Runner(Odd())
    session_id, _ = await runner.start(0)
    exchange = await runner.interact(session_id, [call("say", word="end")])
    assert exchange.status is SampleStatus.TASK_ERROR
    assert "must" in exchange.metrics["error"]
    assert exchange.metrics["score"] == 0.0


async def test_a_part_may_be_marked_without_parentheses(call):
    class Bare(Graded):
        @reward
        def polite(self, session: Session) -> bool:
            return True

    runner = Runner(Bare())
    session_id, _ = await runner.start(0)
    last = await runner.interact(session_id, [call("say", word="end")])
    assert last.reward == pytest.approx(0.1 + 1.0 - 0.01)


def test_a_weight_must_be_finite():
    with pytest.raises(ValueError, match="must be finite, got inf"):
        reward(weight=float("inf"))

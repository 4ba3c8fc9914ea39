import json

import pytest

from agentrl_core import FunctionCall, Message, ToolCall
from agentrl_env_sdk.tasks import Guess, Trail
from agentrl_env_sdk.tasks.trail import KEYS
from agentrl_env_sdk.worker import Runner


def called(name, **arguments):
    function = FunctionCall(name=name, arguments=json.dumps(arguments))
    return Message(
        role="assistant", content="", tool_calls=[ToolCall(id="c", type="function", function=function)]
    )


async def play(runner, index, policy):
    """Play an episode; returns its total reward, its score and its number of turns."""
    session_id, exchange = await runner.start(index)
    total, turns, history = exchange.reward, 0, list(exchange.messages)
    while not exchange.finish:
        exchange = await runner.interact(session_id, [policy(history)])
        history += exchange.messages
        total += exchange.reward
        turns += 1
    return total, exchange.metrics["score"], turns


def halve(history):
    words = history[0].text.split()
    low, high = int(words[-3]), int(words[-1])
    for answer in history[1:]:
        middle = (low + high) // 2
        low, high = (middle + 1, high) if answer.text == "higher" else (low, middle - 1)
    return called("guess", number=(low + high) // 2)


def follow(history):
    last = history[-1].text if len(history) > 1 else history[0].text.split()[1]
    return called("answer", number=int(last)) if last.isdigit() else called("read", key=last)


@pytest.mark.parametrize(("task", "oracle"), [(Guess, halve), (Trail, follow)])
async def test_an_oracle_reaches_the_optimum_on_every_sample(task, oracle):
    runner = Runner(task())
    for index in range(runner.samples.count):
        total, score, turns = await play(runner, index, oracle)
        assert total == pytest.approx(1.0)
        assert score == task.optimum == 1.0
        assert turns <= task.max_turns


@pytest.mark.parametrize("task", [Guess, Trail])
async def test_doing_nothing_scores_nothing(task):
    runner = Runner(task())
    idle = Message(role="assistant", content="")
    for index in range(0, runner.samples.count, 37):
        assert await play(runner, index, lambda _: idle) == (0.0, 0.0, 4)


@pytest.mark.parametrize(("task", "count"), [(Guess, 900), (Trail, 1000)])
def test_splits_do_not_share_a_sample(task, count):
    splits = Runner(task()).samples.splits
    assert len({index for indices in splits.values() for index in indices}) == count
    assert set(splits) == {"train", "test"}


def test_no_number_of_guess_is_in_both_splits():
    assert not set(Guess.splits["train"]) & set(Guess.splits["test"])


async def test_guess_tells_where_to_look_and_pays_for_what_is_excluded():
    runner = Runner(Guess())
    index = Guess.splits["train"].index(474)
    session_id, opening = await runner.start(index)
    assert opening.messages[0].text == "find the number from 470 to 479"
    answers = [(470, "higher", 0.02), (479, "lower", 0.02), (500, "out of range", 0.0), (471, "higher", 0.02)]
    for number, text, reward in answers:
        reply = await runner.interact(session_id, [called("guess", number=number)])
        assert (reply.messages[0].text, reply.reward) == (text, pytest.approx(reward))
    assert (reply.finish, reply.metrics["score"]) == (True, 0.0)


async def test_trail_pays_for_keys_read_in_order_and_ends_with_an_answer():
    runner = Runner(Trail())
    session_id, opening = await runner.start(0)
    key = opening.messages[0].text.split()[1]
    assert opening.messages[0].text == f"follow {key} to its number"
    wrong = await runner.interact(session_id, [called("read", key="nowhere")])
    assert (wrong.messages[0].text, wrong.reward) == ("no such key", 0.0)
    right = await runner.interact(session_id, [called("read", key=key)])
    assert right.messages[0].text in KEYS
    assert right.reward in (pytest.approx(0.15), pytest.approx(0.1))
    last = await runner.interact(session_id, [called("answer", number=99)])
    assert (last.messages[0].text, last.finish, last.metrics["score"]) == ("wrong", True, 0.0)


def test_keys_are_short_distinct_words():
    assert len(set(KEYS)) == len(KEYS) >= 40
    assert all(3 <= len(key) <= 5 and key.islower() for key in KEYS)

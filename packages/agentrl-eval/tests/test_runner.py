import asyncio
from collections import Counter
from typing import Any

import pytest
from aiohttp import web

from agentrl_core import ConfigError, Message, Outcome, SessionError
from agentrl_core.client import SessionClient
from agentrl_eval.journal import Journal
from agentrl_eval.models import ModelUnusableError, ScriptedModel
from agentrl_eval.plan import Plan
from agentrl_eval.runner import evaluate


def a_plan(**fields: Any) -> Plan:
    return Plan.model_validate({"tasks": ("count",), "model": "openai:m", **fields})


def once(answer: web.Response | None) -> Any:
    """Answer so once, then normally."""
    answers = [answer]

    async def reply(*_: Any) -> web.Response | None:
        return answers.pop() if answers else None

    return reply


async def test_every_sample_of_the_split_is_played_and_counted(
    model: Any, client: Any, controller: Any, endpoint: Any
):
    journal = Journal()
    results = await evaluate(a_plan(), model, client, journal=journal)
    task = results.tasks["count"]
    assert controller.starts == {("count", index): 1 for index in range(12)}
    assert (task.n, task.successes, task.outcomes) == (12, 8, {"completed": 12})
    assert (task.mean_reward, task.turns_mean, task.tokens_mean) == (0.75, 2.0, 14.0)
    assert results.complete
    assert controller.live == {}
    assert controller.cancelled == []
    assert {request["messages"][-1]["role"] for request in endpoint.requests} == {"user", "tool"}
    assert {len(request["tools"]) for request in endpoint.requests} == {1}


async def test_repeats_are_episodes_of_their_own(model: Any, client: Any, controller: Any):
    results = await evaluate(a_plan(samples=2, repeats=3), model, client)
    assert controller.starts == {("count", 0): 3, ("count", 1): 3}
    assert results.tasks["count"].n == 6


async def test_no_more_episodes_run_at_once_than_allowed(model: Any, client: Any, controller: Any):
    most = 0

    async def count(_: Any) -> None:
        nonlocal most
        most = max(most, len(controller.live) + 1)

    controller.on_start = count
    await evaluate(a_plan(), model, client, concurrency=3)
    assert most == 3


async def test_the_same_seed_plays_the_same_episodes(model: Any, client: Any, controller: Any):
    await evaluate(a_plan(), model, client)
    first = dict(controller.seeds)
    await evaluate(a_plan(), model, client, concurrency=2)
    assert controller.seeds == first
    await evaluate(a_plan(seed=1), model, client)
    assert controller.seeds != first


async def test_a_lost_worker_is_a_second_attempt(model: Any, client: Any, controller: Any, refusal: Any):
    controller.on_interact = once(refusal(500, "worker 3 died", code="worker_lost"))
    journal = Journal()
    results = await evaluate(a_plan(samples=4), model, client, journal=journal, concurrency=1)
    assert [(r.index, r.attempt, r.final, r.outcome) for r in journal.records[:2]] == [
        (0, 1, False, Outcome.INFRASTRUCTURE_ERROR),
        (0, 2, True, Outcome.COMPLETED),
    ]
    assert "worker 3 died" in journal.records[0].reason
    assert results.tasks["count"].outcomes == {"completed": 4}


async def test_a_task_whose_last_worker_is_lost_is_tried_again(
    model: Any, client: Any, controller: Any, refusal: Any
):
    controller.on_start = once(refusal(400, "no worker serves task `count`", code="unknown_task"))
    journal = Journal()
    results = await evaluate(a_plan(samples=3), model, client, journal=journal, concurrency=1)
    assert [(r.index, r.attempt, r.outcome) for r in journal.records[:2]] == [
        (0, 1, Outcome.INFRASTRUCTURE_ERROR),
        (0, 2, Outcome.COMPLETED),
    ]
    assert results.tasks["count"].outcomes == {"completed": 3}


async def test_a_controller_that_dies_costs_its_episodes_and_ends_the_run_soon(
    model: Any, controller: Any, unused_tcp_port: int
):
    async with SessionClient(controller.url, connect_timeout_s=0.2) as client:

        async def die(_: Any, __: Any) -> None:
            client.url = f"http://127.0.0.1:{unused_tcp_port}/api"  # Where nothing listens.

        controller.on_interact = die
        async with asyncio.timeout(10):
            results = await evaluate(a_plan(samples=4), model, client)
    task = results.tasks["count"]
    assert results.complete
    assert (task.n, task.successes, task.scored_only.n) == (4, 0, 0)
    assert task.outcomes == {"infrastructure_error": 4}


async def test_a_resume_ends_when_the_only_sample_left_is_refused(
    model: Any, client: Any, endpoint: Any, refusal: Any
):
    async def refuse(_: Any) -> web.Response:
        return refusal(400, "content is not allowed")

    endpoint.on_request = refuse
    journal = Journal()
    results = await evaluate(a_plan(indices=(5,)), model, client, journal=journal)
    assert results.tasks["count"].outcomes == {"infrastructure_error": 1}
    assert "content is not allowed" in journal.records[-1].reason


async def test_an_endpoint_that_answers_bad_request_to_all_stops_the_run(
    model: Any, client: Any, endpoint: Any, controller: Any, refusal: Any
):
    async def refuse(_: Any) -> web.Response:
        return refusal(400, "unknown parameter `seed`")

    endpoint.on_request = refuse
    with pytest.raises(ModelUnusableError, match="unknown parameter"):
        await evaluate(a_plan(), model, client, concurrency=4)
    assert controller.live == {}


async def test_a_stop_during_first_contact_ends_it(
    model: Any, client: Any, controller: Any, forever: asyncio.Event
):
    stop = asyncio.Event()

    async def hang() -> None:
        stop.set()
        await forever.wait()

    controller.on_indices = hang
    async with asyncio.timeout(5):
        with pytest.raises(asyncio.CancelledError):
            await evaluate(a_plan(), model, client, stop=stop)
    assert not controller.starts


async def test_a_fault_that_stays_is_counted_as_what_it_is(
    model: Any, client: Any, controller: Any, refusal: Any
):
    async def fail(index: Any, _: Any) -> web.Response | None:
        return refusal(500, "worker died", code="worker_lost") if index == 1 else None

    controller.on_interact = fail
    task = (await evaluate(a_plan(samples=3), model, client)).tasks["count"]
    assert controller.starts["count", 1] == 3
    assert task.outcomes == {"completed": 2, "infrastructure_error": 1}
    assert (task.n, task.successes, task.scored_only.n, task.scored_only.successes) == (3, 1, 2, 1)


async def test_a_failing_endpoint_costs_its_samples_and_no_others(
    model: Any, client: Any, endpoint: Any, controller: Any, completion: Any
):
    async def fail(body: dict[str, Any]) -> web.Response | None:
        return web.Response(text="<html>") if body["messages"][0]["content"] == "say 2" else None

    endpoint.on_request = fail
    task = (await evaluate(a_plan(samples=4), model, client)).tasks["count"]
    assert task.outcomes == {"completed": 3, "infrastructure_error": 1}
    assert len(controller.cancelled) == 3  # Each attempt gave its session back.


async def test_an_endpoint_that_refuses_everything_stops_the_run(
    model: Any, client: Any, endpoint: Any, controller: Any, refusal: Any
):
    async def refuse(_: Any) -> web.Response:
        return refusal(404, "no model `m`")

    endpoint.on_request = refuse
    journal = Journal()
    with pytest.raises(ModelUnusableError, match="no model `m`"):
        await evaluate(a_plan(), model, client, journal=journal, concurrency=4)
    assert controller.starts.total() <= 4
    assert controller.live == {}
    assert journal.records == []


async def test_a_broken_environment_says_nothing_about_the_agent(model: Any, client: Any, controller: Any):
    end = {"messages": [], "finish": True, "status": "task error", "metrics": {"error": "KeyError: 'x'"}}
    controller.on_interact = once(web.json_response(end))
    journal = Journal()
    task = (await evaluate(a_plan(samples=1), model, client, journal=journal)).tasks["count"]
    assert task.outcomes == {"environment_error": 1}
    assert (task.n, task.scored_only.n) == (1, 0)
    assert journal.records[0].reason == "task error: KeyError: 'x'"


async def test_a_reply_without_an_end_is_truncated_and_its_session_cancelled(
    model: Any, client: Any, endpoint: Any, controller: Any, completion: Any
):
    endpoint.faults = [completion({"role": "assistant", "content": "and " * 64}, finish_reason="length")]
    task = (await evaluate(a_plan(samples=1), model, client)).tasks["count"]
    assert task.outcomes == {"truncated": 1}
    assert task.scored_only.n == 1
    assert controller.cancelled == ["1"]


async def test_the_limit_of_turns_truncates(model: Any, client: Any, controller: Any):
    task = (await evaluate(a_plan(samples=1, max_turns=1), model, client)).tasks["count"]
    assert task.outcomes == {"truncated": 1}
    assert (task.turns_mean, task.mean_reward) == (1.0, 0.25)
    assert controller.cancelled == ["1"]


async def test_an_unknown_task_is_answered_with_those_that_exist(model: Any, client: Any):
    with pytest.raises(ConfigError, match=r"no task `cuont`.*`count`"):
        await evaluate(a_plan(tasks=("cuont",)), model, client)


async def test_an_unknown_split_is_answered_with_those_that_exist(model: Any, client: Any):
    with pytest.raises(ConfigError, match=r"no split `tset`; it has: test, train"):
        await evaluate(a_plan(split="tset"), model, client)


async def test_a_controller_that_wants_a_token_is_refused_at_once(
    model: Any, client: Any, controller: Any, refusal: Any
):
    async def refuse(_: Any) -> web.Response:
        return refusal(401, "bearer token missing")

    controller.on_start = refuse
    with pytest.raises(SessionError, match="bearer token missing"):
        await evaluate(a_plan(), model, client)


async def test_a_controller_that_is_not_there_is_named(
    model: Any, unused_tcp_port: int, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("agentrl_eval.runner._FIRST_CONTACT_S", 0.2)
    async with SessionClient(f"http://127.0.0.1:{unused_tcp_port}/api") as client:
        with pytest.raises(ConfigError, match=f":{unused_tcp_port}/api .*is the controller running"):
            await evaluate(a_plan(), model, client)


async def test_a_stop_cancels_what_runs_and_keeps_what_is_finished(
    model: Any, client: Any, controller: Any, endpoint: Any, forever: asyncio.Event
):
    stop = asyncio.Event()

    async def hang(body: dict[str, Any]) -> None:
        if body["messages"][0]["content"] not in ("say 0", "say 1"):
            stop.set()
            await forever.wait()

    endpoint.on_request = hang
    results = await evaluate(a_plan(), model, client, concurrency=1, stop=stop)
    task = results.tasks["count"]
    assert not results.complete
    assert (task.n, task.planned, task.outcomes) == (2, 12, {"completed": 2})
    assert controller.live == {}
    assert controller.starts.total() == 3


async def test_a_stop_while_a_session_is_given_back_waits_for_it(model: Any, client: Any, controller: Any):
    stop = asyncio.Event()

    async def slow() -> None:
        stop.set()
        await asyncio.sleep(0.1)

    controller.on_cancel = slow
    await evaluate(a_plan(samples=1, max_turns=1), model, client, stop=stop)
    assert controller.cancelled == ["1"]


async def test_a_session_that_opens_during_the_stop_is_given_back(model: Any, client: Any, controller: Any):
    stop, entered = asyncio.Event(), asyncio.Event()

    async def slow(_: Any) -> None:
        stop.set()
        entered.set()
        await asyncio.sleep(0.1)

    controller.on_start = slow
    await evaluate(a_plan(samples=1), model, client, stop=stop)
    assert entered.is_set()
    assert controller.cancelled == ["1"]
    assert controller.live == {}


async def test_a_resumed_run_plays_what_is_missing_and_tells_the_rest(
    model: Any, client: Any, controller: Any
):
    journal = Journal()
    await evaluate(a_plan(indices=(1, 2, 4)), model, client, journal=journal)
    told: Counter[Any] = Counter()
    results = await evaluate(
        a_plan(), model, client, journal=journal, on_record=lambda record, total: told.update([record.index])
    )
    assert controller.starts == {("count", index): 1 for index in range(12)}
    assert results.tasks["count"].n == 12
    assert told == dict.fromkeys(range(12), 1)


async def test_a_function_can_play(client: Any):
    def policy(messages: Any, tools: Any, seed: int) -> Message:
        number = messages[-1].text.rpartition("say ")[2]
        call = {"id": "c", "function": {"name": "say", "arguments": f'{{"number": "{number}"}}'}}
        return Message.model_validate({"role": "assistant", "tool_calls": [call]})

    results = await evaluate(a_plan(), ScriptedModel(policy), client)
    assert results.tasks["count"].successes == 8

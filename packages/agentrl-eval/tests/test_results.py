from typing import Any

import pytest

from agentrl_core import Outcome
from agentrl_eval.journal import Record
from agentrl_eval.plan import Plan
from agentrl_eval.results import summarise
from agentrl_eval.statistics import wilson_interval

PLAN = Plan(tasks=("count",), model="openai:m")


def a_record(index: int, outcome: Outcome, **fields: Any) -> Record:
    values = {"task": "count", "repeat": 0, "attempt": 1, "final": True, **fields}
    return Record(index=index, outcome=outcome, **values)


def test_a_fault_counts_as_no_success_in_one_headline_and_not_at_all_in_the_other():
    records = [
        *(a_record(i, Outcome.COMPLETED, score=1.0, reward=2.0) for i in range(5)),
        *(a_record(i, Outcome.COMPLETED, score=0.5, reward=0.5) for i in range(5, 8)),
        a_record(8, Outcome.INFRASTRUCTURE_ERROR, reward=9.0),
        a_record(9, Outcome.ENVIRONMENT_ERROR),
    ]
    task = summarise(PLAN, records, planned={"count": 10}, wall_s=1.0).tasks["count"]
    assert (task.n, task.successes, task.rate) == (10, 5, 0.5)
    assert (task.low, task.high) == pytest.approx(wilson_interval(5, 10))
    assert (task.scored_only.n, task.scored_only.successes, task.scored_only.rate) == (8, 5, 0.625)
    assert task.mean_reward == pytest.approx((5 * 2.0 + 3 * 0.5) / 10)
    assert task.outcomes == {"completed": 8, "environment_error": 1, "infrastructure_error": 1}
    assert sum(task.outcomes.values()) == task.n


def test_a_truncated_episode_is_the_agents_own():
    records = [a_record(0, Outcome.TRUNCATED, score=0.0), a_record(1, Outcome.AGENT_ERROR, score=0.0)]
    task = summarise(PLAN, records, planned={"count": 2}, wall_s=1.0).tasks["count"]
    assert task.scored_only.n == task.n == 2


def test_an_attempt_tried_again_is_not_counted():
    records = [
        a_record(0, Outcome.INFRASTRUCTURE_ERROR, final=False),
        a_record(0, Outcome.COMPLETED, score=1.0, attempt=2),
    ]
    task = summarise(PLAN, records, planned={"count": 1}, wall_s=1.0).tasks["count"]
    assert (task.n, task.successes) == (1, 1)


def test_what_was_not_run_is_missing_and_not_failed():
    results = summarise(
        PLAN, [a_record(0, Outcome.COMPLETED, score=1.0)], planned={"count": 3, "other": 2}, wall_s=1
    )
    assert not results.complete
    assert (results.tasks["count"].n, results.tasks["count"].planned) == (1, 3)
    assert (results.tasks["other"].rate, results.tasks["other"].mean_reward) == (None, None)
    assert '"rate": null' in results.model_dump_json(indent=1)

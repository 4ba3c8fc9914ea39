import pytest

from agentrl_core import ErrorCode, Outcome, Reply, SampleStatus, SessionError
from agentrl_eval.models import ContextLimitError, ModelUnavailableError
from agentrl_eval.outcomes import end_of, failure_of, score_of


@pytest.mark.parametrize("score", [None, "1.0", float("nan"), float("inf")])
def test_a_score_that_is_no_number_leaves_the_rewards_to_speak(score: object):
    assert score_of({"score": score}, reward=0.75) == 0.75


def test_the_tasks_score_goes_before_the_rewards():
    assert score_of({"score": 0}, reward=0.75) == 0.0


@pytest.mark.parametrize("code", [c for c in ErrorCode if c not in ("unknown_index", "unauthorized")])
def test_no_failure_of_a_session_is_ever_scored(code: ErrorCode):
    outcome, reason = failure_of(SessionError("gone", code=code))
    assert not outcome.is_scored
    assert "gone" in reason


@pytest.mark.parametrize("code", [ErrorCode.UNKNOWN_INDEX, ErrorCode.UNAUTHORIZED])
def test_what_every_episode_would_meet_stops_the_run(code: ErrorCode):
    with pytest.raises(SessionError):
        failure_of(SessionError("no", code=code))


def test_a_failing_model_is_infrastructure_and_a_full_context_a_limit():
    assert failure_of(ModelUnavailableError("down"))[0] is Outcome.INFRASTRUCTURE_ERROR
    assert failure_of(ContextLimitError("long"))[0] is Outcome.TRUNCATED


def test_the_environments_word_decides_how_its_end_counts():
    assert end_of(Reply(finish=True, status=SampleStatus.COMPLETED)) == (Outcome.COMPLETED, "")
    broken = Reply(finish=True, status=SampleStatus.TASK_ERROR, metrics={"error": "KeyError"})
    assert end_of(broken) == (Outcome.ENVIRONMENT_ERROR, "task error: KeyError")
    assert end_of(Reply(finish=True))[0] is Outcome.ENVIRONMENT_ERROR

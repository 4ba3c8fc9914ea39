"""Every ended session has exactly one class of outcome."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl_core import Outcome, SampleStatus, outcome_of


@given(status=st.sampled_from(SampleStatus))
def test_outcome_is_total_over_ended_sessions(status):
    if status is SampleStatus.RUNNING:
        with pytest.raises(ValueError, match="`running`"):
            outcome_of(status)
    else:
        assert outcome_of(status) in Outcome


@pytest.mark.parametrize(
    ("status", "outcome"),
    [
        ("completed", "completed"),
        ("agent context limit", "truncated"),
        ("task limit reached", "truncated"),
        ("agent validation failed", "agent_error"),
        ("agent invalid action", "agent_error"),
        ("task error", "environment_error"),
        ("unknown", "environment_error"),
        ("cancelled", "cancelled"),
    ],
)
def test_status_maps_to_whose_fault_it_was(status, outcome):
    assert outcome_of(SampleStatus(status)) == outcome


def test_only_what_tells_about_the_agent_is_scored():
    assert {outcome.value for outcome in Outcome if outcome.is_scored} == {
        "completed",
        "truncated",
        "agent_error",
    }


def test_no_status_of_a_worker_blames_the_infrastructure():
    ended = set(SampleStatus) - {SampleStatus.RUNNING}
    assert Outcome.INFRASTRUCTURE_ERROR not in {outcome_of(status) for status in ended}

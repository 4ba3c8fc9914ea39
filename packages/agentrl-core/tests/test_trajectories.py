"""Trajectories hold sampled tokens whose versions add up."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from agentrl_core import Outcome, Segment, Trajectory, Turn


def a_turn(num_tokens: int, segments: list[tuple[int, int, int]], **fields) -> Turn:
    return Turn(
        context_ids=(1, 2),
        token_ids=tuple(range(num_tokens)),
        logps=(-0.5,) * num_tokens,
        segments=tuple(Segment(version=version, start=start, end=end) for version, start, end in segments),
        **fields,
    )


def a_trajectory(*turns: Turn) -> Trajectory:
    return Trajectory(
        trajectory_id="a", task="t", index=0, group_id="g", turns=turns, outcome=Outcome.COMPLETED
    )


lengths = st.lists(st.integers(1, 5), max_size=6)


@given(lengths=lengths)
def test_segments_that_tile_the_reply_are_accepted(lengths):
    bounds = [0]
    for length in lengths:
        bounds.append(bounds[-1] + length)
    segments = [(3, start, end) for start, end in pairwise(bounds)]
    assert len(a_turn(bounds[-1], segments).segments) == len(lengths)


@given(
    num_tokens=st.integers(0, 4),
    segments=st.lists(st.tuples(st.just(0), st.integers(-1, 5), st.integers(-1, 5)), max_size=3),
)
def test_segments_are_accepted_exactly_when_each_token_has_one_version_in_order(num_tokens, segments):
    owners = [token for _, start, end in segments for token in range(start, end)]
    covers = owners == list(range(num_tokens)) and all(start < end for _, start, end in segments)
    if covers:
        a_turn(num_tokens, segments)
    else:
        with pytest.raises(ValidationError, match="do not cover"):
            a_turn(num_tokens, segments)


def test_every_token_needs_a_log_probability():
    with pytest.raises(ValidationError, match="2 token_ids need as many logps, got 1"):
        Turn(
            context_ids=(),
            token_ids=(1, 2),
            logps=(-0.1,),
            segments=(Segment(version=0, start=0, end=2),),
        )


def test_reward_and_tokens_add_up_over_turns():
    trajectory = a_trajectory(a_turn(2, [(0, 0, 2)], reward=0.25), a_turn(3, [(0, 0, 3)], reward=0.5))
    assert (trajectory.reward, trajectory.num_tokens) == (0.75, 5)


def test_oldest_version_is_the_lowest_of_any_token():
    trajectory = a_trajectory(a_turn(3, [(4, 0, 1), (5, 1, 3)]), a_turn(1, [(3, 0, 1)]))
    assert trajectory.oldest_version == 3


def test_oldest_version_of_no_token_is_an_error():
    with pytest.raises(ValueError, match="empty"):
        _ = a_trajectory().oldest_version


@given(lengths=lengths)
def test_trajectory_survives_json(lengths):
    trajectory = a_trajectory(*(a_turn(length, [(1, 0, length)], reward=0.5) for length in lengths))
    assert Trajectory.model_validate_json(trajectory.model_dump_json()) == trajectory


def test_unknown_field_of_a_trajectory_is_refused():
    fields = a_trajectory().model_dump() | {"rewards": 1}
    with pytest.raises(ValidationError, match="rewards"):
        Trajectory.model_validate(fields)

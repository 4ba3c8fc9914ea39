import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl_workers.advantage import group_advantage, task_normalised_advantage


def test_a_group_is_centred_and_scaled_by_its_own_spread():
    advantage = group_advantage([1.0, 0.0, 0.0, 5.0, 7.0], ["a", "a", "a", "b", "b"])
    # Group a: mean 1/3, population deviation sqrt(2)/3; group b: mean 6, deviation 1.
    deviation = np.sqrt(2) / 3
    expected = [
        2 / 3 / (deviation + 1e-6),
        *[-1 / 3 / (deviation + 1e-6)] * 2,
        *[x / (1 + 1e-6) for x in (-1, 1)],
    ]
    np.testing.assert_allclose(advantage, expected, rtol=1e-12)


@pytest.mark.parametrize("rewards", [[0.3], [0.7, 0.7, 0.7], [0.1 + 0.2, 0.1 + 0.2]])
def test_a_group_of_one_or_of_equal_rewards_gets_nothing(rewards):
    assert group_advantage(rewards, ["g"] * len(rewards)).tolist() == [0.0] * len(rewards)


def test_groups_may_be_interleaved():
    mixed = group_advantage([1.0, 10.0, 0.0, 30.0], ["a", "b", "a", "b"])
    apart = group_advantage([1.0, 0.0, 10.0, 30.0], ["a", "a", "b", "b"])
    np.testing.assert_array_equal(mixed[[0, 2, 1, 3]], apart)


def test_a_task_is_normalised_over_its_tokens():
    advantages, tokens = [1.0, -1.0, 4.0, 2.0], [3, 1, 5, 5]
    normalised = task_normalised_advantage(advantages, tokens, ["a", "a", "b", "b"])
    a = np.repeat([1.0, -1.0], [3, 1])
    b = np.repeat([4.0, 2.0], [5, 5])
    expected = [
        *((np.array([1.0, -1.0]) - a.mean()) / (a.std() + 1e-6)),
        *((np.array([4.0, 2.0]) - b.mean()) / (b.std() + 1e-6)),
    ]
    np.testing.assert_allclose(normalised, expected, rtol=1e-12)


def test_a_task_without_spread_or_without_tokens_gets_nothing():
    assert task_normalised_advantage([2.0, 2.0, 1.0], [4, 9, 0], ["a", "a", "b"]).tolist() == [0.0, 0.0, 0.0]


@given(
    st.lists(
        st.tuples(st.floats(-10, 10), st.integers(1, 50), st.sampled_from("xyz")), min_size=2, max_size=30
    )
)
def test_after_normalisation_each_tasks_tokens_have_mean_0_and_deviation_1_or_nothing(rows):
    values, tokens, tasks = zip(*rows, strict=True)
    normalised = task_normalised_advantage(values, tokens, tasks)
    assert np.isfinite(normalised).all()
    for task in set(tasks):
        members = [n for n, name in enumerate(tasks) if name == task]
        per_token = np.repeat(normalised[members], [tokens[n] for n in members])
        spread = np.std(np.repeat([values[n] for n in members], [tokens[n] for n in members]))
        assert abs(per_token.mean()) < 1e-6
        if spread > 1e-2:
            assert per_token.std() == pytest.approx(1.0, abs=1e-3)

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl_eval.statistics import clustered_rate_interval, mean_interval, wilson_interval


@pytest.mark.parametrize(
    ("successes", "n", "low", "high"),
    [
        # Newcombe 1998, Statistics in Medicine 17, 857, table I, method 3.
        (81, 263, 0.2553, 0.3662),
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0.0000, 0.1611),
        (1, 29, 0.0061, 0.1718),
    ],
)
def test_wilson_gives_the_published_intervals(successes: int, n: int, low: float, high: float):
    assert wilson_interval(successes, n) == pytest.approx((low, high), abs=5e-5)


def test_without_a_trial_the_rate_may_be_anything():
    assert wilson_interval(0, 0) == (0.0, 1.0)
    assert clustered_rate_interval([], clusters=[]) == (0.0, 1.0)


@given(st.integers(1, 500).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_wilson_holds_the_rate_and_stays_within_bounds(trial: tuple[int, int]):
    successes, n = trial
    low, high = wilson_interval(successes, n)
    assert 0.0 <= low <= successes / n + 1e-12
    assert successes / n - 1e-12 <= high <= 1.0


def test_the_mean_of_independent_values_has_students_interval():
    # 1..5: mean 3, standard deviation sqrt(2.5), t(0.975, 4) = 2.7764451.
    half = 2.7764451 * math.sqrt(2.5 / 5)
    assert mean_interval([1, 2, 3, 4, 5], clusters=range(5)) == pytest.approx(
        (3, 3 - half, 3 + half), abs=1e-6
    )


def test_repeating_each_sample_alike_adds_nothing():
    once = [1.0, 0.0, 1.0, 1.0, 0.0, 0.0, 1.0, 0.0, 1.0, 1.0]
    thrice = [value for value in once for _ in range(3)]
    samples = [index for index in range(10) for _ in range(3)]
    assert mean_interval(thrice, clusters=samples) == pytest.approx(mean_interval(once, clusters=range(10)))
    rates = clustered_rate_interval([value == 1.0 for value in thrice], clusters=samples)
    assert rates == pytest.approx(wilson_interval(6, 10))


def test_the_clustered_error_is_that_of_the_cluster_sums():
    # Deviations from 0.5 add up to 0.5 + 0.5, -0.5 - 0.5, 0.5 - 0.5 by cluster: (1 + 1 + 0) / 6**2 = 1/18,
    # times 3/2 for three clusters; t(0.975, 2) = 4.3026527.
    values, clusters = [1.0, 1.0, 0.0, 0.0, 1.0, 0.0], ["a", "a", "b", "b", "c", "c"]
    half = 4.3026527 * math.sqrt(1 / 18 * 3 / 2)
    assert mean_interval(values, clusters=clusters) == pytest.approx((0.5, 0.5 - half, 0.5 + half), abs=1e-6)


def test_one_sample_however_often_repeated_says_nothing_of_others():
    assert mean_interval([1.0, 1.0, 0.0], clusters=["a"] * 3) == pytest.approx((2 / 3, None, None))
    assert clustered_rate_interval([True] * 100, clusters=["a"] * 100) == pytest.approx(wilson_interval(1, 1))


def test_repeats_that_differ_as_if_by_chance_count_in_full():
    wins, clusters = [True, False] * 20, [index for index in range(20) for _ in range(2)]
    assert clustered_rate_interval(wins, clusters=clusters) == pytest.approx(wilson_interval(20, 40))

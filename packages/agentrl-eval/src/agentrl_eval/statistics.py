"""Intervals for rates and means."""

import math
from collections import defaultdict
from collections.abc import Hashable, Sequence

import numpy as np
from scipy import stats

_CONFIDENCE = 0.95


def wilson_interval(successes: int, n: int) -> tuple[float, float]:
    """Wilson's score interval for a rate; (0, 1) without a trial. Source: Wilson 1927, JASA 22, 209."""
    if n == 0:
        return 0.0, 1.0
    interval = stats.binomtest(successes, n).proportion_ci(_CONFIDENCE, method="wilson")
    return float(interval.low), float(interval.high)


def clustered_rate_interval(
    successes: Sequence[bool], *, clusters: Sequence[Hashable]
) -> tuple[float, float]:
    """An interval for a rate whose trials come in clusters.

    Wilson's with the number of trials divided by the design effect: the clustered variance of the mean over
    that of independent trials. Source: Miller 2024, arXiv 2411.00640, section 2.2, for the variance; Kish
    1965 for the effective sample size.
    """
    n = len(successes)
    if n == 0 or len(set(clusters)) == n:
        return wilson_interval(sum(successes), n)
    values = np.asarray(successes, dtype=np.float64)
    rate = values.mean()
    independent = rate * (1.0 - rate) / n
    effect = max(1.0, _clustered_variance(values, clusters) / independent) if independent > 0.0 else 1.0
    # Equal outcomes show no spread, yet repeats of few samples are no better than the samples themselves.
    effective = n / effect if independent > 0.0 else float(len(set(clusters)))
    return _wilson(float(rate), effective)


def mean_interval(
    values: Sequence[float], *, clusters: Sequence[Hashable]
) -> tuple[float | None, float | None, float | None]:
    """Mean and Student's t interval, its error clustered; None where nothing can be said.

    Source: Miller 2024, arXiv 2411.00640, section 2.2.
    """
    if not values:
        return None, None, None
    array = np.asarray(values, dtype=np.float64)
    mean = float(array.mean())
    count = len(set(clusters))
    if count < 2:
        return mean, None, None
    error = math.sqrt(_clustered_variance(array, clusters) * count / (count - 1))
    half = float(stats.t.ppf(0.5 + _CONFIDENCE / 2, count - 1)) * error
    return mean, mean - half, mean + half


def _clustered_variance(values: np.ndarray, clusters: Sequence[Hashable]) -> float:
    """Variance of the mean: squared sums of each cluster's deviations, over n squared."""
    deviations: dict[Hashable, float] = defaultdict(float)
    for value, cluster in zip(values - values.mean(), clusters, strict=True):
        deviations[cluster] += float(value)
    return sum(deviation**2 for deviation in deviations.values()) / len(values) ** 2


def _wilson(rate: float, n: float) -> tuple[float, float]:
    z = float(stats.norm.ppf(0.5 + _CONFIDENCE / 2))
    centre = (rate + z**2 / (2 * n)) / (1 + z**2 / n)
    half = z * math.sqrt(rate * (1 - rate) / n + z**2 / (4 * n**2)) / (1 + z**2 / n)
    return max(0.0, centre - half), min(1.0, centre + half)

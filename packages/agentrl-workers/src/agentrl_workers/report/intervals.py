"""Confidence intervals of what a step measured."""

import numpy as np

Z_95 = 1.959963984540054
"""Standard normal quantile at 97.5 %."""


def wilson_interval(rate_N: np.ndarray, count_N: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Wilson's 95 % score interval of proportions, without continuity correction.

    Source: Wilson, Probable Inference, the Law of Succession, and Statistical Inference, JASA 1927.

    Args:
        rate_N: observed proportions.
        count_N: trials behind each; none gives NaN.

    Returns:
        Lower and upper bounds (N).
    """
    count_N = np.where(count_N > 0, count_N, np.nan)
    shrunk_N = 1.0 + Z_95**2 / count_N
    middle_N = (rate_N + Z_95**2 / (2.0 * count_N)) / shrunk_N
    spread_N = np.clip(rate_N * (1.0 - rate_N), 0.0, None) / count_N + Z_95**2 / (4.0 * count_N**2)
    half_N = Z_95 * np.sqrt(spread_N) / shrunk_N
    return np.clip(middle_N - half_N, 0.0, 1.0), np.clip(middle_N + half_N, 0.0, 1.0)


def mean_interval(
    mean_N: np.ndarray, deviation_N: np.ndarray, count_N: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """95 % interval of means by the normal approximation, `mean +- 1.96 * deviation / sqrt(count)`.

    Args:
        mean_N: observed means.
        deviation_N: standard deviations within each.
        count_N: values behind each; none gives NaN.

    Returns:
        Lower and upper bounds (N).
    """
    count_N = np.where(count_N > 0, count_N, np.nan)
    half_N = Z_95 * deviation_N / np.sqrt(count_N)
    return mean_N - half_N, mean_N + half_N

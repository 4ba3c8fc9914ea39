"""The last quarter of an hour in points, for charts: made of samples that are taken every second."""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

SPAN_S = 900
"""How far back the points go."""
POINT_S = 5
"""What one point sums up."""
_RECENT = 61

Point = dict[str, float | None]
"""Rates and latencies of a while; None where nothing happened that could be measured."""


@dataclass(frozen=True, slots=True)
class _Sample:
    at: float
    statistics: Mapping[str, Any]


class History:
    """Rates, latencies and loads of late.

    Attributes:
        points: by the wall-clock second at which each begins; the newest still changes.
    """

    def __init__(self) -> None:
        self.points: dict[str, Point] = {}
        self._recent: deque[_Sample] = deque(maxlen=_RECENT)
        self._base: _Sample | None = None

    def sample(self, at: float, statistics: Mapping[str, Any], *, live: int, waiting: int) -> None:
        """Take in a second.

        Args:
            at: wall-clock time, never going back.
            statistics: counts since the controller's start, a snapshot of `Statistics`.
            live: sessions that live now.
            waiting: starts that wait now.
        """
        sample = _Sample(at, statistics)
        start = int(at // POINT_S) * POINT_S
        if str(start) not in self.points and self._recent:
            self._base = self._recent[-1]
        self._recent.append(sample)
        measured = {} if self._base is None else _between(self._base, sample)
        # A new dict, so that who has seen the last one notices the difference.
        self.points[str(start)] = {"at": start, "live": live, "waiting": waiting, **measured}
        for key in [key for key in self.points if int(key) <= start - SPAN_S]:
            del self.points[key]

    def over(self, window_s: float) -> Point:
        """Rates and latencies of the last seconds, at most a minute; empty before the second sample."""
        if len(self._recent) < 2:
            return {}
        newest = self._recent[-1]
        since = [sample for sample in self._recent if sample.at >= newest.at - window_s - 0.5]
        first = since[0] if len(since) > 1 else self._recent[-2]
        return _between(first, newest)


def _between(first: _Sample, last: _Sample) -> Point:
    elapsed_s = max(last.at - first.at, 1e-9)
    point: Point = {
        "requests_per_s": (last.statistics["requests"] - first.statistics["requests"]) / elapsed_s,
        "errors_per_s": (last.statistics["errors"] - first.statistics["errors"]) / elapsed_s,
    }
    for name in ("interact", "worker"):
        then, now = first.statistics[f"{name}_s"], last.statistics[f"{name}_s"]
        counts = [after - before for before, after in zip(then["counts"], now["counts"], strict=True)]
        point[f"{name}_p50_s"] = quantile(0.5, bounds=now["bounds"], counts=counts)
        point[f"{name}_p99_s"] = quantile(0.99, bounds=now["bounds"], counts=counts)
    return point


def quantile(share: float, *, bounds: Sequence[float], counts: Sequence[int]) -> float | None:
    """The value below which a share of a histogram lies, spread evenly within each bucket.

    Args:
        share: between 0 and 1.
        bounds: upper bound of each bucket.
        counts: size of each bucket, and of one more without an upper bound.

    Returns:
        None where the histogram is empty; the last bound where the value lies beyond it.
    """
    wanted = share * sum(counts)
    if wanted == 0:
        return None
    below, lower = 0, 0.0
    for upper, count in zip(bounds, counts, strict=False):
        if below + count >= wanted:
            return lower + (upper - lower) * (wanted - below) / count
        below, lower = below + count, upper
    return bounds[-1]

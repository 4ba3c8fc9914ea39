"""Counts and durations since the start, cheap enough to keep for every request."""

from bisect import bisect_left
from collections import Counter
from typing import Any

_BOUNDS_S = (
    *(0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
    *(1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0),
)


class Histogram:
    """Durations by size.

    Attributes:
        bounds: upper bounds in seconds; one more bucket holds what is longer.
        counts: durations in each bucket.
        total_s: their sum.
    """

    __slots__ = ("bounds", "counts", "total_s")

    def __init__(self, bounds: tuple[float, ...] = _BOUNDS_S) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total_s = 0.0

    def observe(self, duration_s: float) -> None:
        """Count a duration."""
        self.counts[bisect_left(self.bounds, duration_s)] += 1
        self.total_s += duration_s

    def snapshot(self) -> dict[str, Any]:
        """What has been counted, for JSON."""
        return {"bounds": list(self.bounds), "counts": list(self.counts), "total_s": self.total_s}


class Statistics:
    """What the controller has done.

    Attributes:
        requests: starts and exchanges that were asked for, by route.
        errors: those that were refused or failed, by code.
        interact_s: an exchange as its agent sees it, from the request to the answer.
        worker_s: the part of it that the worker took.
        start_s: a start as its agent sees it.
        wait_s: the part of it spent in line for a slot.
        lag_s: how late the event loop was with what was due.
    """

    def __init__(self) -> None:
        self.requests: Counter[str] = Counter()
        self.errors: Counter[str] = Counter()
        self.interact_s = Histogram()
        self.worker_s = Histogram()
        self.start_s = Histogram()
        self.wait_s = Histogram()
        self.lag_s = Histogram()

    def histograms(self) -> dict[str, Histogram]:
        """Every histogram by name."""
        return {name: value for name, value in vars(self).items() if isinstance(value, Histogram)}

    def snapshot(self) -> dict[str, Any]:
        """Everything since the start, for JSON; two of them give the rates between them."""
        return {
            "requests": self.requests.total(),
            "errors": self.errors.total(),
            **{name: histogram.snapshot() for name, histogram in self.histograms().items()},
        }

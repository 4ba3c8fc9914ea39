"""Which charts a run gets, and the numbers in each."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from agentrl_workers.report.charts import Chart, Series, draw_bars, draw_lines
from agentrl_workers.report.folder import Run, as_number
from agentrl_workers.report.intervals import mean_interval, wilson_interval

_MOST_POINTS = 160
_OUTCOME_COLOURS = {
    "completed": "good",
    "truncated": "warn",
    "agent_error": "c2",
    "environment_error": "bad",
    "infrastructure_error": "c7",
    "cancelled": "quiet",
}
_LEDGER_COLOURS = {"trained": "c1", "filtered": "warn", "failed": "bad", "pending": "quiet"}


@dataclass(frozen=True)
class Panel:
    """Charts that belong together."""

    title: str
    """Heading."""
    note: str
    """How to read them."""
    charts: tuple[Chart, ...]
    """The charts that have data."""
    is_lead: bool = False
    """Whether its charts are drawn larger."""


def make_panels(run: Run) -> list[Panel]:
    """The panels of a run; one without any data is left out."""
    columns = _Columns(run)
    pooled = f"Each point pools {columns.size} steps. " if columns.size > 1 else ""
    panels = [
        Panel("Learning", pooled + _LEARNING_NOTE, _learning(run, columns), is_lead=True),
        Panel("Asynchrony and pace", pooled + _PACE_NOTE, _pace(columns)),
        Panel("Policy", pooled + _POLICY_NOTE, _policy(run, columns)),
        Panel("Samples accounted for", pooled + _ACCOUNT_NOTE, _accounts(columns)),
    ]
    return [panel for panel in panels if panel.charts]


_LEARNING_NOTE = (
    "On training samples, as they were sampled. Bands are 95 % intervals over the trajectories of a step: "
    "normal for the reward, Wilson for success."
)
_PACE_NOTE = "Lag counts the updates between the weights that sampled a token and the ones that train on it."
_POLICY_NOTE = (
    "The gap is the absolute difference between the log-probability that the engine reported and the "
    "trainer's own, per token."
)
_ACCOUNT_NOTE = "Every admitted sample ends once: trained, filtered, failed, or still pending."


class _Columns:
    """Metrics over steps, neighbouring steps pooled where there are more than a chart can show."""

    def __init__(self, run: Run) -> None:
        self._steps = run.steps
        self.size = max(1, math.ceil(len(run.steps) / _MOST_POINTS))
        self.names = sorted({name for step in run.steps for name in step})
        self.x = self.pool("step", _last)

    def rows(self, name: str) -> np.ndarray:
        """A metric as buckets of steps (B, size), NaN where it is absent."""
        values = np.array([as_number(step.get(name)) for step in self._steps], dtype=np.float64)
        padding = -len(values) % self.size
        return np.pad(values, (0, padding), constant_values=np.nan).reshape(-1, self.size)

    def pool(self, name: str, pool: Callable[[np.ndarray], float] | None = None) -> np.ndarray:
        """A metric with one value a bucket, by default the mean; NaN where no step has one."""
        return np.array([_pooled(row, pool or np.mean) for row in self.rows(name)], dtype=np.float64)

    def under(self, area: str) -> list[str]:
        """The second halves of the names of an area."""
        return [name.partition("/")[2] for name in self.names if name.startswith(f"{area}/")]


def _pooled(row: np.ndarray, pool: Callable[[np.ndarray], float]) -> float:
    present = row[np.isfinite(row)]
    return float(pool(present)) if present.size else math.nan


def _last(values: np.ndarray) -> float:
    return values[-1]


def pool_moments(
    mean_BS: np.ndarray, deviation_BS: np.ndarray, count_BS: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Mean, deviation and count of the union of samples, per row.

    Args:
        mean_BS: means of S samples in B rows, NaN where there is none.
        deviation_BS: their deviations, with the divisor n - 1.
        count_BS: their sizes; where a row has none, its means weigh the same and give no deviation.

    Returns:
        Three arrays (B), NaN where nothing is known.
    """
    known_BS = np.isfinite(mean_BS)
    count_BS = np.where(known_BS & np.isfinite(count_BS), count_BS, 0.0)
    count_B = count_BS.sum(axis=1)
    weight_BS = np.where(count_B[:, None] > 0, count_BS, known_BS)
    filled_BS = np.where(known_BS, mean_BS, 0.0)
    squares_BS = np.where(count_BS > 1, (count_BS - 1) * deviation_BS**2, 0.0) + count_BS * filled_BS**2
    with np.errstate(invalid="ignore", divide="ignore"):
        mean_B = (weight_BS * filled_BS).sum(axis=1) / weight_BS.sum(axis=1)
        variance_B = (squares_BS.sum(axis=1) - count_B * mean_B**2) / (count_B - 1)
    deviation_B = np.sqrt(np.where(count_B > 1, np.clip(variance_B, 0.0, None), np.nan))
    return mean_B, deviation_B, np.where(count_B > 0, count_B, np.nan)


def _learning(run: Run, columns: _Columns) -> tuple[Chart, ...]:
    rewards, successes = [], []
    for task, colour in _task_colours(run):
        count_BS = columns.rows(f"num_trajectories/{task}")
        mean, deviation, count = pool_moments(
            columns.rows(f"reward/{task}"), columns.rows(f"reward_std/{task}"), count_BS
        )
        rewards.append(Series(task, colour, mean, band=mean_interval(mean, deviation, count)))
        rate_BS = columns.rows(f"success/{task}")
        rate, _, count = pool_moments(rate_BS, np.zeros_like(rate_BS), count_BS)
        optimum = as_number(run.results.get(task, {}).get("optimum"))
        successes.append(Series(task, colour, rate, band=wilson_interval(rate, count), target=optimum))
    note = "dashed: optimum" if any(math.isfinite(one.target) for one in successes) else ""
    return _drawn(
        draw_lines("Success", columns.x, successes, floor=0.0, ceiling=1.0, note=note),
        draw_lines("Reward", columns.x, rewards, floor=0.0, ceiling=1.0),
    )


def _pace(columns: _Columns) -> tuple[Chart, ...]:
    times = [
        Series("train", "c1", columns.pool("time/train_s")),
        Series("wait for samples", "c2", columns.pool("time/wait_s")),
    ]
    lag = [
        Series("mean", "c1", columns.pool("staleness/lag_mean")),
        Series("max", "c2", columns.pool("staleness/lag_max", np.max)),
    ]
    return _drawn(
        draw_lines("Lag, updates", columns.x, lag, floor=0.0),
        _count(columns, "Dropped as stale, so far", "staleness/dropped", pool=_last),
        draw_bars("Seconds per step", columns.x, times),
        _single(columns, "Tokens per second", "throughput/tokens_per_s"),
        _single(columns, "Trajectories per minute", "throughput/trajectories_per_min"),
        _single(columns, "Publishing weights, seconds", "weights/publish_s"),
    )


def _policy(run: Run, columns: _Columns) -> tuple[Chart, ...]:
    turns = [Series(task, colour, columns.pool(f"turns/{task}")) for task, colour in _task_colours(run)]
    return _drawn(
        _single(columns, "Log-prob gap, mean, nats", "policy/logp_gap_mean"),
        _single(columns, "Log-prob gap, largest, nats", "policy/logp_gap_max", pool=np.max),
        _single(columns, "KL to the reference, nats", "policy/kl_reference"),
        _single(columns, "Entropy, nats", "policy/entropy"),
        draw_lines("Turns per trajectory", columns.x, turns, floor=0.0),
        _single(columns, "Effective sample size", "policy/effective_sample_size"),
        _single(columns, "Clipped tokens, fraction", "policy/clip_fraction"),
        _single(columns, "Gradient norm", "policy/grad_norm"),
        _single(columns, "Loss", "policy/loss", floor=None),
    )


def _accounts(columns: _Columns) -> tuple[Chart, ...]:
    ledger = [
        Series(name, colour, columns.pool(f"ledger/{name}", _last))
        for name, colour in _LEDGER_COLOURS.items()
    ]
    names = columns.under("outcome")
    known = [name for name in _OUTCOME_COLOURS if name in names]
    outcomes = [
        Series(
            name.replace("_", " "), _OUTCOME_COLOURS.get(name, "c8"), columns.pool(f"outcome/{name}", np.sum)
        )
        for name in [*known, *(name for name in names if name not in known)]
    ]
    return _drawn(
        draw_bars("Ledger, samples so far", columns.x, ledger),
        draw_bars("Outcomes, trajectories", columns.x, outcomes),
        _count(columns, "Groups without spread", "groups/zero_variance", pool=np.sum),
    )


def _task_colours(run: Run) -> list[tuple[str, str]]:
    return [(task, f"c{number % 8 + 1}") for number, task in enumerate(run.tasks)]


def _single(
    columns: _Columns,
    title: str,
    name: str,
    *,
    pool: Callable[[np.ndarray], float] | None = None,
    floor: float | None = 0.0,
) -> Chart | None:
    return draw_lines(title, columns.x, [Series("", "c1", columns.pool(name, pool))], floor=floor)


def _count(columns: _Columns, title: str, name: str, *, pool: Callable[[np.ndarray], float]) -> Chart | None:
    return draw_bars(title, columns.x, [Series("", "c1", columns.pool(name, pool))])


def _drawn(*charts: Chart | None) -> tuple[Chart, ...]:
    return tuple(chart for chart in charts if chart is not None)

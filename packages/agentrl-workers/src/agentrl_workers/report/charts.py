"""Geometry of the charts: numbers in, SVG path data and tick positions out; the template draws them."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

WIDTH, HEIGHT = 400, 200
"""Size of a chart in its own units; the page scales it."""
LEFT, RIGHT, TOP, BOTTOM = 48, 392, 8, 176
"""Edges of the area in which values are drawn."""


@dataclass(frozen=True)
class Series:
    """One quantity over steps."""

    name: str
    """What the legend calls it; empty where the title says it."""
    colour: str
    """Name of the page's colour variable."""
    values: np.ndarray
    """One value a point, NaN where there is none."""
    band: tuple[np.ndarray, np.ndarray] | None = None
    """Lower and upper bounds of the values."""
    target: float = math.nan
    """A value to reach, drawn as a dashed line."""


@dataclass(frozen=True)
class Mark:
    """A path of the drawing."""

    kind: str
    """`line`, `dot`, `band`, `bar` or `target`; the style sheet knows each."""
    colour: str
    """Name of the page's colour variable."""
    path: str
    """SVG path data."""


@dataclass(frozen=True)
class Key:
    """An entry of the legend, with the values that hovering shows."""

    name: str
    """The series' name."""
    colour: str
    """Name of the page's colour variable."""
    latest: str
    """Its last value."""
    values: str
    """All its values in words, separated by `|`."""


@dataclass(frozen=True)
class Chart:
    """A drawing ready for the template."""

    title: str
    """What is measured, with its unit."""
    note: str
    """How to read it, where that is not obvious."""
    marks: tuple[Mark, ...]
    """What is drawn, from back to front."""
    keys: tuple[Key, ...]
    """The legend."""
    x_ticks: tuple[tuple[float, str], ...]
    """Position and label of each tick of the steps."""
    y_ticks: tuple[tuple[float, str], ...]
    """Position and label of each tick of the values."""
    xs: str
    """Step of each point, separated by `|`."""
    positions: str
    """Horizontal position of each point, separated by `|`."""

    @property
    def summary(self) -> str:
        """The latest values in words, for who cannot see the drawing."""
        return f"{self.title}: " + ", ".join(f"{key.name} {key.latest}".strip() for key in self.keys)


def draw_lines(
    title: str,
    x: np.ndarray,
    series: Sequence[Series],
    *,
    floor: float | None = None,
    ceiling: float | None = None,
    note: str = "",
) -> Chart | None:
    """Lines with their bands; none where no series has a value.

    Args:
        title: what is measured.
        x: step of each point.
        series: what to draw.
        floor: a value that the axis includes.
        ceiling: another.
        note: how to read it.
    """
    series = [one for one in series if np.isfinite(one.values).any()]
    if not series:
        return None
    shown = [bound for one in series for bound in (one.values, *(one.band or ()), [one.target])]
    axis = _Axis(np.concatenate([*shown, [_or_nan(floor), _or_nan(ceiling)]]))
    px = _x_positions(x, margin=0.0)
    marks = [
        Mark("band", one.colour, _band_path(px, axis.at(one.band[0]), axis.at(one.band[1])))
        for one in series
        if one.band is not None
    ]
    marks += [
        Mark("target", one.colour, f"M{LEFT} {axis.at(one.target):.1f}H{RIGHT}")
        for one in series
        if math.isfinite(one.target)
    ]
    for one in series:
        runs = list(_runs(px, axis.at(one.values)))
        marks.append(Mark("line", one.colour, _join(run for run in runs if len(run) > 1)))
        # A line of zero length with round ends is a dot.
        marks.append(Mark("dot", one.colour, _join([run[0], run[0]] for run in runs if len(run) == 1)))
    return _chart(title, note, x, px, series=series, axis=axis, marks=marks)


def draw_bars(title: str, x: np.ndarray, series: Sequence[Series], *, note: str = "") -> Chart | None:
    """Stacked bars; none where no series has a value.

    Args:
        title: what is counted.
        x: step of each bar.
        series: the parts, from the bottom up.
        note: how to read it.
    """
    series = [one for one in series if np.isfinite(one.values).any()]
    if not series:
        return None
    parts = np.array([np.clip(np.nan_to_num(one.values), 0.0, None) for one in series])
    tops = np.cumsum(parts, axis=0)
    axis = _Axis(np.append(tops[-1], 0.0))
    width = (RIGHT - LEFT) / len(x)
    px = _x_positions(x, margin=width / 2)
    bar = min(max(0.8 * width, 0.5), 40.0)
    marks = [
        Mark("bar", one.colour, _bars_path(px, axis.at(top - part), axis.at(top), bar))
        for one, part, top in zip(series, parts, tops, strict=True)
    ]
    return _chart(title, note, x, px, series=series, axis=axis, marks=marks)


def nice_ticks(low: float, high: float, *, most: int = 6) -> list[float]:
    """Round values at even distances within `[low, high]`, at most `most` of them."""
    rough = (high - low) / (most - 1)
    power = 10.0 ** math.floor(math.log10(rough))
    # Tolerance: 0.25 must not miss itself by a rounding error and double the step.
    step = next(factor * power for factor in (1.0, 2.0, 2.5, 5.0, 10.0) if factor * power >= rough * 0.999)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [number * step for number in range(first, last + 1)]


def format_number(value: float) -> str:
    """A value in few characters: `4,812`, `0.031`, `1.2e-05`; a dash for none."""
    if not math.isfinite(value):
        return "–"
    size = abs(value)
    if size >= 1e7 or 0 < size < 1e-3:
        return f"{value:.2g}"
    if size >= 1000 or value == int(value):
        return f"{value:,.0f}"
    return f"{value:.3g}"


class _Axis:
    """The vertical scale of a chart."""

    def __init__(self, values: np.ndarray) -> None:
        finite = values[np.isfinite(values)]
        self._low, self._high = float(finite.min()), float(finite.max())
        if self._high <= self._low:
            pad = abs(self._low) * 0.5 or 1.0
            self._low, self._high = self._low - pad * (self._low < 0), self._high + pad
        self.ticks = nice_ticks(self._low, self._high)

    def at(self, values: np.ndarray | float) -> np.ndarray:
        return BOTTOM - (np.asarray(values) - self._low) / (self._high - self._low) * (BOTTOM - TOP)


def _chart(
    title: str,
    note: str,
    x: np.ndarray,
    px: np.ndarray,
    *,
    series: Sequence[Series],
    axis: _Axis,
    marks: Sequence[Mark],
) -> Chart:
    keys = tuple(
        Key(
            name=one.name,
            colour=one.colour,
            latest=format_number(one.values[np.isfinite(one.values)][-1]),
            values="|".join(format_number(value) for value in one.values),
        )
        for one in series
    )
    return Chart(
        title=title,
        note=note,
        marks=tuple(mark for mark in marks if mark.path),
        keys=keys,
        x_ticks=tuple(_x_ticks(x, px)),
        y_ticks=tuple((round(float(axis.at(tick)), 1), _tick_label(tick, axis.ticks)) for tick in axis.ticks),
        xs="|".join(f"{value:.0f}" for value in x),
        positions="|".join(f"{value:.1f}" for value in px),
    )


def _tick_label(tick: float, ticks: Sequence[float]) -> str:
    step = ticks[1] - ticks[0]
    if max(abs(ticks[0]), abs(ticks[-1])) >= 1e4:
        return f"{tick / 1e3:,.4g}k" if 0 < abs(tick) < 1e7 else f"{tick:.3g}"
    if step < 5e-4:
        return f"{tick:.2g}"
    decimals = max(0, -math.floor(math.log10(step) + 1e-9))
    exact = decimals + (round(step * 10**decimals, 6) % 1 > 0)
    return f"{tick:,.{exact}f}"


def _x_positions(x: np.ndarray, *, margin: float) -> np.ndarray:
    left, right = LEFT + margin, RIGHT - margin
    if x[0] == x[-1]:
        return np.full(len(x), (left + right) / 2)
    return left + (x - x[0]) / (x[-1] - x[0]) * (right - left)


def _x_ticks(x: np.ndarray, px: np.ndarray) -> Iterable[tuple[float, str]]:
    if x[0] == x[-1]:
        return [(round(float(px[0]), 1), f"{x[0]:.0f}")]
    ticks = [tick for tick in nice_ticks(x[0], x[-1], most=8) if x[0] <= tick <= x[-1] and tick == int(tick)]
    return [(round(float(np.interp(tick, x, px)), 1), f"{tick:,.0f}") for tick in ticks]


def _runs(px: np.ndarray, *columns: np.ndarray) -> Iterable[list[tuple[float, ...]]]:
    """Stretches of points in which every column has a value."""
    run: list[tuple[float, ...]] = []
    for point in zip(px, *columns, strict=True):
        if all(math.isfinite(value) for value in point):
            run.append(point)
        elif run:
            yield run
            run = []
    if run:
        yield run


def _join(runs: Iterable[Sequence[tuple[float, ...]]]) -> str:
    return "".join("M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in run) for run in runs)


def _band_path(px: np.ndarray, low: np.ndarray, high: np.ndarray) -> str:
    outlines = (
        [(x, top) for x, _, top in run] + [(x, bottom) for x, bottom, _ in reversed(run)]
        for run in _runs(px, low, high)
    )
    return "".join(_join([outline]) + "Z" for outline in outlines)


def _bars_path(px: np.ndarray, bottom: np.ndarray, top: np.ndarray, width: float) -> str:
    return "".join(
        f"M{x - width / 2:.1f} {low:.1f}h{width:.1f}V{high:.1f}h{-width:.1f}Z"
        for x, low, high in zip(px, bottom, top, strict=True)
        if low - high >= 0.05
    )


def _or_nan(value: float | None) -> float:
    return math.nan if value is None else value

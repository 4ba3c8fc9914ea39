"""What a person sees while a run goes on: a live view in a terminal, one plain line a step elsewhere.

stage("starting ray") ... step(metrics, total) x N ... finish(summary, report_path)
                  warn(text) at any time, printed above the live area
"""

import math
import time
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.padding import Padding
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

_BARS = "▁▂▃▄▅▆▇█"
_SPARK_POINTS = 32
_AVERAGED_STEPS = 5
_PACE_STEPS = 20
_UNKNOWN = "-"


class Progress:
    """Shows stages, steps and warnings; enter it before the first and leave it after the last.

    Nothing it is given makes it raise: what is missing or odd shows as `-`.

    Args:
        console: where to print; the standard output where it is absent.
        clock: seconds that only go forward, for the time left.
    """

    def __init__(
        self, console: Console | None = None, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._console = console or Console(highlight=False)
        self._clock = clock
        self._live: Live | None = None
        self._stage = ""
        self._stage_began_s = clock()
        self._spinner = Spinner("dots")
        self._tasks: dict[str, _TaskHistory] = {}
        self._finished_steps: deque[tuple[float, float]] = deque(maxlen=_PACE_STEPS + 1)
        self._record: Mapping[str, Any] = {}
        self._total: float = math.nan

    def __enter__(self) -> Self:
        if self._console.is_terminal and self._console.encoding.startswith("utf"):
            self._live = Live(get_renderable=self._view, console=self._console, refresh_per_second=8)
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop_live()

    def stage(self, name: str) -> None:
        """Say what the run does now, such as `starting ray`."""
        if self._live is None:
            self._print(Text(self._clean(name)))
        elif self._stage:
            took = _duration(self._clock() - self._stage_began_s)
            self._print(Text(f"✓ {self._stage} ({took})", style="dim"))
        self._stage, self._stage_began_s = self._clean(name), self._clock()
        self._spinner.update(text=self._stage)

    def step(self, metrics: Mapping[str, Any], total: int) -> None:
        """Show a training step's numbers.

        Args:
            metrics: the record that goes to `Metrics.log`.
            total: steps of the whole run.
        """
        self._record = metrics if isinstance(metrics, Mapping) else {}
        self._total = _number(total)
        for task in _task_names(self._record):
            self._tasks.setdefault(task, _TaskHistory()).add(task, self._record)
        step = _number(self._record.get("step"))
        if math.isfinite(step):
            self._finished_steps.append((step, self._clock()))
        if self._live is None:
            self._print(Text(self._clean(self._line())))

    def warn(self, text: str) -> None:
        """Print a warning; in a terminal it stands above the live area."""
        self._print(Text(f"warning: {self._clean(text)}", style="yellow"))

    def finish(self, summary: Mapping[str, Any], report_path: str | Path) -> None:
        """End the live view; print the table of before and after, and where the report is."""
        self._stop_live()
        tasks = summary.get("tasks") if isinstance(summary, Mapping) else None
        table = Table(title="Success on held-out samples, 95 % interval", title_justify="left")
        table.add_column("task")
        for name in ("before", "after", "optimum"):
            table.add_column(name, justify="right")
        for name, result in tasks.items() if isinstance(tasks, Mapping) else ():
            result = result if isinstance(result, Mapping) else {}
            table.add_row(
                Text(self._clean(name)),
                Text(_rate(result.get("before"))),
                Text(_rate(result.get("after")), style="bold"),
                _percent(result.get("optimum")),
            )
        self._print(table if table.row_count else Text("no task was evaluated"))
        # One unbroken line, so that it can be copied.
        self._print(Text(f"report: {self._clean(report_path)}", no_wrap=True, overflow="ignore"))

    def _stop_live(self) -> None:
        live, self._live = self._live, None
        if live is not None:
            live.stop()

    def _print(self, what: RenderableType) -> None:
        self._console.print(what, soft_wrap=isinstance(what, Text))

    def _clean(self, text: object) -> str:
        """Text that cannot move the cursor, and that the console can encode."""
        visible = "".join(char if char.isprintable() else " " for char in str(text))
        encoding = self._console.encoding
        return visible.encode(encoding, "replace").decode(encoding)

    def _eta(self) -> str:
        if len(self._finished_steps) < 2 or not math.isfinite(self._total):
            return _UNKNOWN
        (first, began), (last, ended) = self._finished_steps[0], self._finished_steps[-1]
        if last <= first:
            return _UNKNOWN
        since_s = self._clock() - ended
        return _duration((ended - began) / (last - first) * max(self._total - last, 0.0) - since_s)

    def _line(self) -> str:
        tasks = "  ".join(
            f"{name}: reward {_short(history.reward)} success {_percent(history.success)}"
            for name, history in self._tasks.items()
        )
        return (
            f"step {_whole(self._record.get('step'))}/{_whole(self._total)}"
            f"{'  ' if tasks else ''}{tasks}  {self._pace()}  eta {self._eta()}"
        )

    def _pace(self) -> str:
        get = self._record.get
        return (
            f"lag {_short(get('staleness/lag_mean'))} (max {_whole(get('staleness/lag_max'))})  "
            f"{_whole(get('throughput/tokens_per_s'))} tokens/s"
        )

    def _view(self) -> RenderableType:
        activity = self._spinner if self._live is not None else Text(self._stage, style="dim")
        if not self._finished_steps:
            return activity
        step = self._finished_steps[-1][0]
        head = Table.grid(padding=(0, 2))
        head.add_row(
            Text(f"step {_whole(step)}/{_whole(self._total)}", style="bold"),
            ProgressBar(total=max(self._total, 1.0), completed=step, width=30)
            if math.isfinite(self._total)
            else "",
            Text(f"eta {self._eta()}"),
        )
        return Group(
            head, self._task_table(), Padding(Text(self._pace(), style="dim"), (0, 0, 0, 1)), activity
        )

    def _task_table(self) -> Table:
        table = Table(box=None, header_style="dim", padding=(0, 2, 0, 1))
        for name in ("task", "reward", "success", ""):
            table.add_column(name, justify="left" if name in ("task", "") else "right", no_wrap=True)
        # A copy: the view is drawn by the thread of `Live` while steps arrive.
        for name, history in list(self._tasks.items()):
            table.add_row(
                Text(self._clean(name), overflow="ellipsis"),
                _short(history.reward),
                _percent(history.success),
                Text(sparkline(history.successes), style="green"),
            )
        return table


class _TaskHistory:
    """The last steps of one task."""

    def __init__(self) -> None:
        self.rewards: deque[float] = deque(maxlen=_SPARK_POINTS)
        self.successes: deque[float] = deque(maxlen=_SPARK_POINTS)

    def add(self, task: str, record: Mapping[str, Any]) -> None:
        self.rewards.append(_number(record.get(f"reward/{task}")))
        self.successes.append(_number(record.get(f"success/{task}")))

    @property
    def reward(self) -> float:
        return _recent_mean(self.rewards)

    @property
    def success(self) -> float:
        return _recent_mean(self.successes)


def sparkline(values: deque[float]) -> str:
    """One bar a value, 0 the lowest and 1 the highest; a space where there is none."""
    top = len(_BARS) - 1
    return "".join(
        _BARS[round(min(max(value, 0.0), 1.0) * top)] if math.isfinite(value) else " "
        for value in list(values)
    )


def _task_names(record: Mapping[str, Any]) -> list[str]:
    names = [str(name).partition("/") for name in record]
    return list(dict.fromkeys(task for area, _, task in names if area in ("reward", "success") and task))


def _recent_mean(values: deque[float]) -> float:
    recent = [value for value in list(values)[-_AVERAGED_STEPS:] if math.isfinite(value)]
    return sum(recent) / len(recent) if recent else math.nan


def _number(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return math.nan


def _short(value: Any) -> str:
    number = _number(value)
    return f"{number:.2f}" if math.isfinite(number) else _UNKNOWN


def _whole(value: Any) -> str:
    number = _number(value)
    return f"{number:,.0f}" if math.isfinite(number) else _UNKNOWN


def _percent(value: Any) -> str:
    number = _number(value)
    return f"{number:.0%}" if math.isfinite(number) else _UNKNOWN


def _rate(result: Any) -> str:
    """`31 % [24 %, 39 %] (n=160)`, or a dash where nothing was evaluated."""
    if not isinstance(result, Mapping) or not math.isfinite(_number(result.get("rate"))):
        return _UNKNOWN
    bounds = f"[{_percent(result.get('low'))}, {_percent(result.get('high'))}]"
    return f"{_percent(result['rate'])} {bounds} (n={_whole(result.get('n'))})"


def _duration(seconds: float) -> str:
    minutes, second = divmod(max(round(seconds), 0), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02}:{second:02}" if hours else f"{minute}:{second:02}"

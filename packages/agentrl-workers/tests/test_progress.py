import io
import math
from collections import deque
from typing import Any

import pytest
from rich.console import Console

from agentrl_workers.progress import Progress, sparkline

RECORD = {
    "step": 1,
    "reward/guess": 0.5,
    "success/guess": 0.25,
    "staleness/lag_mean": 0.8,
    "staleness/lag_max": 2,
    "throughput/tokens_per_s": 4812.2,
}
SUMMARY = {
    "tasks": {
        "guess": {
            "before": {"n": 160, "successes": 50, "rate": 0.31, "low": 0.24, "high": 0.39},
            "after": {"n": 160, "successes": 152, "rate": 0.95, "low": 0.9, "high": 0.98},
            "optimum": 1.0,
        }
    }
}


class Screen:
    """A console that remembers what was printed, with a clock that is moved by hand."""

    def __init__(self, *, terminal: bool = False, encoding: str = "utf-8") -> None:
        self.now = 0.0
        self._raw = io.BytesIO()
        self._file = io.TextIOWrapper(self._raw, encoding=encoding, write_through=True)
        console = Console(file=self._file, force_terminal=terminal, width=100, highlight=False)
        self.progress = Progress(console, clock=lambda: self.now)

    @property
    def text(self) -> str:
        return self._raw.getvalue().decode(self._file.encoding)

    @property
    def lines(self) -> list[str]:
        return self.text.splitlines()


def test_where_there_is_no_terminal_each_event_is_one_plain_line():
    screen = Screen()
    with screen.progress as progress:
        progress.stage("starting ray")
        progress.step(RECORD, 60)
        progress.warn("worker 3 is slow")
    assert screen.lines == [
        "starting ray",
        "step 1/60  guess: reward 0.50 success 25%  lag 0.80 (max 2)  4,812 tokens/s  eta -",
        "warning: worker 3 is slow",
    ]


def test_the_time_left_follows_the_pace_of_the_steps():
    screen = Screen()
    with screen.progress as progress:
        for step in (1, 2, 3):
            screen.now += 10.0
            progress.step({"step": step}, 63)
    assert screen.lines[-1].endswith("eta 10:00")


def test_reward_and_success_are_averages_of_the_last_steps():
    screen = Screen()
    with screen.progress as progress:
        for step, success in enumerate([1.0, 0.0, 0.0, 0.0, 0.5, 0.5], start=1):
            progress.step({"step": step, "success/guess": success, "reward/guess": math.nan}, 6)
    assert "guess: reward - success 20%" in screen.lines[-1]


def test_a_terminal_shows_the_steps_live_and_warnings_above():
    screen = Screen(terminal=True)
    with screen.progress as progress:
        progress.stage("evaluating before")
        progress.stage("training")
        for step in range(1, 5):
            progress.step({**RECORD, "step": step, "success/guess": step / 4}, 60)
        progress.warn("worker 3 is slow")
    assert "✓ evaluating before (0:00)" in screen.text
    for shown in ("step 4/60", "guess", "0.50", "62%", "▃▅▆█", "lag 0.80 (max 2)", "4,812 tokens/s"):
        assert shown in screen.text
    assert screen.text.rindex("warning: worker 3 is slow") < screen.text.rindex("step 4/60")


def test_the_end_shows_before_and_after_and_where_the_report_is():
    screen = Screen()
    path = "/runs/" + 30 * "long/" + "report.html"
    with screen.progress as progress:
        progress.finish(SUMMARY, path)
    (row,) = [line for line in screen.lines if "guess" in line]
    assert row.split("│")[1:-1] == [
        " guess ",
        " 31% [24%, 39%] (n=160) ",
        " 95% [90%, 98%] (n=160) ",
        "    100% ",
    ]
    assert screen.lines[-1] == f"report: {path}"


@pytest.mark.parametrize("terminal", [False, True])
@pytest.mark.parametrize(
    "record",
    [{}, None, {"step": "x", "reward/": 1, "reward/a": None, 3: 4}, {"step": 10**400, "success/a": math.inf}],
)
def test_odd_records_show_as_dashes(record: Any, terminal: bool):
    screen = Screen(terminal=terminal)
    with screen.progress as progress:
        progress.step(record, None)  # pyright: ignore[reportArgumentType]
        progress.step(RECORD, 0)
    assert terminal or screen.lines[0].startswith("step -/-")


@pytest.mark.parametrize(
    "summary", [{}, None, {"tasks": None}, {"tasks": {"a": None, "b": {"before": {"rate": "x"}, "after": 3}}}]
)
def test_a_run_without_results_ends_all_the_same(summary: Any):
    screen = Screen()
    with screen.progress as progress:
        progress.finish(summary, "report.html")
    assert screen.lines[-1] == "report: report.html"


@pytest.mark.parametrize("terminal", [False, True])
def test_text_from_elsewhere_cannot_steer_the_terminal(terminal: bool):
    screen = Screen(terminal=terminal)
    with screen.progress as progress:
        progress.warn("a\x1b[2Jb\rc \ud800 [red]d[/red]")
        progress.stage("\x1b]0;title\x07")
        progress.step({"step": 1, "reward/\x1b[31m": 0.5}, 1)
    assert "a [2Jb c" in screen.text
    assert "[red]d[/red]" in screen.text
    for steering in ("\x1b[2J", "\x1b]0", "\x1b[31m"):
        assert steering not in screen.text


@pytest.mark.parametrize("terminal", [False, True])
def test_a_console_that_knows_only_ascii_gets_ascii(terminal: bool):
    screen = Screen(terminal=terminal, encoding="ascii")
    with screen.progress as progress:
        progress.stage("größe")
        progress.step({"step": 1, "reward/größe": 0.5}, 1)
        progress.finish(SUMMARY, "größe")
    assert "gr??e: reward 0.50" in screen.text


def test_a_sparkline_has_one_bar_a_value():
    assert sparkline(deque([0.0, 0.5, 1.0, math.nan, -1.0, 7.0])) == "▁▅█ ▁█"

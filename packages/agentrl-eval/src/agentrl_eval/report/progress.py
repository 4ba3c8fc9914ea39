"""How far a running evaluation is: a live line in a terminal, a plain one now and then elsewhere."""

from collections import Counter
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from agentrl_eval.journal import Record

_PLAIN_LINES = 20


class ProgressLine:
    """Shows episodes done, success by task and faults, while it is entered.

    Args:
        console: where to.
        threshold: score from which an episode is a success.
    """

    def __init__(self, console: Console, *, threshold: float) -> None:
        self._console = console
        self._threshold = threshold
        self._wins: Counter[str] = Counter()
        self._counts: Counter[str] = Counter()
        self._faults = 0
        self._bar = Progress(
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("{task.description}"),
            TimeRemainingColumn(),
            console=console,
            disable=not console.is_terminal,
        )
        self._line = self._bar.add_task("starting", total=None)

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def show(self, record: Record, total: int) -> None:
        """Count a result out of so many."""
        self._counts[record.task] += 1
        self._wins[record.task] += record.score is not None and record.score >= self._threshold
        self._faults += not record.outcome.is_scored
        done = self._counts.total()
        if self._console.is_terminal:
            self._bar.update(self._line, completed=done, total=total, description=self._words())
        elif done % max(1, total // _PLAIN_LINES) == 0 or done == total:
            self._console.print(f"{done}/{total} {self._words()}", soft_wrap=True, markup=False)

    def _words(self) -> str:
        rates = [f"{task} {self._wins[task] / n:.0%} of {n}" for task, n in sorted(self._counts.items())]
        return ", ".join([*rates, f"{self._faults} unscored"] if self._faults else rates)

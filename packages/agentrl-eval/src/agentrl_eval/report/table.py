"""Results as a table: in the terminal, and as Markdown."""

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from agentrl_eval.results import Rate, Results

_HEADERS = ("task", "success", "scored only", "reward", "turns", "outcomes")


def print_table(results: Results, console: Console) -> None:
    """Show the results of each task."""
    table = Table(title=f"Success of {escape(results.model)}, with 95 % interval", title_justify="left")
    for header in _HEADERS:
        table.add_column(header, overflow="fold")
    for row in _rows(results):
        table.add_row(*map(escape, row))
    console.print(table)


def markdown_table(results: Results) -> str:
    """The same as Markdown."""
    lines = [_HEADERS, ["---"] * len(_HEADERS), *_rows(results)]
    return "".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |\n" for line in lines)


def _rows(results: Results) -> list[tuple[str, ...]]:
    return [
        (
            name,
            _rate(task),
            _rate(task.scored_only),
            "" if task.mean_reward is None else f"{task.mean_reward:.3f}",
            "" if task.turns_mean is None else f"{task.turns_mean:.1f}",
            ", ".join(
                f"{count} {outcome}" for outcome, count in _outcomes(task.outcomes, task.planned - task.n)
            ),
        )
        for name, task in results.tasks.items()
    ]


def _outcomes(counts: dict[str, int], missing: int) -> list[tuple[str, int]]:
    return [*counts.items(), *([("not run", missing)] if missing else [])]


def _rate(rate: Rate) -> str:
    if rate.rate is None:
        return "none (n = 0)"
    return f"{rate.rate:.1%} [{rate.low:.1%}, {rate.high:.1%}] (n = {rate.n})"

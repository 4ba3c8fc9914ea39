"""Results as a table: in the terminal, and as Markdown."""

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.table import Table

_HEADERS = ("task", "success", "scored only", "reward", "turns", "outcomes")


def print_table(results: Mapping[str, Any], console: Console) -> None:
    """Show the results of each task."""
    table = Table(title="Success with 95 % interval", title_justify="left")
    for header in _HEADERS:
        table.add_column(header)
    for row in _rows(results):
        table.add_row(*row)
    console.print(table)


def markdown_table(results: Mapping[str, Any]) -> str:
    """The same as Markdown."""
    lines = [_HEADERS, ["---"] * len(_HEADERS), *_rows(results)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _rows(results: Mapping[str, Any]) -> list[tuple[str, ...]]:
    return [
        (
            name,
            _rate(task),
            _rate(task["scored_only"]),
            f"{task['mean_reward']:.3f}",
            f"{task['turns_mean']:.1f}",
            ", ".join(f"{count} {outcome}" for outcome, count in task["outcomes"].items()),
        )
        for name, task in results.items()
    ]


def _rate(rate: Mapping[str, Any]) -> str:
    if rate["rate"] is None:
        return "none (n = 0)"
    return f"{rate['rate']:.1%} [{rate['low']:.1%}, {rate['high']:.1%}] (n = {rate['n']})"

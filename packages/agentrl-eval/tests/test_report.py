import io
from pathlib import Path

import pytest
from rich.console import Console

from agentrl_core import ConfigError, Outcome
from agentrl_eval.journal import Record
from agentrl_eval.plan import Plan
from agentrl_eval.report import ProgressLine, markdown_table, print_table, write_results
from agentrl_eval.results import Results, summarise

RECORDS = [
    Record(task="a|b", index=i, repeat=0, attempt=1, final=True, outcome=outcome, score=score)
    for i, (outcome, score) in enumerate([(Outcome.COMPLETED, 1.0), (Outcome.INFRASTRUCTURE_ERROR, None)])
]


def some_results() -> Results:
    plan = Plan(tasks=("a|b", "[red]"), model="openai:m")
    return summarise(plan, RECORDS, planned={"a|b": 3, "[red]": 1}, wall_s=1.0)


def show(*, terminal: bool) -> str:
    console = Console(file=io.StringIO(), force_terminal=terminal, width=200)
    with ProgressLine(console, threshold=1.0) as line:
        for record in RECORDS:
            line.show(record, 2)
    return console.file.getvalue()  # type: ignore[attr-defined]


def test_without_a_terminal_progress_is_plain_lines():
    assert show(terminal=False) == "1/2 a|b 100% of 1\n2/2 a|b 50% of 2, 1 unscored\n"


def test_a_terminal_gets_a_live_line_that_ends_with_the_same_numbers():
    assert "a|b 50% of 2, 1 unscored" in show(terminal=True)


def test_both_tables_show_both_headlines_what_went_wrong_and_what_is_missing():
    console = Console(file=io.StringIO(), width=250)
    print_table(some_results(), console)
    for text in (console.file.getvalue(), markdown_table(some_results())):  # type: ignore[attr-defined]
        assert "50.0% [9.5%, 90.5%] (n = 2)" in text
        assert "100.0% [20.7%, 100.0%] (n = 1)" in text
        assert "1 completed, 1 infrastructure_error, 1 not run" in text
        assert "none (n = 0)" in text
        assert "[red]" in text


def test_a_bar_in_a_name_does_not_break_the_markdown_table():
    rows = markdown_table(some_results()).splitlines()
    assert rows[2].startswith("| a\\|b |")


def test_results_are_written_whole_and_read_back(tmp_path: Path):
    path = write_results(some_results(), tmp_path)
    assert Results.model_validate_json(path.read_text()) == some_results()
    assert sorted(file.name for file in tmp_path.iterdir()) == ["results.json", "results.md"]


def test_a_folder_that_is_gone_is_an_error_with_a_way_out(tmp_path: Path):
    with pytest.raises(ConfigError, match="cannot write results"):
        write_results(some_results(), tmp_path / "gone")

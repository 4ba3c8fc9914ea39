"""Results for people: tables and a progress line; and as files."""

from agentrl_eval.report.folder import write_results
from agentrl_eval.report.progress import ProgressLine
from agentrl_eval.report.table import markdown_table, print_table

__all__ = ["ProgressLine", "markdown_table", "print_table", "write_results"]

"""Results for people: tables."""

from agentrl_eval.report.table import markdown_table, print_table

__all__ = ["markdown_table", "print_table"]

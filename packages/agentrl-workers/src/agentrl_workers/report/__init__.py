"""A run folder as one HTML file that can be sent to somebody.

    summary.json, config.yaml, metrics.jsonl -> folder (`Run`) -> panels (`Chart`) --> page -> report.html
    trajectories.jsonl -> conversations (a few, picked in one pass) ---------------/

The page fetches nothing and is the same for the same folder. What the folder lacks, it says.
"""

from agentrl_workers.report.page import write_report

__all__ = ["write_report"]

"""Evaluate models on agent tasks: every episode counted, every number with its interval.

    Plan -> samples -> runner (Model <-> session client) -> Journal -> results -> report

`agentrl_eval.runner.evaluate` plays a plan, `agentrl_eval.results.summarise` counts its journal.
"""

from agentrl_eval.plan import Plan

__all__ = ["Plan"]

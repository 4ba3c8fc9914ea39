"""A small verifiers environment."""

from sums_vf.taskset import SumsEnv, SumsTaskset

__all__ = ["SumsEnv", "SumsTaskset"]

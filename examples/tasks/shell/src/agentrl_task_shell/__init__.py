"""Reach goals in a sandboxed directory with a shell.

goals (files, text, check, solution from a seed) -> Shell task -> a directory of its own per episode
"""

from agentrl_task_shell.goals import Goal, make_goal
from agentrl_task_shell.task import Shell

__all__ = ["Goal", "Shell", "make_goal"]

"""Find a hidden number by halving what is left; how much there is to halve is the difficulty."""

from agentrl_task_guess.task import Guess

__all__ = ["Guess"]

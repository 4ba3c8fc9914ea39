"""Two small multi-turn tasks that a tiny model can learn; the trainer's quickstart does.

guess: find a number by halving | trail: follow keys of a small store to a number
"""

from agentrl_env_sdk.tasks.guess import Guess
from agentrl_env_sdk.tasks.trail import Trail

__all__ = ["Guess", "Trail"]

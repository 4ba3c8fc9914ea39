"""Do chores in a small text world.

house (rooms, places, things from a seed: a plain dict) -> actions (what an agent may do in it) --+
  |                                                          |                                    v
  +--> goals (a chore and its steps) -----------------> planner (the next best action) -----> Household task
"""

from agentrl_task_household.goals import make_chore
from agentrl_task_household.house import Goal, House, Place, Thing
from agentrl_task_household.planner import next_action, plan
from agentrl_task_household.task import Household

__all__ = ["Goal", "House", "Household", "Place", "Thing", "make_chore", "next_action", "plan"]

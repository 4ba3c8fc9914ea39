"""A Gymnasium environment as a task: Taxi.

agentrl-env play examples/adapters/gymnasium_task.py
agentrl-env validate examples/adapters/gymnasium_task.py
"""

from collections import deque
from collections.abc import Iterator
from typing import Any

from agentrl_env_sdk import Session
from agentrl_env_sdk.adapters.gymnasium import GymnasiumTask
from agentrl_env_sdk.oracle import Action, act

ACTIONS = ["south", "north", "east", "west", "pick_up", "drop_off"]


class Taxi(GymnasiumTask):
    """Pick up a passenger (blue) and drop them off where they want to go (magenta)."""

    optimum = 1.0
    reward_range = (-200.0, 20.0)

    def __init__(self) -> None:
        super().__init__(
            "Taxi-v4",
            make={"render_mode": "ansi"},
            splits={"train": 200, "test": [1000, 1001, 1002, 1003]},
            instructions=(
                "You drive the taxi (yellow, or green with a passenger). Pick up the passenger at the blue "
                "letter, and drop them off at the magenta one. You cannot drive through `|`."
            ),
            names=ACTIONS,
            can_fork=True,
        )

    def oracle(self, session: Session) -> Iterator[Action]:
        """The shortest way to the end."""
        taxi = self.environment(session).unwrapped
        for action in shortest_way(taxi.P, int(taxi.s)):
            yield act("step", action=ACTIONS[action])


def shortest_way(transitions: Any, start: int) -> list[int]:
    """Actions from a state to the end, where each action has one outcome."""
    ways: dict[int, list[int]] = {start: []}
    waiting = deque([start])
    while waiting:
        state = waiting.popleft()
        for action, outcomes in transitions[state].items():
            _, following, _, is_end = outcomes[0]
            if is_end:
                return [*ways[state], action]
            if following not in ways:
                ways[following] = [*ways[state], action]
                waiting.append(following)
    raise ValueError(f"no way leads from state {start} to the end")

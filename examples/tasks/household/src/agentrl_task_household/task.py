"""The task: a chore, and a house to do it in."""

import copy
from typing import Any, cast

from agentrl_core import ConfigError
from agentrl_env_sdk import Generated, Session, Task, metric, tool
from agentrl_env_sdk.oracle import Plan, act
from agentrl_task_household.actions import ACTIONS, look
from agentrl_task_household.goals import LEVELS, collect, is_done, make_chore, told
from agentrl_task_household.house import House
from agentrl_task_household.planner import next_action


def close(session: Session, place: str) -> str:
    """close the place that you are at

    Args:
        place: such as drawer 2
    """
    return _act(session, "close", place=place)


class Household(Task):
    """`household`: 1 in all for a chore, of which 0.4 is for the steps on the way.

    Args:
        difficulty: `easy` (two rooms, what is needed lies open), `medium` (three rooms, things to be cleaned,
            heated or cooled) or `hard` (five rooms, two things).

    Raises:
        ConfigError: there is no such difficulty.
    """

    optimum = 1.0
    tools = [close]
    """A function, since a method of this name is what a task lets go of its resources with."""

    def __init__(self, difficulty: str = "easy") -> None:
        if difficulty not in LEVELS:
            raise ConfigError(f"`difficulty` must be one of {sorted(LEVELS)}, got {difficulty!r}")
        self._difficulty = difficulty
        self.name = "household" if difficulty == "easy" else f"household-{difficulty}"
        self.max_turns = {"easy": 40, "medium": 60, "hard": 90}[difficulty]
        self.splits = {
            "train": Generated(lambda position: f"train/{position}", 1000),
            "test": Generated(lambda position: f"test/{position}", 200),
        }

    def setup(self, session: Session) -> str:
        """Build the house and state the chore."""
        session.state.update(make_chore(self._difficulty, str(session.sample)))
        house = _house(session)
        return f"{told(house['goal'])} You can carry one thing at a time.\n{look(house)}"

    @tool
    def go(self, session: Session, place: str) -> str:
        """go to a place in this room, or through a door to another room

        Args:
            place: such as counter 1, or bedroom
        """
        return _act(session, "go", place=place)

    @tool
    def look(self, session: Session) -> str:
        """see where you are and what is there"""
        return _act(session, "look")

    @tool
    def inventory(self, session: Session) -> str:
        """see what you hold"""
        return _act(session, "inventory")

    @tool
    def open(self, session: Session, place: str) -> str:
        """open the place that you are at

        Args:
            place: such as drawer 2
        """
        return _act(session, "open", place=place)

    @tool
    def take(self, session: Session, thing: str) -> str:
        """take a thing from the place that you are at

        Args:
            thing: such as mug 1
        """
        return _act(session, "take", thing=thing)

    @tool
    def put(self, session: Session, thing: str, place: str) -> str:
        """put what you hold in or on the place that you are at

        Args:
            thing: such as mug 1
            place: such as counter 1
        """
        return _act(session, "put", thing=thing, place=place)

    @tool
    def clean(self, session: Session, thing: str) -> str:
        """clean what you hold, at a sink

        Args:
            thing: such as mug 1
        """
        return _act(session, "clean", thing=thing)

    @tool
    def heat(self, session: Session, thing: str) -> str:
        """heat what you hold, at a microwave

        Args:
            thing: such as mug 1
        """
        return _act(session, "heat", thing=thing)

    @tool
    def cool(self, session: Session, thing: str) -> str:
        """cool what you hold, at a fridge

        Args:
            thing: such as mug 1
        """
        return _act(session, "cool", thing=thing)

    @tool
    def use(self, session: Session, lamp: str) -> str:
        """switch a lamp on or off, where it stands

        Args:
            lamp: such as lamp 1
        """
        return _act(session, "use", lamp=lamp)

    @metric
    def success(self, session: Session) -> float:
        """1 where the chore was done."""
        return float(is_done(_house(session)))

    @metric
    def steps(self, session: Session) -> int:
        """Steps of the chore that were paid."""
        return len(_house(session)["paid"])

    def snapshot(self, session: Session) -> dict[str, Any]:
        """The house as it is."""
        return copy.deepcopy(session.state)

    def restore(self, session: Session, snapshot: dict[str, Any]) -> None:
        """A house of its own."""
        session.state = copy.deepcopy(snapshot)

    def oracle(self, session: Session) -> Plan:
        """Walk straight to what is needed: it knows where everything is."""
        while not session.finished:
            name, arguments = next_action(_house(session))
            yield act(name, **arguments)


def _house(session: Session) -> House:
    return cast("House", session.state)


def _act(session: Session, action: str, **arguments: str) -> str:
    house = _house(session)
    said = ACTIONS[action](house, **arguments)
    earned = collect(house)
    if is_done(house):
        session.finish(reward=1.0 - session.earned, score=1.0)
        return f"{said}\nthe chore is done"
    if earned:
        session.reward(earned, score=0.0)
    return said

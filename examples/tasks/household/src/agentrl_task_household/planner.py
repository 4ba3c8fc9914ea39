"""The next best action from anywhere, for one who knows where everything is."""

import copy

from agentrl_task_household.actions import ACTIONS, held_thing
from agentrl_task_household.goals import collect, is_done, is_placed, is_treated, wanted
from agentrl_task_household.house import APPLIANCES, House, is_hidden

Action = tuple[str, dict[str, str]]
"""A tool's name and its arguments."""

_MAX_ACTIONS = 200


def next_action(house: House) -> Action:
    """What to do now to get the chore done; the chore is not done yet."""
    goal, held = house["goal"], held_thing(house)
    if not held:
        left = [name for name in wanted(house) if not is_placed(house, name)]
        nearest = min(left, key=lambda name: _distance(house, house["things"][name]["at"]))
        return reach(house, house["things"][nearest]["at"]) or ("take", {"thing": nearest})
    if house["things"][held]["kind"] != goal["thing"]:
        free = _nearest(house, [name for name in house["places"] if not is_hidden(house, name)])
        return reach(house, free) or ("put", {"thing": held, "place": free})
    if goal["verb"] == "examine":
        desk = _nearest(house, [name for name, place in house["places"].items() if place["lamp"]])
        return reach(house, desk) or ("use", {"lamp": house["places"][desk]["lamp"]})
    if not is_treated(house, held):
        spot = _nearest(house, _of_kind(house, APPLIANCES[goal["treatment"]]))
        return reach(house, spot, opened=False) or (goal["treatment"], {"thing": held})
    target = _nearest(house, _of_kind(house, goal["place"]))
    return reach(house, target) or ("put", {"thing": held, "place": target})


def plan(house: House) -> list[Action]:
    """All actions that get the chore done; the house stays as it is.

    Raises:
        RuntimeError: it does not get done.
    """
    copied = copy.deepcopy(house)
    done: list[Action] = []
    while not is_done(copied):
        if len(done) == _MAX_ACTIONS:
            raise RuntimeError(f"the chore is not done after {_MAX_ACTIONS} actions: {copied}")
        name, arguments = next_action(copied)
        ACTIONS[name](copied, **arguments)
        collect(copied)
        done.append((name, arguments))
    return done


def reach(house: House, place: str, *, opened: bool = True) -> Action | None:
    """The next action on the way to a place that is to be open; None once one is there."""
    if house["at"] == place:
        return ("open", {"place": place}) if opened and is_hidden(house, place) else None
    way = _way(house, house["places"][place]["room"])
    return ("go", {"place": way[0] if way else place})


def _nearest(house: House, places: list[str]) -> str:
    return min(places, key=lambda place: _distance(house, place))


def _of_kind(house: House, kind: str) -> list[str]:
    return [name for name, place in house["places"].items() if place["kind"] == kind]


def _distance(house: House, place: str) -> tuple[int, bool, str]:
    """Doors on the way, then whether one is not there yet, then the name."""
    return len(_way(house, house["places"][place]["room"])), house["at"] != place, place


def _way(house: House, room: str) -> list[str]:
    """Rooms to walk through to a room, itself the last."""
    ways: dict[str, list[str]] = {house["room"]: []}
    unseen = [house["room"]]
    while room not in ways:
        here = unseen.pop(0)
        for other in house["doors"][here]:
            if other not in ways:
                ways[other] = [*ways[here], other]
                unseen.append(other)
    return ways[room]

"""A house as a plain dict: rooms with doors, places in them, and things in or on these."""

import random
from collections.abc import Sequence
from typing import TypedDict

HANDS = "hands"
"""Where a thing is that is carried."""

_ROOMS: dict[str, dict[str, tuple[int, int]]] = {
    "kitchen": {
        "fridge": (1, 1),
        "microwave": (1, 1),
        "sink": (1, 1),
        "counter": (1, 2),
        "cabinet": (2, 4),
        "drawer": (1, 3),
        "table": (0, 1),
    },
    "bedroom": {"bed": (1, 1), "desk": (1, 1), "drawer": (1, 2), "shelf": (0, 2), "chest": (0, 1)},
    "living room": {"sofa": (1, 2), "table": (1, 1), "shelf": (1, 2), "cabinet": (0, 2), "box": (0, 1)},
    "bathroom": {"sink": (1, 1), "bathtub": (1, 1), "basket": (1, 1), "cabinet": (1, 1), "shelf": (0, 1)},
    "study": {"desk": (1, 1), "shelf": (1, 2), "drawer": (1, 3), "box": (0, 1)},
}
"""Least and greatest number of each kind of place; every room has one that is never closed."""
_ROOMS_OF = {"easy": 2, "medium": 3, "hard": 5}
_THINGS_OF = {"easy": 8, "medium": 14, "hard": 22}

OPENABLE = frozenset({"fridge", "microwave", "cabinet", "drawer", "chest", "box"})
"""Places that are closed at first, and hide what is in them."""
_SURFACES = frozenset({"counter", "table", "bed", "desk", "shelf", "sofa"})
APPLIANCES = {"clean": "sink", "heat": "microwave", "cool": "fridge"}
"""Where a thing is treated."""

FOOD = frozenset({"apple", "tomato", "potato", "egg", "roll"})
"""What belongs into a fridge."""
_CROCKERY = frozenset({"mug", "plate", "bowl"})
TREATABLE = {
    "clean": frozenset({"apple", "tomato", "potato", "knife", "spoon", "pan", "sponge"}) | _CROCKERY,
    "heat": FOOD | _CROCKERY,
    "cool": FOOD | _CROCKERY | {"bottle"},
}
"""Kinds of things that can be treated."""
EXAMINABLE = frozenset({"book", "letter", "newspaper", "watch", "key", "card"})
"""Kinds of things that are worth a look."""

_HOMES: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(sorted(FOOD), ("kitchen",)),
    **dict.fromkeys(sorted(_CROCKERY), ("kitchen", "living room", "study")),
    **dict.fromkeys(("knife", "spoon", "pan", "bottle"), ("kitchen",)),
    **dict.fromkeys(("sponge", "towel", "brush"), ("bathroom", "kitchen")),
    **dict.fromkeys(("book", "letter", "newspaper", "card"), ("bedroom", "living room", "study")),
    **dict.fromkeys(("watch", "key", "pillow", "candle", "pen"), ("bedroom", "living room", "study")),
}
"""Rooms where things of a kind mostly are."""
KINDS = tuple(_HOMES)
"""Kinds of things."""
_AT_HOME = 0.7


class Place(TypedDict):
    """Where things can be."""

    kind: str
    room: str
    is_open: bool | None
    """None where there is nothing to open."""
    lamp: str
    """Name of the lamp that stands there; empty where there is none."""
    is_lit: bool


class Thing(TypedDict):
    """What can be carried."""

    kind: str
    at: str
    """Name of a place, or `HANDS`."""
    is_clean: bool
    temperature: str
    """`hot`, `cold`, or empty for neither."""


class Goal(TypedDict):
    """A chore."""

    verb: str
    """`put` or `examine`."""
    treatment: str
    """`clean`, `heat`, `cool`, or empty."""
    thing: str
    """Kind of thing."""
    place: str
    """Kind of place; empty for `examine`."""
    count: int
    """How many things."""


class House(TypedDict):
    """All that an episode has to remember."""

    doors: dict[str, list[str]]
    """Rooms that a room leads to."""
    places: dict[str, Place]
    things: dict[str, Thing]
    room: str
    """Where the agent is."""
    at: str
    """The place it stands at; empty in the middle of a room."""
    goal: Goal
    taken: list[str]
    """Things of the goal's kind that were taken so far."""
    paid: list[str]
    """Steps of the goal that were rewarded so far."""


def preposition(kind: str) -> str:
    """How things are at a kind of place."""
    return "on" if kind in _SURFACES else "in"


def is_hidden(house: House, name: str) -> bool:
    """Whether a place hides what is in it."""
    return house["places"][name]["is_open"] is False


def make_house(chance: random.Random, difficulty: str, goal: Goal) -> House:
    """A house for a goal, in which nothing of it is done yet.

    Args:
        chance: where it comes from.
        difficulty: how large it is; on `easy`, what is needed lies open.
        goal: its things are there, not where they are to go.
    """
    rooms = list(_ROOMS)[: _ROOMS_OF[difficulty]]
    places = _furnish(chance, rooms)
    kinds = [goal["thing"]] * (goal["count"] + chance.randint(0, 1))
    others = [kind for kind in KINDS if kind != goal["thing"]]
    kinds += chance.choices(others, k=_THINGS_OF[difficulty] - len(kinds))
    chance.shuffle(kinds)
    things: dict[str, Thing] = {}
    for name, kind in zip(_numbered(kinds), kinds, strict=True):
        fitting = _fitting(places, kind, goal, only_open=difficulty == "easy")
        at_home = [each for each in fitting if places[each]["room"] in _HOMES[kind]]
        at = chance.choice(at_home if at_home and chance.random() < _AT_HOME else fitting)
        things[name] = Thing(kind=kind, at=at, is_clean=False, temperature="")
    return House(
        doors=_connect(chance, rooms),
        places=places,
        things=things,
        room=chance.choice(rooms),
        at="",
        goal=goal,
        taken=[],
        paid=[],
    )


def place_kinds(difficulty: str) -> list[str]:
    """Kinds of places that every house of a difficulty has, appliances apart."""
    rooms = list(_ROOMS.values())[: _ROOMS_OF[difficulty]]
    certain = {kind for room in rooms for kind, (least, _) in room.items() if least}
    return sorted(certain - set(APPLIANCES.values()))


def _furnish(chance: random.Random, rooms: Sequence[str]) -> dict[str, Place]:
    where = [
        (kind, room)
        for room in rooms
        for kind, (least, most) in _ROOMS[room].items()
        for _ in range(chance.randint(least, most))
    ]
    places: dict[str, Place] = {}
    num_lamps = 0
    for name, (kind, room) in zip(_numbered([kind for kind, _ in where]), where, strict=True):
        num_lamps += kind == "desk"
        lamp = f"lamp {num_lamps}" if kind == "desk" else ""
        is_open = False if kind in OPENABLE else None
        places[name] = Place(kind=kind, room=room, is_open=is_open, lamp=lamp, is_lit=False)
    return places


def _connect(chance: random.Random, rooms: Sequence[str]) -> dict[str, list[str]]:
    """Doors between the rooms: a tree."""
    order = chance.sample(list(rooms), len(rooms))
    doors: dict[str, list[str]] = {room: [] for room in rooms}
    for number, room in enumerate(order[1:], 1):
        other = chance.choice(order[:number])
        doors[room].append(other)
        doors[other].append(room)
    return {room: sorted(found) for room, found in doors.items()}


def _fitting(places: dict[str, Place], kind: str, goal: Goal, *, only_open: bool) -> list[str]:
    """Places where a thing may be at first."""
    is_needed = kind == goal["thing"]
    return [
        name
        for name, place in places.items()
        if place["kind"] != "microwave"
        and (place["kind"] != "fridge" or kind in FOOD)
        and not (is_needed and (place["kind"] == goal["place"] or (only_open and place["is_open"] is False)))
    ]


def _numbered(kinds: Sequence[str]) -> list[str]:
    """A name for each of several things, the number counted for each kind."""
    counts: dict[str, int] = {}
    names = []
    for kind in kinds:
        counts[kind] = counts.get(kind, 0) + 1
        names.append(f"{kind} {counts[kind]}")
    return names

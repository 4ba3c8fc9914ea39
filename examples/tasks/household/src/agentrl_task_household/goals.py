"""Chores: what is to be done, told in words, its steps and what these are worth."""

import random

from agentrl_task_household.house import (
    EXAMINABLE,
    FOOD,
    HANDS,
    KINDS,
    TREATABLE,
    Goal,
    House,
    make_house,
    place_kinds,
    preposition,
)

LEVELS = {
    "easy": ("put", "examine"),
    "medium": ("put", "clean", "heat", "cool", "examine"),
    "hard": ("put", "clean", "heat", "cool"),
}
"""Kinds of chores by difficulty; on `hard` each takes two things."""

_BEFORE_LAST = 0.4
"""Shared by the steps before the last one."""
_CONDITIONS = {"clean": "clean", "heat": "hot", "cool": "cold"}
_PLURALS = {"knife": "knives", "tomato": "tomatoes", "potato": "potatoes"}
_PLURAL_PLACES = {"shelf": "shelves", "box": "boxes"}


def make_chore(difficulty: str, seed: str) -> House:
    """A house with a chore to do; the same seed gives the same one.

    Args:
        difficulty: a key of `LEVELS`.
        seed: of its chance.
    """
    chance = random.Random(f"household/{difficulty}/{seed}")
    chore = chance.choice(LEVELS[difficulty])
    treatment = chore if chore in TREATABLE else ""
    fitting = EXAMINABLE if chore == "examine" else TREATABLE.get(chore, KINDS)
    thing = chance.choice(sorted(fitting))
    places = [] if chore == "examine" else place_kinds(difficulty)
    if chore == "put" and thing in FOOD:
        places.append("fridge")
    goal = Goal(
        verb="examine" if chore == "examine" else "put",
        treatment=treatment,
        thing=thing,
        place=chance.choice(places) if places else "",
        count=2 if difficulty == "hard" else 1,
    )
    return make_house(chance, difficulty, goal)


def told(goal: Goal) -> str:
    """A goal in words."""
    thing, place = goal["thing"], goal["place"]
    if goal["verb"] == "examine":
        return f"Examine {_one(thing)} under a lamp: hold it where a lamp is on."
    condition = _CONDITIONS.get(goal["treatment"], "")
    where = preposition(place)
    if goal["count"] == 1:
        return f"Put {_one(f'{condition} {thing}'.strip())} {where} {_one(place)}."
    many = f"{condition} {_PLURALS.get(thing, f'{thing}s')}".strip()
    return f"Put two {many} {where} {_PLURAL_PLACES.get(place, f'{place}s')}, the same one or not."


def steps_of(goal: Goal) -> list[str]:
    """The steps of a goal in order, such as `placed 1`: that one thing is where it belongs."""
    if goal["verb"] == "examine":
        return ["taken 1", "examined 1"]
    stages = ["taken", "treated", "placed"] if goal["treatment"] else ["taken", "placed"]
    return [f"{stage} {number}" for number in range(1, goal["count"] + 1) for stage in stages]


def worth_of(goal: Goal) -> dict[str, float]:
    """What each step of a goal earns; together 1."""
    *before, last = steps_of(goal)
    return {**dict.fromkeys(before, _BEFORE_LAST / len(before)), last: 1.0 - _BEFORE_LAST}


def is_treated(house: House, name: str) -> bool:
    """Whether a thing is as the goal wants it."""
    thing, treatment = house["things"][name], house["goal"]["treatment"]
    if treatment == "clean":
        return thing["is_clean"]
    return not treatment or thing["temperature"] == _CONDITIONS[treatment]


def is_placed(house: House, name: str) -> bool:
    """Whether a thing is as the goal wants it, and where."""
    at = house["things"][name]["at"]
    return at != HANDS and house["places"][at]["kind"] == house["goal"]["place"] and is_treated(house, name)


def wanted(house: House) -> list[str]:
    """Things of the goal's kind."""
    return [name for name, thing in house["things"].items() if thing["kind"] == house["goal"]["thing"]]


def collect(house: House) -> float:
    """What was newly earned; each step is paid once, even where it was undone in between."""
    names = wanted(house)
    counts = {
        "taken": len(house["taken"]),
        "treated": sum(is_treated(house, name) for name in names),
        "placed": sum(is_placed(house, name) for name in names),
        "examined": sum(_is_lit(house) and house["things"][name]["at"] == HANDS for name in names),
    }
    earned = 0.0
    for step, worth in worth_of(house["goal"]).items():
        stage, number = step.split()
        if step not in house["paid"] and counts[stage] >= int(number):
            house["paid"].append(step)
            earned += worth
    return earned


def is_done(house: House) -> bool:
    """Whether the chore is done; its last step needs all others."""
    return steps_of(house["goal"])[-1] in house["paid"]


def _is_lit(house: House) -> bool:
    return bool(house["at"]) and house["places"][house["at"]]["is_lit"]


def _one(noun: str) -> str:
    return f"{'an' if noun[0] in 'aeiou' else 'a'} {noun}"

"""What can be done in a house: each action changes it and says what is seen, or why it cannot be done."""

from collections.abc import Callable, Iterable, Mapping

from agentrl_task_household.house import APPLIANCES, HANDS, TREATABLE, House, is_hidden, preposition

_SHOWN_CHARACTERS = 40
"""Of what an agent wrote."""
_DONE = {"clean": "cleaned", "heat": "heated", "cool": "cooled"}


def look(house: House) -> str:
    """Where one is, and what is seen there."""
    if not house["at"]:
        here = f"you are in the {house['room']}; here are: {', '.join(_places_here(house))}"
        return f"{here}; doors lead to: {', '.join(house['doors'][house['room']])}"
    name = house["at"]
    place = house["places"][name]
    told = [f"you are at {name} in the {place['room']}"]
    if is_hidden(house, name):
        told.append(f"{name} is closed")
    else:
        shown = ", ".join(things_at(house, name)) or "nothing"
        told.append(f"{'it is open; ' if place['is_open'] else ''}{preposition(place['kind'])} it: {shown}")
    if place["lamp"]:
        told.append(f"{place['lamp']} stands here, it is {'on' if place['is_lit'] else 'off'}")
    return "; ".join(told)


def inventory(house: House) -> str:
    """What is carried."""
    held = held_thing(house)
    return f"you hold {_described(house, held)}" if held else "your hands are empty"


def go(house: House, place: str) -> str:
    """Walk to a place in the room, or through a door."""
    room, doors = house["room"], house["doors"][house["room"]]
    found = _find(place, _places_here(house))
    if found:
        house["at"] = found
        return look(house)
    plain = _plain(place)
    if plain in doors or plain == room:
        house.update(room=plain, at="")
        return look(house)
    here = f"the {room} has: {', '.join(_places_here(house))}; doors lead to: {', '.join(doors)}"
    if plain in house["doors"]:
        return f"no door leads from the {room} to the {plain}; {here}"
    return f"there is no {_shown(place)} here, or several; {here}"


def open_place(house: House, place: str) -> str:
    """Open what one stands at."""
    name, fault = _standing_at(house, place)
    if fault:
        return fault
    if house["places"][name]["is_open"] is None:
        return f"{name} cannot be opened; what is there lies open"
    if house["places"][name]["is_open"]:
        return f"{name} is open already"
    house["places"][name]["is_open"] = True
    return f"you open {name}; in it: {', '.join(things_at(house, name)) or 'nothing'}"


def close_place(house: House, place: str) -> str:
    """Close what one stands at."""
    name, fault = _standing_at(house, place)
    if fault:
        return fault
    if house["places"][name]["is_open"] is None:
        return f"{name} cannot be closed"
    if not house["places"][name]["is_open"]:
        return f"{name} is closed already"
    house["places"][name]["is_open"] = False
    return f"you close {name}"


def take(house: House, thing: str) -> str:
    """Pick up a thing from where one stands."""
    at, held = house["at"], held_thing(house)
    if held:
        return f"your hands are full with {held}; put it down first"
    if not at:
        return "you are in the middle of the room; go to a place first"
    if is_hidden(house, at):
        return f"{at} is closed; open it first"
    there = things_at(house, at)
    name = _find(thing, there)
    if not name:
        where = preposition(house["places"][at]["kind"])
        return (
            f"{where} {at} there is no {_shown(thing)}, or several; there is: {', '.join(there) or 'nothing'}"
        )
    house["things"][name]["at"] = HANDS
    if house["things"][name]["kind"] == house["goal"]["thing"] and name not in house["taken"]:
        house["taken"].append(name)
    return f"you take {name} from {at}"


def put(house: House, thing: str, place: str) -> str:
    """Put down what is carried where one stands."""
    held, fault = _holding(house, thing)
    if fault:
        return fault
    name, fault = _standing_at(house, place)
    if fault:
        return fault
    if is_hidden(house, name):
        return f"{name} is closed; open it first"
    house["things"][held]["at"] = name
    return f"you put {held} {preposition(house['places'][name]['kind'])} {name}"


def treat(house: House, verb: str, thing: str) -> str:
    """Clean, heat or cool what is carried."""
    held, fault = _holding(house, thing)
    if fault:
        return fault
    appliance, at = APPLIANCES[verb], house["at"]
    if not at or house["places"][at]["kind"] != appliance:
        return f"you can {verb} things at a {appliance} only; go there first"
    found = house["things"][held]
    if found["kind"] not in TREATABLE[verb]:
        return f"{_a(found['kind'])} is nothing to {verb}; it stays as it is"
    if verb == "clean":
        found["is_clean"] = True
    else:
        found["temperature"] = "hot" if verb == "heat" else "cold"
    return f"you have {_DONE[verb]} {held} with {at}; you hold {_described(house, held)}"


def use(house: House, lamp: str) -> str:
    """Switch the lamp on or off where one stands."""
    at = house["at"]
    name = house["places"][at]["lamp"] if at else ""
    if not name or not _find(lamp, [name]):
        near = f"{name} stands here" if name else "no lamp stands here"
        return f"there is no {_shown(lamp)} to use here; {near}"
    is_lit = house["places"][at]["is_lit"] = not house["places"][at]["is_lit"]
    return f"{name} is {'on' if is_lit else 'off'}; {inventory(house)}"


ACTIONS: Mapping[str, Callable[..., str]] = {
    "look": look,
    "inventory": inventory,
    "go": go,
    "open": open_place,
    "close": close_place,
    "take": take,
    "put": put,
    "clean": lambda house, thing: treat(house, "clean", thing),
    "heat": lambda house, thing: treat(house, "heat", thing),
    "cool": lambda house, thing: treat(house, "cool", thing),
    "use": use,
}
"""By the tools' names; each takes the house and the tool's arguments."""


def held_thing(house: House) -> str:
    """Name of what is carried; empty where the hands are."""
    return next(iter(things_at(house, HANDS)), "")


def things_at(house: House, name: str) -> list[str]:
    """Names of what is at a place, whether one can see it or not."""
    return sorted(thing for thing, found in house["things"].items() if found["at"] == name)


def _places_here(house: House) -> list[str]:
    return [name for name, place in house["places"].items() if place["room"] == house["room"]]


def _standing_at(house: House, place: str) -> tuple[str, str]:
    """The place that is meant, or else what is wrong."""
    at = house["at"]
    if at and _find(place, [at]):
        return at, ""
    found = _find(place, _places_here(house))
    if found:
        return "", f"you are not at {found}; go there first"
    return "", f"there is no {_shown(place)} here, or several; {look(house)}"


def _holding(house: House, thing: str) -> tuple[str, str]:
    """What is carried and meant, or else what is wrong."""
    held = held_thing(house)
    if held and _find(thing, [held]):
        return held, ""
    return "", f"you do not hold {_shown(thing)}; {inventory(house)}"


def _find(text: str, names: Iterable[str]) -> str:
    """The name that is meant, its number left out where there is one of the kind; empty where none is."""
    plain, known = _plain(text), list(names)
    if plain in known:
        return plain
    of_kind = [name for name in known if name.rpartition(" ")[0] == plain]
    return of_kind[0] if len(of_kind) == 1 else ""


def _described(house: House, name: str) -> str:
    thing = house["things"][name]
    said = [
        *(["clean"] if thing["is_clean"] else []),
        *([thing["temperature"]] if thing["temperature"] else []),
    ]
    return f"{name} ({', '.join(said)})" if said else name


def _plain(text: str) -> str:
    return " ".join(text[:200].lower().split()).removeprefix("the ")


def _shown(text: str) -> str:
    return _plain(text)[:_SHOWN_CHARACTERS] or "such thing"


def _a(noun: str) -> str:
    return f"{'an' if noun[0] in 'aeiou' else 'a'} {noun}"

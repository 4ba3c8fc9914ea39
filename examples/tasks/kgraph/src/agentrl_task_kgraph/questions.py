"""Questions that are walks over the graph, told in words."""

import random
from collections.abc import Sequence
from dataclasses import dataclass

from rdflib import URIRef

from agentrl_task_kgraph.facts import NAMES, make_graph, name_of, number_of, step

_PHRASES = {
    "born_in": "the birthplace of {}",
    "~born_in": "the people born in {}",
    "lives_in": "the home of {}",
    "~lives_in": "the people living in {}",
    "works_for": "the employer of {}",
    "~works_for": "the people working for {}",
    "country": "the country of {}",
    "~country": "the cities of {}",
    "seat": "the seat of {}",
    "~seat": "the companies of {}",
    "director": "the director of {}",
    "~director": "the films directed by {}",
    "actor": "the actors of {}",
    "~actor": "the films with {}",
}
_SUPERLATIVES = {"age": "oldest", "population": "largest", "staff": "largest", "year": "newest"}
_KINDS = {"age": "born_in", "population": "country", "staff": "seat", "year": "director"}
"""A relation that only nodes with the number have."""
_FEWEST, _MOST = 2, 12


@dataclass(frozen=True, slots=True)
class Question:
    """A question and the walk that answers it."""

    text: str
    """In words."""
    start: tuple[str, ...]
    """Where the walks begin; two of them meet."""
    walks: tuple[tuple[str, ...], ...]
    """Relations to follow from each start, in order."""
    last: str = ""
    """`count`, `most:<attribute>`, or nothing."""
    answers: tuple[str, ...] = ()
    """Names or the number."""


LEVELS = {"easy": (1,), "medium": (2,), "hard": (3, 4)}
"""Steps of a walk by difficulty."""


def ask(difficulty: str, seed: str) -> Question:
    """A question whose answer does not stand in it; the same seed gives the same one."""
    chance = random.Random(f"kgraph/{difficulty}/{seed}")
    while True:
        made = _try(chance, difficulty)
        if made is not None and not set(made.answers) & set(made.text.replace("?", "").split()):
            return made


def _try(chance: random.Random, difficulty: str) -> Question | None:
    hops = chance.choice(LEVELS[difficulty])
    start, walk = _walk(chance, hops)
    if start is None:
        return None
    found = _end(start, walk)
    phrase = _phrase(start, walk)
    if difficulty == "hard":
        last = chance.choice(["count", "most", "both"])
        if last == "both":
            return _meeting(chance, start, walk, found)
        return _judged(chance, last, start, walk, found)
    if not 1 <= len(found) <= _MOST:
        return None
    return Question(f"what is {phrase}?", (start,), (walk,), "", _names(found))


def _judged(
    chance: random.Random, last: str, start: str, walk: tuple[str, ...], found: set[URIRef]
) -> Question | None:
    """How many, or which one is first."""
    phrase = _phrase(start, walk)
    if len(found) < _FEWEST:
        return None
    if last == "count":
        return Question(f"how many are {phrase}?", (start,), (walk,), "count", (str(len(found)),))
    graph = make_graph()
    fitting = [key for key in _KINDS if all(number_of(graph, one, key) is not None for one in found)]
    if not fitting:
        return None
    key = chance.choice(fitting)
    best = max(found, key=lambda one: number_of(graph, one, key) or 0)
    text = f"which one of {phrase} is the {_SUPERLATIVES[key]} (by {key})?"
    return Question(text, (start,), (walk,), f"most:{key}", (name_of(best),))


def _meeting(chance: random.Random, start: str, walk: tuple[str, ...], found: set[URIRef]) -> Question | None:
    """What two walks both lead to."""
    other, second = _walk(chance, 2)
    if other is None or other == start:
        return None
    both = found & _end(other, second)
    if not both or len(both) in (len(found), len(_end(other, second))) or len(both) > _MOST:
        return None
    text = f"what belongs both to {_phrase(start, walk)} and to {_phrase(other, second)}?"
    return Question(text, (start, other), (walk, second), "", _names(both))


def _walk(chance: random.Random, hops: int) -> tuple[str | None, tuple[str, ...]]:
    """A random walk that does not turn straight back."""
    graph = make_graph()
    nodes = sorted({one for one in graph.subjects() if isinstance(one, URIRef)})
    start = chance.choice(nodes)
    at, walk = {start}, []
    for _ in range(hops):
        fitting = [
            relation
            for relation in _PHRASES
            if (not walk or relation not in (f"~{walk[-1]}", walk[-1].removeprefix("~")))
            and step(graph, at, relation)
        ]
        if not fitting:
            return None, ()
        walk.append(chance.choice(fitting))
        at = step(graph, at, walk[-1])
    return name_of(start), tuple(walk)


def _end(start: str, walk: Sequence[str]) -> set[URIRef]:
    at = {NAMES[start]}
    for relation in walk:
        at = step(make_graph(), at, relation)
    return at


def _phrase(start: str, walk: Sequence[str]) -> str:
    phrase = start
    for relation in walk:
        phrase = _PHRASES[relation].format(phrase)
    return phrase


def _names(nodes: set[URIRef]) -> tuple[str, ...]:
    return tuple(sorted(map(name_of, nodes)))

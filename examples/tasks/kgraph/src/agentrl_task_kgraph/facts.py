"""A small RDF graph of people, cities, countries, companies and films, made from a seed."""

import functools
import random
from collections.abc import Iterable

from rdflib import Graph, Literal, Namespace, URIRef

NAMES = Namespace("urn:kgraph:")
"""Of every node and relation."""

_PEOPLE = [
    *("ada", "ben", "cleo", "dan", "eva", "finn", "gus", "hana", "ivo", "june", "kai", "lea", "max", "nora"),
    *("otto", "pia", "quin", "rosa", "sam", "tess", "uma", "vic", "wes", "xena", "yuri", "zoe", "abe", "bea"),
    *("carl", "dora", "emil", "fay", "gil", "hope", "ian", "jill", "kurt", "lily", "milo", "nina"),
]
_CITIES = [
    *("arden", "brook", "cavel", "doran", "elmst", "ferry", "garth", "holm", "irwin", "jorun", "kelso"),
    *("lund", "marl", "norby"),
]
_COUNTRIES = ["avia", "borland", "cestia", "dunmark", "esteria"]
_COMPANIES = ["acme", "bolt", "cargo", "delco", "ember", "fathom", "gantry", "helix", "ionic"]
_FILMS = [
    *("amber", "breeze", "canyon", "dusk", "echo", "frost", "glacier", "harbor", "island", "jungle"),
    *("kite", "lagoon", "meadow", "night"),
]
NUMBERS = ("age", "population", "staff", "year")
"""Relations that lead to a number."""


@functools.cache
def make_graph(seed: int = 0) -> Graph:
    """The facts; the same seed gives the same ones."""
    chance, graph = random.Random(f"kgraph/{seed}"), Graph()

    def add(one: str, relation: str, other: str | int) -> None:
        target = Literal(other) if isinstance(other, int) else NAMES[other]
        graph.add((NAMES[one], NAMES[relation], target))

    ages = chance.sample(range(18, 18 + 2 * len(_PEOPLE)), len(_PEOPLE))
    for person, age in zip(_PEOPLE, ages, strict=True):
        add(person, "age", age)
        add(person, "born_in", chance.choice(_CITIES))
        add(person, "lives_in", chance.choice(_CITIES))
        if chance.random() < 0.7:
            add(person, "works_for", chance.choice(_COMPANIES))
    for city, people in zip(_CITIES, chance.sample(range(10, 999), len(_CITIES)), strict=True):
        add(city, "population", people)
        add(city, "country", chance.choice(_COUNTRIES))
    for company, staff in zip(_COMPANIES, chance.sample(range(5, 500), len(_COMPANIES)), strict=True):
        add(company, "staff", staff)
        add(company, "seat", chance.choice(_CITIES))
    for film, year in zip(_FILMS, chance.sample(range(1950, 2020), len(_FILMS)), strict=True):
        add(film, "year", year)
        add(film, "director", chance.choice(_PEOPLE))
        for person in chance.sample(_PEOPLE, chance.randint(2, 5)):
            add(film, "actor", person)
    return graph


def name_of(node: object) -> str:
    """What a node or number is called."""
    return str(node).removeprefix(str(NAMES))


def step(graph: Graph, nodes: Iterable[URIRef], relation: str) -> set[URIRef]:
    """Where a relation leads from any of some nodes; `~` before it turns it around."""
    if relation.startswith("~"):
        back = NAMES[relation[1:]]
        return {one for node in nodes for one in graph.subjects(back, node) if isinstance(one, URIRef)}
    ahead = NAMES[relation]
    return {one for node in nodes for one in graph.objects(node, ahead) if isinstance(one, URIRef)}


def number_of(graph: Graph, node: URIRef, attribute: str) -> int | None:
    """A number of a node; None where it has none of this kind."""
    value = graph.value(node, NAMES[attribute])
    return int(value) if isinstance(value, Literal) else None


def relations_of(graph: Graph, nodes: Iterable[URIRef]) -> list[str]:
    """Relations that lead on from any of some nodes, those that lead to a number among them."""
    found: set[str] = set()
    for node in nodes:
        found |= {name_of(relation) for relation in graph.predicates(node)}
        found |= {f"~{name_of(relation)}" for relation in graph.predicates(object=node)}
    return sorted(found)

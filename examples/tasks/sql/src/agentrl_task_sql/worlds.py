"""Small databases made from a seed: a shop, a library, a school."""

import random
from dataclasses import dataclass
from typing import Any

_THINGS = [
    *("lamp", "drum", "rope", "kite", "vase", "bell", "fork", "tent"),
    *("harp", "coin", "pipe", "ring", "oven", "map", "net", "saw"),
]
_COLOURS = ["red", "blue", "green", "black", "white"]
_PEOPLE = [
    *("ada", "ben", "cleo", "dan", "eva", "finn", "gus", "hana"),
    *("ivo", "june", "kai", "lea", "max", "nora", "otto", "pia"),
]
_CITIES = ["oslo", "rome", "cairo", "lima", "delhi", "perth"]
_TOPICS = ["history", "biology", "music", "cooking", "travel", "physics"]
_SUBJECTS = ["algebra", "botany", "chess", "drama", "ethics", "french"]


@dataclass(frozen=True, slots=True)
class Table:
    """A table with its rows."""

    name: str
    columns: tuple[tuple[str, str], ...]
    """Name and type of each; the first is the key."""
    rows: tuple[tuple[Any, ...], ...]

    @property
    def create(self) -> str:
        """The statement that makes it, in words that SQLite and MariaDB share."""
        key = self.columns[0][0]
        columns = ", ".join(f"{name} {kind}" for name, kind in self.columns)
        return f"CREATE TABLE {self.name} ({columns}, PRIMARY KEY ({key}))"


@dataclass(frozen=True, slots=True)
class World:
    """A database."""

    name: str
    tables: tuple[Table, ...]


def make_world(name: str, seed: str) -> World:
    """A database; the same seed gives the same rows.

    Args:
        name: `shop`, `library` or `school`.
        seed: of its rows.
    """
    return _WORLDS[name](random.Random(f"{name}/{seed}"))


def _shop(chance: random.Random) -> World:
    products = [
        (number, thing, chance.choice(_COLOURS), chance.randint(2, 99), chance.randint(0, 40))
        for number, thing in enumerate(chance.sample(_THINGS, 10), 1)
    ]
    customers = [
        (number, person, chance.choice(_CITIES)) for number, person in enumerate(chance.sample(_PEOPLE, 8), 1)
    ]
    orders = [
        (
            number,
            chance.randint(1, 8),
            chance.randint(1, 10),
            chance.randint(1, 5),
            chance.randint(2020, 2024),
        )
        for number in range(1, 31)
    ]
    return World(
        "shop",
        (
            Table(
                "products",
                (
                    *(("id", "INTEGER"), ("name", "VARCHAR(40)"), ("colour", "VARCHAR(20)")),
                    *(("price", "INTEGER"), ("stock", "INTEGER")),
                ),
                tuple(products),
            ),
            Table(
                "customers",
                (("id", "INTEGER"), ("name", "VARCHAR(40)"), ("city", "VARCHAR(40)")),
                tuple(customers),
            ),
            Table(
                "orders",
                (
                    *(("id", "INTEGER"), ("customer_id", "INTEGER"), ("product_id", "INTEGER")),
                    *(("quantity", "INTEGER"), ("year", "INTEGER")),
                ),
                tuple(orders),
            ),
        ),
    )


def _library(chance: random.Random) -> World:
    authors = [
        (number, person, chance.choice(_CITIES), chance.randint(1900, 1990))
        for number, person in enumerate(chance.sample(_PEOPLE, 7), 1)
    ]
    books = [
        (number, f"the {thing}", chance.randint(1, 7), chance.choice(_TOPICS), chance.randint(90, 700))
        for number, thing in enumerate(chance.sample(_THINGS, 12), 1)
    ]
    loans = [
        (number, chance.randint(1, 12), chance.choice(_PEOPLE), chance.randint(1, 60))
        for number in range(1, 26)
    ]
    return World(
        "library",
        (
            Table(
                "authors",
                (("id", "INTEGER"), ("name", "VARCHAR(40)"), ("city", "VARCHAR(40)"), ("born", "INTEGER")),
                tuple(authors),
            ),
            Table(
                "books",
                (
                    *(("id", "INTEGER"), ("title", "VARCHAR(40)"), ("author_id", "INTEGER")),
                    *(("topic", "VARCHAR(20)"), ("pages", "INTEGER")),
                ),
                tuple(books),
            ),
            Table(
                "loans",
                (("id", "INTEGER"), ("book_id", "INTEGER"), ("reader", "VARCHAR(40)"), ("days", "INTEGER")),
                tuple(loans),
            ),
        ),
    )


def _school(chance: random.Random) -> World:
    students = [
        (number, person, chance.randint(11, 18), chance.choice(_CITIES))
        for number, person in enumerate(chance.sample(_PEOPLE, 10), 1)
    ]
    courses = [
        (number, subject, chance.randint(1, 6))
        for number, subject in enumerate(chance.sample(_SUBJECTS, 5), 1)
    ]
    pairs = chance.sample([(student, course) for student in range(1, 11) for course in range(1, 6)], 28)
    grades = [(number, *pair, chance.randint(1, 10)) for number, pair in enumerate(pairs, 1)]
    return World(
        "school",
        (
            Table(
                "students",
                (("id", "INTEGER"), ("name", "VARCHAR(40)"), ("age", "INTEGER"), ("city", "VARCHAR(40)")),
                tuple(students),
            ),
            Table(
                "courses",
                (("id", "INTEGER"), ("title", "VARCHAR(40)"), ("hours", "INTEGER")),
                tuple(courses),
            ),
            Table(
                "grades",
                (
                    ("id", "INTEGER"),
                    ("student_id", "INTEGER"),
                    ("course_id", "INTEGER"),
                    ("grade", "INTEGER"),
                ),
                tuple(grades),
            ),
        ),
    )


_WORLDS = {"shop": _shop, "library": _library, "school": _school}
WORLD_NAMES = tuple(_WORLDS)
"""The databases that there are."""

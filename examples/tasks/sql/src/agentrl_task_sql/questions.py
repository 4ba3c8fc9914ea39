"""Questions about a database with the SQL that answers them, from one table to several."""

import random
import sqlite3
from dataclasses import dataclass

from agentrl_task_sql.worlds import WORLD_NAMES, World, make_world


@dataclass(frozen=True, slots=True)
class Question:
    """Something to find out, or to change."""

    text: str
    """What the agent is asked."""
    sql: str
    """One statement that answers it, or makes the change."""
    is_change: bool = False
    """Whether the database is judged rather than an answer."""


_ONE_TABLE = {
    "shop": [
        ("what is the price of the {thing}?", "SELECT price FROM products WHERE name = '{thing}'"),
        ("which colour is the {thing}?", "SELECT colour FROM products WHERE name = '{thing}'"),
        ("in which city does {person} live?", "SELECT city FROM customers WHERE name = '{person}'"),
        ("how many products are {colour}?", "SELECT COUNT(*) FROM products WHERE colour = '{colour}'"),
    ],
    "library": [
        ("how many pages has {title}?", "SELECT pages FROM books WHERE title = '{title}'"),
        ("when was {person} born?", "SELECT born FROM authors WHERE name = '{person}'"),
        ("how many books are about {topic}?", "SELECT COUNT(*) FROM books WHERE topic = '{topic}'"),
    ],
    "school": [
        ("how old is {person}?", "SELECT age FROM students WHERE name = '{person}'"),
        ("how many hours has the course {course}?", "SELECT hours FROM courses WHERE title = '{course}'"),
        ("how many students live in {city}?", "SELECT COUNT(*) FROM students WHERE city = '{city}'"),
    ],
}
_JOINS = {
    "shop": [
        (
            "how many pieces has {person} ordered in all?",
            "SELECT COALESCE(SUM(o.quantity), 0) FROM orders o JOIN customers c ON c.id = o.customer_id"
            " WHERE c.name = '{person}'",
        ),
        (
            "how many orders for the {thing} were there from {year} on?",
            "SELECT COUNT(*) FROM orders o JOIN products p ON p.id = o.product_id"
            " WHERE p.name = '{thing}' AND o.year >= {year}",
        ),
    ],
    "library": [
        (
            "how many times was {title} lent?",
            "SELECT COUNT(*) FROM loans l JOIN books b ON b.id = l.book_id WHERE b.title = '{title}'",
        ),
        (
            "how many pages do the books of {person} have together?",
            "SELECT COALESCE(SUM(b.pages), 0) FROM books b JOIN authors a ON a.id = b.author_id"
            " WHERE a.name = '{person}'",
        ),
    ],
    "school": [
        (
            "what is the best grade that {person} has? (higher is better)",
            "SELECT COALESCE(MAX(g.grade), 0) FROM grades g JOIN students s ON s.id = g.student_id"
            " WHERE s.name = '{person}'",
        ),
        (
            "how many students have a grade in {course}?",
            "SELECT COUNT(*) FROM grades g JOIN courses c ON c.id = g.course_id WHERE c.title = '{course}'",
        ),
    ],
}
_HARD = {
    "shop": [
        (
            "which customer has spent the most in all? (quantity times price; the first by name where equal)",
            "SELECT c.name FROM customers c JOIN orders o ON o.customer_id = c.id"
            " JOIN products p ON p.id = o.product_id GROUP BY c.id, c.name"
            " ORDER BY SUM(o.quantity * p.price) DESC, c.name LIMIT 1",
        ),
        (
            "how many customers in {city} have ordered something that costs more than the average product?",
            "SELECT COUNT(DISTINCT c.id) FROM customers c JOIN orders o ON o.customer_id = c.id"
            " JOIN products p ON p.id = o.product_id"
            " WHERE c.city = '{city}' AND p.price > (SELECT AVG(price) FROM products)",
        ),
    ],
    "library": [
        (
            "which author's books were lent for the most days in all? (the first by name where equal)",
            "SELECT a.name FROM authors a JOIN books b ON b.author_id = a.id JOIN loans l ON l.book_id = b.id"
            " GROUP BY a.id, a.name ORDER BY SUM(l.days) DESC, a.name LIMIT 1",
        ),
        (
            "how many books longer than the average were never lent?",
            "SELECT COUNT(*) FROM books b WHERE b.pages > (SELECT AVG(pages) FROM books)"
            " AND NOT EXISTS (SELECT 1 FROM loans l WHERE l.book_id = b.id)",
        ),
    ],
    "school": [
        (
            "which course has the highest average grade? (the first by title where equal)",
            "SELECT c.title FROM courses c JOIN grades g ON g.course_id = c.id GROUP BY c.id, c.title"
            " ORDER BY AVG(g.grade) DESC, c.title LIMIT 1",
        ),
        (
            "how many students have at least 3 grades of {grade} or better? (higher is better)",
            "SELECT COUNT(*) FROM (SELECT student_id FROM grades WHERE grade >= {grade}"
            " GROUP BY student_id HAVING COUNT(*) >= 3) AS good",
        ),
    ],
}
_CHANGES = {
    "shop": [
        (
            "raise the price of every {colour} product by 3, then say done.",
            "UPDATE products SET price = price + 3 WHERE colour = '{colour}'",
        ),
        (
            "delete all orders from before {year}, then say done.",
            "DELETE FROM orders WHERE year < {year}",
        ),
    ],
    "library": [
        (
            "add a loan with id 99 of {title} to zoe for 14 days, then say done.",
            "INSERT INTO loans SELECT 99, id, 'zoe', 14 FROM books WHERE title = '{title}'",
        ),
    ],
    "school": [
        (
            "add one to every grade of {person}, then say done.",
            "UPDATE grades SET grade = grade + 1"
            " WHERE student_id = (SELECT id FROM students WHERE name = '{person}')",
        ),
    ],
}
LEVELS = {"easy": (_ONE_TABLE,), "medium": (_JOINS, _CHANGES), "hard": (_HARD, _HARD, _CHANGES)}
"""Kinds of questions by difficulty; a kind that stands twice is asked twice as often."""


def ask(difficulty: str, seed: str) -> tuple[World, Question]:
    """A database and a question about it whose answer does not stand in the question.

    Args:
        difficulty: a key of `LEVELS`.
        seed: the same one gives the same question.
    """
    chance = random.Random(f"sql/{difficulty}/{seed}")
    for attempt in range(1000):
        world = make_world(chance.choice(WORLD_NAMES), f"{seed}/{attempt}")
        text, sql = chance.choice(chance.choice(LEVELS[difficulty])[world.name])
        words = _words(world, chance)
        question = Question(text.format(**words), sql.format(**words), not sql.startswith("SELECT"))
        if question.is_change or _is_worth_asking(world, question):
            return world, question
    raise RuntimeError(f"no question of `{difficulty}` came up for {seed}")


def _words(world: World, chance: random.Random) -> dict[str, object]:
    """What may be put into a question, taken from the rows."""
    found: dict[str, object] = {"year": chance.randint(2021, 2024), "grade": chance.randint(4, 7)}
    columns = {
        "shop": {"thing": (0, 1), "colour": (0, 2), "person": (1, 1), "city": (1, 2)},
        "library": {"person": (0, 1), "title": (1, 1), "topic": (1, 3)},
        "school": {"person": (0, 1), "city": (0, 3), "course": (1, 1)},
    }[world.name]
    for word, (table, column) in columns.items():
        found[word] = chance.choice(world.tables[table].rows)[column]
    return found


def _is_worth_asking(world: World, question: Question) -> bool:
    """Whether there is one answer, and it can neither be read from the question nor be guessed as nothing."""
    connection = fill(world)
    try:
        rows = connection.execute(question.sql).fetchall()
    finally:
        connection.close()
    if len(rows) != 1:
        return False
    answer = str(rows[0][0])
    return answer != "0" and answer not in question.text.replace("?", " ").split()


def fill(world: World) -> sqlite3.Connection:
    """The database in memory, for any thread."""
    connection = sqlite3.connect(":memory:", check_same_thread=False, isolation_level=None)
    for table in world.tables:
        connection.execute(table.create)
        marks = ", ".join("?" * len(table.columns))
        connection.executemany(f"INSERT INTO {table.name} VALUES ({marks})", table.rows)
    return connection

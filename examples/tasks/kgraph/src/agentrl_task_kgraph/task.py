"""The task: a question, and tools that walk over the graph from variable to variable."""

import re
from typing import Literal

from rdflib import URIRef

from agentrl_core import ConfigError
from agentrl_env_sdk import Generated, Session, Task, metric, tool
from agentrl_env_sdk.oracle import Plan, act
from agentrl_task_kgraph.facts import (
    NAMES,
    NUMBERS,
    make_graph,
    name_of,
    number_of,
    relations_of,
    step,
)
from agentrl_task_kgraph.questions import LEVELS, Question, ask

_SHOWN = 5


class _NoSuchNodeError(Exception):
    """What an agent named is not there; the text is for it to read."""


class KGraph(Task):
    """`kgraph`: the F1 of the answer's names against the right ones.

    Args:
        difficulty: `easy` (one step), `medium` (two) or `hard` (three or four, then counting, comparing or
            meeting).

    Raises:
        ConfigError: there is no such difficulty.
    """

    optimum = 1.0

    def __init__(self, difficulty: str = "easy") -> None:
        if difficulty not in LEVELS:
            raise ConfigError(f"`difficulty` must be one of {sorted(LEVELS)}, got {difficulty!r}")
        self._difficulty = difficulty
        self._graph = make_graph()
        self.name = "kgraph" if difficulty == "easy" else f"kgraph-{difficulty}"
        self.max_turns = {"easy": 4, "medium": 8, "hard": 16}[difficulty]
        self.splits = {
            "train": Generated(lambda position: f"train/{position}", 1000),
            "test": Generated(lambda position: f"test/{position}", 200),
        }

    def setup(self, session: Session) -> str:
        """Ask."""
        session.state["variables"] = []
        return self._question(session).text

    @tool
    def relations(self, session: Session, of: str) -> str:
        """list the relations of a name or variable

        Args:
            of: a name, or a variable such as #0
        """
        return self._told(lambda: ", ".join(relations_of(self._graph, self._nodes(session, of))))

    @tool
    def follow(self, session: Session, of: str, relation: str) -> str:
        """follow a relation; the result is a new variable

        Args:
            of: a name, or a variable such as #0
            relation: a relation; ~ before it follows it backwards
        """

        def work() -> str:
            nodes = self._nodes(session, of)
            known = relations_of(self._graph, nodes)
            if relation not in known:
                return f"no such relation; there are {', '.join(known)}"
            if relation in NUMBERS:
                numbers = sorted({str(number_of(self._graph, one, relation)) for one in nodes})
                return ", ".join(numbers[:_SHOWN])
            return self._kept(session, step(self._graph, nodes, relation))

        return self._told(work)

    @tool
    def both(self, session: Session, a: str, b: str) -> str:
        """what two variables have in common; the result is a new variable

        Args:
            a: a variable
            b: another one
        """
        return self._told(lambda: self._kept(session, self._nodes(session, a) & self._nodes(session, b)))

    @tool
    def count(self, session: Session, of: str) -> str:
        """count what is in a variable

        Args:
            of: a variable
        """
        return self._told(lambda: str(len(self._nodes(session, of))))

    @tool
    def most(self, session: Session, of: str, by: Literal["age", "population", "staff", "year"]) -> str:
        """the one in a variable with the greatest number; the result is a new variable

        Args:
            of: a variable
            by: the number
        """

        def work() -> str:
            numbered = {
                one: number
                for one in self._nodes(session, of)
                if (number := number_of(self._graph, one, by)) is not None
            }
            if not numbered:
                return f"nothing in {of} has the number {by}"
            return self._kept(session, {max(numbered, key=lambda one: numbered[one])})

        return self._told(work)

    @tool
    def answer(self, session: Session, value: str) -> str:
        """give the answer

        Args:
            value: a variable, a number, or names with commas between them
        """
        given = {part.strip().lower() for part in value.split(",") if part.strip()}
        if value.strip().startswith("#"):
            try:
                given = set(map(name_of, self._nodes(session, value)))
            except _NoSuchNodeError as error:
                return str(error)
        score = f1(given, set(self._question(session).answers))
        session.finish(reward=score, score=score)
        return "right" if score == 1.0 else "wrong"

    @metric
    def variables(self, session: Session) -> int:
        """Variables that were made."""
        return len(session.state["variables"])

    def oracle(self, session: Session) -> Plan:
        """The walk, step by step."""
        question, made = self._question(session), -1
        ends = []
        for start, walk in zip(question.start, question.walks, strict=True):
            at = start
            for relation in walk:
                yield act("follow", of=at, relation=relation)
                made += 1
                at = f"#{made}"
            ends.append(at)
        if len(ends) == 2:
            yield act("both", a=ends[0], b=ends[1])
            made += 1
        if question.last == "count":
            seen = yield act("count", of=f"#{made}")
            yield act("answer", value=seen.text)
            return
        if question.last:
            yield act("most", of=f"#{made}", by=question.last.partition(":")[2])
            made += 1
        yield act("answer", value=f"#{made}")

    def _question(self, session: Session) -> Question:
        if "question" not in session.state:
            session.state["question"] = ask(self._difficulty, str(session.sample))
        return session.state["question"]

    def _nodes(self, session: Session, name: str) -> set[URIRef]:
        variables: list[set[URIRef]] = session.state["variables"]
        plain = name.strip().lower()
        if re.fullmatch(r"#\d{1,4}", plain):
            number = int(plain[1:])
            if number >= len(variables):
                raise _NoSuchNodeError(f"there is no variable {plain}; there are {len(variables)}")
            return variables[number]
        node = NAMES[re.sub(r"[^a-z_]", "", plain)]
        if (node, None, None) not in self._graph:
            raise _NoSuchNodeError(f"there is nothing called {plain[:40]}")
        return {node}

    def _kept(self, session: Session, nodes: set[URIRef]) -> str:
        variables: list[set[URIRef]] = session.state["variables"]
        variables.append(nodes)
        names = sorted(map(name_of, nodes))
        more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
        return f"#{len(variables) - 1}: {', '.join(names[:_SHOWN]) or 'nothing'}{more}"

    def _told(self, work) -> str:
        try:
            return work()
        except _NoSuchNodeError as error:
            return str(error)


def f1(given: set[str], right: set[str]) -> float:
    """Harmonic mean of precision and recall (van Rijsbergen, Information Retrieval, 1979)."""
    hits = len(given & right)
    return 2 * hits / (len(given) + len(right)) if hits else 0.0

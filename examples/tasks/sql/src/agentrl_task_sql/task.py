"""The task: a question, the tables' names, queries, and one answer."""

import contextlib
from typing import Any, Literal

from agentrl_core import ConfigError
from agentrl_env_sdk import Generated, Session, Task, metric, tool
from agentrl_env_sdk.oracle import Plan, act
from agentrl_task_sql.databases import (
    Database,
    MariaDatabase,
    QueryError,
    SqliteDatabase,
    mariadb_environments,
    shown,
)
from agentrl_task_sql.questions import LEVELS, Question, ask, fill
from agentrl_task_sql.worlds import World

_LOOKED = 0.1


class Sql(Task):
    """`sql`: 1 for the right answer or the right change, 0.1 for a query that works.

    Args:
        difficulty: `easy` (one table), `medium` (joins, sums and changes) or `hard` (groups and subqueries).
        database: `sqlite` (in memory), or `mariadb` (a server that runs as a process).

    Raises:
        ConfigError: there is no such difficulty or database, or what it needs is not installed.
    """

    optimum = 1.0
    turn_timeout_s = 120.0
    """Longer than the start of a database server."""

    def __init__(self, difficulty: str = "easy", database: Literal["sqlite", "mariadb"] = "sqlite") -> None:
        if difficulty not in LEVELS:
            raise ConfigError(f"`difficulty` must be one of {sorted(LEVELS)}, got {difficulty!r}")
        if database not in ("sqlite", "mariadb"):
            raise ConfigError(f"`database` must be `sqlite` or `mariadb`, got {database!r}")
        self._difficulty = difficulty
        self._environments = mariadb_environments(self.concurrency) if database == "mariadb" else None
        self.name = "sql" if difficulty == "easy" else f"sql-{difficulty}"
        self.max_turns = {"easy": 5, "medium": 8, "hard": 12}[difficulty]
        self.splits = {
            "train": Generated(lambda position: f"train/{position}", 1000),
            "test": Generated(lambda position: f"test/{position}", 200),
        }

    async def setup(self, session: Session) -> str:
        """Fill the database and ask."""
        world, question = ask(self._difficulty, str(session.sample))
        session.state.update(world=world, question=question)
        session.state["database"] = (
            await SqliteDatabase.open(world)
            if self._environments is None
            else await MariaDatabase.open(world, self._environments)
        )
        tables = ", ".join(table.name for table in world.tables)
        return f"{question.text} tables: {tables}"

    @tool
    def describe(self, session: Session, table: str) -> str:
        """show the columns of a table

        Args:
            table: its name
        """
        world: World = session.state["world"]
        for found in world.tables:
            if found.name == table.strip().lower():
                return ", ".join(f"{name} {kind.partition('(')[0].lower()}" for name, kind in found.columns)
        return f"no such table; tables: {', '.join(found.name for found in world.tables)}"

    @tool
    async def query(self, session: Session, sql: str) -> str:
        """run one sql statement

        Args:
            sql: the statement
        """
        database: Database = session.state["database"]
        session.state["queries"] = session.state.get("queries", 0) + 1
        try:
            rows = shown(await database.run(sql))
        except QueryError as error:
            return f"error: {error}"
        if session.earned == 0.0:
            session.reward(_LOOKED, score=0.0)
        return rows

    @tool
    async def answer(self, session: Session, value: str) -> str:
        """give the answer, or say done

        Args:
            value: the answer
        """
        question: Question = session.state["question"]
        is_right = await self._is_changed(session) if question.is_change else self._is_answer(session, value)
        session.finish(reward=1.0 - session.earned if is_right else 0.0, score=float(is_right))
        return "right" if is_right else "wrong"

    @metric
    def queries(self, session: Session) -> int:
        """Queries that were run."""
        return session.state.get("queries", 0)

    async def teardown(self, session: Session) -> None:
        """Give the database back."""
        if "database" in session.state:
            await session.state["database"].close()

    async def close(self) -> None:
        """Stop the server, if there is one."""
        if self._environments is not None:
            await self._environments.close()

    def oracle(self, session: Session) -> Plan:
        """The statement that the question was made from, and its result."""
        question: Question = session.state["question"]
        seen = yield act("query", sql=question.sql)
        yield act("answer", value="done" if question.is_change else seen.text.splitlines()[-1])

    def _is_answer(self, session: Session, value: str) -> bool:
        with contextlib.closing(fill(session.state["world"])) as connection:
            ((expected,),) = connection.execute(session.state["question"].sql).fetchall()
        return _normal(value) == _normal(str(expected))

    async def _is_changed(self, session: Session) -> bool:
        """Whether every table is as the statement would have left it."""
        world: World = session.state["world"]
        connection = fill(world)
        connection.execute(session.state["question"].sql)
        expected = SqliteDatabase(connection)
        try:
            return await session.state["database"].dump(world) == await expected.dump(world)
        finally:
            await expected.close()


def _normal(text: str) -> Any:
    """Numbers by their value, names without regard to case and quotes."""
    plain = text.strip().strip("\"'`.").strip().lower()
    with contextlib.suppress(ValueError):
        return round(float(plain.replace(",", "")), 6)
    return plain

"""Where an episode's database lives: SQLite in memory, or a database of a MariaDB server."""

import contextlib
import sqlite3
import time
from collections.abc import Sequence
from typing import Any, Protocol

from agentrl_core import ConfigError
from agentrl_env_sdk.drivers import Environments, Subtype
from agentrl_env_sdk.drivers.services import MariaDbDriver
from agentrl_env_sdk.threads import call
from agentrl_task_sql.questions import fill
from agentrl_task_sql.worlds import World

MAX_ROWS = 20
"""Rows that an agent gets to see."""

_LONGEST_S = 2.0
_STEPS = 10_000
_LARGEST_CELL = 10_000
_DENIED = {
    sqlite3.SQLITE_ATTACH,
    sqlite3.SQLITE_DETACH,
    sqlite3.SQLITE_PRAGMA,
}
_DENIED_FUNCTIONS = {"load_extension", "readfile", "writefile", "randomblob", "zeroblob"}

Rows = tuple[tuple[str, ...], list[tuple[Any, ...]]]
"""Names of the columns, and the rows."""


class QueryError(Exception):
    """A statement that the database refuses; for the agent to read."""


class Database(Protocol):
    """One episode's database."""

    async def run(self, statement: str) -> Rows:
        """Run one statement.

        Raises:
            QueryError: it is refused, or takes too long.
        """
        ...

    async def dump(self, world: World) -> list[list[tuple[Any, ...]]]:
        """Every row of every table in the order of the keys."""
        ...

    async def close(self) -> None:
        """Give it back."""
        ...


class SqliteDatabase:
    """A database in memory, which no statement leaves and none keeps busy for long."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._deadline = 0.0
        connection.set_authorizer(_authorize)
        connection.set_progress_handler(self._is_late, _STEPS)
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, 1_000_000)

    @classmethod
    async def open(cls, world: World) -> "SqliteDatabase":
        """Make it."""
        return cls(await call(fill, world))

    async def run(self, statement: str) -> Rows:
        """Run one statement."""
        return await call(self._run, statement)

    async def dump(self, world: World) -> list[list[tuple[Any, ...]]]:
        """Every row of every table in the order of the keys."""
        return await call(self._dump, world)

    async def close(self) -> None:
        """Let go of it."""
        await call(self._connection.close)

    def _run(self, statement: str) -> Rows:
        self._deadline = time.monotonic() + _LONGEST_S
        try:
            cursor = self._connection.execute(statement)
            rows = cursor.fetchmany(MAX_ROWS + 1)
            names = tuple(column[0] for column in cursor.description or ())
            cursor.close()
        except sqlite3.OperationalError as error:
            if "interrupted" in str(error):
                raise QueryError(f"it took longer than {_LONGEST_S:g} s") from error
            raise QueryError(str(error)) from error
        except (sqlite3.Error, sqlite3.Warning, ValueError) as error:
            raise QueryError(str(error)) from error
        return names, rows

    def _dump(self, world: World) -> list[list[tuple[Any, ...]]]:
        self._deadline = time.monotonic() + _LONGEST_S
        found = []
        for table in world.tables:
            try:
                found.append(self._connection.execute(f"SELECT * FROM {table.name} ORDER BY 1").fetchall())
            except sqlite3.Error:  # The agent may have dropped it.
                found.append([])
        return found

    def _is_late(self) -> bool:
        return time.monotonic() > self._deadline


class MariaDatabase:
    """A database of a MariaDB server that runs as a process of this worker."""

    def __init__(self, connection: Any, stack: contextlib.AsyncExitStack) -> None:
        self._connection = connection
        self._stack = stack

    @classmethod
    async def open(cls, world: World, environments: Environments) -> "MariaDatabase":
        """Make it."""
        aiomysql = _aiomysql()
        async with contextlib.AsyncExitStack() as stack:
            db = await stack.enter_async_context(environments.lease("db"))
            connection = await aiomysql.connect(
                host=db.host,
                port=db.port,
                user=db.user,
                password=db.password,
                db=db.database,
                autocommit=True,
            )
            stack.callback(connection.close)
            made = cls(connection, stack.pop_all())
        async with made._connection.cursor() as cursor:
            await cursor.execute(f"SET max_statement_time = {_LONGEST_S}")
            for table in world.tables:
                await cursor.execute(table.create)
                marks = ", ".join(["%s"] * len(table.columns))
                await cursor.executemany(f"INSERT INTO {table.name} VALUES ({marks})", table.rows)
        return made

    async def run(self, statement: str) -> Rows:
        """Run one statement."""
        try:
            async with self._connection.cursor() as cursor:
                await cursor.execute(statement)
                rows = await cursor.fetchmany(MAX_ROWS + 1)
                return tuple(column[0] for column in cursor.description or ()), _plain(rows)
        except _aiomysql().Error as error:
            raise QueryError(str(error.args[-1])) from error

    async def dump(self, world: World) -> list[list[tuple[Any, ...]]]:
        """Every row of every table in the order of the keys."""
        found = []
        async with self._connection.cursor() as cursor:
            for table in world.tables:
                try:
                    await cursor.execute(f"SELECT * FROM {table.name} ORDER BY 1")
                    found.append(_plain(await cursor.fetchall()))
                except _aiomysql().Error:  # The agent may have dropped it.
                    found.append([])
        return found

    async def close(self) -> None:
        """Drop it."""
        await self._stack.aclose()


def mariadb_environments(concurrency: int) -> Environments:
    """Databases of one server, which starts with the first."""
    _aiomysql()
    return Environments(MariaDbDriver(), [Subtype("db", concurrency=concurrency)])


def shown(rows: Rows) -> str:
    """Rows as an agent reads them."""
    names, found = rows
    if not names:
        return "ok"
    lines = [", ".join(names)]
    lines += [", ".join(str(cell)[:_LARGEST_CELL] for cell in row) for row in found[:MAX_ROWS]]
    if len(found) > MAX_ROWS:
        lines.append(f"(only the first {MAX_ROWS} rows are shown)")
    return "\n".join(lines)


def _authorize(action: int, _first: str | None, second: str | None, *_: object) -> int:
    is_denied = action in _DENIED or (action == sqlite3.SQLITE_FUNCTION and second in _DENIED_FUNCTIONS)
    return sqlite3.SQLITE_DENY if is_denied else sqlite3.SQLITE_OK


def _plain(rows: Sequence[Sequence[Any]]) -> list[tuple[Any, ...]]:
    """Sums come as decimals; as text they read like SQLite's."""
    return [tuple(cell if isinstance(cell, int | str) else str(cell) for cell in row) for row in rows]


def _aiomysql() -> Any:
    try:
        import aiomysql
    except ImportError as error:
        raise ConfigError("MariaDB needs its client: install `agentrl-task-sql[mariadb]`") from error
    return aiomysql

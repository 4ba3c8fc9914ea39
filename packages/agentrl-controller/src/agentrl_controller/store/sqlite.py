"""Keeps records in an SQLite file, written by a thread of its own.

The file is a log: a batch of records is one row. Python hands its lock over at every SQL statement, and a
busy event loop gives it back only after milliseconds, so a statement a record would make writers wait for
seconds.
"""

import asyncio
import logging
import os
import sqlite3
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from agentrl_controller.store.base import Record
from agentrl_controller.store.behind import Batch, WriteBehind, parse
from agentrl_core import ConfigError

_log = logging.getLogger("agentrl_controller")

_SCHEMA_VERSION = 1
_COMPACT_BYTES = 64 * 2**20
_T = TypeVar("_T")
_encode = msgspec.msgpack.Encoder().encode
_ROWS = msgspec.msgpack.Decoder(list[tuple[str, str, bytes | None]])


class SqliteStore(WriteBehind):
    """An SQLite file, for one controller at a time: it is locked.

    A write is safe from the end of the process within milliseconds, and from a power cut at the next
    checkpoint of the write-ahead log.

    Args:
        path: the file; it is made where it is missing.
    """

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="store")
        self._database: sqlite3.Connection | None = None
        self._size = 0

    async def open(self) -> dict[str, dict[str, Record]]:
        """Lock the file and return what it holds.

        Raises:
            ConfigError: another controller has it, or it is no store of ours.
        """
        return await self._in_thread(self._open)

    async def close(self) -> None:
        """Flush and let go of the file."""
        await self._end()
        await self._in_thread(self._close)
        self._thread.shutdown()

    async def _commit(self, batch: Batch) -> None:
        rows = _encode([(kind, key, data) for (kind, key), data in batch.items()])
        await self._in_thread(self._append, rows)

    async def _in_thread(self, function: Callable[..., _T], *args: Any) -> _T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, function, *args)

    # What runs in the thread.

    def _open(self) -> dict[str, dict[str, Record]]:
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            # It holds what agents and environments say: nobody else's to read.
            os.close(os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600))
            database = sqlite3.connect(self._path, isolation_level=None, timeout=0.5)
            database.execute("PRAGMA locking_mode=EXCLUSIVE")
            database.execute("PRAGMA journal_mode=WAL")
            database.execute("PRAGMA synchronous=NORMAL")
            (version,) = database.execute("PRAGMA user_version").fetchone()
            if version not in (0, _SCHEMA_VERSION):
                raise ConfigError(f"the store {self._path} is of version {version}, not {_SCHEMA_VERSION}")
            database.execute("BEGIN IMMEDIATE")
            database.execute("CREATE TABLE IF NOT EXISTS log (number INTEGER PRIMARY KEY, rows BLOB)")
            database.execute(f"PRAGMA user_version={_SCHEMA_VERSION}")
            database.execute("COMMIT")
            self._database = database
            return parse(self._compact())
        except (OSError, sqlite3.Error) as error:
            is_taken = "locked" in str(error)
            hint = "; another controller has it, give each a --store of its own" if is_taken else ""
            raise ConfigError(f"the store {self._path} cannot be used: {error}{hint}") from error

    def _append(self, rows: bytes) -> None:
        assert self._database is not None
        self._database.execute("INSERT INTO log (rows) VALUES (?)", (rows,))
        self._size += len(rows)
        if self._size > _COMPACT_BYTES:
            self._compact()

    def _compact(self) -> list[tuple[str, str, bytes]]:
        """Make one row of the log, of what still counts; returns that."""
        assert self._database is not None
        latest: dict[tuple[str, str], bytes] = {}
        last = 1
        for number, rows in self._database.execute("SELECT number, rows FROM log ORDER BY number"):
            last = number
            for kind, key, data in _decoded(rows):
                if data is None:
                    latest.pop((kind, key), None)
                else:
                    latest[kind, key] = data
        kept = [(kind, key, data) for (kind, key), data in latest.items()]
        with self._transaction() as database:
            database.execute("DELETE FROM log WHERE number <= ?", (last,))
            database.execute("INSERT INTO log (number, rows) VALUES (?, ?)", (last, _encode(kept)))
        self._size = 0
        return kept

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        assert self._database is not None
        self._database.execute("BEGIN")
        try:
            yield self._database
            self._database.execute("COMMIT")
        except BaseException:
            self._database.execute("ROLLBACK")
            raise

    def _close(self) -> None:
        if self._database is not None:
            self._database.close()
            self._database = None


def _decoded(rows: bytes) -> list[tuple[str, str, bytes | None]]:
    try:
        return _ROWS.decode(rows)
    except msgspec.MsgspecError as error:
        _log.error("the store holds rows that cannot be read: %s; left out", error)
        return []

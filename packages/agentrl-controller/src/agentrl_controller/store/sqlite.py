"""Keeps records in an SQLite file, written by a thread of its own."""

import asyncio
import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from agentrl_controller.store.base import Record
from agentrl_controller.store.behind import Batch, WriteBehind, parse
from agentrl_core import ConfigError

_SCHEMA_VERSION = 1
_T = TypeVar("_T")


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
        await self._in_thread(self._write_batch, batch)

    async def _in_thread(self, function: Callable[..., _T], *args: Any) -> _T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, function, *args)

    # What runs in the thread.

    def _open(self) -> dict[str, dict[str, Record]]:
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            database = sqlite3.connect(self._path, isolation_level=None, timeout=0.5)
            database.execute("PRAGMA locking_mode=EXCLUSIVE")
            database.execute("PRAGMA journal_mode=WAL")
            database.execute("PRAGMA synchronous=NORMAL")
            (version,) = database.execute("PRAGMA user_version").fetchone()
            if version not in (0, _SCHEMA_VERSION):
                raise ConfigError(f"the store {self._path} is of version {version}, not {_SCHEMA_VERSION}")
            database.execute("BEGIN IMMEDIATE")
            database.execute(
                "CREATE TABLE IF NOT EXISTS records "
                "(kind TEXT, key TEXT, data BLOB, PRIMARY KEY (kind, key)) WITHOUT ROWID"
            )
            database.execute(f"PRAGMA user_version={_SCHEMA_VERSION}")
            database.execute("COMMIT")
            rows = database.execute("SELECT kind, key, data FROM records").fetchall()
        except (OSError, sqlite3.Error) as error:
            is_taken = "locked" in str(error)
            hint = "; another controller has it, give each a --store of its own" if is_taken else ""
            raise ConfigError(f"the store {self._path} cannot be used: {error}{hint}") from error
        self._database = database
        return parse(rows)

    def _write_batch(self, batch: Batch) -> None:
        assert self._database is not None
        puts = [(kind, key, data) for (kind, key), data in batch.items() if data is not None]
        drops = [names for names, data in batch.items() if data is None]
        self._database.execute("BEGIN")
        try:
            self._database.executemany("INSERT OR REPLACE INTO records VALUES (?, ?, ?)", puts)
            self._database.executemany("DELETE FROM records WHERE kind = ? AND key = ?", drops)
            self._database.execute("COMMIT")
        except BaseException:
            self._database.execute("ROLLBACK")
            raise

    def _close(self) -> None:
        if self._database is not None:
            self._database.close()
            self._database = None

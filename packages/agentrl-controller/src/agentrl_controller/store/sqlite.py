"""Keeps records in an SQLite file: written behind, many in one transaction, by a thread of its own."""

import asyncio
import logging
import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from agentrl_controller.store.base import KINDS, Record
from agentrl_core import ConfigError

_log = logging.getLogger("agentrl_controller")

_SCHEMA_VERSION = 1
_RETRY_S = 1.0
_T = TypeVar("_T")
_encode = msgspec.msgpack.Encoder().encode


class SqliteStore:
    """An SQLite file. One controller at a time: the file is locked.

    A write is safe from the end of the process within milliseconds, and from a power cut at the next
    checkpoint of the write-ahead log.

    Args:
        path: the file; it is made where it is missing.
    """

    is_lasting = True

    def __init__(self, path: Path) -> None:
        self._path = path
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="store")
        self._database: sqlite3.Connection | None = None
        self._pending: dict[tuple[str, str], bytes | None] = {}
        self._writing: asyncio.Task[None] | None = None

    async def open(self) -> dict[str, dict[str, Record]]:
        """Lock the file and return what it holds.

        Raises:
            ConfigError: another controller has it, or it is no store of ours.
        """
        return await self._in_thread(self._open)

    def put(self, kind: str, key: str, record: Record) -> None:
        """Keep a record instead of an older one; `flush` tells when it is safe."""
        self._pending[kind, key] = _encode(record)
        self._begin()

    def drop(self, kind: str, key: str) -> None:
        """Forget a record."""
        self._pending[kind, key] = None
        self._begin()

    async def flush(self) -> None:
        """Return when everything so far is safe from the end of this process."""
        while self._writing is not None:
            await asyncio.shield(self._writing)

    async def close(self) -> None:
        """Flush and let go of the file."""
        await self.flush()
        await self._in_thread(self._close)
        self._thread.shutdown()

    def _begin(self) -> None:
        if self._writing is None:
            self._writing = asyncio.ensure_future(self._write())

    async def _write(self) -> None:
        try:
            while self._pending:
                batch, self._pending = self._pending, {}
                try:
                    await self._in_thread(self._commit, batch)
                except sqlite3.Error as error:
                    _log.error("the store %s takes no writes: %s; trying again", self._path, error)
                    self._pending = batch | self._pending
                    await asyncio.sleep(_RETRY_S)
        finally:
            self._writing = None

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
            raise ConfigError(
                f"the store {self._path} cannot be used: {error}; "
                "is another controller running on it? Give each its own --store"
            ) from error
        self._database = database
        return _parsed(rows)

    def _commit(self, batch: dict[tuple[str, str], bytes | None]) -> None:
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


def _parsed(rows: list[tuple[str, str, bytes]]) -> dict[str, dict[str, Record]]:
    kept: dict[str, dict[str, Record]] = {kind: {} for kind in KINDS}
    decoders = {kind: msgspec.msgpack.Decoder(record) for kind, record in KINDS.items()}
    for kind, key, data in rows:
        try:
            kept[kind][key] = decoders[kind].decode(data)
        except (KeyError, msgspec.MsgspecError) as error:
            _log.error("the store holds what is no %s: %s (%s); left out", kind, key, error)
    return kept

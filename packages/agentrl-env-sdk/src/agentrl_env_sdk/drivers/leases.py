"""What environments exist and whose they are, kept where a killed owner's successor finds it."""

import asyncio
import json
import os
import sqlite3
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

from agentrl_core import ConfigError
from agentrl_env_sdk.extras import extra

_PROC = Path("/proc")


@dataclass(frozen=True, slots=True)
class Lease:
    """An instance that exists, or is about to."""

    name: str
    """The instance."""
    kind: str
    """The driver that made it."""
    owner: str
    """The process that made it: host, process id, and when it began."""
    expires: float
    """Unix time until which its owner has promised to look after it."""


class Leases(Protocol):
    """Keeps leases; every call is safe to repeat."""

    async def write(self, leases: Sequence[Lease]) -> None:
        """Add leases, or renew them."""
        ...

    async def remove(self, name: str) -> None:
        """Forget one."""
        ...

    async def all(self) -> list[Lease]:
        """Those that are kept."""
        ...

    async def close(self) -> None:
        """Let go of the file or connection."""
        ...


class LocalLeases:
    """Leases of this machine, in a SQLite file that processes share.

    Args:
        path: the file; `~/.local/state/agentrl/environments.sqlite` where it is absent.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._path = path or _default_path()
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._on_file(
            "CREATE TABLE IF NOT EXISTS leases (name TEXT PRIMARY KEY, kind TEXT, owner TEXT, expires REAL)"
        )

    async def write(self, leases: Sequence[Lease]) -> None:
        """Add leases, or renew them."""
        rows = [(lease.name, lease.kind, lease.owner, lease.expires) for lease in leases]
        await asyncio.to_thread(self._on_file, "INSERT OR REPLACE INTO leases VALUES (?, ?, ?, ?)", rows)

    async def remove(self, name: str) -> None:
        """Forget one."""
        await asyncio.to_thread(self._on_file, "DELETE FROM leases WHERE name = ?", [(name,)])

    async def all(self) -> list[Lease]:
        """Those that are kept."""
        rows = await asyncio.to_thread(self._on_file, "SELECT name, kind, owner, expires FROM leases")
        return [Lease(*row) for row in rows]

    async def close(self) -> None:
        """Nothing is held between calls."""

    def _on_file(self, statement: str, rows: Sequence[Sequence[Any]] = ()) -> list[Any]:
        connection = sqlite3.connect(self._path, timeout=30.0)
        try:
            with connection:
                if rows:
                    connection.executemany(statement, rows)
                    return []
                return connection.execute(statement).fetchall()
        finally:
            connection.close()


class RedisLeases:
    """Leases that machines share, in Redis.

    Args:
        url: address of the server, such as `redis://127.0.0.1:6379/0`.
        prefix: begins the name of the key that is used.

    Raises:
        ConfigError: the client library is not installed, or the address is none.
    """

    def __init__(self, url: str, *, prefix: str = "agentrl") -> None:
        with extra("redis"):
            from redis.asyncio import Redis
        try:
            self._redis = Redis.from_url(url)
        except ValueError as error:
            raise ConfigError(f"`{url}` is no address of a Redis: {error}") from error
        self._key = f"{prefix}:environments"

    async def write(self, leases: Sequence[Lease]) -> None:
        """Add leases, or renew them."""
        rows: dict[Any, Any] = {lease.name: json.dumps(asdict(lease)) for lease in leases}
        if rows:
            await self._redis.hset(self._key, mapping=rows)

    async def remove(self, name: str) -> None:
        """Forget one."""
        await self._redis.hdel(self._key, name)

    async def all(self) -> list[Lease]:
        """Those that are kept."""
        rows = await self._redis.hgetall(self._key)
        return [Lease(**json.loads(row)) for row in rows.values()]

    async def close(self) -> None:
        """Close the connection."""
        await self._redis.aclose()


def this_process() -> str:
    """The owner's name that this process signs with."""
    return json.dumps([os.uname().nodename, os.getpid(), _began(os.getpid())])


def is_alive(owner: str) -> bool:
    """Whether a process of this machine, by the name that it signs with, still runs.

    Raises:
        ValueError: it is no such name.
    """
    host, pid, began = json.loads(owner)
    return host == os.uname().nodename and _began(pid) == began


def is_of_this_machine(lease: Lease) -> bool:
    """Whether its owner runs, or ran, on this machine."""
    return json.loads(lease.owner)[0] == os.uname().nodename


def is_abandoned(lease: Lease) -> bool:
    """Whether its owner is dead, or has not renewed it in time."""
    if is_of_this_machine(lease) and _PROC.exists():
        return not is_alive(lease.owner)
    return lease.expires < time.time()


def _began(pid: int) -> str:
    """When a process began, in the kernel's ticks; empty where there is no such process."""
    try:
        fields = (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] in "ZX" else fields[19]


def _default_path() -> Path:
    base = os.environ.get("XDG_STATE_HOME")
    folder = Path(base) if base else Path.home() / ".local" / "state"
    return folder / "agentrl" / "environments.sqlite"

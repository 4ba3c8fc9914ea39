"""Where sessions outlive the controller."""

from pathlib import Path

from agentrl_controller.store.base import KINDS, Record, SessionRecord, Store, TaskRecord, WorkerRecord
from agentrl_controller.store.memory import MemoryStore
from agentrl_controller.store.redis import RedisStore
from agentrl_controller.store.sqlite import SqliteStore
from agentrl_core import ConfigError

__all__ = [
    "KINDS",
    "MemoryStore",
    "Record",
    "RedisStore",
    "SessionRecord",
    "SqliteStore",
    "Store",
    "TaskRecord",
    "WorkerRecord",
    "make_store",
]


def make_store(address: str) -> Store:
    """The store at an address: `memory`, `sqlite:PATH` or `redis://HOST:PORT/DATABASE`.

    Raises:
        ConfigError: the address is none.
    """
    kind, _, rest = address.partition(":")
    if address == "memory":
        return MemoryStore()
    if kind == "sqlite" and rest:
        return SqliteStore(Path(rest.removeprefix("//")))
    if kind in ("redis", "rediss") and rest:
        return RedisStore(address)
    raise ConfigError(f"`store` must be memory, sqlite:PATH or redis://HOST:PORT/DB, got {address!r}")

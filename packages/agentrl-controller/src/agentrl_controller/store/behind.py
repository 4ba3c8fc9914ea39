"""Writes behind: records are gathered while a batch is on its way, and go together as the next one."""

import asyncio
import logging
from abc import ABC, abstractmethod

import msgspec

from agentrl_controller.store.base import KINDS, Record

_log = logging.getLogger("agentrl_controller")

_RETRY_S = 0.5
_encode = msgspec.msgpack.Encoder().encode

Batch = dict[tuple[str, str], bytes | None]
"""Encoded records by kind and key; None drops one."""


class WriteBehind(ABC):
    """A store that needs only `_commit`, which writes a batch."""

    is_lasting = True
    replica = ""

    def __init__(self) -> None:
        self._pending: Batch = {}
        self._safe: asyncio.Future[None] | None = None
        self._writing: asyncio.Task[None] | None = None
        self._has_ended = False

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
        if self._safe is not None:
            await asyncio.shield(self._safe)
        elif self._writing is not None:
            await asyncio.shield(self._writing)

    async def _end(self) -> None:
        """Write what is left; what comes later is not kept."""
        await self.flush()
        self._has_ended = True

    @abstractmethod
    async def _commit(self, batch: Batch) -> None:
        """Write a batch, all of it or nothing; a failed one comes again."""

    def _begin(self) -> None:
        if self._has_ended:
            self._pending.clear()
            return
        if self._safe is None:
            self._safe = asyncio.get_running_loop().create_future()
        if self._writing is None:
            self._writing = asyncio.ensure_future(self._write())

    async def _write(self) -> None:
        try:
            while self._pending:
                batch, self._pending = self._pending, {}
                safe, self._safe = self._safe, None
                await self._commit_surely(batch)
                if safe is not None and not safe.done():
                    safe.set_result(None)
        finally:
            self._writing = None

    async def _commit_surely(self, batch: Batch) -> None:
        while True:
            try:
                await self._commit(batch)
                return
            except Exception as error:
                _log.error("the store takes no writes: %s; trying again", error)
                await asyncio.sleep(_RETRY_S)


def parse(rows: list[tuple[str, str, bytes]]) -> dict[str, dict[str, Record]]:
    """Records of (kind, key, data), by kind and key; what is none is left out and reported."""
    kept: dict[str, dict[str, Record]] = {kind: {} for kind in KINDS}
    decoders = {kind: msgspec.msgpack.Decoder(record) for kind, record in KINDS.items()}
    for kind, key, data in rows:
        try:
            kept[kind][key] = decoders[kind].decode(data)
        except (KeyError, msgspec.MsgspecError) as error:
            _log.error("the store holds what is no %s: %s (%s); left out", kind, key, error)
    return kept

"""Keeps records in Redis, where several controllers share them."""

import asyncio
import logging
import secrets
from collections.abc import Callable
from typing import Any

import msgspec
from redis.asyncio import Redis
from redis.exceptions import RedisError

from agentrl_controller.store.base import KINDS, Record, SessionRecord
from agentrl_controller.store.behind import Batch, WriteBehind, parse
from agentrl_core import ConfigError

_log = logging.getLogger("agentrl_controller")

_PREFIX = "agentrl:"
_ALIVE_MS = 3000
_CLAIM_MS = 24 * 3600 * 1000
_RETRY_S = 0.5
_ROWS = 500
_WRITE = """
if redis.call('EXISTS', KEYS[1]) == 1 then return 0 end
for i = 1, #ARGV, 3 do
  if ARGV[i + 2] == '' then redis.call('HDEL', ARGV[i], ARGV[i + 1])
  else redis.call('HSET', ARGV[i], ARGV[i + 1], ARGV[i + 2]) end
end
return 1
"""
"""Writes a batch, unless another replica has taken what the writer had: it may have slept through its end."""
_SESSION = msgspec.msgpack.Decoder(SessionRecord)

Receive = Callable[[bytes], None]


class RedisStore(WriteBehind):
    """Records as fields of one hash a kind, a lease for each replica, and a channel between them.

    Args:
        url: `redis://[user:password@]host:port/database`, or `rediss://` with TLS.

    Attributes:
        replica: identity of this controller among those that share the store.
    """

    def __init__(self, url: str) -> None:
        super().__init__()
        self.replica = secrets.token_hex(6)
        try:
            # The client's types do not know that nothing is decoded.
            self._redis: Any = Redis.from_url(url, socket_connect_timeout=5.0, socket_keepalive=True)
        except ValueError as error:
            raise ConfigError(f"`store` is no Redis address: {error}") from error
        self._write_script = self._redis.register_script(_WRITE)
        self._where = url.rpartition("@")[2].removeprefix("redis://")
        self._listening: asyncio.Task[None] | None = None

    async def open(self) -> dict[str, dict[str, Record]]:
        """Connect and return what is kept of tasks and workers; sessions are taken up by their owners.

        Raises:
            ConfigError: Redis cannot be reached.
        """
        try:
            kept = [(kind, await self._all(kind)) for kind in KINDS if kind != "session"]
        except (RedisError, OSError) as error:
            raise ConfigError(f"the store at {self._where} cannot be used: {error}") from error
        return parse([(kind, key, data) for kind, rows in kept for key, data in rows.items()])

    async def close(self) -> None:
        """Flush, and leave what this replica has to the others."""
        await self._end()
        if self._listening is not None:
            self._listening.cancel()
        await self._redis.delete(f"{_PREFIX}alive:{self.replica}")
        await self._redis.aclose()

    async def _commit(self, batch: Batch) -> None:
        rows = [(_PREFIX + kind, key, data or b"") for (kind, key), data in batch.items()]
        for begin in range(0, len(rows), _ROWS):
            part = [each for row in rows[begin : begin + _ROWS] for each in row]
            await self._write_script(keys=[f"{_PREFIX}claim:{self.replica}"], args=part)

    async def _all(self, kind: str) -> dict[str, bytes]:
        rows = await self._redis.hgetall(_PREFIX + kind)
        return {key.decode(): data for key, data in rows.items()}

    # What replicas need beyond a store.

    async def session(self, session_id: int) -> SessionRecord | None:
        """A session's record."""
        data = await self._redis.hget(f"{_PREFIX}session", str(session_id))
        return None if data is None else _SESSION.decode(data)

    async def sessions(self) -> list[SessionRecord]:
        """Every session's record."""
        rows = [("session", key, data) for key, data in (await self._all("session")).items()]
        return [record for record in parse(rows)["session"].values() if isinstance(record, SessionRecord)]

    async def join(self, url: str) -> bool:
        """Renew the lease of this replica; returns whether it had one, so that nobody took its sessions."""
        async with self._redis.pipeline(transaction=True) as pipeline:
            pipeline.set(f"{_PREFIX}alive:{self.replica}", url, px=_ALIVE_MS, get=True)
            pipeline.hset(f"{_PREFIX}replicas", self.replica, url)
            before, _ = await pipeline.execute()
        return before is not None

    async def replicas(self) -> dict[str, tuple[str, bool]]:
        """Where each replica is, by its identity, and whether its lease holds."""
        known = {
            name.decode(): url.decode()
            for name, url in (await self._redis.hgetall(f"{_PREFIX}replicas")).items()
        }
        if not known:
            return {}
        leases = await self._redis.mget([f"{_PREFIX}alive:{name}" for name in known])
        return {
            name: (url, lease is not None) for (name, url), lease in zip(known.items(), leases, strict=True)
        }

    async def claim(self, replica: str) -> bool:
        """Take what a dead replica has left; one claimant gets it."""
        key = f"{_PREFIX}claim:{replica}"
        if not await self._redis.set(key, self.replica, nx=True, px=_CLAIM_MS):
            return False
        await self._redis.hdel(f"{_PREFIX}replicas", replica)
        return True

    async def was_claimed(self) -> bool:
        """Whether another replica has taken what this one had."""
        return bool(await self._redis.exists(f"{_PREFIX}claim:{self.replica}"))

    def rename(self) -> None:
        """Go on as another replica, without anything."""
        self.replica = secrets.token_hex(6)

    async def publish(self, message: bytes) -> None:
        """Tell every replica, this one too."""
        await self._redis.publish(f"{_PREFIX}events", message)

    def listen(self, receive: Receive) -> None:
        """Call `receive` with whatever replicas tell, from now on."""
        self._listening = asyncio.ensure_future(self._listen(receive))

    async def _listen(self, receive: Receive) -> None:
        while True:
            try:
                async with self._redis.pubsub(ignore_subscribe_messages=True) as channel:
                    await channel.subscribe(f"{_PREFIX}events")
                    async for message in channel.listen():
                        receive(message["data"])
            except (RedisError, OSError) as error:
                _log.error("the store at %s tells nothing: %s; trying again", self._where, error)
                await asyncio.sleep(_RETRY_S)

"""The driver's side: opens the transfer group and runs one transfer after another."""

import asyncio
import time
import uuid
from typing import Any

from agentrl_core import PolicyVersion
from agentrl_workers.collective import CollectiveHandle
from agentrl_workers.config import WeightsConfig
from agentrl_workers.weights.buckets import TensorSpec, WeightSyncError
from agentrl_workers.weights.receiver import WeightReceiver
from agentrl_workers.weights.sender import WeightSender

_PLUGIN = "weights"


class WeightPublisher:
    """Streams weights from the actor pool to the rollout pool."""

    def __init__(self, actor: CollectiveHandle, rollout: CollectiveHandle, config: WeightsConfig) -> None:
        self._actor = actor
        self._rollout = rollout
        self._config = config
        self._manifest: list[TensorSpec] = []

    async def connect(self) -> None:
        """Attach the two sides and join them in one process group.

        Raises:
            PoolError: a replica failed.
            WeightSyncError: they did not all join within the deadline.
        """
        config = self._config
        await self._actor.register_plugin(_PLUGIN, WeightSender, config.bucket_bytes)
        await self._rollout.register_plugin(_PLUGIN, WeightReceiver, config.bucket_bytes)
        address, port = await self._actor.rendezvous()
        name = f"weights-{uuid.uuid4().hex[:8]}"
        size = 1 + len(self._rollout)
        limit_s = config.timeout_s
        receivers = [
            ref
            for replica in range(len(self._rollout))
            for ref in self._rollout.plugin(_PLUGIN, rank=replica).connect(
                name, address, port, replica + 1, size, limit_s
            )
        ]
        senders = self._actor.plugin(_PLUGIN).connect(name, address, port, size, limit_s)
        await self._both(senders, receivers, "the transfer group")
        self._manifest = (await self._actor.gather(self._actor.plugin(_PLUGIN).manifest()))[0]

    async def publish(self, version: PolicyVersion) -> dict[str, float]:
        """Bring every engine to a version; returns seconds and bytes of the transfer.

        Raises:
            PoolError: a replica failed, or a tensor arrived damaged.
            WeightSyncError: the version did not arrive within the deadline.
        """
        started = time.perf_counter()
        sent, received = await self._both(
            self._actor.plugin(_PLUGIN).publish(version),
            self._rollout.plugin(_PLUGIN).receive(version, self._manifest),
            f"version {version}",
        )
        return {
            "weights/version": float(version),
            "weights/publish_s": time.perf_counter() - started,
            "weights/blocked_s": max(result["blocked_s"] for result in received),
            "weights/bytes": sent[0]["bytes"],
        }

    async def _both(self, senders: list[Any], receivers: list[Any], what: str) -> tuple[list[Any], list[Any]]:
        try:
            async with asyncio.timeout(self._config.timeout_s):
                return await asyncio.gather(self._actor.gather(senders), self._rollout.gather(receivers))
        except TimeoutError as error:
            limit_s = self._config.timeout_s
            raise WeightSyncError(f"{what} did not reach every engine within {limit_s:.0f} s") from error

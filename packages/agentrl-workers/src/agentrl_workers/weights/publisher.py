"""The driver's side: opens the transfer group and runs one transfer after another."""

import asyncio
import time
import uuid
from collections.abc import Sequence
from typing import Any, Literal

from agentrl_core import PolicyVersion
from agentrl_workers.collective import CollectiveHandle
from agentrl_workers.config import WeightsConfig
from agentrl_workers.weights.buckets import TensorSpec, WeightSyncError
from agentrl_workers.weights.receiver import WeightReceiver
from agentrl_workers.weights.sender import WeightSender

_PLUGIN = "weights"


class WeightPublisher:
    """Streams weights from the actor pool to engines of the rollout pool.

    Args:
        actor: sends.
        rollout: receives.
        config: sizes and deadlines.
        backend: of the transfer; NCCL where there is CUDA, else gloo, where it is absent.
    """

    def __init__(
        self,
        actor: CollectiveHandle,
        rollout: CollectiveHandle,
        config: WeightsConfig,
        *,
        backend: Literal["nccl", "gloo"] | None = None,
    ) -> None:
        self._backend = backend
        self._actor = actor
        self._rollout = rollout
        self._config = config
        self._manifest: list[TensorSpec] = []
        self._members: tuple[int, ...] = ()

    async def connect(self) -> None:
        """Attach the two sides and join them in one process group.

        Raises:
            PoolError: a replica failed.
            WeightSyncError: they did not all join within the deadline.
        """
        await self._actor.register_plugin(_PLUGIN, WeightSender, self._config.bucket_bytes)
        await self._rollout.register_plugin(_PLUGIN, WeightReceiver, self._config.bucket_bytes)
        await self._join(tuple(range(len(self._rollout))))
        self._manifest = (await self._actor.gather(self._actor.plugin(_PLUGIN).manifest()))[0]

    async def publish(
        self, version: PolicyVersion, *, ranks: Sequence[int] | None = None
    ) -> dict[str, float]:
        """Bring engines to a version; returns seconds and bytes of the transfer.

        Args:
            version: of the actor's weights.
            ranks: which engines; all where absent.

        Raises:
            PoolError: a replica failed, or a tensor arrived damaged.
            WeightSyncError: the version did not arrive within the deadline.
        """
        started = time.perf_counter()
        members = tuple(ranks) if ranks is not None else tuple(range(len(self._rollout)))
        if members != self._members:
            await self._join(members)
        receivers = [
            ref
            for rank in members
            for ref in self._rollout.plugin(_PLUGIN, rank=rank).receive(version, self._manifest)
        ]
        senders = self._actor.plugin(_PLUGIN).publish(version)
        sent, received = await self._both(senders, receivers, members, f"version {version}")
        return {
            "weights/version": float(version),
            "weights/publish_s": time.perf_counter() - started,
            "weights/blocked_s": max(result["blocked_s"] for result in received),
            "weights/bytes": sent[0]["bytes"],
        }

    async def _join(self, members: tuple[int, ...]) -> None:
        """Make a process group of the actor's rank 0 and some engines, in place of the one before."""
        address, port = await self._actor.rendezvous()
        name = f"weights-{uuid.uuid4().hex[:8]}"
        size, limit_s = 1 + len(members), self._config.timeout_s
        receivers = [
            ref
            for place, rank in enumerate(members, start=1)
            for ref in self._rollout.plugin(_PLUGIN, rank=rank).connect(
                name, address, port, place, size, limit_s, self._backend
            )
        ]
        senders = self._actor.plugin(_PLUGIN).connect(name, address, port, size, limit_s, self._backend)
        await self._both(senders, receivers, members, "the transfer group")
        self._members = members

    async def _both(
        self, senders: list[Any], receivers: list[Any], members: tuple[int, ...], what: str
    ) -> tuple[list[Any], list[Any]]:
        # Until it has gone well the group may be broken, and the next transfer makes another.
        before, self._members = self._members, ()
        try:
            async with asyncio.timeout(self._config.timeout_s):
                results = await asyncio.gather(
                    self._actor.gather(senders), self._rollout.gather(receivers, ranks=members)
                )
        except TimeoutError as error:
            limit_s = self._config.timeout_s
            raise WeightSyncError(f"{what} did not reach every engine within {limit_s:.0f} s") from error
        self._members = before
        return results

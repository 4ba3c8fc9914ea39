"""Keeps the rollout going when engines die: successors start, catch up, and take requests again.

EnginePool.take_down -> CollectiveHandle.respawn -> WeightPublisher.publish -> EnginePool.bring_up
"""

import asyncio
import time
from collections.abc import Callable, Sequence

from agentrl_core import AgentRLError, PolicyVersion
from agentrl_workers.collective import PoolError
from agentrl_workers.config import TrainConfig
from agentrl_workers.pool import EnginePool
from agentrl_workers.pools import Pools
from agentrl_workers.weights import WeightPublisher, WeightSyncError

_DEATH_IS_TOLD_S = 10.0
"""How long a failed transfer waits for the news that an engine has died, which would explain it."""


class EnginesLostError(AgentRLError):
    """More engines died than may be replaced."""


class EngineKeeper:
    """Watches every engine of a run; only it publishes weights.

    Args:
        pools: of the run.
        engines: where requests go.
        publisher: brings weights.
        config: of the run.
        warn: told of each death and each return.
    """

    def __init__(
        self,
        pools: Pools,
        engines: EnginePool,
        publisher: WeightPublisher,
        config: TrainConfig,
        warn: Callable[[str], None],
    ) -> None:
        self._pools = pools
        self._engines = engines
        self._publisher = publisher
        self._config = config
        self._warn = warn
        self._waiting: set[int] = set()
        self._arrived = asyncio.Event()
        self._died = asyncio.Event()
        self.num_replaced = 0
        """Engines that died and whose place was taken."""

    async def run(self) -> None:
        """Watch, until cancelled.

        Raises:
            ExceptionGroup: of an `EnginesLostError`, or of a `PoolError` where a successor does not start.
        """
        async with asyncio.TaskGroup() as watches:
            for rank in range(len(self._pools.rollout)):
                watches.create_task(self._keep(rank))

    async def _keep(self, rank: int) -> None:
        limit_s = self._config.placement_timeout_s
        if self._config.rollout.engine == "sglang":
            limit_s += self._config.rollout.sglang.start_timeout_s
        while True:
            reason = await self._pools.rollout.death(rank)
            began = time.monotonic()
            self._engines.take_down(rank)
            self._waiting.discard(rank)
            self._died.set()
            most = self._config.rollout.max_replacements
            if self.num_replaced >= most:
                raise EnginesLostError(f"{reason}; `rollout.max_replacements` ({most}) allows no other")
            self.num_replaced += 1
            self._warn(f"{reason}; a successor starts")
            try:
                async with asyncio.timeout(limit_s):
                    await self._pools.rollout.respawn(rank, self._pools.generator)
            except TimeoutError as error:
                raise PoolError(
                    f"rollout rank {rank}: no successor started within {limit_s:.0f} s"
                ) from error
            self._warn(f"rollout rank {rank} has started again after {time.monotonic() - began:.0f} s")
            self._waiting.add(rank)
            self._arrived.set()

    async def arrival(self) -> None:
        """Wait until a successor is there that has no current weights yet."""
        await self._arrived.wait()

    async def catch_up(self, version: PolicyVersion) -> None:
        """Bring successors alone to the version that the others have.

        Raises:
            PoolError: the actor failed.
            WeightSyncError: no engine died, and the version did not arrive.
        """
        await self._publish(version, lambda: sorted(self._waiting))

    async def publish(self, version: PolicyVersion) -> dict[str, float]:
        """Bring every living engine to a version, however many die on the way; returns metrics.

        Raises:
            PoolError: the actor failed, or a tensor arrived damaged.
            WeightSyncError: no engine died, and the version did not arrive.
        """
        return await self._publish(version, lambda: sorted({*self._engines.up, *self._waiting}))

    async def _publish(self, version: PolicyVersion, living: Callable[[], Sequence[int]]) -> dict[str, float]:
        while ranks := living():
            self._died.clear()
            try:
                metrics = await self._publisher.publish(version, ranks=ranks)
            except (PoolError, WeightSyncError):
                if not await self._one_has_died():
                    raise
                continue
            for rank in self._waiting.intersection(ranks):
                self._engines.bring_up(rank)
            self._waiting.difference_update(ranks)
            break
        else:
            metrics = {"weights/version": float(version)}
        if not self._waiting:
            self._arrived.clear()
        return metrics

    async def _one_has_died(self) -> bool:
        try:
            async with asyncio.timeout(_DEATH_IS_TOLD_S):
                await self._died.wait()
        except TimeoutError:
            return False
        return True

"""The rollout pool as episodes see it: many engines behind one call."""

import asyncio
from collections import OrderedDict
from collections.abc import Sequence

from agentrl_workers.collective import CollectiveHandle, PoolError, ReplicaDiedError
from agentrl_workers.engines import EngineError, EngineLostError, Generation, SamplingParams

_REMEMBERED_GROUPS = 4096


class EnginePool:
    """Sends each group to one engine, so that its members share the cached prompt.

    An engine that is down is left out until it is up again; with none up, requests wait.
    """

    def __init__(self, rollout: CollectiveHandle) -> None:
        self._rollout = rollout
        self._running = [0] * len(rollout)
        self._up = set(range(len(rollout)))
        self._any_up = asyncio.Event()
        self._any_up.set()
        self._home: OrderedDict[str, int] = OrderedDict()

    @property
    def up(self) -> list[int]:
        """Engines that take requests."""
        return sorted(self._up)

    def take_down(self, rank: int) -> None:
        """Send an engine no more requests."""
        self._up.discard(rank)
        if not self._up:
            self._any_up.clear()

    def bring_up(self, rank: int) -> None:
        """Send an engine requests."""
        self._up.add(rank)
        self._any_up.set()

    async def generate(
        self, prompt_ids: Sequence[int], sampling: SamplingParams, *, affinity: str
    ) -> Generation:
        """Sample one reply on the engine that served `affinity` before, else on the least busy one.

        Raises:
            EngineError: the engine refuses the request, or its process died.
            PoolError: it failed otherwise.
        """
        await self._any_up.wait()
        rank = self._choose(affinity)
        self._running[rank] += 1
        refs = self._rollout.dispatch_rank(rank).generate(prompt_ids, sampling)
        try:
            return (await self._rollout.gather(refs, ranks=[rank]))[0]
        except ReplicaDiedError as error:
            self.take_down(rank)
            raise EngineError(str(error)) from error
        except PoolError as error:
            if isinstance(error.__cause__, EngineLostError):
                self.take_down(rank)
            if isinstance(error.__cause__, EngineError):
                raise EngineError(str(error)) from error
            raise
        finally:
            self._running[rank] -= 1

    def _choose(self, affinity: str) -> int:
        rank = self._home.get(affinity)
        if rank not in self._up:
            rank = min(self._up, key=lambda one: self._running[one])
            self._home[affinity] = rank
        self._home.move_to_end(affinity)
        if len(self._home) > _REMEMBERED_GROUPS:
            self._home.popitem(last=False)
        return rank

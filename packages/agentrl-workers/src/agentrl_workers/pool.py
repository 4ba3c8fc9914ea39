"""The rollout pool as episodes see it: many engines behind one call."""

from collections import OrderedDict
from collections.abc import Sequence

from agentrl_workers.collective import CollectiveHandle, PoolError
from agentrl_workers.engines import EngineError, Generation, SamplingParams

_REMEMBERED_GROUPS = 4096


class EnginePool:
    """Sends each group to one engine, so that its members share the cached prompt."""

    def __init__(self, rollout: CollectiveHandle) -> None:
        self._rollout = rollout
        self._running = [0] * len(rollout)
        self._home: OrderedDict[str, int] = OrderedDict()

    async def generate(
        self, prompt_ids: Sequence[int], sampling: SamplingParams, *, affinity: str
    ) -> Generation:
        """Sample one reply on the engine that served `affinity` before, else on the least busy one.

        Raises:
            EngineError: the engine refuses the request.
            PoolError: the engine's process died.
        """
        replica = self._home.setdefault(affinity, self._running.index(min(self._running)))
        self._home.move_to_end(affinity)
        if len(self._home) > _REMEMBERED_GROUPS:
            self._home.popitem(last=False)
        self._running[replica] += 1
        refs = self._rollout.dispatch_rank(replica).generate(prompt_ids, sampling)
        try:
            return (await self._rollout.gather(refs))[0]
        except PoolError as error:
            if isinstance(error.__cause__, EngineError):
                raise EngineError(str(error)) from error
            raise
        finally:
            self._running[replica] -= 1

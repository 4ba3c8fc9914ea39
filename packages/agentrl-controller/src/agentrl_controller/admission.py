"""A fair queue for each task: starts wait in line for a slot."""

import asyncio
from collections import deque

from agentrl_core import ErrorCode, SessionError

_RETRY_AFTER_S = 1.0


class Admission:
    """Lets starts of a task in, first come, first served.

    Args:
        max_queue: starts of a task that wait at most.
    """

    def __init__(self, *, max_queue: int) -> None:
        self._max_queue = max_queue
        self._queues: dict[str, deque[asyncio.Future[None]]] = {}

    def depth(self, task: str) -> int:
        """Starts of a task that wait."""
        return sum(not waiter.done() for waiter in self._queues.get(task, ()))

    def is_first(self, task: str) -> bool:
        """Whether nobody waits before a newcomer."""
        return self.depth(task) == 0

    async def wait(self, task: str, *, deadline_s: float, again: bool) -> None:
        """Wait for a turn.

        Args:
            task: task name.
            deadline_s: longest wait.
            again: whether the caller had its turn and found no slot after all; it goes to the front.

        Raises:
            SessionError: too many wait already, or the deadline passed.
        """
        queue = self._queues.setdefault(task, deque())
        if len(queue) >= self._max_queue and not again:
            raise SessionError(
                f"{len(queue)} starts of `{task}` wait for a slot already",
                code=ErrorCode.NO_CAPACITY,
                retry_after_s=_RETRY_AFTER_S,
            )
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        (queue.appendleft if again else queue.append)(waiter)
        try:
            async with asyncio.timeout(deadline_s):
                await waiter
        except TimeoutError as error:
            raise SessionError(
                f"no worker of `{task}` had a free slot within {deadline_s:.1f} s",
                code=ErrorCode.NO_CAPACITY,
                retry_after_s=_RETRY_AFTER_S,
            ) from error
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled():
                self.release(task)  # The turn was ours already; it goes to the next one.
            raise
        finally:
            if waiter in queue:
                queue.remove(waiter)

    def release(self, task: str) -> None:
        """A slot came free: the next in line has its turn."""
        queue = self._queues.get(task)
        while queue:
            waiter = queue.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return

    def refuse(self, task: str, error: SessionError) -> None:
        """Tell everybody in line that there is nothing to wait for."""
        for waiter in self._queues.pop(task, ()):
            if not waiter.done():
                waiter.set_exception(error)

"""Work that outlives the request that began it."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

_T = TypeVar("_T")


class Background:
    """Running tasks, held so that none is lost and all can be ended."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    def spawn(self, work: Coroutine[Any, Any, _T]) -> asyncio.Task[_T]:
        """Start a task; an error that nobody waits for is no news."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(mark_read)
        return task

    async def close(self) -> None:
        """Cancel what still runs and wait for its end."""
        running = list(self._tasks)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)


def mark_read(future: "asyncio.Future[Any]") -> None:
    """Keep asyncio from reporting an error whose reader went away."""
    if not future.cancelled():
        future.exception()

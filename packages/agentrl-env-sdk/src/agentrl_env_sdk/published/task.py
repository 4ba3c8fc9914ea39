"""`agentrl.worker.task`: what authors for the published SDK derive from."""

import asyncio
from collections.abc import Sequence
from typing import Any

from agentrl_env_sdk.published.session import Session, SessionController
from agentrl_env_sdk.published.typings import SampleIndex, TaskOutput, TaskSampleExecutionResult
from agentrl_env_sdk.threads import ThreadPool

__all__ = ["Session", "SessionController", "Task"]

# A sync sample holds its thread from its start to its end, so their number is the number of sessions.
_THREADS = ThreadPool(2**20)


class Task:
    """A task of the published SDK: `start_sample`, or `sync_start_sample`, plays a sample to its end.

    Args:
        name: the task's name on the wire.
        concurrency: sessions at the same time.
        tools: what the agent may call, in the OpenAI or the Anthropic shape.
        full_async: whether a session may be cancelled at any `await`; else the task is told where it waits
            for the agent next.
    """

    def __init__(
        self,
        name: str,
        concurrency: int = 16,
        tools: list[Any] | None = None,
        full_async: bool = False,
        *args: Any,
        **kwargs: Any,
    ) -> None:
        del args, kwargs
        self.name = name
        self.concurrency = concurrency
        self.tools = tools
        self.full_async = full_async

    def get_indices(self) -> list[SampleIndex]:
        """Every sample; -1 among them says that custom ones are taken."""
        raise NotImplementedError(f"`{type(self).__name__}` needs `get_indices`")

    async def start_sample(self, index: SampleIndex, session: Session) -> TaskSampleExecutionResult:
        """Play a sample: by default `sync_start_sample` on a thread of its own."""
        if self.full_async:
            raise NotImplementedError(f"`{type(self).__name__}` has `full_async` and needs `start_sample`")
        session.loop = asyncio.get_running_loop()
        return await _THREADS.run(self.sync_start_sample, index, session)

    def sync_start_sample(self, index: SampleIndex, session: Session) -> TaskSampleExecutionResult:
        """Play a sample on a thread, with `session.sync_action()`."""
        raise NotImplementedError(f"`{type(self).__name__}` needs `start_sample` or `sync_start_sample`")

    async def start_sample_custom(self, task: Any, session: Session) -> TaskSampleExecutionResult:
        """Play a sample that the caller brought."""
        raise NotImplementedError(f"`{type(self).__name__}` takes no custom tasks")

    def calculate_overall(self, results: Sequence[TaskOutput]) -> Any:
        """A summary of many results."""
        raise NotImplementedError(f"`{type(self).__name__}` has no `calculate_overall`")

    def release(self) -> None:
        """Let go of what the task holds, at the worker's end."""

"""Plays a published task on our runner.

agent -- exchange --> our Session -- published Session --> start_sample | sync_start_sample
"""

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

from agentrl_core import CUSTOM_INDEX, SampleStatus
from agentrl_env_sdk.published.environment.controller import adopt_loop, close_controllers
from agentrl_env_sdk.published.session import Session as PublishedSession
from agentrl_env_sdk.published.task import Task as Published
from agentrl_env_sdk.published.typings import AgentCancelledException, TaskOutput
from agentrl_env_sdk.session import Session
from agentrl_env_sdk.task import Task
from agentrl_env_sdk.threads import call

_PATIENCE_S = 4.0
"""How long a cancelled task may go on before it is cut short, or left alone to tidy up; the runner waits a
second longer."""


class PublishedTask(Task):
    """A task written for the published SDK.

    Args:
        task: the published task.
        turn_timeout_s: seconds that it may take for one answer; it has no limit of its own.
    """

    max_turns = 2**31

    def __init__(self, task: Published, *, turn_timeout_s: float = 600.0) -> None:
        self.published = task
        self.concurrency = task.concurrency
        self.turn_timeout_s = turn_timeout_s
        self.splits = {"all": {index: index for index in task.get_indices()}}

    @property
    def task_name(self) -> str:
        """The name on the wire."""
        return self.published.name

    async def run(self, session: Session) -> None:
        """Play an episode."""
        played = PublishedSession(session.id, session)
        played.loop = asyncio.get_running_loop()
        adopt_loop()
        played.offer(self.published.tools)
        playing = asyncio.create_task(self._play(session, played))
        try:
            await asyncio.wait({playing})
        except asyncio.CancelledError:
            await self._stop(playing, played)
            raise
        with contextlib.suppress(AgentCancelledException):
            session.finish(status=playing.result())

    async def _play(self, session: Session, played: PublishedSession) -> SampleStatus:
        """The published task's own part of an episode; returns how it ended."""
        try:
            if session.index == CUSTOM_INDEX:
                result = await self.published.start_sample_custom(session.sample, played)
            else:
                result = await self.published.start_sample(session.index, played)
        except SystemExit as error:  # which would stop the worker with all its episodes
            raise RuntimeError(f"SystemExit: {error}") from error
        except AgentCancelledException:
            return SampleStatus.CANCELLED
        finally:
            played.tell()
        status = SampleStatus(getattr(result, "status", None) or _no_result(result))
        return SampleStatus.UNKNOWN if status is SampleStatus.RUNNING else status

    async def _stop(self, playing: "asyncio.Task[Any]", played: PublishedSession) -> None:
        """End an episode the way its task expects it: at any `await`, or where it waits for the agent."""
        if self.published.full_async:
            playing.cancel()
        else:
            played.cancel()
        await asyncio.wait({playing}, timeout=_PATIENCE_S)
        if not (self.published.full_async or played.knows):
            playing.cancel()  # Who knows is tidying up, and may take longer over it.
        playing.add_done_callback(lambda late: late.cancelled() or late.exception())

    def calculate_overall(self, results: Sequence[Mapping[str, Any]]) -> Any:
        """The published task's summary of many results."""
        return self.published.calculate_overall([TaskOutput.model_validate(result) for result in results])

    async def close(self) -> None:
        """Let go of what the published task holds, and of every environment that it has asked for."""
        try:
            await call(self.published.release)
        finally:
            await close_controllers()


def _no_result(result: Any) -> str:
    raise TypeError(f"a sample must return a `TaskSampleExecutionResult`, got {result!r}")

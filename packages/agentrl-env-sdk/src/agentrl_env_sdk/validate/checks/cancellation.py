"""An episode that is cancelled, wherever it stands, releases what it holds."""

import asyncio
import contextlib
import gc
import time
from typing import Any

from agentrl_core import SampleIndex, SessionError
from agentrl_env_sdk.oracle import Action
from agentrl_env_sdk.testing.episode import begin
from agentrl_env_sdk.validate.report import Finding
from agentrl_env_sdk.validate.resources import Resources, own_temporary_folder
from agentrl_env_sdk.validate.stepping import Stepper, step_with
from agentrl_env_sdk.validate.subject import SEED, Subject, counted, judged
from agentrl_env_sdk.worker.runner import Runner

_ID = "cancelled"
_SAMPLES = 2
_PAUSE_S = 0.01


class _Cancelling(Stepper):
    """Has its episode cancelled at one await point."""

    def __init__(self, coroutine: Any, runner: Runner, point: int | None) -> None:
        super().__init__(coroutine)
        self._runner = runner
        self._point = point
        self.asked = asyncio.Event()
        self.cancelling: asyncio.Task[None] | None = None
        self.cancelled_at = ""

    def at_point(self) -> None:
        """Ask for the cancellation, which arrives while the coroutine waits here."""
        if self.num_points == self._point:
            self.cancelled_at = self.where
            self.asked.set()
            self.cancelling = asyncio.create_task(self._runner.cancel(_ID))


class _Bench:
    """One sample whose episode is played again and again, cancelled at another point each time.

    Args:
        subject: the task.
        index: the sample.
        script: what the agent does.
    """

    def __init__(self, subject: Subject, index: SampleIndex, script: list[Action]) -> None:
        self.runner = subject.runner(subject.variant())
        self._index = index
        self._script = script
        self._grace_s = subject.settings.grace_s
        self._point: int | None = None
        self._begun = asyncio.Event()
        self._stepper: _Cancelling | None = None
        step_with(self.runner, self._make)

    async def run(self, point: int | None) -> _Cancelling:
        """Play the script until it ends, or for a while after it was cancelled."""
        self._point = point
        self._begun.clear()
        playing = asyncio.create_task(self._play())
        await self._begun.wait()
        stepper = self._stepper
        assert stepper is not None
        asked = asyncio.create_task(stepper.asked.wait())
        await asyncio.wait((playing, asked), return_when=asyncio.FIRST_COMPLETED)
        await asyncio.wait((playing,), timeout=self._grace_s)
        for each in (playing, asked):
            each.cancel()
        await asyncio.wait((playing, asked))
        if stepper.cancelling is not None:
            await asyncio.wait([stepper.cancelling], timeout=self._grace_s)
        return stepper

    async def problem_at(self, point: int) -> str | None:
        """What is wrong once the episode was cancelled at an await point."""
        left: list[str] = []
        place = ""
        for _ in range(2):  # What is made once and kept is no leak; what is left each time is.
            before = Resources.now()
            stepper = await self.run(point)
            place = f"cancelled at {stepper.cancelled_at or 'its end'}"
            if not stepper.is_over or self.runner.sessions:
                return (
                    f"{place}: it goes on after {self._grace_s:g} s and keeps its slot; let "
                    "`asyncio.CancelledError` pass, and wait for nothing while it does"
                )
            left = await _left(before, self._grace_s)
            if not left:
                return None
        return f"{place}: {', '.join(left)} is left; release it in `teardown` or in a `finally`"

    def _make(self, coroutine: Any) -> _Cancelling:
        self._stepper = _Cancelling(coroutine, self.runner, self._point)
        self._begun.set()
        return self._stepper

    async def _play(self) -> None:
        with contextlib.suppress(SessionError):  # It may be cancelled between two turns.
            episode = await begin(self.runner, self._index, seed=SEED, session_id=_ID)
            for action in self._script:
                if episode.finished:
                    break
                await episode.act(action)
            await episode.cancel()


async def cancellation(subject: Subject) -> Finding:
    """Cancel an episode at each of its await points in turn and see what is left of it."""
    problems: list[str] = []
    num_points = 0
    samples = subject.samples[:_SAMPLES]
    with own_temporary_folder():
        for index in samples:
            bench = _Bench(subject, index, await subject.script(index))
            whole = await bench.run(None)  # What is made once and kept is made here.
            for point in _spread(whole.num_points, subject.settings.max_await_points):
                num_points += 1
                problem = await bench.problem_at(point)
                if problem is not None:
                    problems.append(f"sample {index!r}, {problem}")
                    break  # What hangs or leaks at one point mostly does at the next.
    did = (
        f"cancelled {counted(len(samples), 'sample')} at {counted(num_points, 'await point')} and counted "
        "slots, threads, processes, descriptors and temporary files"
    )
    return judged("cancellation", did, problems)


async def _left(before: Resources, grace_s: float) -> list[str]:
    """What is held in addition after a while."""
    deadline = time.monotonic() + grace_s
    while left := Resources.now().beyond(before):
        if time.monotonic() >= deadline:
            return left
        gc.collect()
        await asyncio.sleep(_PAUSE_S)
    return []


def _spread(count: int, most: int) -> list[int]:
    if count <= most:
        return list(range(count))
    return sorted({round(position * (count - 1) / (most - 1)) for position in range(most)})

"""Runs a task's coroutine a step at a time, to act at its await points."""

import functools
import types
from collections.abc import Awaitable, Callable, Generator
from typing import Any

from agentrl_env_sdk.validate.places import authors_line
from agentrl_env_sdk.worker.runner import Runner


class Stepper:
    """Tells of each await point of a coroutine and of each step between them.

    Args:
        coroutine: what is run; awaiting the stepper awaits it.

    Attributes:
        num_points: await points that were reached.
        is_over: whether the coroutine has ended.
        where: the await point it stands at, as `file:line in function`.
    """

    def __init__(self, coroutine: Any) -> None:
        self._coroutine = coroutine
        self.num_points = 0
        self.is_over = False
        self.where = ""

    def at_point(self) -> None:
        """Called where the coroutine waits, before the loop gets its turn."""

    def before_step(self) -> None:
        """Called before the coroutine goes on."""

    def after_step(self) -> None:
        """Called once it waits again or has ended."""

    def __await__(self) -> Generator[Any, Any, Any]:
        resume: Callable[..., Any] = self._coroutine.send
        given: Any = None
        try:
            while True:
                waits_for = self._step(resume, given)
                self.where = _place(self._coroutine)
                self.at_point()
                self.num_points += 1
                try:
                    given = yield waits_for
                    resume = self._coroutine.send
                except GeneratorExit:
                    raise
                except BaseException as error:
                    given, resume = error, self._coroutine.throw
        except StopIteration as end:
            return end.value
        finally:
            self.is_over = True
            self._coroutine.close()

    def _step(self, resume: Callable[..., Any], given: Any) -> Any:
        self.before_step()
        try:
            return resume(given)
        finally:
            self.after_step()


def step_with(runner: Runner, make: Callable[[Any], Stepper]) -> None:
    """Have a runner play its episodes under steppers; the runner's task is to be a copy of its own."""
    play = runner.task.run

    @functools.wraps(play)
    async def run(session: Any) -> None:
        await make(play(session))

    run_anyway: Callable[[Any], Awaitable[None]] = run
    runner.task.run = run_anyway  # type: ignore[method-assign]


def _place(coroutine: Any) -> str:
    """The innermost line of a coroutine that its author has written."""
    frames: list[types.FrameType] = []
    node: Any = coroutine
    while node is not None:
        frame: types.FrameType | None = getattr(node, "cr_frame", None) or getattr(node, "gi_frame", None)
        if frame is not None:
            frames.append(frame)
        node = getattr(node, "cr_await", None) or getattr(node, "gi_yieldfrom", None)
    return authors_line(list(reversed(frames)))

"""Nothing in a task's async code holds up the event loop, and with it all other episodes."""

import functools
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from agentrl_core import SampleIndex
from agentrl_env_sdk.testing.agents import ScriptedAgent
from agentrl_env_sdk.testing.episode import begin
from agentrl_env_sdk.validate.places import authors_line
from agentrl_env_sdk.validate.report import Finding
from agentrl_env_sdk.validate.resources import thread_state
from agentrl_env_sdk.validate.stepping import Stepper, step_with
from agentrl_env_sdk.validate.subject import SEED, Subject, counted, judged, skipped

_SAMPLES = 2
_WAYS_OUT = "await an async version of it, or make the method a plain `def`, which runs on a thread"
_ALWAYS_BLOCKING = ("socket.getaddrinfo", "socket.gethostbyname", "os.system")


@dataclass(slots=True)
class _Watch:
    """What is noticed on one thread while an episode's code runs there."""

    thread: int
    lag_s: float
    calls: set[tuple[str, str]] = field(default_factory=set)
    """Blocking calls with the line that makes them."""
    long_steps: dict[str, float] = field(default_factory=dict)
    """Seconds of steps that took too long, by the line they stood at."""
    step_began: float | None = None
    cpu_began_s: float = 0.0
    """CPU time of the thread when the step began."""
    native_id: int = field(default_factory=threading.get_native_id)

    def is_busy(self) -> bool:
        """Whether the step computes or waits; one that only waits for a processor is no fault of the task."""
        found = thread_state(self.native_id)
        return found is None or found[0] != "R" or found[1] - self.cpu_began_s >= self.lag_s / 2


_python_sleep = time.sleep
_watched: list[_Watch] = []
"""Who is told of audit events; hooks cannot be removed, so that ours asks here."""


@functools.cache
def _listen() -> None:
    sys.addaudithook(_hear)


def _hear(event: str, arguments: tuple[Any, ...]) -> None:
    for watch in _watched:
        if watch.step_began is not None and threading.get_ident() == watch.thread:
            _note(watch, event, arguments)


def _note(watch: _Watch, event: str, arguments: tuple[Any, ...]) -> None:
    blocks = event in _ALWAYS_BLOCKING
    if event == "socket.connect":
        blocks = arguments[0].gettimeout() != 0
    if event == "subprocess.Popen":
        # asyncio starts processes in the same way, and does not wait for them.
        blocks = not any("asyncio" in frame.f_globals.get("__name__", "") for frame in _frames())
    if blocks:
        watch.calls.add((event, _line(sys._getframe())))


def _sleep(seconds: float) -> None:
    # Python tells of it by an audit event of its own only from 3.13 on.
    for watch in _watched:
        if watch.step_began is not None and threading.get_ident() == watch.thread:
            watch.calls.add(("time.sleep", _line(sys._getframe())))
    _python_sleep(seconds)


def _frames() -> Iterator[Any]:
    """The frames from here up to the code that steps the episode."""
    frame = sys._getframe(1)
    while frame is not None and not frame.f_globals.get("__name__", "").endswith("validate.stepping"):
        yield frame
        frame = frame.f_back


class _Timed(Stepper):
    """Tells the watch when a step begins and ends."""

    def __init__(self, coroutine: Any, watch: _Watch) -> None:
        super().__init__(coroutine)
        self._watch = watch

    def before_step(self) -> None:
        """A step begins."""
        self._watch.cpu_began_s = time.thread_time()
        self._watch.step_began = time.monotonic()

    def after_step(self) -> None:
        """It has ended."""
        self._watch.step_began = None


async def blocking(subject: Subject) -> Finding:
    """Play on a watched event loop: blocking calls are heard, long steps are looked at."""
    if subject.has_process:
        return skipped("blocking", "its episodes have a process, and with it a loop, each")
    problems: dict[str, None] = {}
    samples = subject.samples[:_SAMPLES]
    for index in samples:
        script = await subject.script(index)
        watch = await _watched_play(subject, index, script)
        if watch.long_steps:  # The machine may have been busy; what blocks does so again.
            again = await _watched_play(subject, index, script)
            watch.long_steps = {
                line: took for line, took in watch.long_steps.items() if line in again.long_steps
            }
        for call, line in sorted(watch.calls):
            problems[f"`{call}` blocks the event loop at {line}; {_WAYS_OUT}"] = None
        called = {line for _, line in watch.calls}
        for line, took in watch.long_steps.items():
            if line not in called:
                problems[
                    f"a step held up the event loop for {took:.2f} s, {watch.lag_s:g} s at most, at {line}; "
                    f"{_WAYS_OUT}"
                ] = None
    played = counted(len(samples), "sample")
    did = f"played {played} on a watched event loop, {subject.settings.lag_s:g} s a step at most"
    return judged("blocking", did, list(problems))


async def _watched_play(subject: Subject, index: SampleIndex, script: list[Any]) -> _Watch:
    _listen()
    watch = _Watch(threading.get_ident(), subject.settings.lag_s)
    runner = subject.runner(subject.variant())
    step_with(runner, lambda coroutine: _Timed(coroutine, watch))
    with _looked_at(watch):
        episode = await begin(runner, index, seed=SEED)
        await subject.finish(episode, ScriptedAgent(script))
    return watch


@contextmanager
def _looked_at(watch: _Watch) -> Iterator[None]:
    """Hear of the watch's calls, and look from another thread at where its long steps stand."""
    is_over = threading.Event()

    def look() -> None:
        while not is_over.wait(watch.lag_s / 5):
            began = watch.step_began
            if began is None or time.monotonic() - began < watch.lag_s:
                continue
            frame = sys._current_frames().get(watch.thread)
            if frame is not None and watch.step_began == began and watch.is_busy():
                line = _line(frame)
                watch.long_steps[line] = max(time.monotonic() - began, watch.long_steps.get(line, 0.0))

    thread = threading.Thread(target=look, name="lag", daemon=True)
    _watched.append(watch)
    time.sleep = _sleep
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()
        time.sleep = _python_sleep
        _watched.remove(watch)


def _line(frame: Any) -> str:
    """The line of the task that a thread is at."""
    return authors_line([inner for inner, _ in traceback.walk_stack(frame)])

"""A time-out ends the processes that a task has started, whatever they are doing."""

import asyncio
import contextlib
import os
import signal
import subprocess
import textwrap
import threading
import time
from pathlib import Path
from typing import Any, Self

from agentrl_core import SampleIndex, SessionError
from agentrl_env_sdk.processes import children_of
from agentrl_env_sdk.testing.episode import begin
from agentrl_env_sdk.validate.report import Finding
from agentrl_env_sdk.validate.resources import command_of, descendants, is_alive, parent_of
from agentrl_env_sdk.validate.subject import SEED, Subject, counted, judged

_SAMPLES = 2
_PAUSE_S = 0.001
_NAMING_TRIES = 50
_FORKED_S = 0.1
"""How long a process may look like its parent before it is taken for one that means to stay so."""
_DEADLY = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGKILL)


class _Stopper:
    """Stops each process as soon as it appears, so that whatever waits for it waits in vain.

    Args:
        spared: processes that are left alone.
        spares_children: whether their children are, too: the processes that episodes live in.

    Attributes:
        stopped: the processes it has stopped, with their command lines.
    """

    def __init__(self, *, spared: set[int], spares_children: bool) -> None:
        self.stopped: dict[int, str] = {}
        self._spared = spared
        self._spares_children = spares_children
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="stopper", daemon=True)

    def __enter__(self) -> Self:
        make = self._make = subprocess.Popen.__init__

        def make_stopped(process: Any, *args: Any, **kwargs: Any) -> None:
            make(process, *args, **kwargs)
            self._stop(process.pid)

        # Those of this process are stopped before they can end, others as soon as they are seen.
        subprocess.Popen.__init__ = make_stopped  # type: ignore[method-assign]
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        subprocess.Popen.__init__ = self._make  # type: ignore[method-assign]
        self._is_over.set()
        self._thread.join()

    def _stop(self, pid: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGSTOP)
            for _ in range(_NAMING_TRIES):  # It has no name for a moment while it becomes what it is to be.
                self.stopped[pid] = command_of(pid)
                if self.stopped[pid]:
                    break
                time.sleep(_PAUSE_S)

    def _watch(self) -> None:
        first_seen: dict[int, float] = {}
        while not self._is_over.wait(_PAUSE_S):
            found = descendants()
            spared = set(self._spared)
            if self._spares_children:
                spared.update(child for pid in self._spared for child in children_of(pid))
            for pid in found.keys() - spared - self.stopped.keys():
                age_s = time.monotonic() - first_seen.setdefault(pid, time.monotonic())
                if age_s > _FORKED_S or not _is_between_fork_and_exec(pid):
                    self._stop(pid)

    def survivors(self) -> dict[int, str]:
        """Those that are there still and that nobody has tried to end."""
        # The kernel's lists of children leave some out while others end; each is asked for by itself.
        return {pid: shown for pid, shown in self.stopped.items() if is_alive(pid) and not _is_dying(pid)}

    def kill(self) -> None:
        """End what it has stopped."""
        for pid in filter(is_alive, self.stopped):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


async def timeouts(subject: Subject) -> Finding:
    """Let the processes of an episode hang until its time-out, and see which are left."""
    problems: dict[str, None] = {}
    commands: dict[str, None] = {}
    for index in subject.samples[:_SAMPLES]:
        stopper = await _hang(subject, index)
        commands |= dict.fromkeys(map(_shortened, stopper.stopped.values()))
        for pid, shown in stopper.survivors().items():
            problems[
                f"sample {index!r}: process {pid} (`{_shortened(shown)}`) goes on "
                f"{subject.settings.grace_s:g} s after the time-out; "
                'kill it in `teardown`, or set `isolation = "process"` on the task'
            ] = None
        stopper.kill()
    seen = ", ".join(f"`{shown}`" for shown in commands)
    episodes = counted(len(subject.samples[:_SAMPLES]), "episode")
    did = f"stopped every process that {episodes} started until the time-out"
    return judged("timeouts", f"{did}: {seen}" if seen else f"{did}: they started none", list(problems))


def _shortened(command: str) -> str:
    """The program without its folder, and the first of its arguments."""
    program, _, arguments = command.partition(" ")
    return textwrap.shorten(f"{Path(program).name} {arguments}", 80, placeholder=" ...")


async def _hang(subject: Subject, index: SampleIndex) -> _Stopper:
    """Play an episode whose processes never get on; returns what became of them."""
    script = await subject.script(index)
    limit_s = min(subject.task.turn_timeout_s, subject.settings.timeout_s)
    runner = subject.runner(subject.variant(turn_timeout_s=limit_s))
    spared = set(descendants())
    with _Stopper(spared=spared, spares_children=subject.has_process) as stopper:
        with contextlib.suppress(SessionError, TimeoutError):
            async with asyncio.timeout(len(script) * limit_s + subject.settings.grace_s):
                episode = await begin(runner, index, seed=SEED)
                for action in script:
                    if not episode.finished:
                        await episode.act(action)
                await episode.cancel()
        deadline = time.monotonic() + subject.settings.grace_s
        while stopper.survivors() and time.monotonic() < deadline:  # noqa: ASYNC110 (the kernel sets no event)
            await asyncio.sleep(_PAUSE_S * 10)
    return stopper


def _is_between_fork_and_exec(pid: int) -> bool:
    """Whether a process still bears its parent's name; stopped there, it would hold up who starts it."""
    own = command_of(pid)
    return not own or own == command_of(parent_of(pid))


def _is_dying(pid: int) -> bool:
    """Whether a signal that ends it waits for a stopped process to go on."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return True
    pending = 0
    for line in lines:
        name, _, value = line.partition(":")
        if name in ("SigPnd", "ShdPnd"):
            pending |= int(value, 16)
    return any(pending >> (number - 1) & 1 for number in _DEADLY)

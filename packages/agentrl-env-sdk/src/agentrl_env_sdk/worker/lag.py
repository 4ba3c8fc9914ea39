"""How late a worker's event loop is, and which line of a task holds it up."""

import asyncio
import logging
import sys
import sysconfig
import threading
import time
from pathlib import Path
from types import FrameType

_log = logging.getLogger("agentrl_env_sdk")

_PERIOD_S = 0.05
_WINDOW_S = 15.0
"""About how long `worst_s` remembers; scrapes are seldom farther apart."""
_QUIET_S = 10.0

_SDK = str(Path(__file__).parents[1]) + "/"
_INSTALLED = tuple(f"{sysconfig.get_path(name)}/" for name in ("purelib", "platlib"))
_OURS = tuple(
    f"{path}{name}/"
    for path in _INSTALLED
    for name in ("aiohttp", "click", "fastapi", "grpc", "httptools", "pydantic", "starlette", "uvicorn")
)
"""What serves the task; it runs below and beside the task's code, and is no part of it."""
_STANDARD = ("<frozen", *(f"{sysconfig.get_path(name)}/" for name in ("stdlib", "platstdlib")))


class LoopLag:
    """Measures the lateness of the running loop, and warns of what blocks it.

    A blocked loop holds up every session of the worker, so that slow sync work belongs into sync methods,
    which run on threads.

    Args:
        task: name of the task, for the warning.
        limit_s: how long the loop may be blocked before its line is named.
    """

    def __init__(self, task: str, *, limit_s: float = 0.2) -> None:
        self._task = task
        self._limit_s = limit_s
        self._due = 0.0
        self._worst = [0.0, 0.0]
        self._window_ends = 0.0
        self._warned_at: dict[tuple[str, int], float] = {}
        self._over = threading.Event()
        self._sampling: asyncio.Task[None] | None = None
        self._watching: threading.Thread | None = None

    @property
    def worst_s(self) -> float:
        """The latest that the loop has been lately, in seconds."""
        return max(self._worst)

    def start(self) -> None:
        """Measure the running loop from now on."""
        now = time.monotonic()
        self._due, self._window_ends = now + _PERIOD_S, now + _WINDOW_S / 2
        self._sampling = asyncio.create_task(self._sample())
        self._watching = threading.Thread(
            target=self._watch, args=(threading.get_ident(),), name="loop lag", daemon=True
        )
        self._watching.start()

    def stop(self) -> None:
        """Measure no more."""
        self._over.set()
        if self._sampling is not None:
            self._sampling.cancel()

    async def _sample(self) -> None:
        while True:
            await asyncio.sleep(_PERIOD_S)
            now = time.monotonic()
            self._worst[0] = max(self._worst[0], now - self._due)
            if now > self._window_ends:
                self._worst = [0.0, self._worst[0]]
                self._window_ends = now + _WINDOW_S / 2
            self._due = now + _PERIOD_S

    def _watch(self, loop_thread: int) -> None:
        while not self._over.wait(self._limit_s / 2):
            late_s = time.monotonic() - self._due
            if late_s > self._limit_s:
                self._warn(sys._current_frames().get(loop_thread), late_s)

    def _warn(self, innermost: FrameType | None, late_s: float) -> None:
        """Name the line, unless it has just been; where none but ours is running, the machine is slow and not
        the task."""
        frame = author_frame(innermost)
        if frame is None:
            return
        line, now = (frame.f_code.co_filename, frame.f_lineno), time.monotonic()
        if now - self._warned_at.get(line, -_QUIET_S) < _QUIET_S:
            return
        self._warned_at[line] = now
        where = f"{frame.f_code.co_filename}:{frame.f_lineno}, in {frame.f_code.co_name}"
        _log.warning(
            "task `%s` has blocked the event loop, and with it every session, for %.1f s at %s; "
            "await there, or make the method a plain `def`, which runs on a thread",
            *(self._task, late_s, where),
        )


def author_frame(innermost: FrameType | None) -> FrameType | None:
    """The innermost frame of the task author's own; one of an installed library where there is none."""
    library = None
    frame = innermost
    while frame is not None:
        filename = frame.f_code.co_filename
        if filename.startswith(_OURS):
            pass
        elif filename.startswith(_INSTALLED) and not filename.startswith(_SDK):
            library = library or frame
        elif not filename.startswith((_SDK, *_STANDARD)):
            return frame
        frame = frame.f_back
    return library

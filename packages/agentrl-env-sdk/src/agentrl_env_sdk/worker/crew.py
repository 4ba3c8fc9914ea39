"""Processes of workers under one parent: begun again when they die, or when their code changes.

SIGTERM, SIGINT -> Crew -> the same to every process; it ends when all of them have
end of the crew -> end of each process's standard input, which it takes for a SIGTERM
"""

import asyncio
import contextlib
import logging
import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import watchfiles

from agentrl_env_sdk.worker.link import Pause

_log = logging.getLogger("agentrl_env_sdk")

CONFIG_EXIT = 78
"""How a process of a crew ends whose settings or task are wrong; to begin it again would not help."""
_FIRST_PAUSE_S = 0.5
_LONGEST_PAUSE_S = 30.0
_STABLE_S = 10.0


class Crew:
    """Keeps processes running.

    Args:
        commands: one process each.
        watched: folders whose Python files are watched; where there are any, a process is begun again on
            their change, and only then.
    """

    def __init__(self, commands: Sequence[Sequence[str]], *, watched: Sequence[Path] = ()) -> None:
        self._commands = commands
        self._watched = watched
        self._running: set[asyncio.subprocess.Process] = set()
        self._stopping = asyncio.Event()
        self._changed = asyncio.Event()
        self._exit_code = 0

    async def run(self) -> int:
        """Keep them running until a signal ends them all; returns an exit code."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop, number)
        keep = self._keep_fresh if self._watched else self._keep
        members = [asyncio.create_task(keep(command)) for command in self._commands]
        watching = asyncio.create_task(self._watch()) if self._watched else None
        try:
            await asyncio.gather(*members)
        finally:
            if watching is not None:
                watching.cancel()
                await asyncio.gather(watching, return_exceptions=True)
        return self._exit_code

    def _stop(self, number: int) -> None:
        self._stopping.set()
        self._changed.set()
        for process in self._running:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(number)

    async def _keep(self, command: Sequence[str]) -> None:
        """Begin a process again and again until the crew stops."""
        pause, is_first = Pause(_FIRST_PAUSE_S, _LONGEST_PAUSE_S), True
        while not self._stopping.is_set():
            began = time.monotonic()
            code = await self._run(command)
            if self._stopping.is_set():
                return
            if code == CONFIG_EXIT and is_first:
                self._exit_code = 1
                self._stop(signal.SIGTERM)
                return
            if time.monotonic() - began > _STABLE_S:
                pause.reset()
            pause_s, is_first = pause.next_s(), False
            _log.warning("a worker process ended with code %s; another one begins in %.1f s", code, pause_s)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._stopping.wait()

    async def _keep_fresh(self, command: Sequence[str]) -> None:
        """Begin a process again whenever its code has changed."""
        while not self._stopping.is_set():
            self._changed.clear()
            running = asyncio.create_task(self._run(command))
            await asyncio.wait(
                [running, changed := asyncio.create_task(self._changed.wait())],
                return_when=asyncio.FIRST_COMPLETED,
            )
            if running.done() and not self._stopping.is_set():
                _log.warning(
                    "the worker ended with code %s; it begins again with the next change", running.result()
                )
                await changed
            elif not self._stopping.is_set():
                _log.info("the code has changed; the worker begins anew")
                for process in self._running:
                    process.send_signal(signal.SIGINT)
            await running
            changed.cancel()

    async def _run(self, command: Sequence[str]) -> int:
        environment = dict(os.environ)
        if self._watched:  # A change within a second of the last one would be taken for what is cached.
            environment["PYTHONDONTWRITEBYTECODE"] = "1"
        # A group of its own, so that Ctrl-C in a terminal comes once: from here.
        process = await asyncio.create_subprocess_exec(
            *command, stdin=asyncio.subprocess.PIPE, process_group=0, env=environment
        )
        self._running.add(process)
        if self._stopping.is_set():
            process.terminate()
        try:
            return await process.wait()
        finally:
            self._running.discard(process)

    async def _watch(self) -> None:
        paths = [path for path in self._watched if path.is_dir()]
        async for _ in watchfiles.awatch(*paths, watch_filter=watchfiles.PythonFilter(), debounce=200):
            self._changed.set()


def end_with_parent() -> None:
    """Take the end of this process's standard input, and so of its crew, for a SIGTERM."""
    loop = asyncio.get_running_loop()

    def read() -> None:
        if not os.read(sys.stdin.fileno(), 1024):
            loop.remove_reader(sys.stdin.fileno())
            os.kill(os.getpid(), signal.SIGTERM)

    loop.add_reader(sys.stdin.fileno(), read)

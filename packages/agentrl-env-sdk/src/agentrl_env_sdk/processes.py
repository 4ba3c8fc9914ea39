"""Processes as the kernel shows them: descendants, and an end that none of them escapes."""

import contextlib
import ctypes
import os
import signal
import sys
from pathlib import Path

_PROC = Path("/proc")
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_ROUNDS = 100


def die_with_parent(number: int = signal.SIGKILL) -> None:
    """Have the kernel send this process a signal when its parent ends; Linux only.

    Args:
        number: the signal; one that can be caught leaves time to end what this process has started.
    """
    _prctl(_PR_SET_PDEATHSIG, number)


def adopt_orphans() -> None:
    """Become the parent of descendants whose own parent ends, daemons among them; Linux only."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


def children_of(pid: int) -> list[int]:
    """The living children of a process; those that wait to be reaped are not among them."""
    found: list[int] = []
    # A process that has ended in the meantime has no folder any more.
    with contextlib.suppress(OSError):
        for thread in (_PROC / str(pid) / "task").iterdir():
            found += map(int, (thread / "children").read_text().split())
    return [child for child in found if not _is_zombie(child)]


def kill_descendants(pid: int) -> None:
    """Kill what a process has started, however deep, as long as something is left.

    The process itself is expected to start nothing in the meantime.
    """
    for _ in range(_ROUNDS):
        found = children_of(pid)
        for child in found:
            found += children_of(child)
        if not found:
            return
        for each in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(each, signal.SIGKILL)


def kill_tree(pid: int) -> None:
    """Kill a process with all that it has started."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGSTOP)
        kill_descendants(pid)
        os.kill(pid, signal.SIGKILL)


def _is_zombie(pid: int) -> bool:
    try:
        stat = (_PROC / str(pid) / "stat").read_text()
    except OSError:
        return True
    return stat.rpartition(")")[2].split()[0] in "ZX"

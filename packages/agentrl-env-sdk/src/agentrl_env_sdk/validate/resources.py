"""What a process holds: descriptors, children, threads, temporary files."""

import os
import tempfile
import threading
from dataclasses import dataclass
from pathlib import Path

from agentrl_env_sdk.isolation.processes import children_of

_POOL_THREAD = "task"
"""Name of the SDK's own threads, which are kept for the next episode."""
_HELPERS = ("multiprocessing.resource_tracker", "multiprocessing.forkserver")
"""Processes that Python keeps for itself."""


@dataclass(frozen=True, slots=True)
class Resources:
    """What is held at a moment, each with a description."""

    descriptors: dict[int, str]
    """Open files and sockets."""
    processes: dict[int, str]
    """Descendants."""
    threads: dict[int, str]
    """Threads, those of the SDK apart."""
    temporary: frozenset[str]
    """Entries of the folder for temporary files."""

    @classmethod
    def now(cls) -> "Resources":
        """What is held now."""
        threads = {t.ident or 0: t.name for t in threading.enumerate() if t.name != _POOL_THREAD}
        return cls(_descriptors(), descendants(), threads, frozenset(os.listdir(tempfile.gettempdir())))

    def beyond(self, before: "Resources") -> list[str]:
        """What is held in addition to what was held before."""
        found = [
            f"descriptor {number} ({shown})"
            for number, shown in self.descriptors.items()
            if before.descriptors.get(number) != shown
        ]
        found += [
            f"process {pid} ({shown})" for pid, shown in self.processes.items() if pid not in before.processes
        ]
        found += [f"thread `{name}`" for ident, name in self.threads.items() if ident not in before.threads]
        folder = tempfile.gettempdir()
        found += [
            f"temporary file `{Path(folder, name)}`" for name in sorted(self.temporary - before.temporary)
        ]
        return found


def descendants() -> dict[int, str]:
    """Command lines of all living processes that this one has started."""
    found: dict[int, str] = {}
    unseen = children_of(os.getpid())
    while unseen:
        pid = unseen.pop()
        shown = command_of(pid)
        if pid not in found and not any(helper in shown for helper in _HELPERS):
            found[pid] = shown
            unseen += children_of(pid)
    return found


def command_of(pid: int) -> str:
    """The command line of a process; empty where it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return ""


def _descriptors() -> dict[int, str]:
    found: dict[int, str] = {}
    folder = Path("/proc/self/fd" if Path("/proc/self/fd").exists() else "/dev/fd")
    for entry in os.listdir(folder):
        try:
            found[int(entry)] = os.readlink(folder / entry)
        except OSError:  # the descriptor of the listing itself
            continue
    return found

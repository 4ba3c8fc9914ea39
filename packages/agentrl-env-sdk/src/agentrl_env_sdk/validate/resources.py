"""What a process holds: descriptors, children, threads, temporary files."""

import os
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from agentrl_env_sdk.processes import children_of

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
        temporary = frozenset(map(str, Path(tempfile.gettempdir()).iterdir()))
        # One look may leave a child out while another one ends.
        processes = descendants() | descendants()
        return cls(_descriptors(), processes, threads, temporary)

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
        found += [f"temporary file `{name}`" for name in sorted(self.temporary - before.temporary)]
        return found


@contextmanager
def own_temporary_folder() -> Iterator[None]:
    """Has temporary files made in a folder that nobody else uses, here and in processes that are started."""
    kept = tempfile.tempdir, os.environ.get("TMPDIR")
    with tempfile.TemporaryDirectory(prefix="agentrl-env-validate-", ignore_cleanup_errors=True) as folder:
        tempfile.tempdir = os.environ["TMPDIR"] = folder
        try:
            yield
        finally:
            tempfile.tempdir = kept[0]
            del os.environ["TMPDIR"]
            if kept[1] is not None:
                os.environ["TMPDIR"] = kept[1]


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


def is_alive(pid: int) -> bool:
    """Whether a process is there and has not ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (OSError, IndexError):
        return False


def parent_of(pid: int) -> int:
    """The process that started it; 0 where it has ended."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except (OSError, IndexError):
        return 0


def thread_state(native_id: int) -> tuple[str, float] | None:
    """The kernel's letter for what a thread of this process does, and its CPU seconds; None where untold."""
    try:
        fields = Path(f"/proc/self/task/{native_id}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return fields[0], (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _descriptors() -> dict[int, str]:
    found: dict[int, str] = {}
    folder = Path("/proc/self/fd" if Path("/proc/self/fd").exists() else "/dev/fd")
    for entry in list(folder.iterdir()):
        try:
            found[int(entry.name)] = str(entry.readlink())
        except OSError:  # the descriptor of the listing itself
            continue
    return found

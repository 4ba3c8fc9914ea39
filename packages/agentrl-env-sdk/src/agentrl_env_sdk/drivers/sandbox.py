"""Command lines that hold a command to its directory, its limits and its time, by what the kernel offers."""

import asyncio
import contextlib
import functools
import logging
import os
import secrets
import shutil
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from agentrl_env_sdk.drivers.base import Limits
from agentrl_env_sdk.processes import kill_tree

_log = logging.getLogger("agentrl_env_sdk")

HOME = "/work"
"""Where an environment's directory is within its namespaces."""

_ALL = frozenset({"network", "processes", "files"})
_LINKS = ("bin", "sbin", "lib", "lib64", "lib32")
_READABLE = (
    "/etc/alternatives",
    "/etc/group",
    "/etc/ld.so.cache",
    "/etc/ld.so.conf",
    "/etc/ld.so.conf.d",
    "/etc/localtime",
    "/etc/nsswitch.conf",
    "/etc/passwd",
    "/etc/profile",
    "/etc/terminfo",
)
_UNSHARE = ("unshare", "--user", "--map-current-user", "--pid", "--fork", "--kill-child", "--mount-proc")
_MARK = "AGENTRL_ENVIRONMENT"
_ROUNDS = 20
_ONLINE = ("/etc/hosts", "/etc/resolv.conf", "/etc/ssl", "/etc/ca-certificates")


class Sandbox:
    """How commands of an environment are started.

    Args:
        folder: the environment's directory.
        network: whether its commands reach a network.
        visible: further paths that they may read.
        limits: what a process may use.
        env: its variables.

    Attributes:
        isolation: what holds: see `Environment.isolation`.
    """

    def __init__(
        self,
        folder: Path,
        *,
        network: bool,
        visible: Sequence[Path],
        limits: Limits,
        env: Mapping[str, str],
    ) -> None:
        self._folder = folder
        self._network = network
        self._visible = visible
        self._limits = limits
        tool = _namespaces()
        _tell(tool)
        held = {"bwrap": _ALL, "unshare": frozenset({"network", "processes"})}.get(tool, frozenset())
        self.isolation = held - {"network"} if network else held
        self.home = HOME if tool == "bwrap" else str(folder)
        self.env = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": self.home, "LANG": "C.UTF-8", **env}
        self._is_first = tool == "unshare"
        self._prefix = {"bwrap": self._bwrap, "unshare": self._unshare}.get(tool, list)()

    def command(self, *words: str) -> list[str]:
        """A command line that runs the words inside."""
        # The first process of a namespace that has no other first one gets no signals but from outside.
        proceed = '"$@"\nexit $?' if self._is_first else 'exec "$@"'
        return [*_dies_with_parent(), *self._prefix, "sh", "-c", self._ulimits() + proceed, "sh", *words]

    @property
    def name(self) -> str:
        """The environment's name."""
        return self._folder.name

    @property
    def folder(self) -> Path:
        """Where its processes start."""
        return self._folder

    def _ulimits(self) -> str:
        limits = self._limits
        given = {
            "t": limits.cpu_s,
            "v": None if limits.memory_bytes is None else limits.memory_bytes // 1024,
            "f": None if limits.file_bytes is None else limits.file_bytes // 512,
        }
        lines = [f"ulimit -{flag} {value} 2>/dev/null" for flag, value in given.items() if value is not None]
        if limits.processes is not None:
            # bash calls it -u, and means the size of pipes by -p, which is what dash calls it.
            lines.append(" || ".join(f"ulimit -{flag} {limits.processes} 2>/dev/null" for flag in "up"))
        return "".join(f"{line} || :\n" for line in lines)

    def _bwrap(self) -> list[str]:
        words = ["bwrap", "--unshare-all", "--die-with-parent", "--new-session"]
        words += ["--share-net"] if self._network else []
        words += ["--ro-bind", "/usr", "/usr"]
        for name in _LINKS:
            path = Path("/") / name
            if path.is_symlink():
                words += ["--symlink", f"usr/{name}", str(path)]
            elif path.exists():
                words += ["--ro-bind", str(path), str(path)]
        for readable in (*_READABLE, *(_ONLINE if self._network else ()), *map(str, self._visible)):
            words += ["--ro-bind-try", readable, readable]
        words += ["--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp", "--bind", str(self._folder), HOME]
        return [*words, "--chdir", HOME]

    def _unshare(self) -> list[str]:
        return [*_UNSHARE] if self._network else [*_UNSHARE, "--net"]


class LocalProcess:
    """A process of a sandbox, ended with all that it started."""

    def __init__(self, process: asyncio.subprocess.Process, mark: str) -> None:
        self._process = process
        self._mark = mark
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        self._stdin = process.stdin
        self.stdout = process.stdout
        self.stderr = process.stderr

    @classmethod
    async def start(cls, sandbox: Sandbox, *words: str) -> "LocalProcess":
        """Start a command with pipes to it."""
        pipe = asyncio.subprocess.PIPE
        mark = f"{sandbox.name}/{secrets.token_hex(6)}" if "processes" not in sandbox.isolation else ""
        starting = asyncio.create_task(
            asyncio.create_subprocess_exec(
                *sandbox.command(*words),
                stdin=pipe,
                stdout=pipe,
                stderr=pipe,
                cwd=sandbox.folder,
                env=sandbox.env | ({_MARK: mark} if mark else {}),
                start_new_session=True,
            )
        )
        try:
            return cls(await asyncio.shield(starting), mark)
        except asyncio.CancelledError:
            starting.add_done_callback(lambda done: done.exception() or cls(done.result(), mark).kill())
            raise

    async def write(self, data: bytes) -> None:
        """Give it input."""
        self._stdin.write(data)
        await self._stdin.drain()

    def close_input(self) -> None:
        """Let it read the end of its input."""
        self._stdin.close()

    async def wait(self) -> int:
        """Its exit code, when it has ended; negative for a signal."""
        return await self._process.wait()

    def kill(self) -> None:
        """End it at once."""
        if self._process.returncode is None:
            kill_tree(self._process.pid)

    async def end(self) -> None:
        """End it, and wait until it is gone."""
        self.kill()
        await self._process.wait()
        if self._mark:
            await asyncio.to_thread(kill_marked, self._mark)


def kill_marked(mark: str) -> None:
    """Kill what commands without namespaces have left, daemons among them.

    A process that gives itself other variables is not found: only namespaces hold one that means to stay.

    Args:
        mark: an environment's name with a slash after it, or a command's own mark.
    """
    wanted = f"{_MARK}={mark}".encode()
    for _ in range(_ROUNDS):
        found = [pid for pid in _pids() if any(v.startswith(wanted) for v in _variables(pid))]
        for pid in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if not found:
            return


def _pids() -> list[int]:
    with contextlib.suppress(OSError):
        return [int(folder.name) for folder in Path("/proc").iterdir() if folder.name.isdigit()]
    return []


def _variables(pid: int) -> list[bytes]:
    """A process's variables; none where it has ended or belongs to somebody else."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    return []


@functools.cache
def _tell(tool: str) -> None:
    """Say once what does not hold here."""
    if tool != "bwrap":
        lost = "see this machine's files" if tool else "see this machine's files, processes and network"
        _log.warning(
            "commands in environments %s: bubblewrap does not work here (install `bubblewrap`)", lost
        )


@functools.cache
def _namespaces() -> str:
    """The tool that makes namespaces here, if any works."""
    # Tried with all that is used later: some machines make namespaces, but mount nothing in them.
    tries = {
        "bwrap": [
            *("bwrap", "--unshare-all", "--ro-bind", "/", "/"),
            *("--proc", "/proc", "--dev", "/dev", "true"),
        ],
        "unshare": [*_UNSHARE, "--net", "true"],
    }
    for tool, words in tries.items():
        if shutil.which(tool) and subprocess.run(words, capture_output=True, check=False).returncode == 0:
            return tool
    return ""


@functools.cache
def _dies_with_parent() -> tuple[str, ...]:
    return ("setpriv", "--pdeathsig", "KILL") if shutil.which("setpriv") else ()

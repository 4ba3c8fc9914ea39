"""Command lines that hold a command to its directory, its limits and its time, by what the kernel offers."""

import asyncio
import functools
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from agentrl_env_sdk.drivers.base import Limits
from agentrl_env_sdk.processes import kill_tree

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
    def folder(self) -> Path:
        """Where its processes start."""
        return self._folder

    def _ulimits(self) -> str:
        limits = self._limits
        given = {
            "t": limits.cpu_s,
            "v": None if limits.memory_bytes is None else limits.memory_bytes // 1024,
            "f": None if limits.file_bytes is None else limits.file_bytes // 512,
            "p": limits.processes,
        }
        # dash calls the limit of processes -p, bash -u; a shell without it does without.
        lines = [f"ulimit -{flag} {value} 2>/dev/null" for flag, value in given.items() if value is not None]
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
        words = ["unshare", "--user", "--map-current-user", "--pid", "--fork", "--kill-child", "--mount-proc"]
        return words if self._network else [*words, "--net"]


class LocalProcess:
    """A process of a sandbox, ended with all that it started."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
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
        starting = asyncio.create_task(
            asyncio.create_subprocess_exec(
                *sandbox.command(*words),
                stdin=pipe,
                stdout=pipe,
                stderr=pipe,
                cwd=sandbox.folder,
                env=sandbox.env,
                start_new_session=True,
            )
        )
        try:
            return cls(await asyncio.shield(starting))
        except asyncio.CancelledError:
            starting.add_done_callback(lambda done: done.exception() or cls(done.result()).kill())
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


@functools.cache
def _namespaces() -> str:
    """The tool that makes namespaces here, if any works."""
    tries = {
        "bwrap": ["bwrap", "--unshare-all", "--ro-bind", "/", "/", "true"],
        "unshare": ["unshare", "--user", "--map-current-user", "--pid", "--fork", "--net", "true"],
    }
    for tool, words in tries.items():
        if shutil.which(tool) and subprocess.run(words, capture_output=True, check=False).returncode == 0:
            return tool
    return ""


@functools.cache
def _dies_with_parent() -> tuple[str, ...]:
    return ("setpriv", "--pdeathsig", "KILL") if shutil.which("setpriv") else ()

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
        self._prefix = {"bwrap": self._bwrap, "unshare": self._unshare}.get(tool, list)()

    def command(self, *words: str) -> list[str]:
        """A command line that runs the words inside."""
        return [*_dies_with_parent(), *self._prefix, "sh", "-c", f'{self._ulimits()}exec "$@"', "sh", *words]

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


class Running:
    """A process of a sandbox, ended with all that it started.

    Attributes:
        process: what asyncio knows of it.
    """

    def __init__(self, process: asyncio.subprocess.Process, sandbox: Sandbox) -> None:
        self.process = process
        self._sandbox = sandbox

    @classmethod
    async def start(cls, sandbox: Sandbox, *words: str) -> "Running":
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
            return cls(await asyncio.shield(starting), sandbox)
        except asyncio.CancelledError:
            starting.add_done_callback(lambda done: done.exception() or cls(done.result(), sandbox).kill())
            raise

    def kill(self) -> None:
        """End it at once."""
        if self.process.returncode is None:
            kill_tree(self.process.pid)

    async def end(self) -> None:
        """End it, and wait until it is gone."""
        self.kill()
        await self.process.wait()


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

"""What an environment is, and what makes one."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from agentrl_core import AgentRLError


class EnvironmentFailedError(AgentRLError):
    """An environment could not be made, or has gone; nothing that the agent did."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What a command may use; None leaves it to the machine."""

    cpu_s: int | None = 60
    """CPU seconds of one process."""
    memory_bytes: int | None = 1 << 30
    """Address space of one process."""
    file_bytes: int | None = 256 << 20
    """Size of a file that it writes."""
    processes: int | None = 256
    """Processes of the same user at once; the kernel does not hold the superuser to it."""


@dataclass(frozen=True, slots=True)
class Subtype:
    """A kind of environment, and how many there may be."""

    name: str
    """What leases ask for."""
    image: str = ""
    """Image of containers; other drivers do without."""
    command: tuple[str, ...] = ()
    """What a container runs; its image's own command where it is empty."""
    env: Mapping[str, str] = field(default_factory=dict)
    """Variables of its processes."""
    ports: tuple[int, ...] = ()
    """Ports that a container listens on; the first is the one meant where none is named."""
    network: bool = False
    """Whether its processes reach a network."""
    visible: tuple[Path, ...] = ()
    """Paths of this machine that its processes may read, beside the system's programs."""
    limits: Limits = Limits()
    """What a command may use."""
    concurrency: int = 64
    """Instances at the same time; more leases wait their turn, first come, first served."""
    sharing: int = 1
    """Leases that one instance serves at the same time."""
    reuse: int = 1
    """Leases that one instance serves in all, one after the other."""
    lifetime_s: float = 3600.0
    """Seconds that a lease lasts at most; then its instance is ended, whoever uses it."""
    start_timeout_s: float = 120.0
    """Seconds that an instance may take to be there."""


@dataclass(frozen=True, slots=True)
class Completed:
    """How a command ended."""

    code: int
    """Exit code; 124 where it was stopped after its time, 128 + n where signal n ended it."""
    stdout: bytes
    """What it wrote, as much as is kept."""
    stderr: bytes
    """What it complained of, as much as is kept."""
    dropped_bytes: int = 0
    """Output beyond the limit."""
    timed_out: bool = False
    """Whether it was stopped after its time."""

    @property
    def text(self) -> str:
        """The output as text, then the complaints."""
        return (self.stdout + self.stderr).decode("utf-8", "replace")


OUTPUT_BYTES = 64 * 1024
"""How much of each stream is kept where nobody says otherwise."""


class Shell(Protocol):
    """A shell that keeps its directory and variables between commands."""

    async def run(
        self, command: str, *, timeout_s: float = 30.0, output_bytes: int = OUTPUT_BYTES
    ) -> Completed:
        """Run a command; one that takes too long, and a shell that ends, are followed by a new shell.

        Raises:
            EnvironmentFailedError: the environment is gone.
        """
        ...

    async def close(self) -> None:
        """End it with all that it has started."""
        ...


class Environment(Protocol):
    """One instance of a subtype."""

    @property
    def name(self) -> str:
        """Unique among all that share the leases."""
        ...

    @property
    def isolation(self) -> frozenset[str]:
        """What holds here: `network` (there is none), `processes` (it sees none of others', none outlive it),
        `files` (it sees its own directory and the system's programs)."""
        ...

    def url(self, port: int | None = None) -> str:
        """Where it answers.

        Args:
            port: a port of the subtype; its first where it is absent.

        Raises:
            EnvironmentFailedError: it has no such port.
        """
        ...

    async def run(
        self,
        command: str,
        *,
        stdin: bytes = b"",
        timeout_s: float = 30.0,
        output_bytes: int = OUTPUT_BYTES,
    ) -> Completed:
        """Run a command by a shell of its own, and end all that it started.

        Raises:
            EnvironmentFailedError: the environment is gone, or runs no commands.
        """
        ...

    async def shell(self) -> Shell:
        """Open a shell.

        Raises:
            EnvironmentFailedError: the environment is gone, or runs no commands.
        """
        ...

    async def put(self, path: str, data: bytes) -> None:
        """Write a file.

        Raises:
            EnvironmentFailedError: the path leads out of the environment, or it holds no files.
        """
        ...

    async def get(self, path: str) -> bytes:
        """Read a file.

        Raises:
            EnvironmentFailedError: there is no such file, the path leads out, or it holds no files.
        """
        ...


class Driver(Protocol):
    """Makes environments and ends them."""

    @property
    def kind(self) -> str:
        """Its name in the leases; what one process made, another one's driver of this kind can end."""
        ...

    async def create(self, subtype: Subtype, name: str) -> Environment:
        """Make an instance; one that is cancelled in between leaves what `destroy` can end by its name.

        Raises:
            EnvironmentFailedError: it could not be made.
            ConfigError: something that it needs is not installed.
        """
        ...

    async def destroy(self, name: str) -> None:
        """End an instance, by whomever it was made; nothing happens where there is none."""
        ...

    async def close(self) -> None:
        """Let go of what the driver itself holds."""
        ...


class Unable:
    """The parts that an environment lacks, refused by name."""

    isolation: frozenset[str] = frozenset()
    _kind = "environment"

    def url(self, port: int | None = None) -> str:
        """No address."""
        raise self._lacks("no address" if port is None else f"no port {port}")

    async def run(
        self,
        command: str,
        *,
        stdin: bytes = b"",
        timeout_s: float = 30.0,
        output_bytes: int = OUTPUT_BYTES,
    ) -> Completed:
        """No commands."""
        del command, stdin, timeout_s, output_bytes
        raise self._lacks("no commands")

    async def shell(self) -> Shell:
        """No shell."""
        raise self._lacks("no shell")

    async def put(self, path: str, data: bytes) -> None:
        """No files."""
        del path, data
        raise self._lacks("no files")

    async def get(self, path: str) -> bytes:
        """No files."""
        del path
        raise self._lacks("no files")

    def _lacks(self, what: str) -> EnvironmentFailedError:
        return EnvironmentFailedError(
            f"a {self._kind} has {what}; use the `process`, `docker` or `kubernetes` driver"
        )

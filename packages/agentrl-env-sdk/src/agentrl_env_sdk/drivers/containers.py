"""What environments in containers share: commands over a stream that carries both outputs, and files."""

import asyncio
import base64
import shlex
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Mapping
from pathlib import PurePosixPath

from agentrl_env_sdk.drivers.base import OUTPUT_BYTES, Completed, EnvironmentFailedError, Subtype
from agentrl_env_sdk.drivers.commands import CommandEnvironment

_PIECE = 64 * 1024
_FILE_S = 60.0
_LONGEST_FILE = 256 * 1024 * 1024
_KILL = (
    "end() { for c in $(cat /proc/$1/task/*/children 2>/dev/null); do end $c; done;"
    " kill -9 $1 2>/dev/null; };"
)


class Wire(ABC):
    """A command's stream: pieces of its outputs come, input goes."""

    @abstractmethod
    def pieces(self) -> AsyncIterator[tuple[int, bytes]]:
        """Its outputs as they come: 1 for what it writes, 2 for what it complains of."""

    @abstractmethod
    async def write(self, data: bytes) -> None:
        """Give it input."""

    @abstractmethod
    async def code(self) -> int:
        """Its exit code, when its outputs have ended.

        Raises:
            EnvironmentFailedError: the stream was lost before the command ended.
        """

    @abstractmethod
    async def close(self) -> None:
        """Let go of the stream."""


class RemoteProcess:
    """A command in a container, known by its number there.

    Args:
        environment: the container.
        wire: its stream; the first line that comes is its number.
    """

    def __init__(self, environment: "ContainerEnvironment", wire: Wire) -> None:
        self._environment = environment
        self._wire = wire
        self.stdout = asyncio.StreamReader()
        self.stderr = asyncio.StreamReader()
        self._number: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._pumping = asyncio.create_task(self._pump())

    async def write(self, data: bytes) -> None:
        """Give it input."""
        for start in range(0, len(data), _PIECE):
            await self._wire.write(data[start : start + _PIECE])

    def close_input(self) -> None:
        """Neither engine nor cluster can close the input alone; commands get none to begin with."""

    async def wait(self) -> int:
        """Its exit code, when it has ended."""
        return await asyncio.shield(self._pumping)

    async def end(self) -> None:
        """End it with all that it has started."""
        if not self._pumping.done():
            number = await self._number
            await self._environment.kill(number)
            self._pumping.cancel()
            await asyncio.wait([self._pumping])
        await self._wire.close()

    async def _pump(self) -> int:
        streams = {1: self.stdout, 2: self.stderr}
        first = b""
        try:
            async for stream, data in self._wire.pieces():
                if not self._number.done() and stream == 1:
                    first += data
                    line, found, rest = first.partition(b"\n")
                    if not found:
                        continue
                    self._number.set_result(int(line))
                    data = rest
                if data:
                    streams[stream].feed_data(data)
            return await self._wire.code()
        finally:
            if not self._number.done():
                self._number.set_result(0)
            for reader in streams.values():
                reader.feed_eof()


class ContainerEnvironment(CommandEnvironment, ABC):
    """A container.

    Attributes:
        name: unique among all that share the leases.
        isolation: what containers promise.
    """

    isolation = frozenset({"processes", "files"})

    def __init__(self, name: str, subtype: Subtype, addresses: Mapping[int, str]) -> None:
        self.name = name
        self._subtype = subtype
        self._addresses = addresses

    def url(self, port: int | None = None) -> str:
        """Where a port of the container answers; the scheme is up to the caller's protocol."""
        chosen = port if port is not None else next(iter(self._subtype.ports), None)
        if chosen is None or chosen not in self._addresses:
            message = f"environment `{self._subtype.name}` has no port {chosen}; its `ports` are"
            raise EnvironmentFailedError(f"{message} {sorted(self._addresses)}")
        return f"http://{self._addresses[chosen]}"

    async def run(
        self,
        command: str,
        *,
        stdin: bytes = b"",
        timeout_s: float = 30.0,
        output_bytes: int = OUTPUT_BYTES,
    ) -> Completed:
        """Run a command by a shell of its own, and end all that it started."""
        # The stream's input cannot be ended, so a command that reads to the end would wait for ever.
        given = f"head -c {len(stdin)} |" if stdin else "</dev/null"
        words = f"{given} sh -c {shlex.quote(command)}"
        return await super().run(words, stdin=stdin, timeout_s=timeout_s, output_bytes=output_bytes)

    async def start(self, *words: str) -> RemoteProcess:
        """A command in the container."""
        return RemoteProcess(self, await self._execute("sh", "-c", 'echo $$; exec "$@"', "sh", *words))

    async def kill(self, number: int) -> None:
        """End a process of the container with all that it has started."""
        wire = await self._execute("sh", "-c", f"{_KILL} end {number}")
        async for _ in wire.pieces():
            pass
        await wire.close()

    async def put(self, path: str, data: bytes) -> None:
        """Write a file; directories on the way are made."""
        target = shlex.quote(path)
        parent = shlex.quote(str(PurePosixPath(path).parent))
        # Not in the command: it is part of an address, which proxies hold to a few kilobytes.
        await self._do(f"mkdir -p {parent} && cat > {target}", path, data)

    async def get(self, path: str) -> bytes:
        """Read a file."""
        return base64.b64decode(await self._do(f"base64 {shlex.quote(path)}", path))

    async def _do(self, command: str, path: str, stdin: bytes = b"") -> bytes:
        done = await self.run(command, stdin=stdin, timeout_s=_FILE_S, output_bytes=_LONGEST_FILE)
        if done.code != 0:
            raise EnvironmentFailedError(f"`{path}`: {done.stderr.decode(errors='replace').strip()}")
        return done.stdout

    @abstractmethod
    async def _execute(self, *words: str) -> Wire:
        """Start a command with its input and both outputs attached."""

"""Environments that are directories of this machine, and commands in them."""

import asyncio
import base64
import contextlib
import os
import secrets
import shutil
import tempfile
from pathlib import Path

from agentrl_env_sdk.drivers.base import (
    OUTPUT_BYTES,
    Completed,
    EnvironmentFailedError,
    Shell,
    Subtype,
    Unable,
)
from agentrl_env_sdk.drivers.sandbox import Running, Sandbox

_TIMED_OUT = 124
_CHUNK = 64 * 1024


class ProcessDriver:
    """Makes a directory for each environment; commands in it are kept apart as far as the kernel allows.

    `Environment.isolation` tells what holds. With bubblewrap commands see nothing but their directory and the
    system's programs; with `unshare` they have no network and leave no process; with neither they only have
    limits and an end.

    Args:
        folder: where the directories are made; the temporary directory where it is absent.
    """

    kind = "process"

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder or Path(tempfile.gettempdir()) / f"agentrl-environments-{os.getuid()}"
        self._open: dict[str, DirectoryEnvironment] = {}

    async def create(self, subtype: Subtype, name: str) -> "DirectoryEnvironment":
        """Make the directory."""
        folder = self._folder / name
        folder.mkdir(mode=0o700, parents=True)
        environment = self._open[name] = DirectoryEnvironment(name, folder, subtype)
        return environment

    async def destroy(self, name: str) -> None:
        """End what runs in it and remove the directory; processes of a dead owner have died with it."""
        environment = self._open.pop(name, None)
        if environment is not None:
            await environment.end()
        await asyncio.to_thread(_remove, self._folder / name)

    async def close(self) -> None:
        """End everything."""
        for name in list(self._open):
            await self.destroy(name)


class DirectoryEnvironment(Unable):
    """A directory, and commands in it.

    Attributes:
        name: unique among all that share the leases.
        folder: the directory, as this process sees it.
        isolation: what holds for its commands.
    """

    _kind = "directory"

    def __init__(self, name: str, folder: Path, subtype: Subtype) -> None:
        self.name = name
        self.folder = folder
        self._sandbox = Sandbox(
            folder, network=subtype.network, visible=subtype.visible, limits=subtype.limits, env=subtype.env
        )
        self.isolation = self._sandbox.isolation
        self._running: set[Running] = set()
        self._is_over = False

    async def run(
        self,
        command: str,
        *,
        stdin: bytes = b"",
        timeout_s: float = 30.0,
        output_bytes: int = OUTPUT_BYTES,
    ) -> Completed:
        """Run a command by a shell of its own, and end all that it started."""
        async with self.started("sh", "-c", command) as running:
            process = running.process
            assert process.stdin is not None
            assert process.stdout is not None
            assert process.stderr is not None
            outputs = Kept(output_bytes), Kept(output_bytes)
            works = [
                asyncio.create_task(outputs[0].read(process.stdout)),
                asyncio.create_task(outputs[1].read(process.stderr)),
                asyncio.create_task(_feed(process.stdin, stdin)),
            ]
            try:
                async with asyncio.timeout(timeout_s):
                    code = await process.wait()
                timed_out = False
            except TimeoutError:
                code, timed_out = _TIMED_OUT, True
            finally:
                await running.end()
                # What it wrote is in the pipes; whoever kept them open has been ended.
                done, late = await asyncio.wait(works, timeout=5.0)
                for work in late:
                    work.cancel()
                del done
        dropped = outputs[0].num_dropped + outputs[1].num_dropped
        return Completed(_positive(code), outputs[0].data, outputs[1].data, dropped, timed_out)

    async def shell(self) -> Shell:
        """Open a shell."""
        return ProcessShell(self)

    @contextlib.asynccontextmanager
    async def started(self, *words: str):
        """A process that ends with the block, and with the environment."""
        running = await self.start(*words)
        try:
            yield running
        finally:
            running.kill()
            self._running.discard(running)

    async def start(self, *words: str) -> Running:
        """A process that ends with the environment.

        Raises:
            EnvironmentFailedError: the environment has ended.
        """
        if self._is_over:
            raise EnvironmentFailedError(f"environment {self.name} has ended")
        running = await Running.start(self._sandbox, *words)
        self._running.add(running)
        if self._is_over:
            running.kill()
        return running

    def forget(self, running: Running) -> None:
        """Let go of a process that has ended."""
        self._running.discard(running)

    async def put(self, path: str, data: bytes) -> None:
        """Write a file; directories on the way are made."""
        await asyncio.to_thread(self._put, path, data)

    async def get(self, path: str) -> bytes:
        """Read a file."""
        return await asyncio.to_thread(self._get, path)

    async def end(self) -> None:
        """End everything that runs in it."""
        self._is_over = True
        for running in list(self._running):
            await running.end()

    def _put(self, path: str, data: bytes) -> None:
        descriptor = self._walk(path, make=True)
        try:
            name = Path(path).name
            # An agent may have put a link there; what it points to is not ours to write.
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW
            with os.fdopen(os.open(name, flags, 0o644, dir_fd=descriptor), "wb") as file:
                file.write(data)
        except OSError as error:
            raise EnvironmentFailedError(f"`{path}` cannot be written: {error.strerror}") from error
        finally:
            os.close(descriptor)

    def _get(self, path: str) -> bytes:
        descriptor = self._walk(path, make=False)
        try:
            # Without O_NONBLOCK, a pipe that nobody writes to would be waited for.
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
            with os.fdopen(os.open(Path(path).name, flags, dir_fd=descriptor), "rb") as file:
                return file.read()
        except OSError as error:
            raise EnvironmentFailedError(f"`{path}` cannot be read: {error.strerror}") from error
        finally:
            os.close(descriptor)

    def _walk(self, path: str, *, make: bool) -> int:
        """A descriptor of the directory that holds a path; no step may be a link."""
        home = Path(self._sandbox.home)
        relative = Path(path).relative_to(home) if Path(path).is_relative_to(home) else Path(path)
        if relative.is_absolute() or ".." in relative.parts or not relative.name:
            raise EnvironmentFailedError(f"`{path}` leads out of the environment; name a path below `{home}`")
        descriptor = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY)
        for step in relative.parent.parts:
            try:
                if make:
                    with contextlib.suppress(FileExistsError):
                        os.mkdir(step, dir_fd=descriptor)
                below = os.open(step, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=descriptor)
            except OSError as error:
                message = f"`{path}` cannot be reached, at `{step}`: {error.strerror}"
                raise EnvironmentFailedError(message) from error
            finally:
                os.close(descriptor)
            descriptor = below
        return descriptor


class Kept:
    """The beginning of a stream; the rest is read and dropped.

    Args:
        limit: bytes that are kept.

    Attributes:
        num_dropped: bytes that were not.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._data = bytearray()
        self.num_dropped = 0

    @property
    def data(self) -> bytes:
        """What is kept."""
        return bytes(self._data)

    def add(self, data: bytes) -> None:
        """Take in some more."""
        room = self._limit - len(self._data)
        self._data += data[:room]
        self.num_dropped += max(0, len(data) - room)

    async def read(self, stream: asyncio.StreamReader) -> None:
        """Take in a stream to its end."""
        while data := await stream.read(_CHUNK):
            self.add(data)

    async def read_until(self, stream: asyncio.StreamReader, mark: bytes) -> bytes | None:
        """Take in a stream up to a line that begins with a mark.

        Returns:
            The rest of that line; None where the stream ended before.
        """
        tail = b""
        while True:
            found = tail.find(mark)
            end = tail.find(b"\n", found + len(mark)) if found >= 0 else -1
            if end >= 0:
                self.add(tail[:found])
                return tail[found + len(mark) : end]
            # The mark may have come in half.
            safe = len(tail) - len(mark) if found < 0 else found
            if safe > 0:
                self.add(tail[:safe])
                tail = tail[safe:]
            data = await stream.read(_CHUNK)
            if not data:
                self.add(tail)
                return None
            tail += data


class ProcessShell:
    """A shell that keeps its directory and variables between commands.

    Args:
        environment: where it runs.
    """

    def __init__(self, environment: DirectoryEnvironment) -> None:
        self._environment = environment
        self._running: Running | None = None
        self._lock = asyncio.Lock()

    async def run(
        self, command: str, *, timeout_s: float = 30.0, output_bytes: int = OUTPUT_BYTES
    ) -> Completed:
        """Run a command; one that takes too long, and a shell that ends, are followed by a new shell."""
        async with self._lock:
            running = self._running or await self._start()
            outputs = Kept(output_bytes), Kept(output_bytes)
            timed_out = False
            try:
                async with asyncio.timeout(timeout_s):
                    code = await self._run(running, command, outputs)
            except TimeoutError:
                code, timed_out = _TIMED_OUT, True
                await self._end()
            except BaseException:
                await self._end()
                raise
            if code is None:
                code = await running.process.wait()
                await self._end()
            dropped = outputs[0].num_dropped + outputs[1].num_dropped
            return Completed(_positive(code), outputs[0].data, outputs[1].data, dropped, timed_out)

    async def close(self) -> None:
        """End it with all that it has started."""
        await self._end()

    async def _start(self) -> Running:
        shell = "bash" if shutil.which("bash") else "sh"
        self._running = await self._environment.start(shell)
        return self._running

    async def _run(self, running: Running, command: str, outputs: tuple[Kept, Kept]) -> int | None:
        """The exit code; None where the shell has ended."""
        process = running.process
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        mark = f"\n{secrets.token_hex(16)} ".encode()
        # Encoded, a command can neither end early nor be taken for the next line. It reads nothing: the
        # shell's own input is the pipe that its commands come through.
        encoded = base64.b64encode(command.encode("utf-8", "surrogateescape")).decode()
        name = mark.strip().decode()
        lines = (
            f'eval "$(printf %s {encoded} | base64 -d)" < /dev/null\n'
            f"{{ printf '\\n%s %d\\n' {name} \"$?\"; printf '\\n%s 0\\n' {name} >&2; }}\n"
        )
        try:
            process.stdin.write(lines.encode())
            await process.stdin.drain()
        except OSError:
            return None
        rest, _ = await asyncio.gather(
            outputs[0].read_until(process.stdout, mark), outputs[1].read_until(process.stderr, mark)
        )
        return None if rest is None else int(rest)

    async def _end(self) -> None:
        if self._running is not None:
            running, self._running = self._running, None
            await running.end()
            self._environment.forget(running)


async def _feed(stream: asyncio.StreamWriter, data: bytes) -> None:
    with contextlib.suppress(OSError):
        stream.write(data)
        await stream.drain()
    stream.close()


def _positive(code: int) -> int:
    return code if code >= 0 else 128 - code


def _remove(folder: Path) -> None:
    """Remove a directory whose owner may have taken its own rights away."""
    if not folder.exists():
        return
    for root, folders, _ in os.walk(folder):
        for name in folders:
            path = Path(root) / name
            if not path.is_symlink():
                path.chmod(0o700)
    shutil.rmtree(folder)

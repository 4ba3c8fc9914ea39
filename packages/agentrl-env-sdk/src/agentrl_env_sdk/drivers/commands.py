"""Commands in an environment, whatever starts them: time, output and one shell for several."""

import asyncio
import base64
import contextlib
import secrets
from abc import abstractmethod
from typing import Protocol

from agentrl_env_sdk.content import encodable
from agentrl_env_sdk.drivers.base import OUTPUT_BYTES, Completed, Shell, Unable

_TIMED_OUT = 124
_CHUNK = 64 * 1024
_LAST_OUTPUT_S = 5.0


class Running(Protocol):
    """A command that runs."""

    @property
    def stdout(self) -> asyncio.StreamReader:
        """What it writes."""
        ...

    @property
    def stderr(self) -> asyncio.StreamReader:
        """What it complains of."""
        ...

    async def write(self, data: bytes) -> None:
        """Give it input.

        Raises:
            OSError: it takes none any more.
        """
        ...

    def close_input(self) -> None:
        """Let it read the end of its input."""
        ...

    async def wait(self) -> int:
        """Its exit code, when it has ended; negative for a signal."""
        ...

    async def end(self) -> None:
        """End it with all that it has started, and wait until it is gone."""
        ...


class CommandEnvironment(Unable):
    """An environment that runs commands; what starts one is left open."""

    @abstractmethod
    async def start(self, *words: str) -> Running:
        """A command that ends with the environment.

        Raises:
            EnvironmentFailedError: the environment has ended.
        """

    def forget(self, running: Running) -> None:
        """Let go of a command that has ended."""

    async def run(
        self,
        command: str,
        *,
        stdin: bytes = b"",
        timeout_s: float = 30.0,
        output_bytes: int = OUTPUT_BYTES,
    ) -> Completed:
        """Run a command by a shell of its own, and end all that it started."""
        running = await self.start("sh", "-c", _clean(command))
        outputs = Kept(output_bytes), Kept(output_bytes)
        works = [
            asyncio.create_task(outputs[0].read(running.stdout)),
            asyncio.create_task(outputs[1].read(running.stderr)),
            asyncio.create_task(_feed(running, stdin)),
        ]
        timed_out = False
        try:
            async with asyncio.timeout(timeout_s):
                code = await running.wait()
        except TimeoutError:
            code, timed_out = _TIMED_OUT, True
        finally:
            await asyncio.shield(running.end())
            self.forget(running)
            # What it wrote is still on its way; whoever kept the pipes open has been ended.
            _, late = await asyncio.wait(works, timeout=_LAST_OUTPUT_S)
            for work in late:
                work.cancel()
        return _completed(code, outputs, timed_out=timed_out)

    async def shell(self) -> Shell:
        """Open a shell."""
        return CommandShell(self)


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
        try:
            while True:
                found = tail.find(mark)
                end = tail.find(b"\n", found + len(mark)) if found >= 0 else -1
                if end >= 0:
                    rest, tail = tail[found + len(mark) : end], tail[:found]
                    return rest
                # The mark may have come in half.
                safe = len(tail) - len(mark) if found < 0 else found
                if safe > 0:
                    self.add(tail[:safe])
                    tail = tail[safe:]
                data = await stream.read(_CHUNK)
                if not data:
                    return None
                tail += data
        finally:
            self.add(tail)


class CommandShell:
    """A shell that keeps its directory and variables between commands.

    Args:
        environment: where it runs.
    """

    def __init__(self, environment: CommandEnvironment) -> None:
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
                try:
                    code = await running.wait()
                finally:
                    await self._end()
            return _completed(code, outputs, timed_out=timed_out)

    async def close(self) -> None:
        """End it with all that it has started."""
        await self._end()

    async def _start(self) -> Running:
        self._running = await self._environment.start(
            "sh", "-c", "command -v bash >/dev/null && exec bash || exec sh"
        )
        return self._running

    async def _run(self, running: Running, command: str, outputs: tuple[Kept, Kept]) -> int | None:
        """The exit code; None where the shell has ended."""
        mark = f"\n{secrets.token_hex(16)} ".encode()
        # Encoded, a command can neither end early nor be taken for the next line. It reads nothing: the
        # shell's own input is the pipe that its commands come through.
        encoded = base64.b64encode(_clean(command).encode()).decode()
        name = mark.strip().decode()
        lines = (
            f'eval "$(printf %s {encoded} | base64 -d)" < /dev/null\n'
            f"{{ printf '\\n%s %d\\n' {name} \"$?\"; printf '\\n%s 0\\n' {name} >&2; }}\n"
        )
        try:
            await running.write(lines.encode())
        except OSError:
            return None
        rest, _ = await asyncio.gather(
            outputs[0].read_until(running.stdout, mark), outputs[1].read_until(running.stderr, mark)
        )
        return None if rest is None else int(rest)

    async def _end(self) -> None:
        if self._running is not None:
            running, self._running = self._running, None
            await asyncio.shield(running.end())
            self._environment.forget(running)


def _clean(command: str) -> str:
    """A model's command without what no command line can hold."""
    return encodable(command).replace("\0", "")


def _completed(code: int, outputs: "tuple[Kept, Kept]", *, timed_out: bool) -> Completed:
    dropped = outputs[0].num_dropped + outputs[1].num_dropped
    return Completed(_positive(code), outputs[0].data, outputs[1].data, dropped, timed_out)


async def _feed(running: Running, data: bytes) -> None:
    with contextlib.suppress(OSError):
        if data:
            await running.write(data)
        running.close_input()


def _positive(code: int) -> int:
    return code if code >= 0 else 128 - code

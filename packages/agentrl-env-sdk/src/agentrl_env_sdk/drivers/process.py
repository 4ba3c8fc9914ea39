"""Environments that are directories of this machine, and commands in them."""

import asyncio
import contextlib
import os
import shutil
import tempfile
from pathlib import Path

from agentrl_env_sdk.drivers.base import EnvironmentFailedError, Subtype
from agentrl_env_sdk.drivers.commands import CommandEnvironment, Running
from agentrl_env_sdk.drivers.sandbox import LocalProcess, Sandbox, kill_marked


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
        """End what runs in it and remove the directory, by whomever it was made."""
        environment = self._open.pop(name, None)
        if environment is not None:
            await environment.end()
        if environment is None or "processes" not in environment.isolation:
            await asyncio.to_thread(kill_marked, f"{name}/")
        await asyncio.to_thread(_remove, self._folder / name)

    async def close(self) -> None:
        """End everything."""
        for name in list(self._open):
            await self.destroy(name)


class DirectoryEnvironment(CommandEnvironment):
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

    async def start(self, *words: str) -> Running:
        """A process that ends with the environment."""
        if self._is_over:
            raise EnvironmentFailedError(f"environment {self.name} has ended")
        running = await LocalProcess.start(self._sandbox, *words)
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

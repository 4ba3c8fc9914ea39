"""Environments that are containers of a Docker engine."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from agentrl_core import ConfigError
from agentrl_env_sdk.drivers.base import EnvironmentFailedError, Subtype
from agentrl_env_sdk.drivers.containers import ContainerEnvironment, Wire
from agentrl_env_sdk.extras import extra

with extra("docker"):
    import aiodocker
    import aiohttp
    from aiodocker.containers import DockerContainer
    from aiodocker.execs import Exec
    from aiodocker.stream import Stream

_ANSWER_S = 30.0
_LOOKS = 20
_PAUSE_S = 0.05

LABEL = "agentrl.environment"
"""On every container that we make; its value is the container's name."""


class DockerDriver:
    """Makes containers; images must be there or be pullable.

    Args:
        url: the engine; `DOCKER_HOST`, or its usual socket, where it is absent.
        host: address of this machine that the containers' ports are opened on.
    """

    kind = "docker"

    def __init__(self, url: str | None = None, *, host: str = "127.0.0.1") -> None:
        self._url = url
        self._host = host
        self._client: aiodocker.Docker | None = None

    async def create(self, subtype: Subtype, name: str) -> "DockerEnvironment":
        """Make a container and wait until it runs."""
        if not subtype.image:
            raise ConfigError(f"environment `{subtype.name}` needs an `image`")
        try:
            try:
                container = await self._make(subtype, name)
            except aiodocker.DockerError as error:
                if error.status != 404:
                    raise
                await self._engine().images.pull(subtype.image)
                container = await self._make(subtype, name)
            await container.start()
            shown = await container.show()
        except aiodocker.DockerError as error:
            raise EnvironmentFailedError(f"the engine refuses `{subtype.image}`: {error.message}") from error
        return DockerEnvironment(name, subtype, self._addresses(shown), container)

    async def _make(self, subtype: Subtype, name: str) -> DockerContainer:
        """Ask for a container; a cancel waits for the answer, so that `destroy` finds what came of it."""
        settings = self._settings(subtype, name)
        making = asyncio.create_task(self._engine().containers.create(settings, name=name))
        try:
            return await asyncio.shield(making)
        except asyncio.CancelledError:
            await asyncio.wait([making], timeout=_ANSWER_S)
            making.cancel()
            raise

    async def destroy(self, name: str) -> None:
        """Remove a container."""
        try:
            await self._engine().containers.container(name).delete(force=True, v=True)
        except aiodocker.DockerError as error:
            # Any other refusal leaves a container behind, whose lease must stay.
            is_going = error.status == 409 and "already in progress" in error.message
            if error.status != 404 and not is_going:
                message = f"container {name} cannot be removed: {error.message}"
                raise EnvironmentFailedError(message) from error

    async def close(self) -> None:
        """Close the connection."""
        if self._client is not None:
            client, self._client = self._client, None
            await client.close()

    def _engine(self) -> "aiodocker.Docker":
        if self._client is None:
            try:
                self._client = aiodocker.Docker(url=self._url)
            except ValueError as error:
                raise ConfigError(f"there is no Docker engine here ({error}); give its `url`") from error
        return self._client

    def _settings(self, subtype: Subtype, name: str) -> dict[str, Any]:
        limits = subtype.limits
        host: dict[str, Any] = {
            "PortBindings": {f"{port}/tcp": [{"HostIp": self._host}] for port in subtype.ports},
            "Init": True,  # Someone must reap what commands leave.
        }
        if limits.memory_bytes is not None:
            host["Memory"] = limits.memory_bytes
        if limits.processes is not None:
            host["PidsLimit"] = limits.processes
        if not (subtype.network or subtype.ports):
            host["NetworkMode"] = "none"
        settings = {
            "Image": subtype.image,
            "Env": [f"{key}={value}" for key, value in subtype.env.items()],
            "ExposedPorts": {f"{port}/tcp": {} for port in subtype.ports},
            "Labels": {LABEL: name},
            "HostConfig": host,
        }
        return settings | ({"Cmd": list(subtype.command)} if subtype.command else {})

    def _addresses(self, shown: dict[str, Any]) -> dict[int, str]:
        opened = shown["NetworkSettings"].get("Ports") or {}
        return {
            int(port.partition("/")[0]): f"{self._host}:{bound[0]['HostPort']}"
            for port, bound in opened.items()
            if bound
        }


class DockerEnvironment(ContainerEnvironment):
    """A container of an engine."""

    def __init__(
        self,
        name: str,
        subtype: Subtype,
        addresses: dict[int, str],
        container: DockerContainer,
    ) -> None:
        super().__init__(name, subtype, addresses)
        self._container = container

    async def _execute(self, *words: str) -> Wire:
        try:
            made = await self._container.exec(list(words), stdin=True, stdout=True, stderr=True)
            # Opened here: a first read and a first write at the same time would each start the command.
            stream = await made.start(detach=False).__aenter__()
        except aiodocker.DockerError as error:
            raise EnvironmentFailedError(f"container {self.name} is gone: {error.message}") from error
        return _Stream(made, stream)


class _Stream(Wire):
    def __init__(self, made: Exec, stream: Stream) -> None:
        self._made = made
        self._stream = stream

    async def pieces(self) -> AsyncIterator[tuple[int, bytes]]:
        while (message := await self._stream.read_out()) is not None:
            yield message.stream, message.data

    async def write(self, data: bytes) -> None:
        await self._stream.write_in(data)

    async def code(self) -> int:
        # The engine closes the stream a moment before it knows the code.
        for _ in range(_LOOKS):
            try:
                code = (await self._made.inspect())["ExitCode"]
            except (aiodocker.DockerError, aiohttp.ClientError) as error:
                raise EnvironmentFailedError(f"the container is gone: {error}") from error
            if code is not None:
                return int(code)
            await asyncio.sleep(_PAUSE_S)
        raise EnvironmentFailedError("the stream of a command was lost before the command ended")

    async def close(self) -> None:
        await self._stream.close()

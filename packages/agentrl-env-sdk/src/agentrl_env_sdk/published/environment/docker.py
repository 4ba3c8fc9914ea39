"""Containers as a delegation describes them, on a Docker engine."""

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from agentrl_core import ConfigError
from agentrl_env_sdk.drivers import Subtype
from agentrl_env_sdk.drivers.base import EnvironmentFailedError
from agentrl_env_sdk.drivers.docker import LABEL, DockerDriver, DockerEnvironment
from agentrl_env_sdk.extras import extra
from agentrl_env_sdk.published.environment.container import Made, container_of, kind_of, url_of
from agentrl_env_sdk.published.environment.delegation import EnvironmentDelegation

with extra("docker"):
    import aiodocker

_PAUSE_S = 0.25


class DelegatedDocker(DockerDriver):
    """Makes containers in a network that this worker is in, too.

    Args:
        delegation: the task's part of the configuration.
        network: the Docker network; containers are reached by their address in it.
        connection: how the engine is reached, such as `{"url": "tcp://host:2375"}`.

    Raises:
        ConfigError: the network has no name.
    """

    def __init__(
        self, delegation: EnvironmentDelegation, *, network: str, connection: Mapping[str, Any] | None = None
    ) -> None:
        super().__init__()
        if not network:
            raise ConfigError(
                "the `docker` driver needs `network_name`, a network that the worker is in, too"
            )
        self._delegation = delegation
        self._network = network
        self._connection = dict(connection or {})
        self._bodies: dict[str, dict[str, Any]] = {}
        self._made: dict[str, Made] = {}

    def find(self, name: str) -> Made | None:
        """A container."""
        return self._made.get(name)

    async def create(self, subtype: Subtype, name: str) -> DockerEnvironment:
        """Make a container, wait until it is healthy, and let the delegation prepare it."""
        kind = kind_of(subtype.name)
        attrs = await container_of(self._delegation, kind, name)
        env = {key: str(value) for key, value in attrs["Env"].items()}
        attrs["HostConfig"] = {"NetworkMode": self._network, **(attrs.get("HostConfig") or {})}
        attrs["Env"] = [f"{key}={value}" for key, value in env.items()]
        attrs["Labels"] = {**(attrs.get("Labels") or {}), LABEL: name}
        attrs.pop("Name", None)  # The lease knows the container by its own.
        self._bodies[name] = attrs
        try:
            made = await super().create(replace(subtype, name=kind, image=attrs["Image"]), name)
        finally:
            del self._bodies[name]
        host = await self._until_healthy(kind, name)
        self._made[name] = Made(made, host, env)
        await self._delegation.post_create_docker_container(kind, name, url_of(self._delegation, kind, host))
        return made

    async def destroy(self, name: str) -> None:
        """Remove a container."""
        self._made.pop(name, None)
        await super().destroy(name)

    def _settings(self, subtype: Subtype, name: str) -> dict[str, Any]:
        del subtype
        return self._bodies[name]

    def _addresses(self, shown: dict[str, Any]) -> dict[int, str]:
        del shown
        return {}

    def _engine(self) -> aiodocker.Docker:
        if self._client is None and self._connection:
            try:
                self._client = aiodocker.Docker(**self._connection)
            except (TypeError, ValueError) as error:
                raise ConfigError(f"`connection` of the `docker` driver is wrong: {error}") from error
        return super()._engine()

    async def _until_healthy(self, kind: str, name: str) -> str:
        """The container's address, once its health check, if it has one, succeeds."""
        container = self._engine().containers.container(name)
        while True:
            try:
                shown = await container.show()
            except aiodocker.DockerError as error:
                raise EnvironmentFailedError(f"`{kind}` ended at its start: {error.message}") from error
            health = (shown["State"].get("Health") or {}).get("Status", "none")
            if shown["State"].get("Status") == "exited" or health == "unhealthy":
                raise EnvironmentFailedError(f"`{kind}` is {shown['State'].get('Status')} and {health}")
            address = shown["NetworkSettings"]["Networks"].get(self._network, {}).get("IPAddress")
            if address and health in ("none", "healthy"):
                return address
            await asyncio.sleep(_PAUSE_S)

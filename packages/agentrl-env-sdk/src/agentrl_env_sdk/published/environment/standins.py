"""Stands in for containers with processes: a database server for its image, a directory for any other."""

import logging
import os
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from agentrl_core import ConfigError
from agentrl_env_sdk.drivers import Environment, Subtype
from agentrl_env_sdk.drivers.process import ProcessDriver
from agentrl_env_sdk.drivers.services import Server
from agentrl_env_sdk.published.environment.container import Made, container_of, kind_of, ports_of, url_of
from agentrl_env_sdk.published.environment.delegation import EnvironmentDelegation
from agentrl_env_sdk.published.environment.servers import (
    MARIADB_PORT,
    REDIS_PORT,
    MariaDbServer,
    OpenRedisServer,
    ServerEnvironment,
    free_address,
)

_log = logging.getLogger("agentrl_env_sdk")

_SERVICES = {
    "mysql": "mariadb",
    "mariadb": "mariadb",
    "percona": "mariadb",
    "redis": "redis",
    "valkey": "redis",
}
"""What stands in for an image, by its name without registry and tag."""
_AS_MYSQL = ("mysql", "percona")
"""Images whose server has MySQL's defaults."""
_LOOPBACK = "127.0.0.1"
_CHOICES = ("mariadb", "redis", "directory")


class StandIns:
    """Makes a process where the delegation describes a container.

    Args:
        delegation: the task's part of the configuration.
        services: what stands in, by subtype: `mariadb`, `redis` or `directory`; told by the image where a
            subtype is absent.
        folder: where directories are made; the temporary directory where it is absent.

    Raises:
        ConfigError: a stand-in is unknown.
    """

    kind = "process"

    def __init__(
        self,
        delegation: EnvironmentDelegation,
        services: Mapping[str, str] | None = None,
        *,
        folder: Path | None = None,
    ) -> None:
        self._delegation = delegation
        self._services = dict(services or {})
        for subtype, service in self._services.items():
            if service not in _CHOICES:
                rule = f"must be one of {_CHOICES}"
                raise ConfigError(f"`services` of `{subtype}` {rule}, got {service!r}")
        self._folder = folder or Path(tempfile.gettempdir()) / f"agentrl-environments-{os.getuid()}"
        self._directories = ProcessDriver(self._folder)
        self._servers: dict[str, Server] = {}
        self._made: dict[str, Made] = {}

    def find(self, name: str) -> Made | None:
        """An instance."""
        return self._made.get(name)

    async def create(self, subtype: Subtype, name: str) -> Environment:
        """Make an instance, and let the delegation prepare it."""
        kind = kind_of(subtype.name)
        attrs = await self._describe(kind, name)
        env = {key: str(value) for key, value in attrs["Env"].items()}
        service = self._services.get(kind) or _SERVICES.get(_image_name(attrs["Image"]), "directory")
        host = _LOOPBACK
        if service == "directory":
            environment: Environment = await self._directories.create(
                replace(subtype, name=kind, env=env), name
            )
        else:
            environment = server = await self._serve(service, kind, name, attrs, env)
            host = server.host
        self._made[name] = Made(environment, host, env)
        await self._delegation.post_create_docker_container(kind, name, url_of(self._delegation, kind, host))
        return environment

    async def destroy(self, name: str) -> None:
        """End an instance; a server of a dead owner has died with it, and its directory goes here."""
        self._made.pop(name, None)
        server = self._servers.pop(name, None)
        if server is not None:
            await server.stop()
        await self._directories.destroy(name)

    async def close(self) -> None:
        """End everything."""
        for name in [*self._servers, *self._made]:
            await self.destroy(name)
        await self._directories.close()

    async def _describe(self, kind: str, name: str) -> dict[str, Any]:
        try:
            return await container_of(self._delegation, kind, name)
        except NotImplementedError:  # Then the configuration says what it is.
            return {"Image": "", "Env": {}}

    async def _serve(
        self, service: str, kind: str, name: str, attrs: Mapping[str, Any], env: Mapping[str, str]
    ) -> ServerEnvironment:
        ports = ports_of(self._delegation, kind, attrs)
        port = ports[0] if ports else {"mariadb": MARIADB_PORT, "redis": REDIS_PORT}[service]
        host = free_address(port)
        folder = self._folder / name
        folder.mkdir(mode=0o700, parents=True)
        as_mysql = _image_name(attrs["Image"]) in _AS_MYSQL
        server = self._servers[name] = (
            MariaDbServer(folder, host=host, port=port, env=env, as_mysql=as_mysql)
            if service == "mariadb"
            else OpenRedisServer(folder, host=host, port=port)
        )
        _log.info("%s for `%s` of `%s` on %s:%d", service, kind, self._delegation.get_name(), host, port)
        await server.start()
        return ServerEnvironment(name, host, port, server)


def _image_name(image: str) -> str:
    return image.rpartition("/")[2].partition("@")[0].partition(":")[0]

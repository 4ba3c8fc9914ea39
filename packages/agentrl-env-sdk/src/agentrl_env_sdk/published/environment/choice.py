"""Which controller a task's configuration asks for."""

import os
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from agentrl_core import ConfigError
from agentrl_env_sdk.drivers import Leases, RedisLeases
from agentrl_env_sdk.published.environment.container import kinds_of
from agentrl_env_sdk.published.environment.controller import EnvironmentController, ManualController
from agentrl_env_sdk.published.environment.delegation import EnvironmentDelegation
from agentrl_env_sdk.published.environment.leased import LeasedController
from agentrl_env_sdk.published.environment.standins import StandIns

DRIVER_VARIABLE = "AGENTRL_ENVIRONMENT_DRIVER"
"""Names the driver to use in place of the configured one."""


def create_controller(driver: str, delegation: EnvironmentDelegation, **config: Any) -> EnvironmentController:
    """The controller that a task's environments come from.

    Args:
        driver: what makes them: `manual`, `docker`, `k8s`, or `process`; the variable
            `AGENTRL_ENVIRONMENT_DRIVER` goes before it.
        delegation: the task's part of the configuration.
        config: the driver's part. `manual`: `urls` by subtype. `docker`: `network_name`, `connection`.
            `k8s`: `namespace`. Both: `state_driver` (`local` or `redis`) and `state_options`. `process`:
            `services` by subtype. All but `manual`: `instances`, the most of a shared one. Settings of
            another driver are left alone, so that the driver can be changed by itself.

    Raises:
        ConfigError: the driver is unknown, or a setting is wrong.
    """
    chosen = os.environ.get(DRIVER_VARIABLE) or driver
    make = _DRIVERS.get(chosen)
    if make is None:
        known = ", ".join(f"`{name}`" for name in _DRIVERS)
        raise ConfigError(f"`driver` of an environment must be one of {known}, got `{chosen}`")
    return make(delegation, config)


def _manual(delegation: EnvironmentDelegation, config: Mapping[str, Any]) -> EnvironmentController:
    return ManualController(delegation, config.get("urls") or {})


def _process(delegation: EnvironmentDelegation, config: Mapping[str, Any]) -> EnvironmentController:
    # What exists is this machine's alone, whatever keeps the leases of containers.
    driver = StandIns(delegation, config.get("services"))
    return LeasedController(delegation, driver, kinds_of(delegation, instances=config.get("instances")))


def _docker(delegation: EnvironmentDelegation, config: Mapping[str, Any]) -> EnvironmentController:
    from agentrl_env_sdk.drivers import docker  # noqa: F401 - says which extra is missing
    from agentrl_env_sdk.published.environment.docker import DelegatedDocker

    network = config.get("network_name") or ""
    driver = DelegatedDocker(delegation, network=network, connection=config.get("connection"))
    kinds = kinds_of(delegation, instances=config.get("instances"))
    return LeasedController(delegation, driver, kinds, leases=_leases(delegation, config))


def _kubernetes(delegation: EnvironmentDelegation, config: Mapping[str, Any]) -> EnvironmentController:
    from agentrl_env_sdk.drivers import kubernetes  # noqa: F401 - says which extra is missing
    from agentrl_env_sdk.published.environment.kubernetes import DelegatedKubernetes

    namespace = config.get("namespace") or "default"
    driver = DelegatedKubernetes(delegation, namespace=namespace, connection=config.get("connection"))
    kinds = kinds_of(delegation, instances=config.get("instances"))
    return LeasedController(delegation, driver, kinds, leases=_leases(delegation, config))


def _leases(delegation: EnvironmentDelegation, config: Mapping[str, Any]) -> Leases | None:
    """Where it is kept what exists; None stands for a file of this user."""
    state = config.get("state_driver") or "redis"
    options = config.get("state_options") or {}
    if state == "local":
        return None
    if state != "redis":
        raise ConfigError(f"`state_driver` must be `local` or `redis`, got `{state}`")
    if options.get("sentinel"):
        raise ConfigError("leases are kept in one Redis, not behind a `sentinel`; give its `connection`")
    prefix = options.get("prefix") or f"agentrl:{delegation.get_name()}"
    return RedisLeases(_redis_url(options.get("connection") or {}), prefix=prefix)


def _redis_url(connection: Mapping[str, Any]) -> str:
    if "url" in connection:
        return str(connection["url"])
    user, password = connection.get("username") or "", connection.get("password") or ""
    login = f"{quote(user, safe='')}:{quote(password, safe='')}@" if user or password else ""
    scheme = "rediss" if connection.get("ssl") else "redis"
    host, port = connection.get("host") or "127.0.0.1", connection.get("port") or 6379
    return f"{scheme}://{login}{host}:{port}/{connection.get('db') or 0}"


_DRIVERS = {
    "manual": _manual,
    "docker": _docker,
    "k8s": _kubernetes,
    "kubernetes": _kubernetes,
    "process": _process,
}

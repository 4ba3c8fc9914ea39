"""Which controller a task's configuration asks for."""

import os
from collections.abc import Mapping
from typing import Any

from agentrl_core import ConfigError
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
        config: the driver's part. `manual`: `urls` by subtype. `process`: `services` by subtype, and
            `instances`, the most of a shared one. Settings of another driver are left alone, so that
            the driver can be changed by itself.

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
    driver = StandIns(delegation, config.get("services"))
    return LeasedController(delegation, driver, kinds_of(delegation, instances=config.get("instances")))


_DRIVERS = {"manual": _manual, "process": _process}

"""`agentrl.worker.environment`: what a task runs against, made and released for its sessions.

task -> EnvironmentController (start_session, execute_command, ...) -> a driver of ours
              asks EnvironmentDelegation (the task's: subtypes, images, limits)
"""

from typing import Any, Literal

from agentrl_core import ConfigError
from agentrl_env_sdk.published.environment.controller import EnvironmentController, ManualController
from agentrl_env_sdk.published.environment.delegation import EnvironmentDelegation

EnvironmentDriver = Literal["manual", "docker", "k8s"]
"""Drivers that published tasks name."""
EnvironmentOptions = dict[str, Any]
"""What a driver is configured with."""

K8S_LABEL_KVM = "agentrl.live/kvm"
"""Label of nodes that can run virtual machines."""
K8S_LABEL_BTRFS = "agentrl.live/btrfs"
"""Label of nodes with snapshots of their file system."""


def create_controller(driver: str, delegation: EnvironmentDelegation, **config: Any) -> EnvironmentController:
    """The controller that a task's environments come from.

    Args:
        driver: what makes them.
        delegation: the task's part of the configuration.
        config: the driver's part.

    Raises:
        ConfigError: the driver is unknown, or a setting is wrong.
    """
    if driver == "manual":
        return ManualController(delegation, config.get("urls") or {})
    raise ConfigError(f"`driver` of an environment must be one of `manual`, got `{driver}`")


__all__ = [
    "K8S_LABEL_BTRFS",
    "K8S_LABEL_KVM",
    "EnvironmentController",
    "EnvironmentDelegation",
    "EnvironmentDriver",
    "EnvironmentOptions",
    "create_controller",
]

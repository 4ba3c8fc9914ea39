"""`agentrl.worker.environment`: what a task runs against, made and released for its sessions.

task -> EnvironmentController (start_session, execute_command, ...) -> a driver of ours
              asks EnvironmentDelegation (the task's: subtypes, images, limits)
"""

from typing import Any, Literal

from agentrl_env_sdk.published.environment.choice import create_controller
from agentrl_env_sdk.published.environment.controller import EnvironmentController
from agentrl_env_sdk.published.environment.delegation import EnvironmentDelegation

EnvironmentDriver = Literal["manual", "docker", "k8s"]
"""Drivers that published tasks name."""
EnvironmentOptions = dict[str, Any]
"""What a driver is configured with."""

K8S_LABEL_KVM = "agentrl.live/kvm"
"""Label of nodes that can run virtual machines."""
K8S_LABEL_BTRFS = "agentrl.live/btrfs"
"""Label of nodes with snapshots of their file system."""


__all__ = [
    "K8S_LABEL_BTRFS",
    "K8S_LABEL_KVM",
    "EnvironmentController",
    "EnvironmentDelegation",
    "EnvironmentDriver",
    "EnvironmentOptions",
    "create_controller",
]

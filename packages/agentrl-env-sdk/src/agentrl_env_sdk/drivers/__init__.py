"""Environments that episodes act in: directories, containers, databases; leased, never left behind.

    Environments.lease(subtype) --> Driver.create --> Environment (url, run, shell, put, get)
         |  limits, reuse, lifetime
         +--> Leases (a file, or Redis): what exists, whose it is; a killed owner's is ended by the next

| driver | an environment is |
|---|---|
| `process.ProcessDriver` | a directory, and commands in it behind namespaces where the kernel has them |
| `services.MariaDbDriver`, `services.RedisDriver` | a database of a server that runs as a process |
| `manual.ManualDriver` | an address that you give |
| `docker.DockerDriver`, `kubernetes.KubernetesDriver` | a container, a pod |
"""

from agentrl_env_sdk.drivers.base import (
    Completed,
    Driver,
    Environment,
    EnvironmentFailedError,
    Limits,
    Shell,
    Subtype,
)
from agentrl_env_sdk.drivers.leases import Leases, LocalLeases, RedisLeases
from agentrl_env_sdk.drivers.pool import Environments, reap

__all__ = [
    "Completed",
    "Driver",
    "Environment",
    "EnvironmentFailedError",
    "Environments",
    "Leases",
    "Limits",
    "LocalLeases",
    "RedisLeases",
    "Shell",
    "Subtype",
    "reap",
]

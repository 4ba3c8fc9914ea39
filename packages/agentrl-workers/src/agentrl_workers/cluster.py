"""The Ray that a run works on: a cluster, or one of this machine alone."""

import asyncio
import logging
import os

import ray

from agentrl_core import ConfigError


async def connect_ray(address: str, *, num_cpus: int) -> None:
    """Connect to a cluster, or start Ray on this machine.

    What was started here ends with `ray.shutdown`, and by itself when this process dies.

    Args:
        address: of the cluster's head; `local` starts one, whatever cluster the environment names.
        num_cpus: slots that a local Ray hands out.

    Raises:
        ConfigError: there is no cluster at the address.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    local = {"num_cpus": num_cpus, "include_dashboard": False} if address == "local" else {}
    try:
        await asyncio.to_thread(
            ray.init, address=address, log_to_driver=False, logging_level=logging.ERROR, **local
        )
    except (ConnectionError, ValueError) as error:
        raise ConfigError(f"no Ray cluster answers at `{address}`: {error}") from error

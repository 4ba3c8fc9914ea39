"""A Ray of this machine alone, for runs that need no cluster."""

import asyncio
import logging
import os

import ray


async def start_local_ray(*, num_cpus: int) -> None:
    """Start Ray's processes on this machine, whatever cluster the environment names.

    They end with `ray.shutdown`, and by themselves when this process dies.
    """
    # Under `uv run`, Ray would build a second environment for its workers.
    os.environ["RAY_ENABLE_UV_RUN_RUNTIME_ENV"] = "0"
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    await asyncio.to_thread(
        ray.init,
        address="local",
        num_cpus=num_cpus,
        include_dashboard=False,
        log_to_driver=False,
        logging_level=logging.ERROR,
    )

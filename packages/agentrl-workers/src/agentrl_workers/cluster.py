"""The Ray that a run works on: a cluster, or one of this machine alone."""

import asyncio
import functools
import logging
import os
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import ray

from agentrl_core import ConfigError

_THREAD = ThreadPoolExecutor(max_workers=1, thread_name_prefix="ray")
"""Ray's client stops answering when the thread that made it has ended, so this one never does."""


_LONGEST_TEMP_DIR = 40
_SHORT_TEMP_DIR = "/tmp/ray"
"""Ray's sockets lie below the temporary folder, and the path of a socket has 107 bytes at most."""


async def connect_ray(address: str, *, num_cpus: int) -> None:
    """Connect to a cluster, or start Ray on this machine.

    What was started here ends with `disconnect_ray`, and by itself when this process dies.

    Args:
        address: of the cluster's head; `local` starts one, whatever cluster the environment names.
        num_cpus: slots that a local Ray hands out.

    Raises:
        ConfigError: there is no cluster at the address.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    local: dict[str, Any] = {}
    if address == "local":
        local = {"num_cpus": num_cpus, "include_dashboard": False}
        if len(tempfile.gettempdir()) > _LONGEST_TEMP_DIR:
            local["_temp_dir"] = _SHORT_TEMP_DIR
    try:
        await _on_thread(
            functools.partial(
                ray.init, address=address, log_to_driver=False, logging_level=logging.ERROR, **local
            )
        )
    except (ConnectionError, ValueError) as error:
        raise ConfigError(f"no Ray cluster answers at `{address}`: {error}") from error


async def disconnect_ray() -> None:
    """Leave the cluster; a local one ends."""
    await _on_thread(ray.shutdown)


async def _on_thread(work: Callable[[], object]) -> None:
    await asyncio.get_running_loop().run_in_executor(_THREAD, work)

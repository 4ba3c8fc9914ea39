"""`agentrl-env serve`: a task for agents, or for a controller."""

import logging
import sys
from pathlib import Path
from typing import Any

import click

from agentrl_env_sdk.commands.faults import told


@click.command()
@click.argument("target")
@click.argument("name", required=False)
@click.option("--published", is_flag=True, help="Entry NAME of configuration TARGET is for `agentrl-worker`.")
@click.option("--controller", help="http(s)://HOST:PORT/api, or grpc(s)://HOST:PORT to open a stream to it.")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--port", type=click.IntRange(0, 65535), help="Port to listen on [a free one; none with a stream]."
)
@click.option("--advertise", help="Address under which the controller reaches this worker [its own].")
@click.option("--concurrency", type=click.IntRange(1), help="Episodes at the same time [the task's].")
@click.option("--workers", type=click.IntRange(1, 256), default=1, help="Processes; needs a controller.")
@click.option("--reload", is_flag=True, help="Begin anew when the task's Python files change.")
@click.option("--token", envvar="AGENTRL_TOKEN", help="Bearer token, asked for and sent.")
@click.option("--tls-cert", type=click.Path(path_type=Path), help="Certificate to serve HTTPS with.")
@click.option("--tls-key", type=click.Path(path_type=Path), help="Its key.")
@click.option("--ca", type=click.Path(path_type=Path), help="Certificates to trust the controller by.")
@click.option("--member", is_flag=True, hidden=True)
def serve(
    target: str,
    name: str | None,
    published: bool,
    concurrency: int | None,
    workers: int,
    reload: bool,
    member: bool,
    **reached: Any,
) -> None:
    """Serve TARGET: file.py, file.py:Class, package.module:Class, or entry NAME of a configuration.

    Without --controller, agents talk to the worker directly, and its address is a page to play on.
    """
    from agentrl_env_sdk.worker.crew import CONFIG_EXIT
    from agentrl_env_sdk.worker.lifecycle import WorkerConfig
    from agentrl_env_sdk.worker.serving import Serving

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    with told(exit_code=CONFIG_EXIT if member else 1):
        serving = Serving(
            *(target, name, WorkerConfig(**reached)),
            concurrency=concurrency,
            published=published,
            workers=workers,
            reload=reload,
            is_member=member,
        )
        sys.exit(serving.run())

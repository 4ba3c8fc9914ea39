"""`agentrl-controller`: serve, and look at what is served."""

import ipaddress
import os
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import click


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(version("agentrl-controller"), prog_name="agentrl-controller")
def main() -> None:
    """Route agents' sessions to task workers."""


@main.command()
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", type=click.IntRange(0, 65535), default=5020, show_default=True, help="0: a free one.")
@click.option(
    "--grpc-port",
    type=click.IntRange(0, 65535),
    help="For task workers that open a stream; 0: a free one. [default: the port after --port]",
)
@click.option("--grpc/--no-grpc", default=True, show_default=True, help="Whether to listen for streams.")
@click.option(
    "--store",
    help="Where sessions outlive the controller: sqlite:PATH, redis://HOST:PORT/DB (shared by replicas) or "
    "memory. [default: SQLite in the user's state folder; memory with --port 0]",
)
@click.option("--token", envvar="AGENTRL_TOKEN", help="Bearer token that every request must carry.")
@click.option(
    "--config",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="TOML or JSON file with further settings (limits, quotas, tokens with scopes, TLS, ...).",
)
@click.option(
    "--allow-worker",
    "allow_workers",
    multiple=True,
    metavar="HOST",
    help="Host, * pattern or network where workers may be, beside loopback and the host of their heartbeats.",
)
@click.option(
    "--advertise", metavar="URL", help="Where other replicas reach this one. [default: where it listens]"
)
@click.option("--insecure", is_flag=True, help="Serve other machines without a token.")
def serve(
    host: str,
    port: int,
    grpc_port: int | None,
    grpc: bool,
    store: str | None,
    token: str | None,
    config: Path | None,
    allow_workers: tuple[str, ...],
    advertise: str | None,
    insecure: bool,
) -> None:
    """Serve the API that agents and task workers talk to."""
    from agentrl_controller.config import make_config, read_config
    from agentrl_controller.server import Address
    from agentrl_controller.server import serve as run
    from agentrl_controller.store import make_store
    from agentrl_core import ConfigError

    if token is not None and not token.strip():
        raise click.UsageError("the token is empty: give one, or leave --token away")
    if advertise is not None and not advertise.startswith(("http://", "https://")):
        raise click.UsageError(f"--advertise must be the URL of this controller's API, got {advertise!r}")
    changes: dict[str, Any] = {}
    if token is not None:
        changes["token"] = token
    if allow_workers:
        changes["allow_workers"] = list(allow_workers)
    try:
        settings = make_config(changes) if config is None else read_config(config, **changes)
        if not _is_loopback(host) and not settings.needs_token and not insecure:
            raise click.UsageError(f"serving on {host} lets others in: give a --token, or say --insecure")
        if grpc_port is None:
            grpc_port = port + 1 if port else 0
        where = Address(host, port, grpc_port if grpc else None, advertise)
        run(settings, make_store(_default_store(port) if store is None else store), where)
    except ConfigError as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(1)


@main.command()
@click.option("--url", default="http://127.0.0.1:5020/api", show_default=True, help="The controller's API.")
@click.option("--token", envvar="AGENTRL_TOKEN", help="Bearer token.")
def status(url: str, token: str | None) -> None:
    """Show the tasks, workers and sessions of a running controller."""
    import asyncio

    from agentrl_controller.status import show_status
    from agentrl_core import SessionError

    try:
        asyncio.run(show_status(url, token=token))
    except SessionError as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(1)


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _default_store(port: int) -> str:
    """A file for each port; nobody comes back to a port that was picked at random."""
    if port == 0:
        return "memory"
    folder = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state")
    return f"sqlite:{folder / 'agentrl' / f'controller-{port}.sqlite'}"

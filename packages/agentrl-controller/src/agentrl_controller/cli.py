"""`agentrl-controller`: serve, and look at what is served."""

import ipaddress
import sys
from importlib.metadata import version

import click


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(version("agentrl-controller"), prog_name="agentrl-controller")
def main() -> None:
    """Route agents' sessions to task workers."""


@main.command()
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", type=click.IntRange(0, 65535), default=5020, show_default=True, help="0: a free one.")
@click.option("--token", envvar="AGENTRL_TOKEN", help="Bearer token that every request must carry.")
@click.option("--insecure", is_flag=True, help="Serve other machines without a token.")
def serve(host: str, port: int, token: str | None, insecure: bool) -> None:
    """Serve the API that agents and task workers talk to."""
    from agentrl_controller.config import ControllerConfig
    from agentrl_controller.server import serve as run
    from agentrl_core import ConfigError

    if token == "":
        raise click.UsageError("the token is empty: give one, or leave --token away")
    if not _is_loopback(host) and token is None and not insecure:
        raise click.UsageError(f"serving on {host} lets others in: give a --token, or say --insecure")
    try:
        run(ControllerConfig(token=token), host=host, port=port)
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

"""`agentrl-env`: serve a task, or play it by hand."""

import asyncio
import logging
import sys
from importlib.metadata import version

import click

from agentrl_env_sdk.commands.play import play
from agentrl_env_sdk.commands.replay import replay
from agentrl_env_sdk.commands.validate import validate


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(version("agentrl-env-sdk"), prog_name="agentrl-env")
def main() -> None:
    """Write, play and serve tasks for language-model agents."""


@main.command()
@click.argument("target")
@click.argument("name", required=False)
@click.option("--published", is_flag=True, help="Entry NAME of configuration TARGET is for `agentrl-worker`.")
@click.option("--controller", help="The controller's API, such as http://127.0.0.1:5020/api.")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="Port to listen on [a free one].")
@click.option("--advertise", help="Address under which the controller reaches this worker [its own].")
@click.option("--concurrency", type=click.IntRange(1), help="Episodes at the same time [the task's].")
@click.option("--token", envvar="AGENTRL_TOKEN", help="Bearer token, asked for and sent.")
def serve(
    target: str,
    name: str | None,
    published: bool,
    controller: str | None,
    host: str,
    port: int,
    advertise: str | None,
    concurrency: int | None,
    token: str | None,
) -> None:
    """Serve TARGET: file.py, file.py:Class or package.module:Class.

    With --published, TARGET is a configuration whose entry NAME is a task written for the published SDK.

    Without --controller, agents talk to the worker directly.
    """
    from agentrl_core import ConfigError
    from agentrl_env_sdk.target import load_task
    from agentrl_env_sdk.worker import Runner, Worker, WorkerConfig

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    try:
        guest = None
        if published:
            from agentrl_env_sdk.published import load_published

            guest = load_published(target, name)
        task = guest or load_task(target)
        config = WorkerConfig(host=host, port=port, controller=controller, advertise=advertise, token=token)

        async def run() -> None:
            runner = Runner(task, concurrency=concurrency)
            worker = Worker(
                runner, config, ready=lambda url: click.echo(f"Serving {task.task_name} on {url}")
            )
            try:
                await worker.serve()
            finally:
                if guest is not None:
                    await guest.close()

        asyncio.run(run())
    except ConfigError as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(1)


main.add_command(play)
main.add_command(replay)
main.add_command(validate)

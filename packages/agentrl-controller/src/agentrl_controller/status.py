"""A table of what a running controller serves."""

import click

from agentrl_core.client import SessionClient

_TIMEOUT_S = 5.0


async def show_status(url: str, *, token: str | None) -> None:
    """Print tasks, samples and workers.

    Raises:
        SessionError: the controller does not answer.
    """
    async with SessionClient(url, token=token, interact_timeout_s=_TIMEOUT_S) as client:
        tasks = await client.tasks()
    if not tasks:
        click.echo("no worker serves a task")
    for name, task in sorted(tasks.items()):
        click.secho(f"{name}  {len(task.indices)} samples", bold=True)
        for worker in task.workers.values():
            drained = ", drained" if worker.stale else ""
            click.echo(f"  {worker.status:5}  {worker.current}/{worker.capacity}  {worker.address}{drained}")

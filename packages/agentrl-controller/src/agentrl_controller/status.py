"""A table of what a running controller serves."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

import click

from agentrl_core import TaskInfo
from agentrl_core.client import SessionClient

_TIMEOUT_S = 5.0


async def show_status(url: str, *, token: str | None) -> None:
    """Print tasks, workers and how many sessions are in which state.

    Raises:
        SessionError: the controller does not answer.
    """
    async with SessionClient(url, token=token, interact_timeout_s=_TIMEOUT_S) as client:
        tasks = await client.tasks()
        sessions, _ = await client.request("GET", "list_sessions", deadline_s=_TIMEOUT_S)
    if not tasks:
        click.echo("no worker serves a task")
    for name, task in sorted(tasks.items()):
        _show_task(name, task, [s for s in sessions.values() if s.get("name") == name])


def _show_task(name: str, task: TaskInfo, sessions: list[Mapping[str, Any]]) -> None:
    states = Counter(str(session.get("state", "live")) for session in sessions)
    counts = ", ".join(f"{count} {state}" for state, count in sorted(states.items())) or "none"
    click.secho(f"{name}  samples: {len(task.indices)}  sessions: {counts}", bold=True)
    for worker in task.workers.values():
        drained = "  drained" if worker.stale else ""
        slots = f"{worker.current}/{worker.capacity}"
        click.echo(f"  {worker.id:>4}  {worker.status:5}  {slots:>9}  {worker.address}{drained}")

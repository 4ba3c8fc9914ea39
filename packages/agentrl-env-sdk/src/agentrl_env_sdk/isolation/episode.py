"""The inside of an episode's process: a runner for one session, and a line of JSON for each exchange."""

import asyncio
import json
import os
import signal
import socket
from collections.abc import Mapping
from typing import Any

from agentrl_core import Message
from agentrl_env_sdk.content import plain
from agentrl_env_sdk.processes import adopt_orphans, die_with_parent
from agentrl_env_sdk.session import Exchange
from agentrl_env_sdk.task import Task
from agentrl_env_sdk.worker.runner import Runner

MAX_LINE_BYTES = 256 * 1024 * 1024
"""Of one exchange between the processes."""


def live(connection: socket.socket, task: Task) -> None:
    """Play the one episode that is asked for."""
    os.setsid()
    die_with_parent()
    adopt_orphans()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    asyncio.run(_serve(connection, task))


async def _serve(connection: socket.socket, task: Task) -> None:
    reader, writer = await asyncio.open_connection(sock=connection, limit=MAX_LINE_BYTES)
    task.isolation = "thread"  # This copy of the task is where it is to be.
    runner = Runner(task, concurrency=1)
    while line := await reader.readline():
        request: Mapping[str, Any] = json.loads(line)
        try:
            answer = await _answer(runner, request)
        except Exception as error:  # What the task raises is in the exchange; this is ours.
            answer = {"error": f"{type(error).__name__}: {error}"}
        writer.write(json.dumps(answer).encode() + b"\n")
        await writer.drain()
    await runner.cancel_all()


async def _answer(runner: Runner, request: Mapping[str, Any]) -> dict[str, Any]:
    if "start" in request:
        start = request["start"]
        _, exchange = await runner.start(
            start["index"], session_id=start["id"], custom_task=start["custom_task"], seed=start["seed"]
        )
        return _packed(exchange)
    if "cancel" in request:
        await runner.cancel_all()
        return {}
    (session_id,) = runner.sessions
    messages = [Message.model_validate(message) for message in request["messages"]]
    return _packed(await runner.interact(session_id, messages))


def _packed(exchange: Exchange) -> dict[str, Any]:
    return {
        "messages": [plain(message.to_wire()) for message in exchange.messages],
        "tools": None
        if exchange.tools is None
        else [tool.model_dump(mode="json") for tool in exchange.tools],
        "status": exchange.status,
        "finish": exchange.finish,
        "reward": exchange.reward,
        "metrics": plain(exchange.metrics),
    }

"""The worker's side of episodes in processes: a task whose every episode is played elsewhere."""

import asyncio
import contextlib
import itertools
import json
import os
import signal
import socket
import weakref
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

from agentrl_core import CUSTOM_INDEX, Reply
from agentrl_env_sdk.isolation.nursery import Nursery
from agentrl_env_sdk.session import Session, TaskFailedError
from agentrl_env_sdk.task import Task

_FAREWELL_S = 3.0
"""How long an episode that is cancelled may take to tear itself down before its process is killed."""


class IsolatedTask(Task):
    """Plays the episodes of a task in a process each.

    The limits, the reward's parts and the teardown are those of the task, in the episode's process.

    Args:
        task: the task; it is copied into the processes as it is now.
    """

    def __init__(self, task: Task) -> None:
        # The processes import more than the nursery needs; before the fork, once for all.
        from agentrl_env_sdk.isolation import episode

        self._inner = task
        self._limit = episode.MAX_LINE_BYTES
        self.name = task.task_name
        self.splits = task.splits
        self.optimum = task.optimum
        self.concurrency = task.concurrency
        self.max_turns = task.max_turns
        self.turn_timeout_s = task.turn_timeout_s
        self.tools = list(task.bound_tools.values())
        self._nursery = Nursery(lambda connection: episode.live(connection, task))
        self._numbers = itertools.count()
        self._ended: dict[int, asyncio.Future[int]] = {}
        self._loops: list[asyncio.AbstractEventLoop] = []
        weakref.finalize(self, _close, self._nursery, self._loops)

    def calculate_overall(self, results: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
        """The task's own summary."""
        return self._inner.calculate_overall(results)

    def close(self) -> Any:
        """Let the task go; its processes have copies of it."""
        return self._inner.close()

    async def run(self, session: Session) -> None:
        """Carry an episode's exchanges to its process and back."""
        custom = session.sample if session.index == CUSTOM_INDEX else None
        async with self._process() as process:
            request: dict[str, Any] = {
                "start": {
                    "id": session.id,
                    "index": session.index,
                    "custom_task": custom,
                    "seed": session.seed,
                }
            }
            while True:
                reply = await process.ask(request)
                _take_in(session, reply)
                answer = await session.action(reply.messages)
                request = {"messages": [message.to_wire() for message in answer.messages]}

    @contextlib.asynccontextmanager
    async def _process(self) -> AsyncIterator["_Process"]:
        self._listen()
        number = next(self._numbers)
        ours, theirs = socket.socketpair()
        ended = self._ended[number] = asyncio.get_running_loop().create_future()
        try:
            with theirs:
                self._nursery.fork(number, theirs)
            process = _Process(*await asyncio.open_connection(sock=ours, limit=self._limit), ended)
        except BaseException:
            ours.close()
            self._nursery.kill(number)
            raise
        try:
            yield process
        finally:
            await process.say_farewell()
            self._nursery.kill(number)

    def _listen(self) -> None:
        """Hear of processes that end, on the loop that is running now."""
        loop = asyncio.get_running_loop()
        if loop in self._loops:
            return
        self._loops[:] = [loop]
        # The loop holds only what it must: a task that nobody needs any more ends its processes.
        loop.add_reader(self._nursery.socket, _report, self._nursery, self._ended)


class _Process:
    """An episode's process."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, ended: "asyncio.Future[int]"
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._ended = ended
        self._is_over = False

    async def ask(self, request: Mapping[str, Any]) -> Reply:
        """The answer to a request.

        Raises:
            TaskFailedError: the process has died.
        """
        answer = await self._exchange(request)
        if "error" in answer:
            raise TaskFailedError(answer["error"])
        reply = Reply.model_validate(answer)
        self._is_over = reply.finish
        return reply

    async def say_farewell(self) -> None:
        """Let an episode that goes on tear itself down."""
        if not (self._is_over or self._ended.done()):
            # What it still says, an answer to an earlier request among it, is for nobody.
            with contextlib.suppress(TaskFailedError, TimeoutError):
                async with asyncio.timeout(_FAREWELL_S):
                    while await self._exchange({"cancel": True}):
                        pass
        self._writer.close()

    async def _exchange(self, request: Mapping[str, Any]) -> Any:
        try:
            self._writer.write(json.dumps(request).encode() + b"\n")
            await self._writer.drain()
            line = await self._reader.readline()
        except OSError:
            line = b""
        if line:
            return json.loads(line)
        status = await self._ended
        self._is_over = True
        raise TaskFailedError(f"the episode's process died: {_in_words(status)}")


def _close(nursery: Nursery, loops: Sequence[asyncio.AbstractEventLoop]) -> None:
    # A loop that goes on must not wait on a descriptor that somebody else gets next.
    for loop in loops:
        with contextlib.suppress(RuntimeError):
            loop.remove_reader(nursery.socket)
    nursery.close()


def _report(nursery: Nursery, ended: "dict[int, asyncio.Future[int]]") -> None:
    try:
        for number, status in nursery.reports():
            _resolve(ended.pop(number, None), status)
    except EOFError:
        asyncio.get_running_loop().remove_reader(nursery.socket)
        for future in ended.values():
            _resolve(future, signal.SIGKILL)
        ended.clear()


def _resolve(future: "asyncio.Future[int] | None", status: int) -> None:
    if future is not None and not future.done():
        future.set_result(status)


def _take_in(session: Session, reply: Reply) -> None:
    """Repeat in the worker's session what happened in the process."""
    if reply.finish and "error" in reply.metrics and reply.status == "task error":
        raise TaskFailedError(str(reply.metrics["error"]))
    if reply.tools is not None:
        session.set_tools(reply.tools)
    if reply.reward:
        session.reward(reply.reward)
    session.metrics.update(reply.metrics)
    if reply.finish:
        session.finish(status=reply.status)


def _in_words(status: int) -> str:
    code = os.waitstatus_to_exitcode(status)
    if code >= 0:
        return f"exit code {code}"
    return f"signal {-code} ({signal.Signals(-code).name})"

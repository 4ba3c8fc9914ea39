"""A verifiers environment as a task; it runs in a Python of its own, since its dependencies are its own.

    agent -- session -- VerifiersTask -- JSON lines --> verifiers_bridge.py -- rollouts --> the environment

Each completion that a rollout asks for is a turn of the agent; the rubric's rewards come at the end.
"""

import asyncio
import contextlib
import itertools
import json
import os
import signal
import subprocess
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from agentrl_core import ConfigError, SampleStatus, Tool
from agentrl_env_sdk.adapters.chat_turns import message_of, new_messages
from agentrl_env_sdk.session import Session, TaskFailedError
from agentrl_env_sdk.task import Task

__all__ = ["VerifiersTask"]

_BRIDGE = Path(__file__).with_name("verifiers_bridge.py")
_LONGEST_LINE = 256 * 2**20
_KEPT_LINES = 20
_START_TIMEOUT_S = 300.0
_GRACE_S = 10.0
_TOOLS = TypeAdapter(list[Tool])
_LOCAL_AGENT: Mapping[str, Any] = {"harness": {"id": "null"}, "runtime": {"type": "subprocess"}}


class VerifiersTask(Task):
    """The tasks of a verifiers taskset (verifiers 0.4, its `v1`).

    Args:
        python: the interpreter of the environment where verifiers and the taskset are installed.
        taskset: its id, such as `gsm8k-v1`.
        name: the task's name; the taskset's id where it is absent.
        config: more of the environment's `[env]` configuration. By default the agent is a plain chat loop
            (harness `null`) in a subprocess.
        limit: samples; needed where the taskset has no end.
        count: how many samples there are, where it is known; the environment is asked otherwise, which
            takes its start.
        variables: environment variables of the process beside our own, such as `PYTHONPATH`.
        max_turns: completions that an episode may ask for.
        turn_timeout_s: seconds for one answer; the first one waits for the environment's process.

    Raises:
        ConfigError: the environment does not start.
    """

    def __init__(
        self,
        python: str | Path,
        taskset: str,
        *,
        name: str | None = None,
        config: Mapping[str, Any] | None = None,
        limit: int | None = None,
        count: int | None = None,
        variables: Mapping[str, str] | None = None,
        max_turns: int = 32,
        turn_timeout_s: float = _START_TIMEOUT_S,
    ) -> None:
        given = dict(config or {})
        given["taskset"] = {**given.get("taskset", {}), "id": taskset}
        if "id" not in given:
            given["agent"] = {**_LOCAL_AGENT, "max_turns": max_turns, **given.get("agent", {})}
        self._name = name or taskset
        self._words = [str(python), str(_BRIDGE), json.dumps(given)]
        self._words += [] if limit is None else ["--limit", str(limit)]
        self._variables = {**os.environ, **(variables or {})}
        self._process: _Process | None = None
        self.max_turns = max_turns
        self.turn_timeout_s = turn_timeout_s
        self.splits = {"train": self._count() if count is None else count}

    @property
    def task_name(self) -> str:
        """The name on the wire."""
        return self._name

    async def run(self, session: Session) -> None:
        """Play an episode of the environment, the agent answering what its rollout asks."""
        assert isinstance(session.index, int)
        process = self._started()
        episode = await process.start(session.index)
        seen: list[dict[str, Any]] = []
        tools: Any = None
        try:
            while "end" not in (asked := await episode.next()):
                if asked["tools"] != tools:
                    tools = asked["tools"]
                    session.set_tools(_TOOLS.validate_python(tools or []))
                reply = await session.action(new_messages(seen, asked["messages"]))
                message = message_of(reply)
                seen = [*asked["messages"], message]
                await episode.reply(asked["call"], message)
        finally:
            await episode.close()
        _grade(session, asked["end"])

    async def close(self) -> None:
        """End the environment's process, which else ends with ours."""
        if self._process is not None:
            await self._process.close()

    def _started(self) -> "_Process":
        """The environment's process: the one that runs, or another where there is none in this loop."""
        loop = asyncio.get_running_loop()
        if self._process is None or self._process.loop is not loop or self._process.has_ended:
            self._process = _Process(self._words, self._variables, loop)
        return self._process

    def _count(self) -> int:
        words = [*self._words, "--count"]
        try:
            run = subprocess.run(
                words, capture_output=True, env=self._variables, timeout=_START_TIMEOUT_S, check=True
            )
            return int(json.loads(run.stdout)["ready"])
        except subprocess.CalledProcessError as error:
            told = error.stderr.decode(errors="replace").strip()[-1000:]
            raise ConfigError(f"the verifiers environment `{self._name}` does not start: {told}") from error
        except (OSError, ValueError, KeyError, subprocess.TimeoutExpired) as error:
            raise ConfigError(f"`{self._words[0]}` runs no verifiers environment: {error}") from error


class _Episode:
    """One episode's side of the protocol."""

    def __init__(self, process: "_Process", name: str) -> None:
        self._process = process
        self._name = name
        self.asked: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._is_over = False

    async def next(self) -> dict[str, Any]:
        """What the environment asks next, or how it ended."""
        asked = await self.asked.get()
        self._is_over = "end" in asked
        return asked

    async def reply(self, call: str, message: Mapping[str, Any]) -> None:
        """Answer a question."""
        await self._process.tell({"do": "reply", "call": call, "message": message})

    async def close(self) -> None:
        """End it, if the environment has not."""
        self._process.episodes.pop(self._name, None)
        if not self._is_over:
            with contextlib.suppress(TaskFailedError):
                await self._process.tell({"do": "cancel", "episode": self._name})


class _Process:
    """The environment's process; it ends with its standard input, and so with ours.

    Attributes:
        loop: the event loop it belongs to.
        episodes: those that are being played, by name.
        has_ended: whether it is gone.
    """

    def __init__(
        self, words: Sequence[str], variables: Mapping[str, str], loop: asyncio.AbstractEventLoop
    ) -> None:
        self.loop = loop
        self.episodes: dict[str, _Episode] = {}
        self.has_ended = False
        self._numbers = itertools.count()
        self._log: deque[str] = deque(maxlen=_KEPT_LINES)
        self._ready: asyncio.Future[asyncio.StreamWriter] = loop.create_future()
        self._living = loop.create_task(self._live(words, variables))

    async def start(self, index: int) -> _Episode:
        """Begin an episode.

        Raises:
            TaskFailedError: the process does not run.
        """
        name = f"e{next(self._numbers)}"
        episode = self.episodes[name] = _Episode(self, name)
        await self.tell({"do": "start", "episode": name, "index": index})
        return episode

    async def tell(self, message: Mapping[str, Any]) -> None:
        """Send a line.

        Raises:
            TaskFailedError: the process has ended.
        """
        writer = await asyncio.shield(self._ready)
        try:
            writer.write(json.dumps(message).encode() + b"\n")
            await writer.drain()
        except (ConnectionError, RuntimeError) as error:
            raise TaskFailedError(self._why()) from error

    async def close(self) -> None:
        """Let the process end by itself, and end it where it does not."""
        if self._ready.done() and not self.has_ended:
            (await self._ready).close()
        await asyncio.wait([self._living], timeout=_GRACE_S if self._ready.done() else 0)
        self._living.cancel()
        await asyncio.wait([self._living])

    async def _live(self, words: Sequence[str], variables: Mapping[str, str]) -> None:
        try:
            process = await asyncio.create_subprocess_exec(
                *words,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=variables,
                limit=_LONGEST_LINE,
                start_new_session=True,
            )
            said, told, errors = process.stdout, process.stdin, process.stderr
            assert said is not None
            assert told is not None
            assert errors is not None
            logging = asyncio.create_task(self._keep(errors))
            try:
                await self._read(said, told)
                await process.wait()
                await logging
            finally:
                logging.cancel()
                told.close()
                if process.returncode is None:
                    with contextlib.suppress(ProcessLookupError):
                        os.killpg(process.pid, signal.SIGKILL)
                    await process.wait()
        finally:
            self._end()

    async def _read(self, lines: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := await lines.readline():
            said = json.loads(line)
            if "ready" in said:
                self._ready.set_result(writer)
            elif (episode := self.episodes.get(said["episode"])) is not None:
                episode.asked.put_nowait(said)

    async def _keep(self, lines: asyncio.StreamReader) -> None:
        while line := await lines.readline():
            self._log.append(line.decode(errors="replace").rstrip())

    def _end(self) -> None:
        self.has_ended = True
        if not self._ready.done():
            self._ready.set_exception(TaskFailedError(self._why()))
            self._ready.exception()  # Nobody may wait for it.
        for episode in self.episodes.values():
            episode.asked.put_nowait({"end": {"error": self._why()}})

    def _why(self) -> str:
        return "the verifiers environment's process has ended: " + "\n".join(self._log)[-1000:]


def _grade(session: Session, end: Mapping[str, Any]) -> None:
    """Count the rubric's rewards.

    Raises:
        TaskFailedError: the episode failed.
    """
    if "error" in end:
        raise TaskFailedError(str(end["error"]))
    parts = {f"reward/{name}": value for name, value in end["rewards"].items()}
    known = {name: value for name, value in end["metrics"].items() if value is not None}
    session.reward(sum(end["rewards"].values()), **parts, **known)
    if end["truncated"]:
        session.truncate(end["truncated"])
    session.finish(status=SampleStatus.COMPLETED)

"""The task: a directory, a shell in it, and a goal."""

import contextlib

from agentrl_core import ConfigError
from agentrl_env_sdk import Generated, Session, Task, metric, tool
from agentrl_env_sdk.drivers import Environment, EnvironmentFailedError, Environments, Limits, Subtype
from agentrl_env_sdk.drivers.process import ProcessDriver
from agentrl_env_sdk.oracle import Plan, act
from agentrl_task_shell.goals import LEVELS, Goal, make_goal

_SHOWN_BYTES = 4000
_COMMAND_S = 10.0
_LIMITS = Limits(cpu_s=10, memory_bytes=512 << 20, file_bytes=32 << 20, processes=128)


class Shell(Task):
    """`shell`: 1 where the goal is reached.

    Args:
        difficulty: `easy` (one command), `medium` (a pipe or a loop) or `hard` (several steps, or a script).

    Raises:
        ConfigError: there is no such difficulty.
    """

    optimum = 1.0

    def __init__(self, difficulty: str = "easy") -> None:
        if difficulty not in LEVELS:
            raise ConfigError(f"`difficulty` must be one of {sorted(LEVELS)}, got {difficulty!r}")
        self._difficulty = difficulty
        boxes = Subtype("shell", limits=_LIMITS, concurrency=self.concurrency)
        self._environments = Environments(ProcessDriver(), [boxes])
        self.name = "shell" if difficulty == "easy" else f"shell-{difficulty}"
        self.max_turns = {"easy": 4, "medium": 8, "hard": 16}[difficulty]
        self.splits = {
            "train": Generated(lambda position: f"train/{position}", 1000),
            "test": Generated(lambda position: f"test/{position}", 200),
        }

    async def setup(self, session: Session) -> str:
        """Lay the files out and tell the goal."""
        goal = make_goal(self._difficulty, str(session.sample))
        stack = session.state["stack"] = contextlib.AsyncExitStack()
        box = await stack.enter_async_context(self._environments.lease("shell"))
        for path, data in goal.files.items():
            await box.put(path, data)
        shell = await box.shell()
        stack.push_async_callback(shell.close)
        session.state.update(goal=goal, box=box, shell=shell, commands=0)
        return f"{goal.text}; then {'say done' if goal.answer is None else 'answer'}"

    @tool
    async def bash(self, session: Session, command: str) -> str:
        """run a command

        Args:
            command: what to run
        """
        session.state["commands"] += 1
        done = await session.state["shell"].run(command, timeout_s=_COMMAND_S, output_bytes=_SHOWN_BYTES)
        text = done.text.strip() or "(no output)"
        if done.dropped_bytes:
            text += f"\n({done.dropped_bytes} bytes more)"
        if done.timed_out:
            return f"{text}\n(stopped after {_COMMAND_S:g} s; the shell began anew)"
        return text if done.code == 0 else f"{text}\n(exit code {done.code})"

    @tool
    async def answer(self, session: Session, value: str) -> str:
        """give the answer, or say done

        Args:
            value: the answer
        """
        is_reached = await _is_reached(session.state["goal"], session.state["box"], value)
        session.finish(reward=float(is_reached), score=float(is_reached))
        return "right" if is_reached else "wrong"

    @metric
    def commands(self, session: Session) -> int:
        """Commands that were run."""
        return session.state["commands"]

    async def teardown(self, session: Session) -> None:
        """Remove the directory, and end what runs in it."""
        if "stack" in session.state:
            await session.state["stack"].aclose()

    async def close(self) -> None:
        """Leave no directory."""
        await self._environments.close()

    def oracle(self, session: Session) -> Plan:
        """One way to do it."""
        goal: Goal = session.state["goal"]
        seen = yield act("bash", command=goal.solution)
        yield act("answer", value="done" if goal.answer is None else seen.text.splitlines()[-1])


async def _is_reached(goal: Goal, box: Environment, value: str) -> bool:
    if goal.answer is not None:
        return value.strip().strip("\"'").lower() == goal.answer.lower()
    try:
        for path, data in goal.hidden.items():
            await box.put(path, data)
    except EnvironmentFailedError:  # The agent may have put something else in the way.
        return False
    # A shell of its own: the agent may have changed what commands mean in its.
    return (await box.run(goal.check or "false", timeout_s=_COMMAND_S)).code == 0

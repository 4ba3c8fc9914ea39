"""The tasks of these benchmarks, written for our SDK."""

import asyncio
import time

from agentrl_env_sdk import Session, Task, tool


class Talk(Task):
    """Ten replies, each answered at once."""

    name = "talk"
    splits = {"test": 20_000}
    concurrency = 100_000

    async def run(self, session: Session) -> None:
        for turn in range(10):
            await session.action(f"turn {turn}: " + "x" * 200)
        session.finish(reward=1.0)


class Sleep(Task):
    """Steps of a second each that block their thread."""

    name = "sleep"
    splits = {"test": 1000}
    concurrency = 64

    def setup(self, _session: Session) -> str:
        return "go"

    @tool
    def step(self) -> str:
        """Sleep."""
        time.sleep(1.0)
        return "on"


class Idle(Task):
    """Waits for its agent."""

    name = "idle"
    splits = {"test": 20_000}
    concurrency = 100_000

    async def run(self, session: Session) -> None:
        await session.action("hello")
        await asyncio.sleep(0)


class Tools(Task):
    """The conversation of tool calls; ends with the third."""

    name = "tools"
    splits = {"test": 20_000}
    concurrency = 100_000

    def setup(self, _session: Session) -> str:
        return "go"

    @tool
    def step(self, session: Session, number: int) -> str:
        """Go on."""
        if number == 3:
            session.finish(reward=1.0)
        return str(number)

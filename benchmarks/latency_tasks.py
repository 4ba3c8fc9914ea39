"""The quickstart's tasks behind a slow environment: log-normal latency, median 100 ms, p99 about 1 s."""

import asyncio
import math
import random

from agentrl_env_sdk import Session, tool
from agentrl_env_sdk.tasks.guess import Guess
from agentrl_env_sdk.tasks.trail import Trail

_MEDIAN_S = 0.1
_SIGMA = 1.0
_LATENCY = random.Random(0)


async def _wait() -> None:
    await asyncio.sleep(_LATENCY.lognormvariate(math.log(_MEDIAN_S), _SIGMA))


class SlowGuess(Guess):
    """`guess`, each answer late."""

    name = "guess"

    @tool
    async def guess(self, session: Session, number: int) -> str:
        """guess the number"""
        await _wait()
        return Guess.guess(self, session, number)


class SlowTrail(Trail):
    """`trail`, each answer late."""

    name = "trail"

    @tool
    async def read(self, session: Session, key: str) -> str:
        """read what a key holds"""
        await _wait()
        return Trail.read(self, session, key)

    @tool
    async def answer(self, session: Session, number: int) -> str:
        """give the number"""
        await _wait()
        return Trail.answer(self, session, number)

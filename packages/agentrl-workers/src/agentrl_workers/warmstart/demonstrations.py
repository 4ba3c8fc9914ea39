"""Plays scripted episodes over the real wire and keeps what was said."""

import asyncio
import json
import random
from collections.abc import Sequence
from dataclasses import dataclass

from agentrl_core import FunctionCall, Message, Tool, ToolCall
from agentrl_core.client import SessionClient
from agentrl_workers.warmstart.players import Skill

_CONCURRENCY = 16


@dataclass(frozen=True, slots=True)
class Demonstration:
    """A conversation of a scripted player with an environment."""

    messages: tuple[Message, ...]
    """The environment's first messages, then replies and answers in turn, a reply last."""
    tools: tuple[Tool, ...]
    """The tools it had."""
    score: float
    """How it ended."""


async def play_demonstrations(
    client: SessionClient, task: str, skill: Skill, *, count: int, seed: int
) -> list[Demonstration]:
    """`count` episodes over the task's train split, in an order that depends on the seed alone."""
    indices = await client.indices(task, split="train")
    limit = asyncio.Semaphore(_CONCURRENCY)

    async def one(number: int) -> Demonstration:
        async with limit:
            chance = random.Random(f"{seed}/{task}/{number}")
            return await _play(client, task, chance.choice(indices), skill, chance)

    return list(await asyncio.gather(*(one(number) for number in range(count))))


async def _play(
    client: SessionClient, task: str, index: int | str, skill: Skill, chance: random.Random
) -> Demonstration:
    session = await client.start(task, index, seed=chance.getrandbits(31))
    level = skill.draw(chance)
    messages = list(session.opening.messages)
    score = 0.0
    while True:
        name, arguments = skill.play(messages, level, chance)
        reply_message = _call(name, arguments, number=len(messages))
        messages.append(reply_message)
        reply = await session.interact([reply_message])
        if reply.finish:
            score = float(reply.metrics.get("score", 0.0))
            return Demonstration(tuple(messages), tuple(session.opening.tools or ()), score)
        messages += reply.messages


def _call(name: str, arguments: dict[str, object], *, number: int) -> Message:
    function = FunctionCall(name=name, arguments=json.dumps(arguments))
    call = ToolCall(id=f"call_{number}", type="function", function=function)
    return Message(role="assistant", content="", tool_calls=[call])


def success_rate(demonstrations: Sequence[Demonstration]) -> float:
    """Share of episodes with the full score."""
    return sum(demonstration.score >= 1.0 for demonstration in demonstrations) / len(demonstrations)

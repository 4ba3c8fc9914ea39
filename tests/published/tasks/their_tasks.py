"""Tasks as authors write them for the published SDK; published workers serve them to our controller."""

import asyncio
import json
from pathlib import Path
from typing import Any

from agentrl.worker.task import Session, Task
from agentrl.worker.typings import (
    AgentCancelledException,
    RewardHistoryItem,
    SampleStatus,
    TaskSampleExecutionResult,
)

PRICES = {"drum": 7, "flute": 12, "harp": 30}
PRICE = {
    "type": "function",
    "function": {
        "name": "price",
        "description": "Looks the price of a thing up.",
        "parameters": {
            "type": "object",
            "properties": {"thing": {"type": "string"}},
            "required": ["thing"],
        },
    },
}
MAX_LOOKUPS = 3
CANCELLED = TaskSampleExecutionResult(status=SampleStatus.CANCELLED)


class Shop(Task):
    """The agent looks a price up and says it.

    Args:
        by_name: whether the indices are names; else they are numbers, and -1 for custom ones.
    """

    def __init__(self, name: str, concurrency: int, by_name: bool = False) -> None:
        super().__init__(name, concurrency, tools=[PRICE])
        self._by_name = by_name

    def get_indices(self) -> list[Any]:
        return list(PRICES) if self._by_name else [-1, *range(len(PRICES))]

    async def start_sample(self, index: int | str, session: Session) -> TaskSampleExecutionResult:
        thing = index if isinstance(index, str) else list(PRICES)[index]
        return await self._play(session, thing, PRICES[thing])

    async def start_sample_custom(self, task: dict, session: Session) -> TaskSampleExecutionResult:
        thing = task.get("thing") or list(PRICES)[task["index"]]
        return await self._play(session, thing, task["price"])

    async def _play(self, session: Session, thing: str, price: int) -> TaskSampleExecutionResult:
        session.inject({"role": "system", "content": "Look prices up."})
        session.inject({"role": "user", "content": f"What is the price of the {thing}?"})
        try:
            for num_lookups in range(MAX_LOOKUPS + 1):
                said = (await session.action()).messages[-1]
                if not said.get("tool_calls"):
                    return self._judge(session, said["content"] == str(price), num_lookups)
                if num_lookups < MAX_LOOKUPS:
                    self._look_up(session, said["tool_calls"][0], {**PRICES, thing: price})
        except AgentCancelledException:
            return CANCELLED
        return TaskSampleExecutionResult(status=SampleStatus.TASK_LIMIT_REACHED)

    def _look_up(self, session: Session, call: dict, prices: dict[str, int]) -> None:
        thing = json.loads(call["function"]["arguments"])["thing"]
        session.inject({"role": "tool", "tool_call_id": call["id"], "content": str(prices[thing])})
        session.inject(RewardHistoryItem(reward=0.25, metrics={"looked_up": thing}))

    def _judge(self, session: Session, is_right: bool, num_lookups: int) -> TaskSampleExecutionResult:
        session.inject({"role": "user", "content": "Right." if is_right else "Wrong."})
        metrics = {"lookups": num_lookups, "trace": [{"kind": "judged", "right": is_right}]}
        session.inject(RewardHistoryItem(reward=float(is_right), score=0.5 + is_right / 2, metrics=metrics))
        return TaskSampleExecutionResult(result={"right": is_right})


class Script(Task):
    """Says what scripts tell it to, whatever the agent says.

    A script has `says` (messages for each of its turns; `{heard}` is what the agent said last, as JSON),
    and may have `rewards` (one for each turn), `tools`, and the `status` to end with.

    Args:
        scripts: one for each index; a custom task is a script itself.
    """

    def __init__(self, name: str, concurrency: int, scripts: list[dict]) -> None:
        super().__init__(name, concurrency)
        self._scripts = scripts

    def get_indices(self) -> list[int]:
        return list(range(len(self._scripts)))

    def sync_start_sample(self, index: int, session: Session) -> TaskSampleExecutionResult:
        script = self._scripts[index]
        try:
            heard: list[dict] = []
            for turn in range(len(script["says"]) - 1):
                heard = session.sync_action(*_lines(session, script, turn, heard)).messages
        except AgentCancelledException:
            return CANCELLED
        return _end(session, script, heard)

    async def start_sample_custom(self, task: dict, session: Session) -> TaskSampleExecutionResult:
        try:
            heard: list[dict] = []
            for turn in range(len(task["says"]) - 1):
                heard = (await session.action(*_lines(session, task, turn, heard))).messages
        except AgentCancelledException:
            return CANCELLED
        return _end(session, task, heard)


class Slow(Task):
    """Answers once the file is there that a custom task names as its `gate`.

    With `at_start` that goes for its first words, too. It calls nothing that blocks, so it may be cancelled
    anywhere.
    """

    def __init__(self, name: str, concurrency: int) -> None:
        super().__init__(name, concurrency, full_async=True)

    def get_indices(self) -> list[int]:
        return [-1]

    async def start_sample_custom(self, task: dict, session: Session) -> TaskSampleExecutionResult:
        gate = Path(task["gate"])
        if task.get("at_start"):
            await _opened(gate)
        await session.action({"role": "user", "content": "Ready."})
        await _opened(gate)
        session.inject([{"role": "user", "content": "Done."}, RewardHistoryItem(reward=1.0)])
        return TaskSampleExecutionResult()


class Naive(Task):
    """Lets its cancellation pass, and with it the slot that its worker never frees."""

    def get_indices(self) -> list[int]:
        return [0]

    async def start_sample(self, index: int, session: Session) -> TaskSampleExecutionResult:
        await session.action({"role": "user", "content": "Ready."})
        return TaskSampleExecutionResult()


async def _opened(gate: Path) -> None:
    while not gate.exists():
        await asyncio.sleep(0.02)


def _lines(session: Session, script: dict, turn: int, heard: list[dict]) -> list[Any]:
    if script.get("tools"):
        session.set_tools(script["tools"])
    said = [
        {**message, "content": json.dumps(heard)} if message["content"] == "{heard}" else message
        for message in script["says"][turn]
    ]
    rewards = script.get("rewards", [])
    reward = rewards[turn] if turn < len(rewards) else None
    return [*said, RewardHistoryItem(**reward)] if reward else said


def _end(session: Session, script: dict, heard: list[dict]) -> TaskSampleExecutionResult:
    session.inject(_lines(session, script, len(script["says"]) - 1, heard))
    status = script.get("status", "completed")
    if status == "raise":
        raise RuntimeError("the stage is on fire")
    return TaskSampleExecutionResult(status=SampleStatus(status))

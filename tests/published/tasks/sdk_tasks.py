"""Tasks for what the published SDK and ours answer differently on purpose, and for its sync way."""

import asyncio
from pathlib import Path
from typing import Any

from agentrl.worker.task import Session, Task
from agentrl.worker.typings import (
    AgentCancelledException,
    RewardHistoryItem,
    SampleStatus,
    TaskOutput,
    TaskSampleExecutionResult,
)

TOOLS = [{"type": "function", "function": {"name": "wait", "description": "Waits.", "parameters": {}}}]
OWN = [{"type": "function", "function": {"name": "jump", "description": "Jumps.", "parameters": {}}}]
PICTURE = [
    {"type": "text", "text": "see"},
    {"type": "image_url", "image_url": {"url": "data:image/png;base64,"}},
]


def user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


class Habits(Task):
    """Each sample does one thing that a task may do."""

    def __init__(self, name: str, concurrency: int) -> None:
        super().__init__(name, concurrency, tools=TOOLS)

    def get_indices(self) -> list[str]:
        return [name for name in dir(self) if name.startswith("does_")]

    def sync_start_sample(self, index: str, session: Session) -> TaskSampleExecutionResult:
        try:
            getattr(self, index)(session)
        except AgentCancelledException:
            session.inject(RewardHistoryItem(reward=0, score=0))
            return TaskSampleExecutionResult(status=SampleStatus.CANCELLED)
        return TaskSampleExecutionResult(result={"index": index})

    def does_talk(self, session: Session) -> None:
        session.inject([{"role": "system", "content": "Talk."}, user("1")])
        for turn in range(2, 5):
            heard = session.sync_action().messages[-1]["content"]
            session.inject(RewardHistoryItem(reward=turn, metrics={"heard": heard}))
            session.inject(RewardHistoryItem(reward=turn / 4, score=turn / 4))
            session.inject(user(f"{turn} {heard}"))

    def does_rewrite(self, session: Session) -> None:
        session.sync_action(user("long"))
        session.cover([user("short"), *session.history[1:]])
        session.sync_action(user("next"))
        session.history[0] = user("shorter")
        session.inject(user("last"))

    def does_full_history(self, session: Session) -> None:
        session.set_full_history()
        session.sync_action(user("a"), RewardHistoryItem(reward=1))
        session.sync_action(user("b"))

    def does_clear(self, session: Session) -> None:
        session.sync_action(user("a"), user("b"))
        session.clear()
        session.sync_action(user("c"))

    def does_own_tools(self, session: Session) -> None:
        session.set_tools(OWN)
        session.sync_action(user("a"))
        session.sync_action(user("b"))

    def does_picture(self, session: Session) -> None:
        session.sync_action(user(PICTURE))
        session.inject(user(PICTURE))

    def does_fail(self, session: Session) -> None:
        session.sync_action(user("a"))
        session.inject([user("b"), RewardHistoryItem(reward=0.5)])
        raise LookupError("gone")

    def does_tuple_result(self, session: Session) -> None:
        session.sync_action(user("a"))
        session.inject(RewardHistoryItem(reward=1, metrics={"pair": [1, 2], "deep": {"a": None}}))

    def calculate_overall(self, results: list[TaskOutput]) -> dict[str, Any]:
        return {
            "indices": [result.index for result in results],
            "completed": sum(result.status == SampleStatus.COMPLETED for result in results),
            "reward": sum((result.result or {}).get("reward", 0) for result in results),
            "messages": sum(len(result.history) for result in results),
        }


class Witness(Task):
    """Writes down what its cancellation looks like: `PATH` gets the name of what was raised.

    Args:
        path: a folder; each session writes a file there that is called after its sample.
    """

    def __init__(self, name: str, concurrency: int, path: str, full_async: bool = False) -> None:
        super().__init__(name, concurrency, full_async=full_async)
        self._path = Path(path)

    def get_indices(self) -> list[str]:
        return ["waiting", "working"]

    async def start_sample(self, index: str, session: Session) -> TaskSampleExecutionResult:
        seen = []
        try:
            await session.action(user("a"))
            seen.append("answered")
            (self._path / f"{index}-at-work").touch()
            while not (self._path / "go").exists():
                await asyncio.sleep(0.01)
            seen.append("went on")
            await session.action(user("b"))
        except BaseException as error:
            seen.append(type(error).__name__)
        (self._path / index).write_text(", ".join(seen))
        return TaskSampleExecutionResult(status=SampleStatus.CANCELLED)

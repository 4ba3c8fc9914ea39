import json
from collections.abc import Callable
from typing import Any

import pytest

from agentrl_core import FunctionCall, Message, ToolCall
from agentrl_env_sdk import Session, Task, tool


class Counter(Task):
    """Counts up to three; the episodes that are live and torn down are counted, too."""

    splits = {"train": 3, "test": ["a", "b"]}
    max_turns = 6
    turn_timeout_s = 5.0

    def __init__(self) -> None:
        self.torn_down: list[Any] = []

    def setup(self, session: Session) -> str:
        session.state["count"] = 0
        return f"count to three, sample {session.sample}"

    @tool
    def add(self, session: Session, number: int) -> str:
        """Add to the count."""
        session.state["count"] += number
        session.reward(0.1)
        if session.state["count"] >= 3:
            session.finish(reward=0.5)
        return str(session.state["count"])

    def teardown(self, session: Session) -> None:
        self.torn_down.append(session.id)


@pytest.fixture
def counter() -> Counter:
    return Counter()


@pytest.fixture
def call() -> Callable[..., Message]:
    """An assistant message with a tool call."""

    def make(name: str, *, call_id: str = "c1", **arguments: Any) -> Message:
        function = FunctionCall(name=name, arguments=json.dumps(arguments))
        return Message(
            role="assistant",
            content="",
            tool_calls=[ToolCall(id=call_id, type="function", function=function)],
        )

    return make

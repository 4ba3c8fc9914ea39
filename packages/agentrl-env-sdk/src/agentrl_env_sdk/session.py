"""One episode as its task sees it: the sample, a seeded source of chance, rewards, and the agent."""

import asyncio
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from agentrl_core import Message, RewardItem, SampleIndex, SampleStatus, Tool

Said = str | Message | Sequence[Message]
"""What a task may say: a text for the user role, a message, or several."""


class EpisodeOver(BaseException):
    """Leaves a task whose episode has ended; like a cancellation, nothing to be caught by the task."""


@dataclass(frozen=True, slots=True)
class AgentReply:
    """What the agent answered."""

    messages: tuple[Message, ...]
    """Its messages, usually one assistant message."""

    @property
    def text(self) -> str:
        """The text of all messages."""
        return "".join(message.text for message in self.messages)


@dataclass(slots=True)
class Exchange:
    """What an environment answers to a start or an interaction."""

    messages: list[Message]
    tools: list[Tool] | None
    status: SampleStatus
    finish: bool
    reward: float
    metrics: dict[str, Any]


@dataclass(slots=True)
class _Pending:
    """What has gathered since the last exchange."""

    messages: list[Message] = field(default_factory=list)
    reward: float = 0.0


class Session:
    """An episode; a task gets one for each sample that is played.

    Attributes:
        id: identity on the worker.
        index: which sample.
        split: the split it belongs to; None for a custom task.
        sample: the sample's data: the entry of the split, or the custom task.
        seed: the episode's seed.
        random: chance that depends on the task, the sample and the seed alone.
        state: the task's own data of this episode.
        turns_left: replies that the agent may still give.
    """

    def __init__(
        self,
        session_id: int | str,
        *,
        task: str,
        index: SampleIndex,
        split: str | None,
        sample: Any,
        seed: int,
        max_turns: int,
        tools: list[Tool] | None,
    ) -> None:
        self.id = session_id
        self.index = index
        self.split = split
        self.sample = sample
        self.seed = seed
        self.random = random.Random(f"{task}/{index}/{seed}")
        self.state: dict[str, Any] = {}
        self.turns_left = max_turns
        self.metrics: dict[str, Any] = {}
        self.earned = 0.0
        self.status: SampleStatus | None = None
        self._tools = tools
        self._tools_are_new = True
        self._pending = _Pending()
        self._answer: asyncio.Future[Exchange] | None = None
        self._reply: asyncio.Future[AgentReply] | None = None
        self._is_closed = False

    @property
    def finished(self) -> bool:
        """Whether the episode has been ended."""
        return self.status is not None

    def reward(self, value: float, *, score: float | None = None, **metrics: Any) -> None:
        """Add to the episode's return.

        Args:
            value: what is added.
            score: the headline result so far, in [0, 1].
            metrics: other numbers about the episode.

        Raises:
            ValueError: the value is not finite, or the score not in [0, 1].
        """
        if not math.isfinite(value):
            raise ValueError(f"`reward` must be finite, got {value}")
        if score is not None and not 0.0 <= score <= 1.0:
            raise ValueError(f"`score` must be in [0, 1], got {score}; scale it, or report it as a metric")
        if self._is_closed:
            return
        item = RewardItem(reward=value, score=score, metrics=metrics)
        self.earned += item.reward
        self._pending.reward += item.reward
        self.metrics.update(item.metrics)
        if item.score is not None:
            self.metrics["score"] = item.score

    def finish(
        self,
        *,
        reward: float | None = None,
        score: float | None = None,
        status: SampleStatus = SampleStatus.COMPLETED,
    ) -> None:
        """End the episode with this exchange.

        Args:
            reward: a last reward.
            score: the headline result in [0, 1]; the return, clipped to it, where none was given.
            status: how it ended.
        """
        if reward is not None or score is not None:
            self.reward(reward or 0.0, score=score)
        self.status = self.status or status

    def set_tools(self, tools: Sequence[Tool]) -> None:
        """Give this episode tools of its own; the agent is told with the next exchange."""
        self._tools = list(tools)
        self._tools_are_new = True

    def say(self, said: Said) -> None:
        """Add messages to what the agent gets next."""
        if not self._is_closed:
            self._pending.messages += as_messages(said)

    async def action(self, said: Said = ()) -> AgentReply:
        """Send messages to the agent and wait for its reply.

        Where the episode has been finished or the agent has no turns left, the messages are its last
        ones and the task does not come back from here.
        """
        if self._is_closed:
            raise asyncio.CancelledError("the session has been cancelled")
        self.say(said)
        if self.turns_left <= 0:
            self.finish(status=SampleStatus.TASK_LIMIT_REACHED)
        if self.finished:
            raise EpisodeOver
        if self._answer is None or self._answer.done():
            raise RuntimeError("`session.action` was called twice at the same time")
        self._reply = asyncio.get_running_loop().create_future()
        self._answer.set_result(self._exchange(SampleStatus.RUNNING, finish=False))
        reply = await self._reply
        self.turns_left -= 1
        return reply

    # The runner's side of the exchange.

    def expect(self) -> "asyncio.Future[Exchange]":
        """The answer that the task gives next."""
        self._answer = asyncio.get_running_loop().create_future()
        return self._answer

    def resume(self, messages: Sequence[Message]) -> None:
        """Hand the agent's messages to the waiting task."""
        assert self._reply is not None
        if not self._reply.done():
            self._reply.set_result(AgentReply(tuple(messages)))

    def close(self) -> None:
        """Let nothing more be said; a task that swallows its cancellation finds out here."""
        self._is_closed = True

    def conclude(self) -> None:
        """Give the last answer to whoever waits for one."""
        self.status = self.status or SampleStatus.COMPLETED
        self.metrics.setdefault("score", min(1.0, max(0.0, self.earned)))
        if self._answer is not None and not self._answer.done():
            self._answer.set_result(self._exchange(self.status, finish=True))

    def _exchange(self, status: SampleStatus, *, finish: bool) -> Exchange:
        pending, self._pending = self._pending, _Pending()
        tools = self._tools if self._tools_are_new else None
        self._tools_are_new = False
        return Exchange(pending.messages, tools, status, finish, pending.reward, dict(self.metrics))


def encodable(text: str) -> str:
    """The text with halves of characters, which no JSON reader takes, replaced."""
    return text.encode("utf-8", "replace").decode()


def as_messages(said: Said) -> list[Message]:
    """What a task says, as messages.

    Raises:
        TypeError: it is none of the forms.
    """
    if isinstance(said, str):
        return [Message(role="user", content=encodable(said))]
    if isinstance(said, Message):
        return [said]
    if isinstance(said, Sequence) and all(isinstance(message, Message) for message in said):
        return list(said)
    raise TypeError(f"a task says a text, a Message or a list of them, got {type(said).__name__}")

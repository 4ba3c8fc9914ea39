"""One episode as its task sees it: the sample, a seeded source of chance, rewards, and the agent."""

import asyncio
import math
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from agentrl_core import Message, RewardItem, SampleIndex, SampleStatus, Tool
from agentrl_env_sdk.content import encodable
from agentrl_env_sdk.tools import BoundTool, bind

Said = str | Message | Sequence[Message]
"""What a task may say: a text for the user role, a message, or several."""


class EpisodeOver(BaseException):
    """Leaves a task whose episode has ended; like a cancellation, nothing to be caught by the task."""


class TaskFailedError(Exception):
    """A failure of the task that is told elsewhere; its text is the whole reason."""


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
        task: name of the task.
        index: which sample.
        split: the split it belongs to; None for a custom task.
        sample: the sample's data: the entry of the split, or the custom task.
        seed: the episode's seed.
        state: the task's own data of this episode.
        turns_left: replies that the agent may still give.
        metrics: what is reported of the episode so far.
        earned: its return so far.
        status: how it ended; None while it goes on.
        tools: what may be called, by name.
        invalid_actions: unusable replies so far.
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
        tools: Mapping[str, BoundTool],
        timeout_s: float | None = None,
    ) -> None:
        self.id = session_id
        self.index = index
        self.split = split
        self.sample = sample
        self.seed = seed
        self.task = task
        self.state: dict[str, Any] = {}
        self.turns_left = max_turns
        self.metrics: dict[str, Any] = {}
        self.earned = 0.0
        self.status: SampleStatus | None = None
        self.invalid_actions = 0
        self.tools = dict(tools)
        self._specs: list[Tool] | None = [found.spec for found in tools.values()] or None
        self._tools_are_new = True
        self._ends_at = None if timeout_s is None else time.monotonic() + timeout_s
        self._pending = _Pending()
        self._answer: asyncio.Future[Exchange] | None = None
        self._reply: asyncio.Future[AgentReply] | None = None
        self._is_closed = False

    @cached_property
    def random(self) -> random.Random:
        """Chance that depends on the task, the sample and the seed alone."""
        return random.Random(f"{self.task}/{self.index}/{self.seed}")

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

    def truncate(self, reason: str) -> None:
        """End the episode at a limit that says nothing about the agent's work; its return so far counts.

        Args:
            reason: which limit, for `metrics["truncated"]`.
        """
        if not self.finished:
            self.metrics["truncated"] = reason
        self.finish(status=SampleStatus.TASK_LIMIT_REACHED)

    def set_tools(self, tools: Sequence[Tool | BoundTool | Callable[..., Any]]) -> None:
        """Give this episode tools of its own; the agent is told with the next exchange.

        Args:
            tools: functions, described like `@tool` methods, or tools made by `tools.described`. A bare
                `Tool` is shown to the agent, but what answers its calls is up to the task's `run`.

        Raises:
            ConfigError: a function cannot be described to a model.
        """
        bound = [
            given if isinstance(given, Tool | BoundTool) else bind(given, session_type=Session)
            for given in tools
        ]
        self._specs = [found if isinstance(found, Tool) else found.spec for found in bound]
        self.tools = {found.name: found for found in bound if isinstance(found, BoundTool)}
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
        self._check_limits()
        if self._answer is None or self._answer.done():
            raise RuntimeError("`session.action` was called twice at the same time")
        self._reply = asyncio.get_running_loop().create_future()
        self._answer.set_result(self._exchange(SampleStatus.RUNNING, finish=False))
        reply = await self._reply
        self.turns_left -= 1
        self._check_time()
        return reply

    def _check_limits(self) -> None:
        if self.turns_left <= 0:
            self.truncate("max_turns")
        self._check_time()
        if self.finished:
            raise EpisodeOver

    def _check_time(self) -> None:
        if self._ends_at is not None and time.monotonic() >= self._ends_at:
            self.truncate("episode_timeout_s")
            raise EpisodeOver

    # The runner's side of the exchange.

    def twin(self, session_id: int | str) -> "Session":
        """Another session that stands where this one does; what the task keeps is not part of it."""
        twin = Session(
            session_id,
            task=self.task,
            index=self.index,
            split=self.split,
            sample=self.sample,
            seed=self.seed,
            max_turns=self.turns_left,
            tools=self.tools,
        )
        twin.metrics = dict(self.metrics)
        twin.earned = self.earned
        twin.invalid_actions = self.invalid_actions
        twin.random.setstate(self.random.getstate())
        twin._specs, twin._ends_at = self._specs, self._ends_at
        return twin

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
        tools = self._specs if self._tools_are_new else None
        self._tools_are_new = False
        return Exchange(pending.messages, tools, status, finish, pending.reward, dict(self.metrics))


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
    given = type(said).__name__
    if isinstance(said, Sequence):
        given += f" of {' and '.join(sorted({type(message).__name__ for message in said}))}"
    raise TypeError(f"a task says a text, a Message or a list of Messages, got {given}")

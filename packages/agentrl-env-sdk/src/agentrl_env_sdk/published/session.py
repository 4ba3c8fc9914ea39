"""`agentrl.worker.task.Session`: a history that the task adds to, of which the agent gets what is new."""

import asyncio
import json
from collections.abc import Iterable
from typing import Any

from agentrl_core import Message, Tool
from agentrl_env_sdk.content import plain
from agentrl_env_sdk.published.typings import (
    AgentCancelledException,
    AgentOutput,
    AgentOutputStatus,
    FullHistory,
    HistoryItem,
    RewardHistoryItem,
    TaskOutput,
    ToolList,
    as_message,
    as_reward,
    as_tool,
)
from agentrl_env_sdk.session import EpisodeOver
from agentrl_env_sdk.session import Session as Episode

_SILENCE = {"role": "assistant", "content": ""}
"""What a task hears of an agent that says nothing; it may count on a message."""


class SessionController:
    """The state of a session's exchange with its agent.

    Attributes:
        full_history: whether the agent gets the whole history each time rather than what is new.
        env_input: what the agent said last.
        env_output: the history as of the last exchange.
    """

    def __init__(self) -> None:
        self.full_history = False
        self.env_input: AgentOutput | None = None
        self.env_output = TaskOutput()
        self.is_waiting = False

    def get_status(self) -> dict[str, Any]:
        """Who waits for whom, and what was said last."""
        return {
            "waiting_for_env": not self.is_waiting,
            "waiting_for_agent": self.is_waiting,
            "env_input": self.env_input,
            "env_output": self.env_output.model_dump(mode="json"),
        }


class Session:
    """An episode as a published task sees it.

    Args:
        session_id: identity on the worker.
        episode: our session, which talks to the agent; without one the history can be kept, but nobody
            answers.

    Attributes:
        id: identity on the worker.
        tools: tools of this episode; None stands for the task's.
        loop: where `action` runs when `sync_action` calls it.
        controller: state of the exchange.
        knows: whether the task has been told that its agent has gone.
    """

    def __init__(self, session_id: int | str, episode: Episode | None = None) -> None:
        self.id = session_id
        self.controller = SessionController()
        self.tools: list[Any] | None = None
        self.loop: asyncio.AbstractEventLoop | None = None
        self._episode = episode
        self._history: list[Any] = []
        self._num_told = 0
        self.knows = False
        self._is_cancelled = False
        self._answer: asyncio.Future[Any] | None = None
        self._default_tools: list[Any] | None = None
        self._shown_tools: list[Tool] = []

    @property
    def history(self) -> list[Any]:
        """Messages and rewards so far; a task may change it in place."""
        return self._history

    @history.setter
    def history(self, items: list[Any]) -> None:
        # What is added after the history was cut short is new to the agent, wherever it stands.
        self._history = items
        self._num_told = min(self._num_told, len(items))

    def inject(self, item: Any) -> None:
        """Add a message, a reward, or a list of them.

        Raises:
            ValueError: it is none of these.
        """
        if isinstance(item, list | tuple):
            for inner in item:
                self.inject(inner)
        elif item:
            HistoryItem.model_validate(item)
            self._history.append(item)

    def clear(self) -> None:
        """Forget the history."""
        self.history = []

    def cover(self, items: list[Any]) -> None:
        """Put other items in the history's place.

        Raises:
            ValueError: one is neither a message nor a reward.
        """
        FullHistory.model_validate(items)
        self.history = list(items)

    def set_full_history(self, full_history: bool = True) -> None:
        """Send the agent the whole history each time rather than what is new."""
        self.controller.full_history = full_history

    def set_tools(self, tools: list[Any] | None = None) -> None:
        """Give this episode tools of its own, or the task's again.

        Raises:
            ValueError: they have neither the OpenAI nor the Anthropic shape.
        """
        ToolList.model_validate(tools)
        self.tools = tools
        self._show_tools()

    async def action(self, *injection: Any) -> AgentOutput:
        """Add to the history, send the agent what is new, and wait for its reply.

        Raises:
            AgentCancelledException: the agent has gone.
        """
        self.inject(injection)
        if self._episode is None:
            raise RuntimeError(f"session {self.id} is not played by anybody; nobody can answer")
        if self._is_cancelled:
            raise self._gone()
        self.tell()
        self._answer = asyncio.ensure_future(self._episode.action())
        self.controller.is_waiting = True
        try:
            reply = await self._answer
        except EpisodeOver:
            self._is_cancelled = True
            raise self._gone() from None
        except asyncio.CancelledError:
            if self._is_cancelled:
                raise self._gone() from None
            raise
        finally:
            self.controller.is_waiting = False
        return self._heard(reply.messages)

    def sync_action(self, *injection: Any) -> AgentOutput:
        """`action` for code on a thread."""
        if self.loop is None:
            raise RuntimeError("`sync_action` is for `sync_start_sample`; async code awaits `action`")
        return asyncio.run_coroutine_threadsafe(self.action(*injection), self.loop).result()

    def _gone(self) -> AgentCancelledException:
        self.knows = True
        return AgentCancelledException()

    def _heard(self, messages: Iterable[Message]) -> AgentOutput:
        said = [_textual(message.to_wire()) for message in messages] or [dict(_SILENCE)]
        output = AgentOutput(status=AgentOutputStatus.NORMAL, messages=said)
        self._history.extend(said)
        self._num_told = len(self._history)
        self.controller.env_input = output
        return output

    # The player's side.

    def offer(self, tools: list[Any] | None) -> None:
        """Show the agent the task's tools, unless the episode has its own."""
        self._default_tools = tools
        self._show_tools()

    def tell(self) -> None:
        """Put what is new, and the last reward in it, into the next exchange."""
        assert self._episode is not None
        new = self._history[self._num_told :]
        sent = self._history if self.controller.full_history else new
        self._episode.say([_message(item) for item in sent if as_reward(item) is None])
        rewards = [reward for reward in map(as_reward, new) if reward is not None]
        if rewards:
            self._episode.reward(rewards[-1].reward)
        self._episode.metrics = dict(rewards[-1].metrics) if rewards else {}
        self.controller.env_output = TaskOutput.model_construct(
            index=self._episode.index, history=list(self._history), history_ptr=self._num_told
        )
        self._num_told = len(self._history)

    def cancel(self) -> None:
        """Let the task know, where it waits for the agent next, that there is none any more."""
        self._is_cancelled = True
        if self._answer is not None:
            self._answer.cancel()

    def _show_tools(self) -> None:
        shown = [as_tool(tool) for tool in self.tools or self._default_tools or []]
        if self._episode is not None and shown != self._shown_tools:
            self._shown_tools = shown
            self._episode.set_tools(shown)


def _textual(message: dict[str, Any]) -> dict[str, Any]:
    """A message whose calls have their arguments as text, which is what tasks parse."""
    for call in message.get("tool_calls") or []:
        if not isinstance(call["function"]["arguments"], str):
            call["function"]["arguments"] = json.dumps(call["function"]["arguments"])
    return message


def _message(item: Any) -> Message:
    return Message.model_validate(plain(as_message(item)))


__all__ = ["RewardHistoryItem", "Session", "SessionController"]

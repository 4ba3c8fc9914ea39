"""How a task tells the best play: a generator of actions that knows what agents do not.

A task may have a method `oracle(self, session)` that yields actions; each `yield` gives back what the
environment answered. `agentrl-env validate` plays it to prove that the optimum can be reached.

    def oracle(self, session: Session) -> Plan:
        seen = yield act("guess", number=50)
        while not seen.finish:
            seen = yield act("guess", number=session.state["number"])
"""

import inspect
import json
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Generator, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from agentrl_core import FunctionCall, Message, SampleStatus, Tool, ToolCall

if TYPE_CHECKING:
    from agentrl_env_sdk.session import Exchange, Session

Action = str | ToolCall | Message | Sequence[ToolCall]
"""What an agent may do in a turn: say a text, call a tool or several, or send a message as it is."""


@dataclass(frozen=True, slots=True)
class Observation:
    """What an agent gets to see after a turn."""

    messages: tuple[Message, ...]
    """What the environment said."""
    tools: tuple[Tool, ...] | None
    """The tools, on the first observation and whenever they change."""
    reward: float
    """What the turn earned; agents are not told."""
    status: SampleStatus
    """State of the episode."""
    finish: bool
    """Whether the episode has ended."""
    metrics: dict[str, Any]
    """What has been reported of the episode so far."""

    @property
    def text(self) -> str:
        """The text of all messages, each on a line of its own."""
        return "\n".join(message.text for message in self.messages)

    @classmethod
    def of(cls, exchange: "Exchange") -> "Observation":
        """What an exchange shows."""
        tools = None if exchange.tools is None else tuple(exchange.tools)
        messages = tuple(exchange.messages)
        return cls(messages, tools, exchange.reward, exchange.status, exchange.finish, exchange.metrics)


Plan = (
    Generator[Action, Observation, None]
    | AsyncGenerator[Action, Observation]
    | Iterable[Action]
    | AsyncIterable[Action]
)
"""A play, an action a turn; of a generator each `yield` gives back the observation that follows."""

Oracle = Callable[["Session"], Plan]
"""Makes the best play of a session, of which it may use everything: sample, state and chance."""


def act(name: str, /, **arguments: Any) -> ToolCall:
    """A call of a tool, as a model would make it.

    Args:
        name: the tool.
        arguments: what it is called with; JSON values.
    """
    return ToolCall(type="function", function=FunctionCall(name=name, arguments=json.dumps(arguments)))


def oracle_of(task: object) -> Oracle | None:
    """The task's own oracle; None where it has none."""
    found: Oracle | None = getattr(task, "oracle", None)
    return found


class Player:
    """Asks a plan for one action after another.

    Args:
        plan: what an oracle returned.
    """

    def __init__(self, plan: Plan) -> None:
        self._plan = plan if hasattr(plan, "send") or hasattr(plan, "asend") else _started(plan)
        self._has_begun = False

    @property
    def is_async(self) -> bool:
        """Whether the plan belongs on the event loop."""
        return inspect.isasyncgen(self._plan) or hasattr(self._plan, "__anext__")

    def next(self, seen: Observation) -> Action | None:
        """The next action of a sync plan; None where it has no more."""
        plan: Any = self._plan
        try:
            if self._has_begun and hasattr(plan, "send"):
                return plan.send(seen)
            self._has_begun = True
            return next(plan)
        except StopIteration:
            return None

    async def anext(self, seen: Observation) -> Action | None:
        """The next action of an async plan; None where it has no more."""
        plan: Any = self._plan
        try:
            if self._has_begun and hasattr(plan, "asend"):
                return await plan.asend(seen)
            self._has_begun = True
            return await anext(plan)
        except StopAsyncIteration:
            return None


def _started(plan: Any) -> Any:
    return aiter(plan) if hasattr(plan, "__aiter__") else iter(plan)

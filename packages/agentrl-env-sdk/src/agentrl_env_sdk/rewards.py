"""What an episode is worth at its end: parts with weights, and other numbers."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar, overload

from agentrl_env_sdk.threads import call

if TYPE_CHECKING:
    from agentrl_env_sdk.session import Session

Function = TypeVar("Function", bound=Callable[..., Any])

_MARK = "__agentrl_part__"


@dataclass(frozen=True, slots=True)
class _Part:
    """How a method counts; a metric has no weight."""

    weight: float | None


@overload
def reward(function: Function, /) -> Function: ...
@overload
def reward(*, weight: float = 1.0) -> Callable[[Function], Function]: ...
def reward(function: Any = None, /, *, weight: float = 1.0) -> Any:
    """Mark a method as a part of the reward at the episode's end; with or without parentheses.

    It takes the session and returns a number (or a bool), of which `weight` times goes into the return
    and the number itself into `metrics["reward/<name>"]`. Sync or async. Parts count where the episode
    was completed, or ended at a limit or by the agent's unusable replies; not where it was cancelled or
    the task failed.

    Raises:
        ValueError: the weight is not finite.
    """
    if not math.isfinite(weight):
        raise ValueError(f"`weight` of a reward must be finite, got {weight}")

    def mark(function: Function) -> Function:
        setattr(function, _MARK, _Part(weight))
        return function

    return mark if function is None else mark(function)


def metric(function: Function) -> Function:
    """Mark a method whose value at the episode's end goes into `metrics["<name>"]`; sync or async."""
    setattr(function, _MARK, _Part(None))
    return function


def parts_of(task: object) -> dict[str, float | None]:
    """Weight of each marked method of a task by name, in the order of their definition; None for metrics."""
    found: dict[str, float | None] = {}
    for owner in reversed(type(task).__mro__):
        for name, member in vars(owner).items():
            part = getattr(member, _MARK, None)
            if isinstance(part, _Part):
                found[name] = part.weight
    return found


async def grade(task: object, session: "Session") -> None:
    """Add the parts of the reward and the metrics to an episode that is over.

    Raises:
        TypeError: a part is no number.
        ValueError: a part is not finite.
    """
    for name, weight in parts_of(task).items():
        value = await call(getattr(task, name), session)
        if weight is None:
            session.metrics[name] = value
            continue
        try:
            number = float(value)
        except (TypeError, ValueError):
            raise TypeError(f"reward `{name}` must return a number, got {value!r}") from None
        session.reward(weight * number)
        session.metrics[f"reward/{name}"] = number

"""What an ended episode counts as: pure rules from what happened to outcome and score."""

import math
from collections.abc import Mapping
from typing import Any

from agentrl_core import AgentRLError, ErrorCode, Outcome, Reply, SessionError, outcome_of
from agentrl_eval.models import ContextLimitError, ModelUnusableError

# No unknown task: it was known when its samples were listed, so its last worker has gone and may return.
_STOPS_THE_RUN = (ErrorCode.UNKNOWN_INDEX, ErrorCode.UNAUTHORIZED)


def score_of(metrics: Mapping[str, Any], *, reward: float) -> float:
    """An episode's headline: the score its task reports, else the sum of its rewards."""
    score = metrics.get("score")
    if isinstance(score, int | float) and math.isfinite(score):
        return float(score)
    return reward


def end_of(reply: Reply) -> tuple[Outcome, str]:
    """Outcome and reason where the environment ended the episode."""
    if reply.status == "running":
        return Outcome.ENVIRONMENT_ERROR, "the environment ended the episode as still running"
    outcome = outcome_of(reply.status)
    detail = reply.metrics.get("error")
    why = f"{reply.status}: {detail}" if detail else str(reply.status)
    return outcome, "" if outcome is Outcome.COMPLETED else why


def failure_of(error: AgentRLError) -> tuple[Outcome, str]:
    """Outcome and reason where an error ended the episode.

    Raises:
        AgentRLError: the error itself, where every other episode would meet it too.
    """
    if isinstance(error, ContextLimitError):
        return Outcome.TRUNCATED, str(error)
    if isinstance(error, ModelUnusableError):
        raise error
    if not isinstance(error, SessionError):
        return Outcome.INFRASTRUCTURE_ERROR, f"model: {error}"
    if error.code in _STOPS_THE_RUN:
        raise error
    if error.code is ErrorCode.CANCELLED:
        return Outcome.CANCELLED, str(error)
    return Outcome.INFRASTRUCTURE_ERROR, f"{error.code}: {error}"

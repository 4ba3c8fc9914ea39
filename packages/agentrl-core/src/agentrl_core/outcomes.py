"""How an episode ended, so that a fault of the machinery is never mistaken for the agent's."""

from enum import StrEnum

from agentrl_core.sessions import SampleStatus


class Outcome(StrEnum):
    """Class of an episode's end; every episode has exactly one."""

    COMPLETED = "completed"
    """The environment ended it; its reward counts."""
    TRUNCATED = "truncated"
    """A limit of turns, tokens or context ended it; its reward so far counts."""
    AGENT_ERROR = "agent_error"
    """The agent's replies stayed unusable; its reward so far counts."""
    ENVIRONMENT_ERROR = "environment_error"
    """The task failed; it says nothing about the agent."""
    INFRASTRUCTURE_ERROR = "infrastructure_error"
    """A worker, controller, engine or network failed; it says nothing about the agent."""
    CANCELLED = "cancelled"
    """Somebody stopped it."""

    @property
    def is_scored(self) -> bool:
        """Whether the reward tells something about the agent."""
        return self in (Outcome.COMPLETED, Outcome.TRUNCATED, Outcome.AGENT_ERROR)


_BY_STATUS = {
    SampleStatus.COMPLETED: Outcome.COMPLETED,
    SampleStatus.AGENT_CONTEXT_LIMIT: Outcome.TRUNCATED,
    SampleStatus.TASK_LIMIT_REACHED: Outcome.TRUNCATED,
    SampleStatus.AGENT_VALIDATION_FAILED: Outcome.AGENT_ERROR,
    SampleStatus.AGENT_INVALID_ACTION: Outcome.AGENT_ERROR,
    SampleStatus.TASK_ERROR: Outcome.ENVIRONMENT_ERROR,
    SampleStatus.UNKNOWN: Outcome.ENVIRONMENT_ERROR,
    SampleStatus.CANCELLED: Outcome.CANCELLED,
}


def outcome_of(status: SampleStatus) -> Outcome:
    """The class of a finished session's status.

    Raises:
        ValueError: the status is `running`; only an ended session has an outcome.
    """
    if status is SampleStatus.RUNNING:
        raise ValueError("status is `running`: only a session that has ended has an outcome")
    return _BY_STATUS[status]

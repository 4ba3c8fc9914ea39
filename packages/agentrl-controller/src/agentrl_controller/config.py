"""The controller's settings."""

from pydantic import BaseModel, ConfigDict, Field


class ControllerConfig(BaseModel):
    """Deadlines and limits; every one can be met by waiting or by asking again."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    token: str | None = Field(default=None, min_length=1)
    """Bearer token that every request must carry; None asks for none."""
    lease_s: float = Field(default=11.0, gt=0.0)
    """A worker silent for this long is lost, and its sessions with it."""
    forget_s: float = Field(default=300.0, gt=0.0)
    """A lost worker is listed for this long."""
    audit_s: float = Field(default=60.0, gt=0.0)
    """How often a worker is asked which sessions it knows."""
    start_timeout_s: float = Field(default=60.0, gt=0.0)
    """Longest wait of a start for a slot and the first messages, unless the caller gives a deadline."""
    interact_timeout_s: float = Field(default=240.0, gt=0.0)
    """Longest wait of a caller for a worker's answer, unless it gives a deadline."""
    answer_timeout_s: float = Field(default=600.0, gt=0.0)
    """A worker that takes longer for an answer has failed; never less than the caller's own deadline."""
    reclaim_s: float = Field(default=30.0, ge=0.0)
    """A session whose starter went away with a request id is kept this long for it to ask again."""
    idle_timeout_s: float = Field(default=1800.0, gt=0.0)
    """A session that nobody talks to for this long is cancelled; one that is answering is not idle."""
    keep_finished_s: float = Field(default=600.0, gt=0.0)
    """Ended sessions are known for this long, so that a last answer can be asked for again."""
    max_finished: int = Field(default=10_000, ge=0)
    """Ended sessions that are known at most."""
    max_queue: int = Field(default=10_000, ge=0)
    """Starts of a task that wait for a slot at most; more are refused."""
    max_body_bytes: int = Field(default=100 * 2**20, ge=1)
    """Largest request body."""

"""What every rollout engine takes and gives: token ids in, token ids with their log-probabilities out."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Literal, Protocol

from pydantic import BaseModel, ConfigDict, Field

from agentrl_core import AgentRLError, PolicyVersion, Segment

if TYPE_CHECKING:
    import torch

FinishReason = Literal["stop", "length", "abort"]

OnToken = Callable[[int, float], bool | None]
"""Told of each token and its log-probability as it is sampled, on the caller's event loop.

True ends the reply there, as `abort`; the generation may hold a few tokens more.
"""


class EngineError(AgentRLError):
    """The engine refuses a request or has failed; the message says which."""


class EngineLostError(EngineError):
    """The engine will answer nobody any more; the message says why."""


class SamplingParams(BaseModel):
    """How the next tokens are drawn."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    temperature: float = Field(default=1.0, ge=0.0)
    """Divides the logits; 0 takes the most likely token."""
    top_p: float = Field(default=1.0, gt=0.0, le=1.0)
    """Keeps the smallest set of tokens with this probability; 1 keeps all."""
    top_k: int = Field(default=-1, ge=-1)
    """Keeps this many tokens; -1 keeps all."""
    min_p: float = Field(default=0.0, ge=0.0, le=1.0)
    """Drops tokens less likely than this share of the likeliest one."""
    max_tokens: int = Field(default=256, ge=1)
    """Longest reply in tokens."""
    stop_token_ids: tuple[int, ...] = ()
    """A reply ends with the first of these, which belongs to it."""
    seed: int | None = None
    """Makes one request's draws repeat under the same weights."""


class Generation(BaseModel):
    """A sampled reply.

    Log-probabilities are those of `softmax(logits / temperature)` before any top-p, top-k or min-p
    filter, as SGLang reports them; a trainer divides its logits by the same temperature.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    token_ids: tuple[int, ...]
    """The reply, the stop token included where one ended it."""
    logps: tuple[float, ...]
    """Log-probability of each token under the weights that sampled it."""
    segments: tuple[Segment, ...]
    """Which version of the weights sampled which tokens."""
    finish_reason: FinishReason
    """`stop` by a stop token, `length` by `max_tokens` or the context, `abort` by `on_token`."""
    cached_tokens: int
    """Prompt tokens whose keys and values were still in the cache."""


class Engine(Protocol):
    """Samples from a language model whose weights change while it runs."""

    @property
    def version(self) -> PolicyVersion:
        """Version of the weights that sample now."""
        ...

    @property
    def context_length(self) -> int:
        """Longest sequence in tokens, prompt and reply together."""
        ...

    def alive(self) -> bool:
        """Whether requests can still succeed."""
        ...

    async def generate(
        self, prompt_ids: Sequence[int], sampling: SamplingParams, *, on_token: OnToken | None = None
    ) -> Generation:
        """Sample one reply; cancelling the call takes it out of the batch.

        Raises:
            EngineError: the prompt does not fit the context, or the engine has stopped.
        """
        ...

    async def load_weights(self, weights: "Mapping[str, torch.Tensor]", *, version: PolicyVersion) -> float:
        """Swap the weights between two tokens and forget cached prefixes; returns the seconds blocked."""
        ...

    async def close(self) -> None:
        """Abort what runs and free the memory."""
        ...

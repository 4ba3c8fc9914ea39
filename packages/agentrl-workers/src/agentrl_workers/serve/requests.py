"""The chat-completions request, and what is refused of it."""

from typing import Any

from pydantic import BaseModel, ConfigDict, Field, model_validator

from agentrl_core import Message, Tool
from agentrl_workers.engines import SamplingParams

_MAX_SEED = 2**63
_GREEDY_BELOW = 1e-5
"""Temperatures below this are greedy: float32 logits divided by less overflow."""


class RequestError(Exception):
    """A request that is answered with OpenAI's error object.

    Attributes:
        http_status: its HTTP status.
        code: OpenAI's code.
        param: the field at fault.
    """

    def __init__(
        self, message: str, *, http_status: int = 400, code: str | None = None, param: str | None = None
    ) -> None:
        super().__init__(message)
        self.http_status = http_status
        self.code = code
        self.param = param


class StreamOptions(BaseModel):
    """Options of a streamed answer."""

    include_usage: bool = False
    """End with a chunk that counts the tokens."""


class ChatRequest(BaseModel):
    """Body of `POST /v1/chat/completions`; unknown fields are ignored, null means the default."""

    model_config = ConfigDict(extra="ignore")

    model: str
    """Name of the served model."""
    messages: list[Message] = Field(min_length=1)
    """The conversation."""
    tools: list[Tool] = []
    """Tools that the model may call."""
    tool_choice: Any = "auto"
    """`auto` or `none`."""
    temperature: float = Field(default=1.0, ge=0.0, allow_inf_nan=False)
    """Divides the logits; 0 is greedy."""
    top_p: float = Field(default=1.0, gt=0.0, le=1.0)
    """Nucleus sampling."""
    max_tokens: int | None = Field(default=None, ge=1)
    """Longest reply in tokens."""
    max_completion_tokens: int | None = Field(default=None, ge=1)
    """The same under its newer name, which counts where both are given."""
    stop: str | list[str] = []
    """Texts at which the reply ends; they do not belong to it."""
    seed: int | None = None
    """Makes the draws repeat."""
    n: int = Field(default=1, ge=1, le=8)
    """Replies."""
    stream: bool = False
    """Send the reply as it is sampled."""
    stream_options: StreamOptions = StreamOptions()
    """Options of a streamed answer."""
    logprobs: bool = False
    """Tell the log-probability of each token, before `top_p` is applied."""
    top_logprobs: int = 0
    """Not supported beyond 0."""

    @model_validator(mode="before")
    @classmethod
    def _drop_nulls(cls, body: Any) -> Any:
        if isinstance(body, dict):
            return {key: value for key, value in body.items() if value is not None}
        return body

    def check(self, *, name: str) -> None:
        """Refuse what cannot be done.

        Raises:
            RequestError: with the field at fault.
        """
        if self.model != name:
            message = f"the model `{self.model}` is not served here; `{name}` is"
            raise RequestError(message, http_status=404, code="model_not_found", param="model")
        if self.tool_choice not in ("auto", "none"):
            message = f"`tool_choice` must be `auto` or `none`, got {self.tool_choice!r:.80}"
            raise RequestError(message, param="tool_choice")
        if self.top_logprobs != 0:
            message = f"`top_logprobs` must be 0, got {self.top_logprobs}; only sampled tokens are told"
            raise RequestError(message, param="top_logprobs")

    @property
    def offered_tools(self) -> list[Tool]:
        """The tools that the model is told of."""
        return [] if self.tool_choice == "none" else self.tools

    @property
    def stop_texts(self) -> list[str]:
        """Texts at which the reply ends."""
        texts = [self.stop] if isinstance(self.stop, str) else self.stop
        return [text for text in texts if text]

    def sampling(self, *, room: int, stop_token_ids: tuple[int, ...], number: int) -> SamplingParams:
        """How reply `number` is drawn, where `room` tokens fit the context."""
        wanted = self.max_completion_tokens or self.max_tokens or room
        return SamplingParams(
            temperature=0.0 if self.temperature < _GREEDY_BELOW else self.temperature,
            top_p=self.top_p,
            max_tokens=min(wanted, room),
            stop_token_ids=stop_token_ids,
            seed=None if self.seed is None else (self.seed + number) % _MAX_SEED,
        )

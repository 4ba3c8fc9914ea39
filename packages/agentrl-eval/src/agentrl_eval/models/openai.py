"""Any endpoint that speaks OpenAI's chat completions."""

import asyncio
from collections.abc import Sequence
from typing import Any

import openai

from agentrl_core import Message, Tool
from agentrl_eval.models.base import (
    ContextLimitError,
    ModelRefusedError,
    ModelReply,
    ModelUnavailableError,
)

_TRIES = 5
_FIRST_PAUSE_S = 0.5
_LONGEST_PAUSE_S = 30.0


class OpenAIModel:
    """A model behind an OpenAI-compatible endpoint.

    Overload and passing faults are tried again with growing pauses, or after `Retry-After`.

    Args:
        name: the model's name at the endpoint.
        base_url: the endpoint, such as `http://127.0.0.1:8000/v1`; OpenAI's own where it is absent.
        api_key: the key; local endpoints take any.
        temperature: of the sampling.
        max_tokens: longest reply.
        timeout_s: longest wait for one reply.
    """

    def __init__(
        self,
        name: str,
        *,
        base_url: str | None,
        api_key: str,
        temperature: float,
        max_tokens: int,
        timeout_s: float = 300.0,
    ) -> None:
        self._name = name
        self._temperature = temperature
        self._max_tokens = max_tokens
        # httpx costs several milliseconds of CPU a request; aiohttp a fraction of one.
        self._client = openai.AsyncOpenAI(
            base_url=base_url,
            api_key=api_key,
            timeout=timeout_s,
            max_retries=0,
            http_client=openai.DefaultAioHttpClient(),
        )

    async def reply(
        self, messages: Sequence[Message], tools: Sequence[Tool] | None, *, seed: int
    ) -> ModelReply:
        """The next assistant message.

        Raises:
            ModelUnavailableError: the endpoint failed.
            ModelRefusedError: it refuses for good.
            ContextLimitError: the conversation is too long.
        """
        request: dict[str, Any] = {
            "model": self._name,
            "messages": [message.to_wire() for message in messages],
            "temperature": self._temperature,
            "max_tokens": self._max_tokens,
            "seed": seed,
        }
        if tools:
            request["tools"] = [tool.model_dump(mode="json") for tool in tools]
        pause_s = _FIRST_PAUSE_S
        for attempt in range(1, _TRIES + 1):
            try:
                return _reply(await self._client.chat.completions.create(**request))
            except openai.APIStatusError as error:
                wait_s = _wait_s(error, pause_s)
                failure: Exception = error
            except openai.APIError as error:
                wait_s, failure = pause_s, error
            if attempt == _TRIES:
                raise ModelUnavailableError(f"{self._name}: {failure}") from failure
            await asyncio.sleep(wait_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
        raise AssertionError("unreachable")

    async def close(self) -> None:
        """Release connections."""
        await self._client.close()


def _wait_s(error: openai.APIStatusError, pause_s: float) -> float:
    """Seconds to wait before another try.

    Raises:
        ModelRefusedError: another try cannot help.
        ContextLimitError: the conversation is too long.
    """
    if error.code == "context_length_exceeded":
        raise ContextLimitError(str(error)) from error
    if error.status_code < 500 and error.status_code not in (408, 409, 425, 429, 499):
        raise ModelRefusedError(f"the endpoint refuses: {error}") from error
    after = error.response.headers.get("retry-after", "")
    return float(after) if after.replace(".", "", 1).isdecimal() else pause_s


def _reply(completion: Any) -> ModelReply:
    """What the endpoint answered, with every field that it sent.

    Raises:
        ModelUnavailableError: the answer has no message.
    """
    choices = getattr(completion, "choices", None)
    if not choices or choices[0].message is None:
        raise ModelUnavailableError(f"the endpoint answered without a message: {str(completion)[:200]}")
    choice = choices[0]
    fields = choice.message.model_dump(mode="json", exclude_unset=True)
    wire = {key: value for key, value in fields.items() if value is not None or key == "content"}
    usage = completion.usage
    return ModelReply(
        message=Message.model_validate({"role": "assistant", **wire}),
        truncated=choice.finish_reason == "length",
        prompt_tokens=usage.prompt_tokens if usage else 0,
        completion_tokens=usage.completion_tokens if usage else 0,
    )

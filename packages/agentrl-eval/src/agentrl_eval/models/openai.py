"""Any endpoint that speaks OpenAI's chat completions."""

import asyncio
import datetime
import email.utils
import json
import random
from collections.abc import Mapping, Sequence
from typing import Any

import aiohttp
import openai
from pydantic import ValidationError

from agentrl_core import Message, Tool
from agentrl_eval.models.base import (
    ContextLimitError,
    ModelReply,
    ModelUnavailableError,
    ModelUnusableError,
)

_TRIES = 5
_FIRST_PAUSE_S = 0.5
_LONGEST_PAUSE_S = 30.0
_LONGEST_RETRY_AFTER_S = 60.0
_FIRST_EPISODES = 3
_PASSING = frozenset({408, 409, 425, 429, 499})
_FOR_GOOD = frozenset({401, 403, 404})
# Servers agree on the words, not on a code.
_TOO_LONG = ("context_length_exceeded", "context length", "context window", "maximum context")


class OpenAIModel:
    """A model behind an OpenAI-compatible endpoint.

    Overload and passing faults are tried again with growing pauses, or after `Retry-After` where that is at
    most a minute.

    Args:
        name: the model's name at the endpoint.
        base_url: the endpoint, such as `http://127.0.0.1:8000/v1`; OpenAI's own where it is absent.
        api_key: the key; local endpoints take any.
        temperature: of the sampling.
        max_tokens: longest reply.
        timeout_s: longest wait for one reply.
        first_pause_s: pause before the second try; it doubles from there.
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
        first_pause_s: float = _FIRST_PAUSE_S,
    ) -> None:
        self._settings = {"model": name, "temperature": temperature, "max_tokens": max_tokens}
        self._first_pause_s = first_pause_s
        self._has_answered = False
        self._refused_seeds: set[int] = set()
        # httpx's own transport costs several milliseconds of CPU a request, aiohttp's a fraction of one.
        self._client = openai.AsyncOpenAI(
            base_url=base_url,
            api_key=api_key,
            timeout=timeout_s,
            max_retries=0,
            http_client=openai.DefaultAioHttpClient(),
        )

    async def reply(
        self, messages: Sequence[Message], *, tools: Sequence[Tool] | None, seed: int
    ) -> ModelReply:
        """The next assistant message.

        Raises:
            ModelUnavailableError: the endpoint failed, refuses this conversation, or asks for a long wait.
            ModelUnusableError: it refuses for good, cannot be reached, or has answered none of the first
                episodes, which are told apart by their seeds.
            ContextLimitError: the conversation is too long.
        """
        request: dict[str, Any] = {
            **self._settings,
            "messages": [message.to_wire() for message in messages],
            "seed": seed,
        }
        if tools:
            request["tools"] = [tool.model_dump(mode="json") for tool in tools]
        try:
            answer = await self._send(request)
        except openai.APIError as error:
            raise self._failure(error, seed=seed) from error
        reply = _parse(answer)
        self._has_answered = True
        return reply

    async def close(self) -> None:
        """Release connections."""
        await self._client.close()

    async def _send(self, request: Mapping[str, Any]) -> bytes:
        """The endpoint's answer, or its last failure once another try cannot help."""
        pause_s = self._first_pause_s
        for _ in range(_TRIES - 1):
            try:
                return await self._post(request)
            except openai.APIError as error:
                if not _is_passing(error):
                    raise
                wait_s = _retry_after_s(error)
                if wait_s is not None and wait_s > _LONGEST_RETRY_AFTER_S:
                    raise ModelUnavailableError(
                        f"{self._where} asks to be tried again in {wait_s:.0f} s (`Retry-After`), but an "
                        f"attempt waits {_LONGEST_RETRY_AFTER_S:.0f} s at most: {error.message}"
                    ) from error
            await asyncio.sleep(pause_s * random.uniform(0.5, 1.0) if wait_s is None else wait_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
        return await self._post(request)

    async def _post(self, request: Mapping[str, Any]) -> bytes:
        # Past the typed method, which walks every message and costs as much again as all the rest.
        return await self._client.post("/chat/completions", cast_to=bytes, body=request)

    @property
    def _where(self) -> str:
        return f"{self._client.base_url} (model `{self._settings['model']}`)"

    def _failure(self, error: openai.APIError, *, seed: int) -> Exception:
        status = error.status_code if isinstance(error, openai.APIStatusError) else None
        what = f"HTTP {status}: {error.message}" if status else str(error.__cause__ or error.message)
        if status == 400 and any(words in f"{error.code} {error.message}" for words in _TOO_LONG):
            return ContextLimitError(what)
        if status in _FOR_GOOD or error.code == "insufficient_quota":
            return ModelUnusableError(f"{self._where} refuses: {what}")
        if self._has_answered or _is_late(error):
            return ModelUnavailableError(f"{self._where}: {what}")
        if status is not None:
            self._refused_seeds.add(seed)  # The attempts of an episode share its seed.
            if len(self._refused_seeds) < _FIRST_EPISODES:
                return ModelUnavailableError(f"{self._where}: {what}")
        return ModelUnusableError(f"{self._where} has never answered: {what}")


def _is_passing(error: openai.APIError) -> bool:
    """Whether the same request may well succeed a moment later."""
    if isinstance(error, openai.APIStatusError):
        passing = error.status_code >= 500 or error.status_code in _PASSING
        return passing and error.code != "insufficient_quota"
    # After a time-out the episode starts anew: that many full time-outs in a row would look like a hang.
    return isinstance(error, openai.APIConnectionError) and not _is_late(error)


def _is_late(error: openai.APIError) -> bool:
    """Whether the reply did not come in time; a refused connection reaches us as a time-out as well."""
    if not isinstance(error, openai.APITimeoutError):
        return False
    transport = error.__cause__.__cause__ if error.__cause__ else None
    return not isinstance(transport, aiohttp.ClientConnectorError)


def _retry_after_s(error: openai.APIError) -> float | None:
    """Seconds that the endpoint asks to wait, given as such or as a date."""
    text = error.response.headers.get("retry-after", "") if isinstance(error, openai.APIStatusError) else ""
    if text.replace(".", "", 1).isdecimal():
        return float(text)
    try:
        date = email.utils.parsedate_to_datetime(text)
    except ValueError:
        return None
    now = datetime.datetime.now(datetime.UTC)
    return max(0.0, ((date if date.tzinfo else date.replace(tzinfo=datetime.UTC)) - now).total_seconds())


def _parse(answer: bytes) -> ModelReply:
    """What the endpoint said, with every field that it sent.

    Raises:
        ModelUnavailableError: the answer is no chat completion.
    """
    try:
        body = json.loads(answer)
        choice = body["choices"][0]
        # An empty list of calls is what some endpoints send and others refuse to read back.
        fields = {key: value for key, value in choice["message"].items() if value is not None and value != []}
        usage = body.get("usage") or {}
        return ModelReply(
            message=Message.model_validate({"content": None, **fields, "role": "assistant"}),
            truncated=choice.get("finish_reason") == "length",
            prompt_tokens=int(usage.get("prompt_tokens") or 0),
            completion_tokens=int(usage.get("completion_tokens") or 0),
        )
    except (ValueError, LookupError, TypeError, AttributeError, ValidationError) as error:
        raise ModelUnavailableError(
            f"the endpoint's answer is no chat completion: {answer[:200]!r}"
        ) from error

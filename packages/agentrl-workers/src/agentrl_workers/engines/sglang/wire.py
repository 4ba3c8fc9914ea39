"""The server's JSON: what is asked, what comes back, and what its errors say."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from agentrl_core import Segment
from agentrl_workers.engines.base import EngineError, FinishReason, Generation, SamplingParams

_ERROR_LENGTH = 600


def generate_body(
    prompt_ids: Sequence[int], sampling: SamplingParams, *, rid: str, cache_key: str, stream: bool
) -> dict[str, Any]:
    """The request for one reply; every value is said, so that no default of the model's folder counts.

    Args:
        prompt_ids: the prompt.
        sampling: how to draw; `max_tokens` must fit the context.
        rid: unique name of the request.
        cache_key: only prefixes that were cached under the same key are reused.
        stream: whether tokens come as they are sampled.
    """
    return {
        "input_ids": list(prompt_ids),
        "sampling_params": {
            "max_new_tokens": sampling.max_tokens,
            "min_new_tokens": 0,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": sampling.top_k if sampling.top_k > 0 else -1,
            "min_p": sampling.min_p,
            "frequency_penalty": 0.0,
            "presence_penalty": 0.0,
            "repetition_penalty": 1.0,
            "stop": None,
            "stop_token_ids": list(sampling.stop_token_ids) or None,
            # It would switch off our own stop tokens, too.
            "ignore_eos": not sampling.stop_token_ids,
            "n": 1,
            "sampling_seed": sampling.seed,
        },
        "return_logprob": True,
        "logprob_start_len": -1,
        "top_logprobs_num": 0,
        "stream": stream,
        "rid": rid,
        "extra_key": cache_key,
    }


def score_body(prompt_ids: Sequence[int], *, rid: str, cache_key: str) -> dict[str, Any]:
    """The request for the log-probabilities of a prompt's own tokens."""
    body = generate_body(prompt_ids, SamplingParams(), rid=rid, cache_key=cache_key, stream=False)
    body["sampling_params"]["max_new_tokens"] = 0
    return {**body, "logprob_start_len": 0}


@dataclass(slots=True)
class Reply:
    """One reply as it arrives, whole or in pieces, where a piece holds all so far or only what is new."""

    token_ids: list[int] = field(default_factory=list)
    """Tokens so far."""
    logps: list[float] = field(default_factory=list)
    """Their log-probabilities."""
    segments: list[Segment] = field(default_factory=list)
    """Which version sampled which; known at the end."""
    finish_reason: FinishReason | None = None
    """None while more comes."""
    cached_tokens: int = 0
    """Prompt tokens that were not computed anew."""

    def add(self, answer: Any) -> list[tuple[int, float]]:
        """Take in an answer; returns its new tokens and their log-probabilities.

        Raises:
            EngineError: the answer is an error, or not what a server of this version sends.
        """
        if isinstance(answer, Mapping) and "error" in answer:
            raise EngineError(f"the server refused the request: {error_text(answer)}")
        try:
            return self._add(answer["output_ids"], answer["meta_info"])
        except (KeyError, TypeError, ValueError, IndexError) as error:
            shown = repr(answer)[:_ERROR_LENGTH]
            raise EngineError(
                f"the server's answer cannot be read ({type(error).__name__}: {error}): {shown}"
            ) from error

    def _add(self, output_ids: list[int], meta: Mapping[str, Any]) -> list[tuple[int, float]]:
        count = max(meta["completion_tokens"] - len(self.token_ids), 0)
        entries = meta.get("output_token_logprobs") or []
        ids, entries = output_ids[len(output_ids) - count :], entries[len(entries) - count :]
        if len(ids) != count or [entry[1] for entry in entries] != ids:
            raise ValueError(f"{count} new tokens need as many ids and log-probabilities, which agree")
        new = [(int(token), float(entry[0])) for token, entry in zip(ids, entries, strict=True)]
        self.token_ids += [token for token, _ in new]
        self.logps += [logp for _, logp in new]
        self.cached_tokens = int(meta.get("cached_tokens") or 0)
        if meta["finish_reason"] is not None:
            self.finish_reason = _finish_reason(meta["finish_reason"])
            self.segments = _segments(meta, len(self.token_ids))
        return new


class JoinedReply:
    """A reply from one request, or from several where weights interrupted it.

    Attributes:
        token_ids: tokens so far.
    """

    def __init__(self) -> None:
        self.token_ids: list[int] = []
        self._logps: list[float] = []
        self._segments: list[Segment] = []
        self._cached_tokens: int | None = None

    def add(self, reply: Reply) -> None:
        """Put what another request sampled behind it."""
        offset = len(self.token_ids)
        self.token_ids += reply.token_ids
        self._logps += reply.logps
        for segment in reply.segments:
            last = self._segments[-1] if self._segments else None
            start = segment.start + offset
            if last is not None and last.version == segment.version:
                start = self._segments.pop().start
            self._segments.append(Segment(version=segment.version, start=start, end=segment.end + offset))
        if self._cached_tokens is None:
            self._cached_tokens = reply.cached_tokens

    def generation(self, finish_reason: FinishReason) -> Generation:
        """The whole as the engine's callers see it."""
        return Generation(
            token_ids=tuple(self.token_ids),
            logps=tuple(self._logps),
            segments=tuple(self._segments),
            finish_reason=finish_reason,
            cached_tokens=self._cached_tokens or 0,
        )


def read_prompt_logps(answer: Any, *, length: int) -> tuple[float, ...]:
    """Log-probabilities of a scored prompt's tokens from the second on.

    Raises:
        EngineError: the answer is an error or of another length.
    """
    if isinstance(answer, Mapping) and "error" in answer:
        raise EngineError(f"the server refused to score a prompt: {error_text(answer)}")
    try:
        entries = answer["meta_info"]["input_token_logprobs"]
        logps = tuple(float(entry[0]) for entry in entries[1:])
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise EngineError(f"the server's scores cannot be read: {repr(answer)[:_ERROR_LENGTH]}") from error
    if len(logps) != length - 1:
        raise EngineError(f"the server scored {len(logps) + 1} of {length} tokens of a prompt")
    return logps


def error_text(body: Any) -> str:
    """What an error says, in any of the shapes that the server has for it."""
    if isinstance(body, Mapping):
        for key in ("error", "message", "detail"):
            if body.get(key):
                return error_text(body[key])
    return str(body).strip()[:_ERROR_LENGTH] or "it gave no reason"


def _finish_reason(reason: Mapping[str, Any]) -> FinishReason:
    kind = reason["type"]
    if kind == "abort" and (reason.get("err_type") or (reason.get("status_code") or 200) >= 400):
        raise EngineError(f"the server gave up the request: {error_text(reason)}")
    if kind not in ("stop", "length", "abort"):
        raise ValueError(f"unknown finish reason `{kind}`")
    return kind


def _segments(meta: Mapping[str, Any], count: int) -> list[Segment]:
    spans = meta.get("weight_versions") or [{"version": meta["weight_version"], "start": 0, "end": count}]
    segments = []
    for span in spans:
        # A span is empty where a version came and went before the first token.
        if span["start"] < span["end"]:
            version = _version(span["version"])
            segments.append(Segment(version=version, start=span["start"], end=span["end"]))
    ends = [0, *(segment.end for segment in segments)]
    if ends != [*(segment.start for segment in segments), count]:
        raise ValueError(f"the versions {spans} do not cover {count} tokens")
    return segments


def _version(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise EngineError(
            f"the server calls its weights `{text}`, which is no version number; start it with "
            "`--weight-version 0`"
        ) from None

"""A rollout engine in this process: continuous batching over a slotted key-value cache in plain torch."""

import asyncio
import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import PreTrainedModel

from agentrl_core import PolicyVersion, Segment
from agentrl_workers.engines.base import EngineError, FinishReason, Generation, OnToken, SamplingParams
from agentrl_workers.engines.cache import SlotCache
from agentrl_workers.engines.sampler import sample

_ADMIT_EVERY = 4
"""Decoding steps from one admission to the next while the batch is not empty."""


@dataclass(slots=True, eq=False)
class _Request:
    prompt_ids: list[int]
    sampling: SamplingParams
    done: Callable[["_Request", FinishReason | Exception], None]
    generator: torch.Generator | None
    on_token: Callable[[int, float], None] | None = None
    token_ids: list[int] = field(default_factory=list)
    logps: list[float] = field(default_factory=list)
    versions: list[PolicyVersion] = field(default_factory=list)
    cached_tokens: int = 0
    aborted: bool = False


@dataclass(slots=True, eq=False)
class _Slot:
    number: int
    cached_ids: list[int] = field(default_factory=list)
    """Tokens whose keys and values stand in the slot."""
    request: _Request | None = None
    is_stale: bool = False
    """Whether some of its keys and values were computed with older weights."""
    last_used: int = 0


class EmbeddedEngine:
    """Samples from a `transformers` causal language model on a thread of its own.

    Requests join and leave the running batch between tokens. A slot keeps the keys and values of its
    last sequence, so the next turn of the same conversation, or another one with the same prompt,
    computes only what is new. Weights are swapped between two tokens; requests in flight go on under
    the new weights over their old keys and values, each token tagged with the version that sampled it,
    and no prefix computed under old weights is reused afterwards.

    Args:
        model: the model; the engine owns it from here on.
        num_slots: sequences decoded at the same time.
        context_length: longest sequence in tokens.
        seed: of the draws of requests without a seed.
        version: of the weights that `model` holds.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        num_slots: int,
        context_length: int,
        seed: int = 0,
        version: PolicyVersion = 0,
    ) -> None:
        self._model = model.eval().requires_grad_(False)
        self._context_length = context_length
        self._version = version
        self._device = next(model.parameters()).device
        self._head: Any = model.get_output_embeddings()
        self._cache = SlotCache(
            model.config,
            num_slots=num_slots,
            context_length=context_length,
            dtype=model.dtype,
            device=self._device,
        )
        self._slots = [_Slot(number) for number in range(num_slots)]
        self._waiting: deque[_Request] = deque()
        self._commands: deque[Callable[[], None]] = deque()
        self._generator = torch.Generator(self._device).manual_seed(seed)
        self._wake = threading.Condition()
        self._closed = False
        self._failure: Exception | None = None
        self._num_steps = 0
        self.num_sampled_tokens = 0
        self._thread = threading.Thread(target=self._run, name="embedded-engine", daemon=True)
        self._thread.start()

    @property
    def version(self) -> PolicyVersion:
        """Version of the weights that sample now."""
        return self._version

    @property
    def context_length(self) -> int:
        """Longest sequence in tokens, prompt and reply together."""
        return self._context_length

    def alive(self) -> bool:
        """Whether it was neither closed nor failed."""
        return not self._closed and self._failure is None

    async def generate(
        self, prompt_ids: Sequence[int], sampling: SamplingParams, *, on_token: OnToken | None = None
    ) -> Generation:
        """Sample one reply; cancelling the call takes the request out of the batch.

        Raises:
            EngineError: the prompt does not fit the context, or the engine has stopped.
        """
        if not 0 < len(prompt_ids) < self._context_length:
            raise EngineError(
                f"a prompt needs 1 to {self._context_length - 1} tokens to leave room for a reply, "
                f"got {len(prompt_ids)}"
            )
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Generation] = loop.create_future()

        def done(request: _Request, result: FinishReason | Exception) -> None:
            loop.call_soon_threadsafe(_resolve, future, request, result)

        own = None
        if sampling.seed is not None:
            own = torch.Generator(self._device).manual_seed(sampling.seed)
        request = _Request(list(prompt_ids), sampling, done, own)
        if on_token is not None:
            told = on_token
            request.on_token = lambda token_id, logp: _tell(loop, request, told, token_id, logp)
        self._submit(self._waiting, request)
        try:
            return await future
        except asyncio.CancelledError:
            request.aborted = True
            raise

    async def load_weights(self, weights: Mapping[str, torch.Tensor], *, version: PolicyVersion) -> float:
        """Swap the weights between two tokens; returns the seconds that sampling stood still.

        Raises:
            EngineError: a tensor is missing, unknown or of another shape; the old weights stay.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[float] = loop.create_future()

        def swap() -> None:
            started = time.perf_counter()
            try:
                self._swap(weights, version)
            except Exception as error:
                loop.call_soon_threadsafe(_settle, future, error)
                return
            loop.call_soon_threadsafe(_settle, future, time.perf_counter() - started)

        self._submit(self._commands, swap)
        return await future

    async def close(self) -> None:
        """Abort what runs and stop the thread."""
        with self._wake:
            self._closed = True
            self._wake.notify()
        await asyncio.to_thread(self._thread.join)

    def _submit(self, queue: deque[Any], item: Any) -> None:
        with self._wake:
            if self._closed or self._failure is not None:
                raise EngineError(f"the engine has stopped: {self._failure or 'closed'}")
            queue.append(item)
            self._wake.notify()

    def _swap(self, weights: Mapping[str, torch.Tensor], version: PolicyVersion) -> None:
        own = self._model.state_dict()
        for name, tensor in own.items():
            if name not in weights:
                raise EngineError(f"weights of version {version} lack `{name}`")
            if weights[name].shape != tensor.shape:
                raise EngineError(
                    f"`{name}` has shape {tuple(tensor.shape)}, got {tuple(weights[name].shape)}"
                )
        unknown = sorted(set(weights) - set(own))
        if unknown:
            raise EngineError(f"weights of version {version} hold unknown tensors: {unknown[:5]}")
        for name, tensor in own.items():
            tensor.copy_(weights[name])
        self._version = version
        for slot in self._slots:
            slot.is_stale = slot.request is not None
            if slot.request is None:
                slot.cached_ids.clear()

    # The loop below runs on the engine's thread; everything it touches is its own.

    def _run(self) -> None:
        try:
            while self._wait():
                while self._commands:
                    self._commands.popleft()()
                self._step()
        except Exception as error:
            self._failure = error
        finally:
            self._abandon()

    def _wait(self) -> bool:
        with self._wake:
            self._wake.wait_for(lambda: self._closed or self._waiting or self._commands or self._running())
            return not self._closed

    def _running(self) -> list[_Slot]:
        return [slot for slot in self._slots if slot.request is not None]

    def _abandon(self) -> None:
        with self._wake:
            self._closed = True
            left = [*self._waiting, *(slot.request for slot in self._running() if slot.request)]
            self._waiting.clear()
        reason = self._failure or "closed"
        for request in left:
            request.done(request, EngineError(f"the engine has stopped: {reason}"))

    @torch.inference_mode()
    def _step(self) -> None:
        self._num_steps += 1
        for slot in self._running():
            if slot.request is not None and slot.request.aborted:
                self._release(slot, "abort")
        decoding = self._running()
        # A prefill costs about as much for many prompts as for one, so newcomers wait for company.
        is_time = not decoding or self._num_steps % _ADMIT_EVERY == 0
        admitted = self._admit() if is_time else []
        if admitted:
            self._forward(admitted)
        if decoding:
            self._forward(decoding)

    def _admit(self) -> list[_Slot]:
        """Move waiting requests into free slots, each into the one that holds most of its prompt."""
        free = [slot for slot in self._slots if slot.request is None]
        admitted = []
        while self._waiting and free:
            request = self._waiting.popleft()
            if request.aborted:
                request.done(request, "abort")
                continue
            slot = max(
                free, key=lambda slot: (_shared_prefix(slot.cached_ids, request.prompt_ids), -slot.last_used)
            )
            free.remove(slot)
            # At least one token is computed anew: its logits draw the first token of the reply.
            request.cached_tokens = min(
                _shared_prefix(slot.cached_ids, request.prompt_ids), len(request.prompt_ids) - 1
            )
            del slot.cached_ids[request.cached_tokens :]
            slot.request, slot.is_stale = request, False
            admitted.append(slot)
        return admitted

    def _forward(self, slots: list[_Slot]) -> None:
        """Compute the tokens that each slot's cache lacks and draw each one's next token."""
        new_ids = [_missing(slot) for slot in slots]
        longest = max(map(len, new_ids))
        starts = [len(slot.cached_ids) for slot in slots]
        padding = self._cache.padding_position
        ids_BT = torch.tensor([ids + [0] * (longest - len(ids)) for ids in new_ids])
        positions_BT = torch.tensor(
            [
                [*range(start, start + len(ids)), *[padding] * (longest - len(ids))]
                for start, ids in zip(starts, new_ids, strict=True)
            ]
        )
        last_B = torch.tensor([len(ids) - 1 for ids in new_ids])
        kv_length = max(start + len(ids) for start, ids in zip(starts, new_ids, strict=True))
        logits_BV = self._logits(slots, ids_BT, positions_BT, last_B, kv_length=kv_length)
        requests = [slot.request for slot in slots if slot.request is not None]
        drawn_B, logps_B = sample(
            logits_BV,
            [request.sampling for request in requests],
            [request.generator for request in requests],
            generator=self._generator,
        )
        for slot, ids, token_id, logp in zip(slots, new_ids, drawn_B.tolist(), logps_B.tolist(), strict=True):
            slot.cached_ids.extend(ids)
            self._append(slot, token_id, logp)

    def _logits(
        self,
        slots: list[_Slot],
        ids_BT: torch.Tensor,
        positions_BT: torch.Tensor,
        last_B: torch.Tensor,
        *,
        kv_length: int,
    ) -> torch.Tensor:
        device = self._device
        slots_B = torch.tensor([slot.number for slot in slots], device=device)
        positions_BT = positions_BT.to(device)
        self._cache.aim(slots_B, positions_BT, kv_length=kv_length)
        seen_B1TK = (torch.arange(kv_length, device=device) <= positions_BT[..., None])[:, None]
        hidden_BTH = self._model.base_model(
            input_ids=ids_BT.to(device),
            attention_mask=seen_B1TK,
            position_ids=positions_BT,
            past_key_values=self._cache,
            use_cache=True,
        ).last_hidden_state
        rows_B = torch.arange(len(slots), device=device)
        return self._head(hidden_BTH[rows_B, last_B.to(device)]).float()

    def _append(self, slot: _Slot, token_id: int, logp: float) -> None:
        request = slot.request
        assert request is not None
        request.token_ids.append(token_id)
        request.logps.append(logp)
        request.versions.append(self._version)
        self.num_sampled_tokens += 1
        if request.on_token is not None:
            request.on_token(token_id, logp)
        length = len(request.prompt_ids) + len(request.token_ids)
        if token_id in request.sampling.stop_token_ids:
            self._release(slot, "stop")
        elif len(request.token_ids) >= request.sampling.max_tokens or length >= self._context_length:
            self._release(slot, "length")

    def _release(self, slot: _Slot, reason: FinishReason) -> None:
        request, slot.request = slot.request, None
        assert request is not None
        slot.last_used = self._num_steps
        if slot.is_stale:
            slot.cached_ids.clear()
        request.done(request, reason)


def _tell(
    loop: asyncio.AbstractEventLoop, request: _Request, on_token: OnToken, token_id: int, logp: float
) -> None:
    """Pass a token to its caller, who may be gone, or have enough."""

    def tell() -> None:
        if on_token(token_id, logp):
            request.aborted = True

    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(tell)


def _missing(slot: _Slot) -> list[int]:
    """Tokens of the slot's sequence whose keys and values are not in its cache."""
    assert slot.request is not None
    if slot.request.token_ids:
        return slot.request.token_ids[-1:]
    return slot.request.prompt_ids[len(slot.cached_ids) :]


def _shared_prefix(left: Sequence[int], right: Sequence[int]) -> int:
    for position, (one, other) in enumerate(zip(left, right, strict=False)):
        if one != other:
            return position
    return min(len(left), len(right))


def _segments(versions: Sequence[PolicyVersion]) -> tuple[Segment, ...]:
    segments = []
    start = 0
    for position in range(1, len(versions) + 1):
        if position == len(versions) or versions[position] != versions[start]:
            segments.append(Segment(version=versions[start], start=start, end=position))
            start = position
    return tuple(segments)


def _resolve(
    future: "asyncio.Future[Generation]", request: _Request, result: FinishReason | Exception
) -> None:
    if isinstance(result, Exception):
        _settle(future, result)
        return
    generation = Generation(
        token_ids=tuple(request.token_ids),
        logps=tuple(request.logps),
        segments=_segments(request.versions),
        finish_reason=result,
        cached_tokens=request.cached_tokens,
    )
    _settle(future, generation)


def _settle(future: "asyncio.Future[Any]", result: Any) -> None:
    if future.done():
        return
    if isinstance(result, Exception):
        future.set_exception(result)
    else:
        future.set_result(result)

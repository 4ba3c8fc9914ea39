"""The answer to one chat request, whole or in chunks, in OpenAI's shapes."""

import asyncio
import json
import time
import uuid
from collections.abc import AsyncIterator, Iterator
from typing import Any

from agentrl_workers.chat import ChatRenderer, parse_reply
from agentrl_workers.engines import Engine, EngineError
from agentrl_workers.serve.replies import Reply
from agentrl_workers.serve.requests import ChatRequest


class Answer:
    """The replies to one request, sampled side by side.

    Closing the stream, or cancelling the call, takes them out of the engine's batch.

    Args:
        engine: samples.
        renderer: turns tokens into text.
        chat: the request.
        prompt_ids: its conversation as tokens; at least one more fits the engine's context.
    """

    def __init__(
        self, engine: Engine, renderer: ChatRenderer, chat: ChatRequest, prompt_ids: list[int]
    ) -> None:
        self.replies = [Reply(renderer, chat.stop_texts) for _ in range(chat.n)]
        self.num_prompt_tokens = len(prompt_ids)
        self._engine = engine
        self._renderer = renderer
        self._chat = chat
        self._prompt_ids = prompt_ids
        self._with_tools = bool(chat.offered_tools)
        self._grown = asyncio.Event()
        self._head = {
            "id": f"chatcmpl-{uuid.uuid4().hex}",
            "object": "chat.completion.chunk" if chat.stream else "chat.completion",
            "created": int(time.time()),
            "model": chat.model,
        }

    @property
    def num_sampled_tokens(self) -> int:
        """Tokens of all replies so far."""
        return sum(len(reply.token_ids) for reply in self.replies)

    async def whole(self) -> dict[str, Any]:
        """The completion object."""
        tasks = self._start()
        try:
            await asyncio.gather(*tasks)
        finally:
            _cancel(tasks)
        choices = [self._choice(number) for number in range(len(self.replies))]
        return {**self._head, "choices": choices, "usage": self._usage()}

    async def stream(self) -> AsyncIterator[str]:
        """The completion as server-sent events."""
        tasks = self._start()
        views = [_View(reply, self._chat, number) for number, reply in enumerate(self.replies)]
        try:
            for view in views:
                yield self._event(view.chunk({"role": "assistant", "content": ""}))
            open_numbers = set(range(len(tasks)))
            while open_numbers:
                await self._grown.wait()
                self._grown.clear()
                for number in sorted(open_numbers):
                    for chunk in self._news(views[number], is_done=tasks[number].done()):
                        yield self._event(chunk)
                    if tasks[number].done():
                        tasks[number].result()
                        open_numbers.remove(number)
            if self._chat.stream_options.include_usage:
                yield self._event(choices=[], usage=self._usage())
        except EngineError as error:
            fault = {"message": str(error), "type": "server_error", "param": None, "code": None}
            yield f"data: {json.dumps({'error': fault})}\n\n"
        finally:
            _cancel(tasks)
        yield "data: [DONE]\n\n"

    def _start(self) -> list["asyncio.Task[None]"]:
        tasks = [asyncio.ensure_future(self._fill(number)) for number in range(len(self.replies))]
        for task in tasks:
            task.add_done_callback(lambda _: self._grown.set())
        return tasks

    async def _fill(self, number: int) -> None:
        reply = self.replies[number]
        sampling = self._chat.sampling(
            room=self._engine.context_length - len(self._prompt_ids),
            stop_token_ids=self._renderer.stop_token_ids,
            number=number,
        )

        def on_token(token_id: int, logp: float) -> bool:
            self._grown.set()
            return reply.add(token_id, logp)

        # Decoding token by token costs more than the whole at once; only these two need it.
        by_token = self._chat.stream or bool(self._chat.stop_texts)
        reply.finish(
            await self._engine.generate(self._prompt_ids, sampling, on_token=on_token if by_token else None)
        )

    def _news(self, view: "_View", *, is_done: bool) -> Iterator[dict[str, Any]]:
        """Chunks of what has become certain since the last call."""
        if not is_done:
            certain = view.reply.certain(with_tools=self._with_tools)
            if certain > view.shown:
                yield view.show(view.reply.text[:certain])
            return
        if view.reply.generation is None:
            return  # The engine failed; the caller raises its error.
        message, reason = self._outcome(view.reply)
        content = message["content"] or ""
        if len(content) > view.shown:
            yield view.show(content)
        if "tool_calls" in message:
            calls = [{"index": index, **call} for index, call in enumerate(message["tool_calls"])]
            yield view.chunk({"tool_calls": calls})
        yield view.chunk({}, reason=reason)

    def _choice(self, number: int) -> dict[str, Any]:
        reply = self.replies[number]
        message, reason = self._outcome(reply)
        logprobs = {"content": reply.logprobs(), "refusal": None} if self._chat.logprobs else None
        return {"index": number, "message": message, "finish_reason": reason, "logprobs": logprobs}

    def _outcome(self, reply: Reply) -> tuple[dict[str, Any], str]:
        """The message and OpenAI's finish reason of a finished reply."""
        assert reply.generation is not None
        is_cut = reply.generation.finish_reason == "length" and not reply.stopped
        reason = "length" if is_cut else "stop"
        message: dict[str, Any] = {"role": "assistant", "content": reply.text, "refusal": None}
        if not self._with_tools:
            return message, reason
        parsed = parse_reply(reply.text, call_prefix=f"call_{uuid.uuid4().hex[:12]}_")
        if parsed.tool_calls:
            # The parser strips; a stream has already shown what stands before the text.
            lead = reply.text[: len(reply.text) - len(reply.text.lstrip())]
            message["content"] = (lead + parsed.text).rstrip() or None
            message["tool_calls"] = [call.to_wire() for call in parsed.tool_calls]
            reason = "length" if is_cut else "tool_calls"
        return message, reason

    def _usage(self) -> dict[str, Any]:
        generations = [reply.generation for reply in self.replies if reply.generation is not None]
        cached = max(generation.cached_tokens for generation in generations)
        sampled = self.num_sampled_tokens
        return {
            "prompt_tokens": self.num_prompt_tokens,
            "completion_tokens": sampled,
            "total_tokens": self.num_prompt_tokens + sampled,
            "prompt_tokens_details": {"cached_tokens": cached},
        }

    def _event(self, choice: dict[str, Any] | None = None, **fields: Any) -> str:
        chunk = {**self._head, **({"choices": [choice]} if choice else {}), **fields}
        return f"data: {json.dumps(chunk)}\n\n"


class _View:
    """What of a reply the client of a stream has seen."""

    def __init__(self, reply: Reply, chat: ChatRequest, number: int) -> None:
        self.reply = reply
        self.shown = 0
        self._with_logprobs = chat.logprobs
        self._number = number
        self._num_told = 0

    def show(self, text: str) -> dict[str, Any]:
        """A chunk with what the text has more than was shown."""
        delta, self.shown = {"content": text[self.shown :]}, len(text)
        return self.chunk(delta)

    def chunk(self, delta: dict[str, Any], *, reason: str | None = None) -> dict[str, Any]:
        """A choice that carries the delta, and the log-probabilities that no chunk has carried yet."""
        logprobs = None
        if self._with_logprobs and len(self.reply.token_ids) > self._num_told:
            logprobs = {"content": self.reply.logprobs(self._num_told), "refusal": None}
            self._num_told = len(self.reply.token_ids)
        return {"index": self._number, "delta": delta, "finish_reason": reason, "logprobs": logprobs}


def _cancel(tasks: list["asyncio.Task[None]"]) -> None:
    for task in tasks:
        task.cancel()

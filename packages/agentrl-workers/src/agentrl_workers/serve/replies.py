"""One reply while it is sampled: tokens in, text out as soon as it is certain."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from agentrl_workers.chat import ChatRenderer
from agentrl_workers.engines import Engine, Generation, SamplingParams

_CALL_MARK = "<tool_call>"
_UNFINISHED = "\ufffd"


@dataclass(slots=True)
class Reply:
    """A reply in the making.

    Attributes:
        token_ids: sampled so far.
        logps: their log-probabilities.
        text: what they say, up to a stop text.
        stopped: whether a stop text has come.
    """

    renderer: ChatRenderer
    stop_texts: Sequence[str]
    token_ids: list[int] = field(default_factory=list)
    logps: list[float] = field(default_factory=list)
    text: str = ""
    stopped: bool = False
    _decoded: int = 0

    def add(self, token_id: int, logp: float) -> None:
        """Take in a token."""
        self.token_ids.append(token_id)
        self.logps.append(logp)
        piece = self.renderer.reply_text(self.token_ids[self._decoded :])
        if piece.endswith(_UNFINISHED):
            return  # Half of a character: the next token completes it.
        self._decoded = len(self.token_ids)
        self.text += piece
        ends = [self.text.find(stop) for stop in self.stop_texts if stop in self.text]
        if ends:
            self.text, self.stopped = self.text[: min(ends)], True

    def settle(self) -> None:
        """Take in what stayed half a character to the end."""
        if not self.stopped and self._decoded < len(self.token_ids):
            self.text += self.renderer.reply_text(self.token_ids[self._decoded :])
            self._decoded = len(self.token_ids)

    def certain(self, *, with_tools: bool) -> int:
        """How many characters can be shown: no stop text and no tool call may begin in them."""
        marks = [*self.stop_texts, *([_CALL_MARK] if with_tools else [])]
        if with_tools and _CALL_MARK in self.text:
            return self.text.index(_CALL_MARK)
        held = max((_overlap(self.text, mark) for mark in marks), default=0)
        return len(self.text) - held

    def logprobs(self) -> dict[str, Any]:
        """The tokens with their log-probabilities in OpenAI's shape."""
        content = []
        for token_id, logp in zip(self.token_ids, self.logps, strict=True):
            text = self.renderer.text([token_id])
            content.append({"token": text, "logprob": logp, "bytes": list(text.encode()), "top_logprobs": []})
        return {"content": content, "refusal": None}


async def sample_reply(
    engine: Engine, prompt_ids: Sequence[int], sampling: SamplingParams, reply: Reply
) -> AsyncIterator[Generation | None]:
    """Fill a reply; yields None whenever it has grown, and the generation at its end.

    A stop text ends the sampling early, and so does closing the iterator.
    """
    grown = asyncio.Event()

    def on_token(token_id: int, logp: float) -> None:
        if not reply.stopped:
            reply.add(token_id, logp)
            grown.set()

    work = asyncio.ensure_future(engine.generate(prompt_ids, sampling, on_token=on_token))
    work.add_done_callback(lambda _: grown.set())
    try:
        while not work.done() and not reply.stopped:
            await grown.wait()
            grown.clear()
            yield None
        if work.done():
            generation = work.result()
            reply.settle()
            yield generation
    finally:
        work.cancel()


def _overlap(text: str, mark: str) -> int:
    """Length of the longest end of the text that begins the mark."""
    return next((n for n in range(min(len(text), len(mark) - 1), 0, -1) if text.endswith(mark[:n])), 0)

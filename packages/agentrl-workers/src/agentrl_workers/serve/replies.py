"""One reply while it is sampled: tokens in, text out as soon as it is certain."""

from collections.abc import Sequence
from functools import cache
from typing import Any

from agentrl_workers.chat import ChatRenderer
from agentrl_workers.engines import Generation

CALL_MARK = "<tool_call>"
_UNFINISHED = "\ufffd"


class Reply:
    """A reply in the making.

    Tokens come one by one through `add`, or all at once through `finish`.

    Args:
        renderer: turns tokens into text.
        stop_texts: the reply ends before the first of these.
    """

    def __init__(self, renderer: ChatRenderer, stop_texts: Sequence[str] = ()) -> None:
        self.token_ids: list[int] = []
        self.logps: list[float] = []
        self.text = ""
        self.stopped = False
        self.generation: Generation | None = None
        self._renderer = renderer
        self._stop_texts = stop_texts
        # Decoding restarts at a token before what is known: some tokenizers strip a text's first space.
        self._window = self._decoded = 0
        self._window_text = ""

    def add(self, token_id: int, logp: float) -> bool:
        """Take in a token; whether a stop text has ended the reply."""
        if self.stopped:
            return True
        self.token_ids.append(token_id)
        self.logps.append(logp)
        text = self._renderer.reply_text(self.token_ids[self._window :])
        if not text.endswith(_UNFINISHED):  # Else half a character, which the next token completes.
            known, self._window, self._decoded = self._window_text, self._decoded, len(self.token_ids)
            self._window_text = self._renderer.reply_text(self.token_ids[self._window :])
            self._extend(text[len(known) :])
        return self.stopped

    def finish(self, generation: Generation) -> None:
        """Take in the end, and what `add` has not seen."""
        self.generation = generation
        if self.stopped:
            return
        self.token_ids, self.logps = list(generation.token_ids), list(generation.logps)
        self._extend(self._renderer.reply_text(self.token_ids[self._window :])[len(self._window_text) :])

    def certain(self, *, with_tools: bool) -> int:
        """How many characters can be shown while more come: in them no stop text or tool call begins."""
        if not with_tools:
            return len(self.text) - max((_overlap(self.text, mark) for mark in self._stop_texts), default=0)
        if CALL_MARK in self.text:
            shown = self.text.index(CALL_MARK)
        else:
            shown = len(self.text) - max(_overlap(self.text, mark) for mark in (*self._stop_texts, CALL_MARK))
        return len(self.text[:shown].rstrip())  # White space before a call goes with the call.

    def logprobs(self, start: int = 0) -> list[dict[str, Any]]:
        """The tokens from the given one on, in OpenAI's shape."""
        tokenizer = self._renderer.tokenizer
        content = []
        for token_id, logp in zip(self.token_ids[start:], self.logps[start:], strict=True):
            text = self._renderer.text([token_id])
            raw = _bytes_of(str(tokenizer.convert_ids_to_tokens(token_id))) if _UNFINISHED in text else None
            told = list(text.encode() if raw is None else raw)
            content.append({"token": text, "logprob": logp, "bytes": told, "top_logprobs": []})
        return content

    def _extend(self, piece: str) -> None:
        longest = max(map(len, self._stop_texts), default=1)
        start = max(0, len(self.text) - longest + 1)
        self.text += piece
        ends = [end for stop in self._stop_texts if (end := self.text.find(stop, start)) >= 0]
        if ends:
            self.text, self.stopped = self.text[: min(ends)], True


def _overlap(text: str, mark: str) -> int:
    """Length of the longest end of the text that begins the mark."""
    return next((n for n in range(min(len(text), len(mark) - 1), 0, -1) if text.endswith(mark[:n])), 0)


def _bytes_of(token: str) -> bytes | None:
    """The bytes of a token of a byte-level tokenizer; None for others."""
    table = _byte_table()
    return bytes(table[char] for char in token) if all(char in table for char in token) else None


@cache
def _byte_table() -> dict[str, int]:
    """Byte-level tokenizers write printable Latin-1 bytes as themselves and the n-th other one as 256 + n."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + n): byte for n, byte in enumerate(others)}

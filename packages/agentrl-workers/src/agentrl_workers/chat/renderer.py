"""Messages to token ids, such that what the model sampled is never tokenised again."""

from collections.abc import Sequence
from typing import Any

from jinja2 import TemplateError
from transformers import PreTrainedTokenizerBase

from agentrl_core import AgentRLError, ConfigError, Message, Tool

_PROBE = "x"
"""Stands for a sampled reply while the template is asked what surrounds one."""


class ChatError(AgentRLError, ValueError):
    """The tokenizer's template cannot render a conversation."""


class ChatRenderer:
    """Extends a conversation token by token, by the tokenizer's own chat template.

    The first prompt is the template's rendering. What follows a reply is what the template puts after an
    assistant message up to the next generation prompt, so the sampled ids stay as they are.

    Raises:
        ConfigError: the tokenizer has no template or end marker, or its template does not extend a
            conversation by appending to it.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        if not tokenizer.chat_template:
            raise ConfigError(
                f"the tokenizer of `{tokenizer.name_or_path}` has no chat template; agents need one"
            )
        if tokenizer.eos_token is None:
            raise ConfigError(
                f"the tokenizer of `{tokenizer.name_or_path}` has no `eos_token` to end a reply with"
            )
        eos = str(tokenizer.eos_token)
        self.tokenizer = tokenizer
        self.stop_token_ids: tuple[int, ...] = (tokenizer.get_vocab()[eos],)
        self._opening = [{"role": "user", "content": _PROBE}, {"role": "assistant", "content": _PROBE}]
        self._closed = self._render(self._opening)
        head, marker, tail = self._closed.rpartition(eos)
        if not marker or not head.endswith(_PROBE):
            raise ConfigError(
                f"the chat template of `{tokenizer.name_or_path}` must end an assistant message with "
                f"`{eos}`; it renders {self._closed[-40:]!r}"
            )
        self._after_reply = tail

    def prompt(self, messages: Sequence[Message], tools: Sequence[Tool] | None = None) -> list[int]:
        """The ids of a conversation, ready for the model's reply.

        Raises:
            ChatError: the template cannot render it.
        """
        rendered = self._render(
            [_plain(message) for message in messages],
            tools=[tool.model_dump(mode="json") for tool in tools] if tools else None,
            add_generation_prompt=True,
        )
        return self._encode(rendered)

    def extension(self, messages: Sequence[Message]) -> list[int]:
        """The ids that follow a sampled reply: the environment's messages, and the next generation prompt.

        Raises:
            ChatError: the template cannot render them.
            ConfigError: the template rewrites the conversation instead of appending to it.
        """
        rendered = self._render([*self._opening, *map(_plain, messages)], add_generation_prompt=True)
        if not rendered.startswith(self._closed):
            raise ConfigError(
                f"the chat template of `{self.tokenizer.name_or_path}` rewrites earlier messages when "
                f"{[message.role for message in messages]} follow"
            )
        return self._encode(self._after_reply + rendered[len(self._closed) :])

    def reply(self, message: Message) -> list[int]:
        """The ids of an assistant message as the template writes one, its end marker included."""
        question = self._opening[:1]
        start = len(self._render(question, add_generation_prompt=True))
        rendered = self._render([*question, _plain(message)])
        return self._encode(rendered[start:].removesuffix(self._after_reply))

    def text(self, token_ids: Sequence[int]) -> str:
        """The ids as text, markers included."""
        return str(self.tokenizer.decode(list(token_ids), skip_special_tokens=False))

    def reply_text(self, token_ids: Sequence[int]) -> str:
        """A sampled reply as text, without its end marker."""
        ids = list(token_ids)
        if ids and ids[-1] in self.stop_token_ids:
            ids.pop()
        return self.text(ids)

    def _render(self, messages: list[dict[str, Any]], **options: Any) -> str:
        try:
            return str(self.tokenizer.apply_chat_template(messages, tokenize=False, **options))
        except (TemplateError, TypeError, ValueError) as error:
            roles = [message["role"] for message in messages]
            raise ChatError(f"the chat template cannot render messages of {roles}: {error}") from error

    def _encode(self, text: str) -> list[int]:
        return list(self.tokenizer(text, add_special_tokens=False)["input_ids"])  # type: ignore[arg-type]


def _plain(message: Message) -> dict[str, Any]:
    return {"content": "", **message.to_wire()}

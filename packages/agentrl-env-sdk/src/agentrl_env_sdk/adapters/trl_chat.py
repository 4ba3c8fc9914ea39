"""Between messages and tokens for TRL: what was sampled is never tokenised again.

The tokenizer is whatever the trainer has; nothing of its library is imported here.
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from agentrl_core import ConfigError, FunctionCall, Message, Tool, ToolCall

_PROBE = "x"
"""Stands for a sampled reply while the template is asked what surrounds one."""
_CALL = re.compile(r"<tool_call>(.*?)(?:</tool_call>|\Z)", re.DOTALL)


class Chat:
    """A tokenizer's chat template as something that only ever appends.

    Args:
        tokenizer: a `transformers` tokenizer with a chat template and an end marker.
        template: another template than the tokenizer's own.
        options: further arguments of the template.

    Raises:
        ConfigError: there is no template or end marker, or the template rewrites what it has rendered.
    """

    def __init__(
        self, tokenizer: Any, *, template: str | None = None, options: Mapping[str, Any] | None = None
    ) -> None:
        self._tokenizer = tokenizer
        self._template = template
        self._options = dict(options or {})
        if not (template or tokenizer.chat_template) or not tokenizer.eos_token:
            raise ConfigError("the tokenizer needs a chat template and an `eos_token`; agents talk in turns")
        self.end_id: int = tokenizer.convert_tokens_to_ids(tokenizer.eos_token)
        self._opening = [{"role": "user", "content": _PROBE}, {"role": "assistant", "content": _PROBE}]
        self._closed = self._render(self._opening)
        head, marker, self._after_reply = self._closed.rpartition(str(tokenizer.eos_token))
        if not marker or not head.endswith(_PROBE):
            raise ConfigError(
                f"the chat template must end an assistant message with `{tokenizer.eos_token}`, "
                f"it renders {self._closed[-40:]!r}"
            )

    def prompt(self, messages: Sequence[Message], tools: Sequence[Tool] | None) -> list[int]:
        """The ids of a conversation up to the model's turn."""
        specs = [tool.model_dump(mode="json") for tool in tools] if tools else None
        return self._encode(self._render([_plain(each) for each in messages], tools=specs, turn=True))

    def extension(self, messages: Sequence[Message]) -> list[int]:
        """The ids that follow a reply with its end marker: the messages, up to the model's next turn.

        Raises:
            ConfigError: the template rewrites the conversation when such messages follow.
        """
        rendered = self._render([*self._opening, *(_plain(each) for each in messages)], turn=True)
        if not rendered.startswith(self._closed):
            roles = [message.role for message in messages]
            raise ConfigError(f"the chat template rewrites earlier messages when {roles} follow")
        return self._encode(self._after_reply + rendered[len(self._closed) :])

    def reply(self, token_ids: Sequence[int], *, call_prefix: str) -> Message:
        """A sampled reply as a message, its calls in the Hermes form, which Qwen models use too.

        A call whose JSON is broken goes on as the model wrote it, so that the environment says what is wrong.
        """
        ids = list(token_ids)
        if ids and ids[-1] == self.end_id:
            ids.pop()
        text = str(self._tokenizer.decode(ids, skip_special_tokens=False))
        found = [_call(block.strip()) for block in _CALL.findall(text)]
        calls = [
            ToolCall(id=f"{call_prefix}{place}", type="function", function=call)
            for place, call in enumerate(found)
            if call is not None
        ]
        if not calls:
            return Message(role="assistant", content=text)
        return Message(role="assistant", content=_CALL.sub("", text).strip(), tool_calls=calls)

    def _render(self, messages: list[dict[str, Any]], *, tools: Any = None, turn: bool = False) -> str:
        return str(
            self._tokenizer.apply_chat_template(
                messages,
                tools=tools,
                add_generation_prompt=turn,
                tokenize=False,
                chat_template=self._template,
                **self._options,
            )
        )

    def _encode(self, text: str) -> list[int]:
        return list(self._tokenizer(text, add_special_tokens=False)["input_ids"])


def _plain(message: Message) -> dict[str, Any]:
    return {"content": "", **message.to_wire()}


def _call(block: str) -> FunctionCall | None:
    """The call in a block; None where it does not even name a function."""
    try:
        value: Any = json.loads(block)
    except (ValueError, RecursionError):
        value = None
    if isinstance(value, dict) and isinstance(value.get("name"), str):
        arguments = value.get("arguments", {})
        text = arguments if isinstance(arguments, str) else json.dumps(arguments)
        return FunctionCall(name=value["name"], arguments=text)
    name = re.search(r'"name"\s*:\s*"([^"]+)"', block)
    return FunctionCall(name=name.group(1), arguments=block) if name else None

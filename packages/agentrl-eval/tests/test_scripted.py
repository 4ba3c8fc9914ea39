from pathlib import Path

import pytest

from agentrl_core import ConfigError, Message
from agentrl_eval.models import ScriptedModel


async def test_a_file_is_said_line_by_line_and_its_last_line_again(tmp_path: Path):
    path = tmp_path / "replies.jsonl"
    path.write_text('{"role": "assistant", "content": "a"}\n\n{"role": "assistant", "content": "b"}\n')
    model = ScriptedModel.from_file(path)
    said: list[Message] = []
    for _ in range(3):
        said.append((await model.reply([Message(role="user"), *said], tools=None, seed=0)).message)
    assert [message.text for message in said] == ["a", "b", "b"]


@pytest.mark.parametrize("content", [b"", b"\n", b"hello\n", b"{}\n", b"\xff\n"])
def test_a_file_of_anything_else_is_refused(tmp_path: Path, content: bytes):
    path = tmp_path / "replies.jsonl"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=r"must hold an assistant message"):
        ScriptedModel.from_file(path)


def test_a_missing_file_is_named(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"none\.jsonl"):
        ScriptedModel.from_file(tmp_path / "none.jsonl")

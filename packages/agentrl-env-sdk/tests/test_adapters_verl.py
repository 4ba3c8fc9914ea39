"""What the agent loop does beside verl's own machinery, which `tests/interop` has."""

import importlib.util
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from agentrl_core import ConfigError, SessionError
from agentrl_env_sdk.adapters import verl
from agentrl_env_sdk.adapters.verl import AGENT_NAME, Playing, rows
from agentrl_env_sdk.tasks.guess import Guess

NUMBERS: Any = Guess.splits["train"]
END = 3


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    words = [str(Path(sys.executable).with_name("agentrl-env")), "serve"]
    words += ["agentrl_env_sdk.tasks.guess:Guess", "--port", "0"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        yield process.stdout.readline().split()[-1]
        process.kill()


class Base:
    """As much of verl's base class as the loop uses, with characters for tokens."""

    def __init__(self, *, guesses: list[int], length: int = 1000, logprobs: bool = True) -> None:
        self.tokenizer = SimpleNamespace(eos_token_id=END)
        self.rollout_config = SimpleNamespace(response_length=length, multi_turn=SimpleNamespace(format="x"))
        self.server_manager = self
        self._guesses = iter(guesses)
        self._logprobs = logprobs
        self.asked: list[dict[str, Any]] = []

    async def generate(self, **asked: Any) -> Any:
        self.asked.append(asked)
        ids = [ord(c) for c in str(next(self._guesses))]
        return SimpleNamespace(
            token_ids=ids,
            log_probs=[-1.0] * len(ids) if self._logprobs else None,
            extra_fields={"version": 1},
        )

    async def ct_build_initial_tokens(self, messages: list[Any], *, tools: Any) -> list[int]:
        assert [tool["function"]["name"] for tool in tools] == ["guess"]
        return [ord(c) for c in messages[-1]["content"]]

    async def ct_merge_assistant_token(
        self, ids: list[int], new: list[int], mask: list[int], logprobs: Any, *, assistant_logprobs: Any
    ) -> Any:
        merged = SimpleNamespace(token_ids=ids + new)
        known = None if logprobs is None else logprobs + assistant_logprobs
        return merged, mask + [1] * len(new), known

    async def ct_merge_context_msg(
        self,
        before: list[Any],
        after: list[Any],
        ids: list[int],
        mask: list[int],
        logprobs: Any,
        *,
        tools: Any,
    ) -> Any:
        assert after[: len(before)] == before
        new = [ord(c) for message in after[len(before) :] for c in message["content"]]
        known = None if logprobs is None else logprobs + [0.0] * len(new)
        return SimpleNamespace(token_ids=ids + new), mask + [0] * len(new), known


class Loop(Playing, Base):
    """What `SessionAgentLoop` is with verl."""


class Numbers:
    """A parser for which a reply is a guess."""

    def __init__(self) -> None:
        self.stop_token_ids = [END]

    @classmethod
    def get_tool_parser(cls, name: str, tokenizer: Any) -> "Numbers":
        return cls()

    async def extract_tool_calls(self, ids: list[int]) -> Any:
        text = "".join(map(chr, ids))
        return "", [SimpleNamespace(name="guess", arguments=f'{{"number": {text}}}', tool_call_id=None)]


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    shapes = {"ToolParser": Numbers, "AgentLoopOutput": SimpleNamespace, "AgentLoopMetrics": SimpleNamespace}
    monkeypatch.setattr(verl, "_verl", lambda module: SimpleNamespace(**shapes))


def wrong(secret: int) -> int:
    """The end of the range that is not the number, which leaves nine of ten."""
    return secret // 10 * 10 + (0 if secret % 10 else 9)


@pytest.mark.usefixtures("stand_in")
async def test_the_mask_is_1_on_what_was_sampled(url: str):
    secret = NUMBERS[2]
    loop = Loop(url=url, guesses=[wrong(secret), secret])
    output = await loop.run({"temperature": 1.0}, extra_info={"task": "guess", "index": 2}, raw_prompt=[])
    told = "higher" if secret > wrong(secret) else "lower"
    assert "".join(map(chr, output.response_ids)) == f"{wrong(secret)}{told}{secret}"
    assert output.response_mask == [1] * 3 + [0] * len(told) + [1] * 3
    assert output.response_logprobs == [-1.0] * 3 + [0.0] * len(told) + [-1.0] * 3
    assert (output.reward_score, output.num_turns) == (1.0, 5)
    assert [asked["sampling_params"] for asked in loop.asked] == [
        {"temperature": 1.0, "stop_token_ids": [END]}
    ] * 2
    assert loop.asked[1]["prompt_ids"] == output.prompt_ids + output.response_ids[:-3]
    assert output.extra_fields["version"] == 1


@pytest.mark.usefixtures("stand_in")
async def test_a_response_that_gets_too_long_keeps_what_was_earned(url: str):
    loop = Loop(url=url, guesses=[wrong(NUMBERS[0])] * 4, length=5, logprobs=False)
    output = await loop.run({}, extra_info={"task": "guess", "index": 0})
    assert output.response_mask == [1, 1, 1]
    assert output.response_logprobs is None
    assert output.reward_score == pytest.approx(0.02)
    assert output.extra_fields["session"]["status"] == "agent context limit"


@pytest.mark.usefixtures("stand_in")
async def test_a_failed_session_raises_or_trains_nothing(url: str):
    row = {"extra_info": {"task": "guess", "index": 10**6}}
    with pytest.raises(SessionError):
        await Loop(url=url, guesses=[]).run({}, **row)
    output = await Loop(url=url, guesses=[], mask_failures=True).run({}, **row)
    assert (output.prompt_ids, output.response_ids, output.response_mask) == ([END], [END], [0])
    assert output.reward_score == 0.0
    assert "unknown_index" in output.extra_fields["session"]["failure"]


@pytest.mark.usefixtures("stand_in")
@pytest.mark.parametrize("extra_info", [None, {}, {"index": 1}])
async def test_a_row_must_name_its_sample(extra_info: Any):
    with pytest.raises(ConfigError, match="`task` and `index`"):
        await Loop(url="http://127.0.0.1:1", guesses=[]).run({}, extra_info=extra_info)


def test_rows_name_the_loop_and_the_sample():
    (row,) = rows("guess", ["a"])
    assert (row["agent_name"], row["extra_info"]) == (AGENT_NAME, {"task": "guess", "index": "a"})
    assert row["prompt"]


@pytest.mark.skipif(importlib.util.find_spec("verl") is not None, reason="verl is installed here")
def test_without_verl_the_loop_says_what_is_missing():
    with pytest.raises(ConfigError, match="verl is not installed"):
        _ = verl.SessionAgentLoop
    with pytest.raises(AttributeError, match="SessionLoop"):
        _ = verl.SessionLoop

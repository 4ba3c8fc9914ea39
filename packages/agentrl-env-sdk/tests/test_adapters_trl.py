"""The rollout function on a served task, with a player in the trainer's place; `tests/interop` has TRL."""

import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from agentrl_core import ConfigError, Message, SessionError, Tool, ToolFunction
from agentrl_env_sdk.adapters.trl import SessionRollouts, session_reward
from agentrl_env_sdk.adapters.trl_chat import Chat
from agentrl_env_sdk.tasks.guess import Guess

END = "\x03"
NUMBERS: Any = Guess.splits["train"]


class Letters:
    """A tokenizer whose tokens are characters, with a template as plain as can be."""

    eos_token = END
    chat_template: str | None = "letters"

    def __init__(self, *, ends: str = END, rewrites: bool = False) -> None:
        self._ends = ends
        self._rewrites = rewrites

    def convert_tokens_to_ids(self, token: str) -> int:
        return ord(token)

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool) -> str:
        return "".join(map(chr, ids))

    def __call__(self, text: str, *, add_special_tokens: bool) -> dict[str, list[int]]:
        return {"input_ids": [ord(character) for character in text]}

    def apply_chat_template(
        self, messages: list[dict[str, Any]], *, tools: Any, add_generation_prompt: bool, **_: Any
    ) -> str:
        parts = [f"[tools {len(tools)}]\n"] if tools else []
        for place, message in enumerate(messages):
            role = "old" if self._rewrites and place < len(messages) - 1 else message["role"]
            parts.append(f"<{role}>{message['content']}{self._ends}\n")
        return "".join(parts) + ("<assistant>" if add_generation_prompt else "")


def trainer_of(play: Callable[[str], str], *, budget: int = 2000, logprobs: bool = True) -> Any:
    """As much of a trainer as a rollout function sees."""

    def generate(contexts: list[list[int]], images: Any, fields: Any, *, num_generations: int) -> Any:
        assert (images, fields, num_generations) == (None, {}, 1)
        replies = [[ord(c) for c in play("".join(map(chr, context)))] for context in contexts]
        return replies, [[-0.5] * len(reply) for reply in replies] if logprobs else None

    return SimpleNamespace(
        processing_class=Letters(),
        args=SimpleNamespace(max_completion_length=budget),
        model=SimpleNamespace(config=SimpleNamespace()),
        _generate_single_turn=generate,
    )


def halve(context: str) -> str:
    """The best next guess."""
    low, high = map(int, re.findall(r"from (\d+) to (\d+)", context)[-1])
    for number, told in re.findall(r'"number": (\d+)\}.*?(higher|lower)', context, re.DOTALL):
        low, high = (int(number) + 1, high) if told == "higher" else (low, int(number) - 1)
    call = json.dumps({"name": "guess", "arguments": {"number": (low + high) // 2}})
    return f"<tool_call>{call}</tool_call>{END}"


@pytest.fixture(scope="module")
def rollouts() -> Iterator[SessionRollouts]:
    words = [str(Path(sys.executable).with_name("agentrl-env")), "serve"]
    words += ["agentrl_env_sdk.tasks.guess:Guess", "--port", "0"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        with SessionRollouts(process.stdout.readline().split()[-1], start_timeout_s=10.0) as made:
            yield made
        process.kill()


def prompts(rollouts: SessionRollouts, *places: int) -> list[Any]:
    rows = rollouts.rows("guess", split="train")
    return [rows[place]["prompt"] for place in places]


def test_each_prompt_is_a_session_and_only_sampled_tokens_are_the_agents(rollouts: SessionRollouts):
    places = [0, 0, 3, 5]
    made = rollouts(prompts(rollouts, *places), trainer_of(halve))
    assert made["session_reward"] == [1.0] * 4
    assert made["session_status"] == ["completed"] * 4
    for row, place in enumerate(places):
        prompt = "".join(map(chr, made["prompt_ids"][row]))
        assert prompt.startswith("[tools 1]\n<user>find the number from ")
        assert prompt.endswith(f"{NUMBERS[place] // 10 * 10 + 9}{END}\n<assistant>")
        ids, mask, logprobs = (made[key][row] for key in ("completion_ids", "env_mask", "logprobs"))
        turns = "".join(map(chr, ids)).split("<assistant>")
        assert len(turns) == made["session_turns"][row]
        assert turns[-1].endswith(END)  # nothing of the environment's after the last turn
        own = "".join(chr(each) for each, is_own in zip(ids, mask, strict=True) if is_own)
        assert own == "".join(turn.split(END)[0] + END for turn in turns)
        assert logprobs == [-0.5 * is_own for is_own in mask]
    assert made["completion_ids"][0] == made["completion_ids"][1]


def test_a_call_that_is_no_json_is_answered_by_the_environment(rollouts: SessionRollouts):
    replies = iter([f'<tool_call>{{"name": "guess", "arguments": {{</tool_call>{END}', f"I give up{END}"])
    made = rollouts(prompts(rollouts, 0), trainer_of(lambda _: next(replies, f"no{END}"), logprobs=False))
    text = "".join(map(chr, made["completion_ids"][0]))
    assert "<tool>error: arguments" in text
    assert "call a tool; tools: guess(number)" in text
    assert (made["session_status"], made["session_reward"]) == (["agent invalid action"], [0.0])
    assert made["logprobs"] is None


def test_what_gets_too_long_ends_with_what_was_earned(rollouts: SessionRollouts):
    wrong = NUMBERS[0] // 10 * 10 + (0 if NUMBERS[0] % 10 else 9)
    reply = f'<tool_call>{{"name": "guess", "arguments": {{"number": {wrong}}}}}</tool_call>{END}'
    made = rollouts(prompts(rollouts, 0), trainer_of(lambda _: reply, budget=len(reply) + 3))
    assert made["session_status"] == ["agent context limit"]
    assert made["session_reward"] == [pytest.approx(0.02)]  # one of ten candidates is out
    assert made["completion_ids"] == [[ord(c) for c in reply]]
    cut = rollouts(prompts(rollouts, 0), trainer_of(lambda _: reply, budget=10))
    assert cut["completion_ids"] == [[ord(c) for c in reply[:10]]]
    assert cut["session_status"] == ["agent context limit"]


def test_a_session_that_failed_has_no_reward_and_trains_nothing(rollouts: SessionRollouts):
    unknown = [{"role": "user", "content": json.dumps({"task": "guess", "index": 10**6})}]
    made = rollouts([unknown, *prompts(rollouts, 1)], trainer_of(halve))
    assert made["session_reward"] == [None, 1.0]
    assert made["session_status"][0] == "failed: unknown_index"
    assert (made["completion_ids"][0], made["env_mask"][0]) == ([ord(END)], [0])
    assert session_reward(prompts=[], completions=[], session_reward=made["session_reward"]) == [None, 1.0]


def test_rows_name_the_samples(rollouts: SessionRollouts):
    rows = rollouts.rows("guess", split="test", limit=2)
    named = [json.loads(row["prompt"][0]["content"]) for row in rows]
    assert named == [{"task": "guess", "index": 700}, {"task": "guess", "index": 701}]
    with pytest.raises(SessionError, match="guess"):
        rollouts.rows("guess", split="nowhere")


@pytest.mark.parametrize("prompt", ["what is 2 + 2?", [{"role": "user", "content": "{}"}], []])
def test_a_prompt_that_names_no_sample_is_refused(rollouts: SessionRollouts, prompt: Any):
    with pytest.raises(ConfigError, match=r"SessionRollouts\.rows"):
        rollouts([prompt], trainer_of(halve))


def test_a_template_must_append():
    assert Chat(Letters()).extension([Message(role="tool", content="5")]) == [
        ord(c) for c in f"\n<tool>5{END}\n<assistant>"
    ]
    with pytest.raises(ConfigError, match="must end an assistant message"):
        Chat(Letters(ends="."))
    with pytest.raises(ConfigError, match="rewrites earlier messages"):
        Chat(Letters(rewrites=True)).extension([Message(role="user", content="x")])
    bare = Letters()
    bare.chat_template = None
    with pytest.raises(ConfigError, match="needs a chat template"):
        Chat(bare)


def test_replies_keep_their_text_beside_the_calls():
    chat = Chat(Letters())
    text = (
        'so:<tool_call>{"name": "a"}</tool_call><tool_call>nothing</tool_call><tool_call>{"name": "b", "arg'
    )
    reply = chat.reply([ord(c) for c in text], call_prefix="c")
    calls = [(call.id, call.function.name, call.function.arguments) for call in reply.tool_calls or []]
    assert (reply.content, calls) == ("so:", [("c0", "a", "{}"), ("c2", "b", '{"name": "b", "arg')])
    tool = Tool(function=ToolFunction(name="a", description="", parameters={}))
    assert chat.prompt([Message(role="user", content="hi")], [tool])[:9] == [ord(c) for c in "[tools 1]"]

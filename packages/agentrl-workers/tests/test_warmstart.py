import random
from pathlib import Path

import numpy as np
import pytest
import torch

from agentrl_core import FunctionCall, Message, Tool, ToolCall, ToolFunction
from agentrl_workers.chat import ChatRenderer
from agentrl_workers.warmstart.demonstrations import Demonstration, success_rate
from agentrl_workers.warmstart.imitation import ImitationConfig, demonstration_sample, imitate, new_model
from agentrl_workers.warmstart.players import SKILLS, play_guess, play_trail
from agentrl_workers.warmstart.tokenizer import train_tokenizer

READ = Tool(
    function=ToolFunction(
        name="read",
        description="read what a key holds",
        parameters={"type": "object", "properties": {"key": {"type": "string"}}},
    )
)


def said(text: str, role: str = "user") -> Message:
    return Message(role=role, content=text)


def called(name: str, arguments: str) -> Message:
    call = ToolCall(id="c", type="function", function=FunctionCall(name=name, arguments=arguments))
    return Message(role="assistant", content="", tool_calls=[call])


@pytest.fixture(scope="module")
def renderer() -> ChatRenderer:
    texts = [
        'follow gem to its number read what a key holds {"name": "read", "arguments": {"key": "drum"}}'
    ] * 9
    return ChatRenderer(train_tokenizer(texts, vocabulary=320))


@pytest.fixture(scope="module")
def demonstration() -> Demonstration:
    messages = (
        said("follow gem to its number"),
        called("read", '{"key": "gem"}'),
        said("drum", "tool"),
        called("read", '{"key": "drum"}'),
    )
    return Demonstration(messages, (READ,), score=0.0)


@pytest.mark.parametrize("number", range(470, 480))
def test_a_skilled_guesser_halves_and_always_finds_the_number(number: int) -> None:
    history = [said("find the number from 470 to 479")]
    for _ in range(4):
        name, arguments = play_guess(history, 1.0, random.Random(0))
        assert name == "guess"
        if arguments["number"] == number:
            return
        history.append(called("guess", f'{{"number": {arguments["number"]}}}'))
        history.append(said("higher" if arguments["number"] < number else "lower", "tool"))
    pytest.fail(f"{number} was not found in 4 guesses")


def test_a_skilled_follower_reads_each_key_and_gives_the_number() -> None:
    history = [said("follow gem to its number")]
    assert play_trail(history, 1.0, random.Random(0)) == ("read", {"key": "gem"})
    history += [called("read", '{"key": "gem"}'), said("drum", "tool")]
    assert play_trail(history, 1.0, random.Random(0)) == ("read", {"key": "drum"})
    history += [called("read", '{"key": "drum"}'), said("7", "tool")]
    assert play_trail(history, 1.0, random.Random(0)) == ("answer", {"number": 7})


def test_a_follower_ignores_what_a_wrong_key_says() -> None:
    history = [
        said("follow gem to its number"),
        called("read", '{"key": "owl"}'),
        said("no such key", "tool"),
    ]
    assert play_trail(history, 1.0, random.Random(0)) == ("read", {"key": "gem"})


def test_skill_is_drawn_for_each_episode() -> None:
    drawn = [SKILLS["guess"].draw(random.Random(n)) for n in range(400)]
    experts = sum(level > 0.9 for level in drawn) / len(drawn)
    assert abs(experts - SKILLS["guess"].expert_share) < 0.06


def test_the_tokenizer_gives_words_and_digits_tokens_of_their_own(renderer: ChatRenderer) -> None:
    tokenizer = renderer.tokenizer
    assert len(tokenizer("drum", add_special_tokens=False)["input_ids"]) == 1
    assert tokenizer("471", add_special_tokens=False)["input_ids"] == [
        tokenizer.convert_tokens_to_ids(digit) for digit in "471"
    ]
    text = "naïve 漢字 \n\t{}"
    assert tokenizer.decode(tokenizer(text, add_special_tokens=False)["input_ids"]) == text


def test_a_demonstration_becomes_exactly_the_template_with_replies_masked(
    renderer: ChatRenderer, demonstration: Demonstration
) -> None:
    sample = demonstration_sample(demonstration, renderer)
    whole = renderer.tokenizer.apply_chat_template(
        [{"content": "", **message.to_wire()} for message in demonstration.messages],
        tools=[READ.model_dump()],
        tokenize=False,
    )
    assert renderer.text(sample.ids.tolist()) == whole.removesuffix("\n")
    replies = renderer.text(sample.ids[sample.mask].tolist())
    assert replies == (
        '<tool_call>\n{"name": "read", "arguments": {"key": "gem"}}\n</tool_call><|im_end|>'
        '<tool_call>\n{"name": "read", "arguments": {"key": "drum"}}\n</tool_call><|im_end|>'
    )


def test_imitation_learns_a_demonstration_and_repeats_from_its_seed(
    renderer: ChatRenderer, demonstration: Demonstration
) -> None:
    sample = demonstration_sample(demonstration, renderer)
    config = ImitationConfig(steps=200, batch_size=2, hidden_size=32, learning_rate=1e-2)

    def losses() -> tuple[list[float], torch.Tensor]:
        model = new_model(renderer.tokenizer, hidden_size=32, seed=3)
        seen: list[float] = []
        imitate(model, [sample], config, seed=3, on_step=lambda _, loss: seen.append(loss))
        return seen, model.get_input_embeddings().weight.detach()

    first, weights = losses()
    second, again = losses()
    assert first[-1] < 0.2 * first[0]
    assert first == second
    assert torch.equal(weights, again)
    assert first[0] == pytest.approx(np.log(len(renderer.tokenizer)), rel=0.1)


def test_success_is_the_share_of_full_scores(demonstration: Demonstration) -> None:
    won = Demonstration(demonstration.messages, demonstration.tools, score=1.0)
    assert success_rate([won, demonstration, demonstration, won]) == 0.5


def test_a_model_folder_round_trips(renderer: ChatRenderer, tmp_path: Path) -> None:
    from agentrl_workers.models import load_model, load_tokenizer

    model = new_model(renderer.tokenizer, hidden_size=32, seed=0)
    model.save_pretrained(tmp_path)
    renderer.tokenizer.save_pretrained(tmp_path)
    loaded = load_model(str(tmp_path), dtype="float32")
    assert torch.equal(loaded.get_input_embeddings().weight, model.get_input_embeddings().weight)
    assert ChatRenderer(load_tokenizer(str(tmp_path))).prompt([said("gem")]) == renderer.prompt([said("gem")])

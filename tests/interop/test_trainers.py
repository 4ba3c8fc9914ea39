"""Other people's trainers on our sessions: TRL's GRPO trainer and verl's agent loop, both unmodified."""

import re
from pathlib import Path

import pytest

from agentrl_env_sdk.tasks.guess import Guess

from .conftest import EXAMPLES, HERE, MODEL, output_of, python_of, result_of  # isort: skip

NUMBERS = [number for split in ("train", "test") for number in Guess.splits[split]]
GUESS = re.compile(r'"number": (\d+)')
STEPS = 3
GENERATIONS = 4


def expected_return(secret: int, guesses: list[int]) -> float:
    """What the task's rules give, worked out anew from the guesses."""
    low = secret // 10 * 10
    left, earned = set(range(low, low + 10)), 0.0
    for guess in guesses:
        if guess == secret:
            return 1.0
        if low <= guess < low + 10:
            kept = {each for each in left if (each > guess) == (secret > guess) and each != guess}
            earned += 0.2 * (len(left) - len(kept)) / 10
            left = kept
    return earned


def test_trl_learns_from_served_sessions(guess_url: str, tmp_path: Path):
    python = python_of("TRAINERS")
    words = [python, str(HERE / "trl_run.py"), guess_url, str(MODEL), str(tmp_path / "out")]
    result = result_of(*words, folder=tmp_path)
    assert len(result["batches"]) == STEPS
    assert result["moved"] > 0
    for batch, logged in zip(result["batches"], result["log"], strict=True):
        groups = [set(batch["samples"][at : at + GENERATIONS]) for at in range(0, 8, GENERATIONS)]
        assert all(len(group) == 1 for group in groups)
        assert all(num_ids == num_mask for num_ids, num_mask in batch["lengths"])
        for row, index in enumerate(batch["samples"]):
            prompt, completion = batch["texts"][0][row], batch["texts"][1][row]
            assert f"find the number from {NUMBERS[index] // 10 * 10} to" in prompt
            # The environment's answers are in the completion, and masked out of what was sampled.
            turns = completion.split("<|im_start|>assistant\n")
            assert len(turns) == batch["session_turns"][row]
            own = "".join(turn.partition("<|im_end|>")[0] + "<|im_end|>" for turn in turns)
            assert batch["sampled"][row] == own
            guesses = [int(found) for found in GUESS.findall(own)]
            assert batch["session_reward"][row] == pytest.approx(expected_return(NUMBERS[index], guesses))
        assert logged["reward"] == pytest.approx(sum(batch["session_reward"]) / 8, abs=1e-5)


def test_verl_gets_what_was_sampled_and_nothing_else_trains(guess_url: str, tmp_path: Path):
    python = python_of("TRAINERS")
    words = [python, str(HERE / "verl_run.py"), guess_url, str(MODEL), str(tmp_path / "loops.yaml")]
    results = result_of(*words, "0", "1", "2", "705", folder=tmp_path)
    for result, index in zip(results, (0, 1, 2, 705), strict=True):
        output, calls = result["output"], result["calls"]
        assert len({call["request_id"] for call in calls}) == 1
        assert calls[0]["prompt_ids"] == output["prompt_ids"]
        ids = output["prompt_ids"] + output["response_ids"]
        for call in calls:  # each prompt and reply stands in the end as it was given and sampled
            start = len(call["prompt_ids"])
            assert ids[:start] == call["prompt_ids"]
            assert ids[start : start + len(call["ids"])] == call["ids"]
        mask, response = output["response_mask"], output["response_ids"]
        sampled = [each for each, is_own in zip(response, mask, strict=True) if is_own]
        assert sampled == [each for call in calls for each in call["ids"]]
        logprobs = [each for each, is_own in zip(output["response_logprobs"], mask, strict=True) if is_own]
        assert logprobs == [each for call in calls for each in call["log_probs"]]
        others = [each for each, is_own in zip(output["response_logprobs"], mask, strict=True) if not is_own]
        assert not any(others)
        assert f'"number": {NUMBERS[index]}}}' in result["text"]  # halving finds every number
        assert output["reward_score"] == 1.0
        assert result["reward_per_token"] == [0.0] * (len(response) - 1) + [1.0]
        assert output["extra_fields"]["session"] == {"status": "completed", "failure": None}


def test_verl_is_told_of_a_session_that_failed(guess_url: str, tmp_path: Path):
    python = python_of("TRAINERS")
    words = [python, str(HERE / "verl_run.py"), guess_url, str(MODEL), str(tmp_path / "loops.yaml")]
    with pytest.raises(AssertionError, match=r"SessionError.*99999"):
        result_of(*words, "99999", folder=tmp_path)


def test_the_examples_run(guess_url: str, tmp_path: Path):
    python = python_of("TRAINERS")
    output_of(python, str(EXAMPLES / "trl_grpo.py"), guess_url, "guess", str(MODEL), "1", folder=tmp_path)
    assert (tmp_path / "trained" / "model.safetensors").is_file()
    output_of(python, str(EXAMPLES / "verl_data.py"), guess_url, "guess", folder=tmp_path)
    assert (tmp_path / "guess.parquet").is_file()
    assert f"url: {guess_url}" in (tmp_path / "agent_loops.yaml").read_text()

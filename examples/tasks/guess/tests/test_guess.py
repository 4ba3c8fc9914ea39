import pytest
from agentrl_task_guess import Guess

from agentrl_core import ConfigError, SampleStatus
from agentrl_env_sdk.testing import OracleAgent

LEVELS = ["easy", "medium", "hard"]


@pytest.mark.parametrize("difficulty", LEVELS)
@pytest.mark.parametrize("split", ["train", "test"])
def test_halving_wins_everywhere(play, difficulty, split):
    task = Guess(difficulty)
    start = 0 if split == "train" else 2000
    for index in range(start, start + 30):
        episode = play(task, index=index)
        episode.play(OracleAgent(task.oracle))
        assert (episode.metrics["score"], episode.reward) == (1.0, pytest.approx(1.0))


def test_guesses_are_as_many_as_halving_needs():
    assert [Guess(difficulty).max_turns for difficulty in LEVELS] == [4, 10, 20]


def test_narrowing_down_earns_its_share(play):
    episode = play(Guess(), sample=[20, 22])
    assert episode.opening.text == "find the number from 20 to 29"
    assert episode.call("guess", number=24).text == "lower"  # 20 to 23 are left: 4 of 10
    assert episode.call("guess", number=5).text == "out of range"
    assert episode.call("guess", number=21).text == "higher"  # 22 and 23: 2 of 10
    assert episode.reward == pytest.approx(0.3 * 0.69897, abs=1e-5)  # log10(10 / 2)
    assert episode.call("guess", number=23).text == "lower"
    assert (episode.status, episode.metrics["left"]) == (SampleStatus.TASK_LIMIT_REACHED, 1)
    assert episode.reward == pytest.approx(0.3)
    assert episode.metrics["score"] == 0.0


def test_an_unknown_difficulty_is_named():
    with pytest.raises(ConfigError, match="got 'tiny'"):
        Guess("tiny")


@pytest.mark.parametrize("difficulty", LEVELS)
def test_the_task_keeps_the_rules(validate_task, difficulty):
    report = validate_task(Guess(difficulty))
    assert report.ok, report.table()

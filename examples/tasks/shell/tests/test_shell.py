import pytest
from agentrl_task_shell import Shell, make_goal
from agentrl_task_shell.goals import LEVELS

from agentrl_core import ConfigError
from agentrl_env_sdk.testing import OracleAgent


@pytest.mark.parametrize("difficulty", LEVELS)
@pytest.mark.parametrize("split", ["train", "test"])
def test_the_best_play_wins_everywhere(play, difficulty, split):
    task = Shell(difficulty)
    start = 0 if split == "train" else 1000
    for index in range(start, start + 12):
        episode = play(task, index=index)
        episode.play(OracleAgent(task.oracle))
        assert (episode.metrics["score"], episode.reward) == (1.0, 1.0), make_goal(
            difficulty, f"{split}/{index}"
        )


@pytest.mark.parametrize("difficulty", LEVELS)
def test_nothing_done_is_nothing_earned(play, difficulty):
    task = Shell(difficulty)
    for index in range(10):
        episode = play(task, index=index)
        episode.call("answer", value="done")
        assert episode.metrics["score"] == 0.0


def test_every_kind_of_goal_comes_up_and_stays_the_same():
    for difficulty, makers in LEVELS.items():
        texts = {make_goal(difficulty, str(number)).text.split()[0] for number in range(60)}
        assert len(texts) >= len(makers) - 1
        assert make_goal(difficulty, "7") == make_goal(difficulty, "7")


def test_the_shell_keeps_its_place_and_tells_what_went_wrong(play):
    episode = play(Shell(), index=0)
    assert episode.call("bash", command="mkdir -p d && cd d").text == "(no output)"
    assert episode.call("bash", command="pwd; nonsense").text.splitlines()[0].endswith("/d")
    said = episode.call("bash", command="head -c 10000 /dev/zero | tr '\\0' x; false").text
    assert said.endswith("(6000 bytes more)\n(exit code 1)")


def test_what_commands_mean_to_the_agent_does_not_matter_to_the_judge(play):
    index = next(number for number in range(50) if make_goal("easy", f"train/{number}").answer is None)
    episode = play(Shell(), index=index)
    episode.call("bash", command="cat() { echo fooled; }; [() { true; }; alias [=true")
    episode.call("answer", value="done")
    assert episode.metrics["score"] == 0.0


def test_an_unknown_difficulty_is_named():
    with pytest.raises(ConfigError, match="got 'tiny'"):
        Shell("tiny")


def test_the_task_keeps_the_rules(validate_task):
    report = validate_task(Shell("medium"))
    assert report.ok, report.table()

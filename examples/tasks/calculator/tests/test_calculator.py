import pytest
from agentrl_task_calculator import Calculator, generate
from hypothesis import given
from hypothesis import strategies as st

from agentrl_core import ConfigError
from agentrl_env_sdk.testing import OracleAgent

LEVELS = ["easy", "medium", "hard"]


@given(st.integers(0, 10**6), st.integers(1, 7))
def test_what_is_written_comes_to_what_is_meant(seed, operations):
    made = generate(str(seed), operations=operations, signs="+-*/", largest=99)
    assert eval(str(made)) == made.value
    assert made.value not in made.numbers
    results = {}
    for a, sign, b in made.steps():
        results[a, sign, b] = eval(f"{a} {sign} {b}")
    assert made.value in results.values()
    assert str(generate(str(seed), operations=operations, signs="+-*/", largest=99)) == str(made)


@pytest.mark.parametrize("difficulty", LEVELS)
@pytest.mark.parametrize("split", ["train", "test"])
def test_the_best_play_wins_everywhere(play, difficulty, split):
    task = Calculator(difficulty)
    start = 0 if split == "train" else 2000
    for index in range(start, start + 40):
        episode = play(task, index=index)
        episode.play(OracleAgent(task.oracle))
        assert (episode.metrics["score"], episode.reward) == (1.0, pytest.approx(1.0))


def test_steps_count_once_and_a_wrong_answer_ends(play):
    episode = play(Calculator("medium"), index=0)
    first = episode.session.state["left"][0]
    for _ in range(2):
        episode.call("compute", a=first[0], op=first[1], b=first[2])
    assert episode.reward == pytest.approx(0.1)
    episode.call("answer", number=episode.session.state["answer"] + 1)
    assert (episode.status, episode.reward) == ("completed", pytest.approx(0.1))
    assert episode.metrics["score"] == 0.0


@pytest.mark.parametrize(
    ("a", "op", "b", "said"),
    [(7, "/", 2, "not whole"), (7, "/", 0, "not whole"), (10**13, "*", 2, "too large")],
)
def test_what_has_no_whole_result_is_told(play, a, op, b, said):
    assert play(Calculator(), index=0).call("compute", a=a, op=op, b=b).text == said


def test_an_unknown_difficulty_is_named():
    with pytest.raises(ConfigError, match=r"one of \['easy', 'hard', 'medium'\], got 'tiny'"):
        Calculator("tiny")


@pytest.mark.parametrize("difficulty", LEVELS)
def test_the_task_keeps_the_rules(validate_task, difficulty):
    report = validate_task(Calculator(difficulty))
    assert report.ok, report.table()

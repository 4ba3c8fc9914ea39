import pytest
from agentrl_task_kgraph import KGraph, ask, make_graph
from agentrl_task_kgraph.facts import NAMES, name_of
from agentrl_task_kgraph.questions import LEVELS
from agentrl_task_kgraph.task import f1

from agentrl_core import ConfigError
from agentrl_env_sdk.testing import OracleAgent


def by_sparql(start: str, walk: tuple[str, ...]) -> set[str]:
    """Where a walk ends, by rdflib's own query engine."""
    steps = "/".join(f"^k:{name[1:]}" if name.startswith("~") else f"k:{name}" for name in walk)
    query = f"PREFIX k: <{NAMES}> SELECT DISTINCT ?x WHERE {{ k:{start} {steps} ?x }}"
    return {name_of(row[0]) for row in make_graph().query(query)}


@pytest.mark.parametrize("difficulty", LEVELS)
def test_answers_are_those_of_a_query(difficulty):
    for number in range(25):
        question = ask(difficulty, f"train/{number}")
        ends = [by_sparql(start, walk) for start, walk in zip(question.start, question.walks, strict=True)]
        found = set.intersection(*ends)
        if question.last == "count":
            assert question.answers == (str(len(found)),)
        elif question.last:
            (best,) = question.answers
            key = NAMES[question.last.partition(":")[2]]
            numbers = {one: int(make_graph().value(NAMES[one], key)) for one in found}
            assert numbers[best] == max(numbers.values())
        else:
            assert set(question.answers) == found


@pytest.mark.parametrize("difficulty", LEVELS)
@pytest.mark.parametrize("split", ["train", "test"])
def test_the_best_play_wins_everywhere(play, difficulty, split):
    task = KGraph(difficulty)
    start = 0 if split == "train" else 1000
    for index in range(start, start + 25):
        episode = play(task, index=index)
        episode.play(OracleAgent(task.oracle))
        assert (episode.metrics["score"], episode.reward) == (1.0, 1.0), ask(difficulty, f"{split}/{index}")


def test_questions_differ_and_stay_the_same():
    assert len({ask("hard", str(number)).text for number in range(100)}) > 90
    assert {ask("hard", str(number)).last.partition(":")[0] for number in range(60)} == {"", "count", "most"}
    assert ask("medium", "5") == ask("medium", "5")


def test_what_is_not_there_is_told(play):
    episode = play(KGraph("medium"), index=0)
    assert episode.call("relations", of="nobody").text == "there is nothing called nobody"
    assert episode.call("count", of="#3").text == "there is no variable #3; there are 0"
    assert episode.call("answer", value="#0").text == "there is no variable #0; there are 0"
    assert episode.call("follow", of="ada", relation="eats").text.startswith(
        "no such relation; there are age"
    )
    assert episode.call("relations", of="ada", session="x").text.startswith(
        "error: argument `session` is unknown"
    )
    assert not episode.finished


def test_a_part_of_the_answer_is_a_part_of_the_reward(play):
    number = next(n for n in range(100) if len(ask("medium", f"train/{n}").answers) == 3)
    episode = play(KGraph("medium"), index=number)
    episode.call("answer", value=ask("medium", f"train/{number}").answers[0])
    assert episode.reward == pytest.approx(0.5)  # precision 1, recall 1/3
    assert f1({"a", "b"}, {"a", "c"}) == 0.5
    assert f1(set(), {"a"}) == 0.0


def test_an_unknown_difficulty_is_named():
    with pytest.raises(ConfigError, match="got 'tiny'"):
        KGraph("tiny")


@pytest.mark.parametrize("difficulty", ["medium", "hard"])
def test_the_task_keeps_the_rules(validate_task, difficulty):
    report = validate_task(KGraph(difficulty))
    assert report.ok, report.table()

import pytest

from agentrl_core import ConfigError
from agentrl_eval.plan import Plan
from agentrl_eval.sampling import Sample, samples_of


def a_plan(**fields: object) -> Plan:
    return Plan.model_validate({"tasks": ("count",), "model": "openai:m", **fields})


def test_the_first_samples_are_played_in_order_each_as_often_as_asked():
    samples = samples_of(a_plan(samples=2, repeats=2), task="count", available=[5, 3, "x"])
    assert samples == [
        Sample("count", 5, 0),
        Sample("count", 5, 1),
        Sample("count", 3, 0),
        Sample("count", 3, 1),
    ]


def test_more_samples_than_there_are_is_refused_with_the_size_and_the_way_out():
    with pytest.raises(ConfigError, match=r"`count` has 3 samples, but 4 are asked for; `--repeats`"):
        samples_of(a_plan(samples=4), task="count", available=[1, 2, 3])


def test_an_unknown_index_is_refused_by_name():
    with pytest.raises(ConfigError, match=r"has no sample 7; its 3 start with 1"):
        samples_of(a_plan(indices=(2, 7)), task="count", available=[1, 2, 3])


def test_an_empty_split_is_no_evaluation():
    with pytest.raises(ConfigError, match="has no samples"):
        samples_of(a_plan(), task="count", available=[])


@pytest.mark.parametrize("fields", [{"tasks": ("a", "a")}, {"indices": (1, 2, 1)}])
def test_naming_a_task_or_a_sample_twice_is_refused(fields: dict[str, object]):
    with pytest.raises(ConfigError, match="named twice"):
        a_plan(**fields)


def test_every_episode_has_a_seed_of_its_own_and_keeps_it():
    samples = [Sample("count", index, repeat) for index in (1, "1", 2) for repeat in range(2)]
    seeds = [sample.seed(0) for sample in samples]
    assert len(set(seeds)) == len(seeds)
    assert seeds == [sample.seed(0) for sample in samples]
    assert seeds != [sample.seed(1) for sample in samples]
    assert all(0 <= seed < 2**32 for seed in seeds)

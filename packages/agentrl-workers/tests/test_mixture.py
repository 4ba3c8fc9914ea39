from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl_core import ConfigError
from agentrl_workers.mixture import Mixture

INDICES = {"a": [10, 11, 12], "b": ["x", "y"]}


def mixture(*, seed=0, a=1.0, b=1.0):
    return Mixture(INDICES, {"a": a, "b": b}, seed=seed)


def take(source, count):
    return [source.next() for _ in range(count)]


def test_tasks_come_in_proportion_to_their_weights():
    counts = Counter(item.task for item in take(mixture(a=3.0, b=1.0), 400))
    assert counts == {"a": 300, "b": 100}


def test_every_epoch_of_a_task_holds_each_sample_once_in_another_order():
    items = [item.index for item in take(mixture(), 60) if item.task == "a"]
    epochs = [items[start : start + 3] for start in range(0, 30, 3)]
    assert all(sorted(epoch) == [10, 11, 12] for epoch in epochs)
    assert len(set(map(tuple, epochs))) > 1


def test_the_order_depends_on_the_seed_alone():
    assert take(mixture(seed=1), 50) == take(mixture(seed=1), 50)
    assert take(mixture(seed=1), 50) != take(mixture(seed=2), 50)


@given(st.integers(0, 60))
def test_a_position_is_enough_to_go_on(position):
    straight, skipped = mixture(a=2.0), mixture(a=2.0)
    take(straight, position)
    skipped.skip_to(position)
    assert take(straight, 10) == take(skipped, 10)


def test_a_task_without_samples_is_refused():
    with pytest.raises(ConfigError, match="task `a` has no samples"):
        Mixture({"a": []}, {"a": 1.0}, seed=0)

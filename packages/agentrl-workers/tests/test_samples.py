import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from agentrl_core import Outcome, Segment, Trajectory, Turn
from agentrl_workers.batch import batch_metrics, is_success, make_batch
from agentrl_workers.buffer import Group
from agentrl_workers.config import make_config
from agentrl_workers.mixture import Item
from agentrl_workers.samples import Sample, micro_batches, plan_micro_batches, samples_of
from agentrl_workers.scoring import sequence_logps


def turn(context, reply, *, starts=False, reward=0.0, version=0):
    return Turn(
        context_ids=tuple(context),
        token_ids=tuple(reply),
        logps=tuple(-float(n) for n in reply),
        segments=(Segment(version=version, start=0, end=len(reply)),),
        reward=reward,
        starts_sample=starts,
    )


def trajectory(name, *turns, task="t", group="g", score=None, outcome=Outcome.COMPLETED):
    return Trajectory(
        trajectory_id=name, task=task, index=0, group_id=group, turns=turns, outcome=outcome, score=score
    )


def test_a_trajectory_becomes_its_sequences_with_replies_masked():
    given_turns = turn([1, 2], [3, 4], starts=True), turn([5], [6]), turn([7, 8], [9], starts=True)
    first, second = samples_of(trajectory("a", *given_turns), advantage=0.5)
    assert first.ids.tolist() == [1, 2, 3, 4, 5, 6]
    assert first.mask.tolist() == [False, False, True, True, False, True]
    assert first.logp_rollout.tolist() == [0, 0, -3, -4, 0, -6]
    assert (second.ids.tolist(), second.mask.tolist()) == ([7, 8, 9], [False, False, True])
    assert first.advantage == second.advantage == 0.5


@given(st.lists(st.integers(1, 40), max_size=30), st.integers(1, 100))
def test_every_sequence_is_in_one_micro_batch_that_keeps_to_its_size(lengths, max_tokens):
    plan = plan_micro_batches(lengths, max_tokens=max_tokens)
    assert sorted(position for rows in plan for position in rows) == list(range(len(lengths)))
    for rows in plan:
        assert len(rows) * max(lengths[n] for n in rows) <= max_tokens or len(rows) == 1


def sample(length, *, mask=None, advantage=1.0):
    chosen = np.ones(length, dtype=bool) if mask is None else np.asarray(mask)
    ids = np.arange(5, 5 + length, dtype=np.int64)
    return Sample(ids=ids, mask=chosen, logp_rollout=np.full(length, -1.0, np.float32), advantage=advantage)


def test_padding_is_seen_by_nobody_and_the_first_token_never_counts():
    (batch,) = micro_batches([sample(2), sample(4, advantage=3.0)], max_tokens=100)
    assert batch.order_B == [1, 0]
    assert batch.ids_BT.tolist() == [[5, 6, 7, 8], [5, 6, 0, 0]]
    assert batch.attention_BT.tolist() == [[True] * 4, [True, True, False, False]]
    assert batch.mask_BT.tolist() == [[False, True, True, True], [False, True, False, False]]
    assert batch.advantage_BT[0].tolist() == [3.0] * 4


def test_ranks_that_need_fewer_batches_run_empty_ones():
    batches = micro_batches([sample(3)], max_tokens=100, count=3)
    assert len(batches) == 3
    assert [int(batch.mask_BT.sum()) for batch in batches] == [2, 0, 0]
    assert batches[1].order_B == []
    with pytest.raises(ValueError, match="2 micro-batches are needed, more than the 1"):
        micro_batches([sample(3), sample(3)], max_tokens=3, count=1)


def test_scores_do_not_depend_on_packing(model):
    samples = [sample(length) for length in (3, 9, 5, 7)]
    options = {"temperature": 0.7, "device": torch.device("cpu")}
    alone = sequence_logps(model, samples, max_tokens=1, **options)
    together = sequence_logps(model, samples, max_tokens=1000, count=3, **options)
    for one, other, given_sample in zip(alone, together, samples, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)
        ids = torch.from_numpy(given_sample.ids)
        with torch.no_grad():
            expected = torch.log_softmax(model(ids[None]).logits[0].double() / 0.7, dim=-1)
        picked = [0.0, *(expected[n - 1, ids[n]].item() for n in range(1, len(ids)))]
        np.testing.assert_allclose(one, picked, atol=1e-5)


CONFIG = make_config(
    {
        "tasks": [{"name": "t"}],
        "model": {"path": "m"},
        "actor": {"updates_per_step": 2},
        "batch": {"groups": 2},
    }
)


def groups():
    won = turn([1], [2, 3], starts=True, reward=1.0, version=3), turn([1], [2], starts=True, version=4)
    one = [trajectory("a", won[0], group="x", score=1.0), trajectory("b", won[1], group="x", score=0.0)]
    two = [
        trajectory("c", won[1], group="y", task="u"),
        trajectory("d", won[1], group="y", task="u", outcome=Outcome.TRUNCATED),
    ]
    return [Group(Item(0, "t", 0), tuple(one)), Group(Item(1, "u", 0), tuple(two))]


def test_a_batch_deals_every_sequence_to_one_update():
    batch = make_batch(groups(), config=CONFIG, step=1)
    assert len(batch.updates) == 2
    assert sum(map(len, batch.updates)) == 4
    # Task t: +1 on two tokens, -1 on one, then mean 0 and deviation 1 over its three tokens.
    assert batch.advantages.tolist() == pytest.approx([np.sqrt(0.5), -np.sqrt(2), 0.0, 0.0], rel=1e-4)
    again = make_batch(groups(), config=CONFIG, step=1)
    assert [len(update[0].ids) for update in batch.updates] == [
        len(update[0].ids) for update in again.updates
    ]


def test_the_numbers_of_a_batch():
    metrics = batch_metrics(make_batch(groups(), config=CONFIG, step=1), learner=5)
    assert (metrics["reward/t"], metrics["success/t"], metrics["num_trajectories/t"]) == (0.5, 0.5, 2.0)
    assert metrics["reward_std/t"] == pytest.approx(np.std([0.0, 1.0], ddof=1))
    assert metrics["staleness/lag_max"] == 2.0
    assert metrics["staleness/lag_mean"] == pytest.approx((2 * 2 + 3 * 1) / 5)
    assert metrics["groups/zero_variance"] == 1.0
    assert (metrics["outcome/completed"], metrics["outcome/truncated"]) == (3.0, 1.0)


def test_success_is_a_full_score_or_a_full_return_without_one():
    full = turn([1], [2], starts=True, reward=1.0)
    assert is_success(trajectory("a", full))
    assert is_success(trajectory("a", turn([1], [2], starts=True), score=1.0))
    assert not is_success(trajectory("a", full, score=0.5))

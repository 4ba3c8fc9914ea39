import asyncio

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from agentrl_core import Outcome, Segment, Trajectory, Turn
from agentrl_workers.buffer import Buffer, Group, admissible_groups, is_fresh
from agentrl_workers.mixture import Item


def a_trajectory(name, *versions):
    turns = tuple(
        Turn(
            context_ids=(1,),
            token_ids=(2,),
            logps=(-0.5,),
            segments=(Segment(version=version, start=0, end=1),),
        )
        for version in versions
    )
    return Trajectory(
        trajectory_id=name, task="t", index=0, group_id=name[0], turns=turns, outcome=Outcome.COMPLETED
    )


def a_group(position, *versions):
    item = Item(position=position, task="t", index=0)
    return Group(item, tuple(a_trajectory(f"{position}-{n}", version) for n, version in enumerate(versions)))


def test_staleness_counts_from_the_oldest_token():
    trajectory = a_trajectory("a", 5, 3, 6)
    assert is_fresh(trajectory, learner=5, max_lag=2)
    assert not is_fresh(trajectory, learner=6, max_lag=2)


@pytest.mark.parametrize(
    ("running", "accepted", "learner", "max_lag", "expected"),
    [
        (0, 0, 0, 0, 4),  # Synchronous: one step's groups.
        (1, 3, 0, 0, 0),
        (0, 4, 0, 0, 0),  # The next step's wait for the update.
        (0, 4, 1, 0, 4),
        (0, 0, 0, 2, 10),  # The number of running groups is limited, too.
        (6, 6, 0, 2, 0),
        (2, 6, 1, 2, 8),
        (9, 0, 0, 9, 1),
    ],
)
def test_admission_by_hand(running, accepted, learner, max_lag, expected):
    assert (
        admissible_groups(
            max_running=10,
            running=running,
            accepted=accepted,
            learner=learner,
            max_lag=max_lag,
            groups_per_step=4,
        )
        == expected
    )


async def test_a_batch_waits_for_enough_groups_and_takes_the_oldest():
    buffer = Buffer(groups_per_step=2, max_lag=1)
    waiting = asyncio.create_task(buffer.batch())
    buffer.put(a_group(0, 0, 0))
    await asyncio.sleep(0)
    assert not waiting.done()
    buffer.put(a_group(1, 0, 0))
    buffer.put(a_group(2, 0, 0))
    assert [group.item.position for group in await waiting] == [0, 1]
    assert len(buffer) == 1


def test_what_grew_stale_is_dropped_and_makes_room():
    buffer = Buffer(groups_per_step=1, max_lag=1)
    buffer.put(a_group(0, 0, 0))
    buffer.put(a_group(1, 0, 2, 2))
    buffer.put(a_group(2, 0, 0, 2))
    assert buffer.accepted == 3
    buffer.advance(2)
    assert buffer.accepted == 1
    dropped = sorted(trajectory.trajectory_id for trajectory in buffer.take_stale())
    assert dropped == ["0-0", "0-1", "1-0", "2-0", "2-1", "2-2"]
    assert buffer.take_stale() == []
    assert len(buffer) == 1


class Flow(RuleBasedStateMachine):
    """Whatever happens in whatever order, nothing is lost and nothing stale is handed out."""

    def __init__(self):
        super().__init__()
        self.max_lag, self.per_step = 2, 2
        self.buffer = Buffer(groups_per_step=self.per_step, max_lag=self.max_lag)
        self.put = self.taken = self.dropped = 0
        self.next = 0

    @rule(lags=st.lists(st.integers(0, 4), min_size=2, max_size=4))
    def finish(self, lags):
        versions = [max(0, self.buffer.learner - lag) for lag in lags]
        self.buffer.put(a_group(self.next, *versions))
        self.next += 1
        self.put += len(versions)

    @rule()
    def train(self):
        if len(self.buffer) < self.per_step:
            return
        batch = asyncio.run(self.buffer.batch())
        for trajectory in (t for group in batch for t in group.trajectories):
            assert self.buffer.learner - trajectory.oldest_version <= self.max_lag
            self.taken += 1
        assert all(len(group.trajectories) >= 2 for group in batch)
        self.buffer.advance(self.buffer.learner + 1)

    @rule()
    def collect(self):
        self.dropped += len(self.buffer.take_stale())

    @invariant()
    def nothing_is_lost(self):
        held = sum(len(group.trajectories) for group in self.buffer._groups)
        uncollected = len(self.buffer._stale)
        assert self.put == self.taken + self.dropped + held + uncollected

    @invariant()
    def accepted_counts_what_was_or_will_be_trained(self):
        assert self.buffer.accepted == self.buffer.learner * self.per_step + len(self.buffer)


TestFlow = Flow.TestCase

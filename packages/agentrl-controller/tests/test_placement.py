from hypothesis import given
from hypothesis import strategies as st

from agentrl_controller.placement import Slots, place


def slots(worker_id, capacity, current, *, available=True):
    return Slots(worker_id, capacity, current, available)


def test_the_emptiest_worker_gets_the_session():
    assert place([slots(1, 4, 3), slots(2, 8, 5), slots(3, 2, 0)]) == 2


def test_among_equals_the_group_stays_together_else_the_oldest_gets_it():
    workers = [slots(1, 4, 2), slots(2, 4, 2), slots(3, 4, 2)]
    assert place(workers) == 1
    assert place(workers, home=3) == 3
    assert place([slots(1, 4, 1), slots(3, 4, 2)], home=3) == 1


def test_drained_and_lost_workers_get_nothing():
    assert place([slots(1, 4, 0, available=False)]) is None
    assert place([]) is None


@given(
    st.lists(
        st.builds(Slots, st.integers(1, 9), st.integers(0, 5), st.integers(0, 7), st.booleans()),
        unique_by=lambda worker: worker.worker_id,
    ),
    st.integers(1, 9) | st.none(),
)
def test_only_a_worker_with_a_free_slot_is_ever_chosen(workers, home):
    chosen = place(workers, home=home)
    free = {worker.worker_id: worker.free for worker in workers if worker.free > 0}
    assert (chosen is None) == (not free)
    if chosen is not None:
        assert free[chosen] == max(free.values())

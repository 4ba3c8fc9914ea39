import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl_controller.admission import Admission, Ticket
from agentrl_core import ErrorCode, SessionError, StartRequest


def ticket(task="t", index=0):
    return Ticket(StartRequest(name=task, index=index), index)


def serve(admission, task="t"):
    head = admission.head(task)
    if head is not None:
        admission.leave(head)
    return head


async def test_first_come_first_served():
    admission = Admission(max_queue=10)
    tickets = [ticket(index=n) for n in range(3)]
    for each in tickets:
        admission.enter(each)
    assert [serve(admission) for _ in range(4)] == [*tickets, None]
    assert admission.depth("t") == 0


async def test_who_lost_its_slot_again_goes_to_the_front():
    admission = Admission(max_queue=1)
    waiting, again = ticket(), ticket()
    admission.enter(waiting)
    admission.enter(again, first=True)
    assert [serve(admission), serve(admission)] == [again, waiting]


async def test_tasks_do_not_wait_for_each_other():
    admission = Admission(max_queue=10)
    slow = ticket("slow")
    admission.enter(slow)
    assert admission.head("fast") is None
    assert (admission.depth("slow"), admission.depth("fast")) == (1, 0)


async def test_a_full_line_refuses_newcomers_and_says_when_to_come_back():
    admission = Admission(max_queue=2)
    admission.enter(ticket())
    admission.enter(ticket())
    with pytest.raises(SessionError, match="2 starts of `t` wait for a slot already") as caught:
        admission.enter(ticket())
    assert (caught.value.code, caught.value.retry_after_s) == (ErrorCode.NO_CAPACITY, 1.0)
    admission.enter(ticket("another"))


async def test_a_line_without_hope_is_told_so():
    admission = Admission(max_queue=2)
    one, other = ticket(), ticket("u")
    admission.enter(one)
    admission.enter(other)
    admission.refuse("t", SessionError("gone", code=ErrorCode.UNKNOWN_TASK))
    with pytest.raises(SessionError, match="gone"):
        await one.granted
    assert not other.granted.done()
    admission.refuse_all(SessionError("stop", code=ErrorCode.NO_CAPACITY))
    with pytest.raises(SessionError, match="stop"):
        await other.granted


@given(
    st.lists(st.tuples(st.sampled_from(["enter", "again", "serve", "go"]), st.integers(0, 5)), max_size=60)
)
def test_the_line_is_a_list_that_forgets_who_went_away(steps):
    async def play():
        admission, expected = Admission(max_queue=5), []
        for step, number in steps:
            if step in ("enter", "again"):
                new = ticket()
                if step == "enter" and len(expected) >= 5:
                    with pytest.raises(SessionError):
                        admission.enter(new)
                    continue
                admission.enter(new, first=step == "again")
                expected.insert(0 if step == "again" else len(expected), new)
            elif step == "serve":
                assert serve(admission) is (expected.pop(0) if expected else None)
            elif expected:
                admission.leave(expected.pop(number % len(expected)))
            assert admission.depth("t") == len(expected)

    asyncio.run(play())


async def test_a_caller_that_went_away_is_passed_over():
    admission = Admission(max_queue=5)
    gone, next_one = ticket(), ticket()
    admission.enter(gone)
    admission.enter(next_one)
    gone.granted.cancel()
    assert admission.head("t") is next_one

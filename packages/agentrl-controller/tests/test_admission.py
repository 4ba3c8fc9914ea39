import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl_controller.admission import Admission, Ticket
from agentrl_core import ErrorCode, SessionError, StartRequest


def ticket(task="t", index=0, client=""):
    return Ticket(StartRequest(name=task, index=index), index, client)


def serve(admission, task="t"):
    return admission.next(task, lambda client: True)


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
    assert serve(admission, "fast") is None
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
    assert serve(admission) is next_one


async def test_clients_take_turns_by_weight_and_keep_their_own_order():
    admission = Admission(max_queue=100, client_weights={"big": 2.0})
    tickets = {name: [ticket(client=name) for _ in range(4)] for name in ("big", "small")}
    for name in ("big", "small"):
        for each in tickets[name]:
            admission.enter(each)
    served = [serve(admission) for _ in range(8)]
    # Smooth weighted round robin of 2 to 1, by hand: credits (2,1), (1,2), (3,0) ... until big has run dry.
    assert [each.client for each in served] == [
        "big",
        "small",
        "big",
        "big",
        "small",
        "big",
        "small",
        "small",
    ]
    for name in ("big", "small"):
        assert [each for each in served if each.client == name] == tickets[name]


async def test_a_client_at_its_limit_holds_nobody_up():
    admission = Admission(max_queue=100)
    held, other = ticket(client="held"), ticket(client="other")
    admission.enter(held)
    admission.enter(other)
    assert admission.next("t", lambda client: client != "held") is other
    assert admission.next("t", lambda client: client != "held") is None
    assert admission.depth("t") == 1


async def test_tasks_take_turns_where_they_compete():
    admission = Admission(max_queue=100, task_weights={"a": 3.0})
    for task in ("a", "b"):
        for _ in range(8):
            admission.enter(ticket(task))
    turns = []
    for _ in range(8):
        turns.append(admission.task_in_turn(lambda task: True))
        admission.next(turns[-1], lambda client: True)
    assert (turns.count("a"), turns.count("b")) == (6, 2)
    assert admission.task_in_turn(lambda task: task == "b") == "b"
    assert admission.task_in_turn(lambda task: False) is None


async def test_a_place_in_line_counts_the_turns_of_the_others():
    admission = Admission(max_queue=100)
    many = [ticket(client="many") for _ in range(5)]
    one = ticket(client="one")
    for each in (*many, one):
        admission.enter(each)
    assert admission.position(one) == 1
    assert [admission.position(each) for each in many] == [1, 3, 4, 5, 6]

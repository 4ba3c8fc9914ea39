import asyncio

import pytest

from agentrl_controller.admission import Admission
from agentrl_core import ErrorCode, SessionError


async def line(admission, names, *, task="t"):
    """Let callers line up in order; returns the list that they write themselves into."""
    served = []

    async def wait(name):
        await admission.wait(task, deadline_s=5.0, again=False)
        served.append(name)

    for name in names:
        asyncio.create_task(wait(name))  # noqa: RUF006 - they end with the test
        await asyncio.sleep(0)
    return served


async def settle():
    for _ in range(5):
        await asyncio.sleep(0)


async def test_first_come_first_served():
    admission = Admission(max_queue=10)
    served = await line(admission, "abc")
    for count in (1, 2, 3):
        admission.release("t")
        await settle()
        assert served == list("abc"[:count])
    admission.release("t")
    assert admission.is_first("t")


async def test_who_had_its_turn_in_vain_goes_to_the_front():
    admission = Admission(max_queue=10)
    served = await line(admission, "a")
    again = asyncio.create_task(admission.wait("t", deadline_s=5.0, again=True))
    await settle()
    admission.release("t")
    await again
    assert served == []
    admission.release("t")
    await settle()
    assert served == ["a"]


async def test_tasks_do_not_wait_for_each_other():
    admission = Admission(max_queue=10)
    served = await line(admission, "a", task="slow")
    assert admission.is_first("fast")
    admission.release("fast")
    await settle()
    assert served == []
    assert admission.depth("slow") == 1


async def test_a_deadline_says_when_to_come_back():
    admission = Admission(max_queue=10)
    with pytest.raises(SessionError, match="no worker of `t` had a free slot within 0") as caught:
        await admission.wait("t", deadline_s=0.01, again=False)
    assert (caught.value.code, caught.value.retry_after_s) == (ErrorCode.NO_CAPACITY, 1.0)
    assert admission.is_first("t")


async def test_a_full_queue_refuses_newcomers():
    admission = Admission(max_queue=2)
    await line(admission, "ab")
    with pytest.raises(SessionError, match="2 starts of `t` wait for a slot already"):
        await admission.wait("t", deadline_s=5.0, again=False)


async def test_a_turn_that_nobody_takes_goes_to_the_next():
    admission = Admission(max_queue=10)
    gone = asyncio.create_task(admission.wait("t", deadline_s=5.0, again=False))
    await asyncio.sleep(0)
    served = await line(admission, "b")
    admission.release("t")
    gone.cancel()
    await settle()
    assert served == ["b"]

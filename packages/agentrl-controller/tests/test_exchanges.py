import pytest

from agentrl_controller import Controller, ControllerConfig
from agentrl_core import ErrorCode, SessionError


async def test_a_broken_connection_costs_one_session_and_not_its_neighbours(agent, make_worker, until):
    worker = await make_worker()
    one, other = [(await agent.start())[0] for _ in range(2)]
    worker.broken["interact"] = 1
    with pytest.raises(SessionError) as caught:
        await agent.interact(one)
    assert caught.value.code is ErrorCode.WORKER_LOST
    assert (await agent.interact(other))["reward"] == 0.5
    await until(lambda: worker.live == {other})
    assert agent.used == 1


async def test_a_worker_that_replays_is_asked_again_over_a_new_connection(agent, make_worker):
    worker = await make_worker(replays=True)
    session_id, _ = await agent.start()
    worker.broken["interact"] = 2
    answer = await agent.interact(session_id)
    assert answer["messages"][0]["content"] == "answer 1"
    assert worker.count("interact") == 3


async def test_an_exchange_outlives_its_caller_and_nothing_shifts(agent, make_worker, until):
    worker = await make_worker()
    session_id, _ = await agent.start()
    worker.gate.clear()
    with pytest.raises(SessionError) as caught:
        await agent.interact(session_id, request_id="a", deadline_s=0.05)
    assert caught.value.code is ErrorCode.DEADLINE_EXCEEDED
    with pytest.raises(SessionError) as caught:
        await agent.interact(session_id, request_id="b")
    assert caught.value.code is ErrorCode.SESSION_BUSY
    worker.gate.set()
    first = await agent.interact(session_id, request_id="a")
    second = await agent.interact(session_id, request_id="b")
    assert [first["messages"][0]["content"], second["messages"][0]["content"]] == ["answer 1", "answer 2"]
    assert worker.count("interact") == 2


async def test_a_workers_own_deadline_is_not_the_end_of_the_session(agent, make_worker, until):
    worker = await make_worker(replays=True)
    session_id, _ = await agent.start()
    worker.late["interact"] = 2
    answer = await agent.interact(session_id, request_id="a")
    assert answer["messages"][0]["content"] == "answer 1"
    assert {headers["X-Request-Id"] for route, _, headers in worker.seen if route == "interact"} == {"a"}


async def test_a_worker_that_never_answers_loses_the_session(agent_of, fake_worker, until):
    worker = fake_worker
    async with Controller(ControllerConfig(interact_timeout_s=0.05, answer_timeout_s=0.1)) as controller:
        worker.notice = controller.cancel_notice
        worker.beat(controller)
        agent = agent_of(controller)
        session_id, _ = await agent.start()
        worker.gate.clear()
        with pytest.raises(SessionError) as caught:
            await agent.interact(session_id, deadline_s=0.05)
        assert caught.value.code is ErrorCode.DEADLINE_EXCEEDED
        await until(lambda: agent.used == 0)
        with pytest.raises(
            SessionError, match=r"was given up: worker 1 of `task` gave no answer within 0\.1 s"
        ):
            await agent.interact(session_id)
        assert worker.live == set()


@pytest.mark.parametrize(
    ("reply", "message"),
    [
        ('{"session_id": 1, "env_out": {"messages": [], "reward": NaN}}', "NaN is no number"),
        ("<html>", "no JSON"),
        ("[1]", "the answer is no object but list"),
        ("[" * 100_000, "nested too deeply"),
    ],
)
async def test_an_answer_that_is_none_is_the_workers_failure(agent, make_worker, until, reply, message):
    worker = await make_worker()
    session_id, _ = await agent.start()
    worker.replies["interact"] = reply
    with pytest.raises(SessionError, match=message) as caught:
        await agent.interact(session_id)
    assert caught.value.code is ErrorCode.WORKER_FAILED
    await until(lambda: agent.used == 0 and worker.live == set())


@pytest.mark.parametrize(("status", "code"), [(409, ErrorCode.SESSION_BUSY), (422, ErrorCode.BAD_REQUEST)])
async def test_messages_that_the_worker_did_not_take_may_be_sent_again(agent, make_worker, status, code):
    worker = await make_worker()
    session_id, _ = await agent.start()
    worker.fail["interact"] = (status, "not now")
    with pytest.raises(SessionError, match="not now") as caught:
        await agent.interact(session_id, request_id="a")
    assert caught.value.code is code
    worker.fail.clear()
    assert (await agent.interact(session_id, request_id="a"))["messages"][0]["content"] == "answer 1"


async def test_the_last_answer_of_a_finished_session_can_be_had_again(agent, make_worker):
    worker = await make_worker()
    session_id, _ = await agent.start()
    worker.finish_at = 1
    last = await agent.interact(session_id, request_id="a")
    assert last["finish"]
    assert await agent.interact(session_id, request_id="a") == last
    assert worker.count("interact") == 1


async def test_what_a_request_holds_beside_its_messages_goes_through(controller, agent, make_worker):
    worker = await make_worker()
    session_id, _ = await agent.start()
    body = b'{"messages": [], "session_id": 7, "new": {"field": 1}}'
    await controller.interact(session_id, body)
    assert worker.seen[-1][1] == {"messages": [], "session_id": session_id, "new": {"field": 1}}


async def test_a_machine_without_descriptors_says_so_and_loses_nothing(agent, make_worker, no_descriptors):
    worker = await make_worker()
    worker.closes = True
    session_id, _ = await agent.start()
    await agent.interact(session_id)
    with no_descriptors(), pytest.raises(SessionError, match="cannot open more connections") as caught:
        await agent.interact(session_id, request_id="a")
    assert (caught.value.code, caught.value.retry_after_s) == (ErrorCode.NO_CAPACITY, 1.0)
    assert (await agent.interact(session_id, request_id="a"))["messages"][0]["content"] == "answer 2"


@pytest.mark.parametrize("body", [b"{}", b'{"messages": {}}', b"[]", b"{", b""])
async def test_what_is_no_message_changes_nothing(controller, agent, make_worker, body):
    worker = await make_worker()
    session_id, _ = await agent.start()
    with pytest.raises(SessionError, match=r"must be a list|is no JSON") as caught:
        await controller.interact(session_id, body)
    assert caught.value.code is ErrorCode.BAD_REQUEST
    assert worker.count("interact") == 0
    assert (await agent.interact(session_id))["messages"][0]["content"] == "answer 1"


async def test_a_native_worker_gets_bodies_as_they_are(controller, agent, make_worker):
    worker = await make_worker(replays=True)
    session_id, _ = await agent.start()
    await controller.interact(session_id, b'{"messages": [], "new": {"field": 1}}', request_id="r")
    route, body, headers = worker.seen[-1]
    assert (route, body) == ("interact", {"messages": [], "new": {"field": 1}, "session_id": session_id})
    assert (headers["session_id"], headers["X-Request-Id"]) == (str(session_id), "r")
    assert "session_id" not in worker.bodies[-1]

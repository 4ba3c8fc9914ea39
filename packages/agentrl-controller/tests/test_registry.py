import pytest

from agentrl_controller.addresses import AllowList
from agentrl_controller.registry import Registry, sample_of
from agentrl_core import ErrorCode, Heartbeat, SessionError, WorkerStatus


def beat(address="http://w1/api", **fields):
    given = {"name": "t", "address": address, "concurrency": 2, "indices": [0, 1]}
    return Heartbeat.model_validate(given | fields)


def test_a_worker_is_known_by_its_address():
    registry = Registry(AllowList())
    first = registry.heartbeat(beat(), now=0.0)
    again = registry.heartbeat(beat(concurrency=5), now=3.0)
    other = registry.heartbeat(beat("http://w2/api"), now=3.0)
    assert first is again
    assert (again.capacity, again.last_visit) == (5, 3.0)
    assert other.id != first.id
    assert set(registry.task("t").workers) == {first.id, other.id}


def test_workers_of_a_task_send_the_same_indices():
    registry = Registry(AllowList())
    registry.heartbeat(beat(), now=0.0)
    with pytest.raises(SessionError, match="differ from those of other workers of `t`"):
        registry.heartbeat(beat("http://w2/api", indices=[1, 0]), now=0.0)
    registry.heartbeat(beat(indices=[0, 1, 2]), now=1.0)
    assert registry.task("t").indices == [0, 1, 2]


def test_silence_is_noticed_and_a_return_begins_anew():
    registry = Registry(AllowList())
    worker = registry.heartbeat(beat(), now=0.0)
    assert registry.silent(now=10.0, lease_s=11.0) == []
    assert registry.silent(now=11.5, lease_s=11.0) == [worker]
    worker.heard = 5.0  # It answered something, so it lives without heartbeats, too.
    assert registry.silent(now=11.5, lease_s=11.0) == []
    assert registry.silent(now=16.5, lease_s=11.0) == [worker]
    worker.status = WorkerStatus.COMA
    back = registry.heartbeat(beat(), now=20.0)
    assert back is not worker
    assert list(registry.task("t").workers.values()) == [back]


def test_lost_workers_and_their_tasks_are_forgotten_in_time():
    registry = Registry(AllowList())
    registry.heartbeat(beat(), now=0.0).status = WorkerStatus.DEAD
    registry.forget(now=100.0, forget_s=300.0)
    assert "t" in registry.tasks
    registry.forget(now=301.0, forget_s=300.0)
    with pytest.raises(SessionError, match="no worker serves task `t`; served: none") as caught:
        registry.task("t")
    assert caught.value.code is ErrorCode.UNKNOWN_TASK


def test_a_number_means_a_position_where_all_indices_are_texts():
    registry = Registry(AllowList())
    registry.heartbeat(beat(indices=["a", "b"]), now=0.0)
    registry.heartbeat(beat(name="u", indices=[7, "b"]), now=0.0)
    texts, mixed = registry.task("t"), registry.task("u")
    assert sample_of(texts, 1, task="t") == "b"
    assert sample_of(texts, "a", task="t") == "a"
    assert sample_of(mixed, 7, task="u") == 7
    for record, index in ((texts, 2), (texts, -1), (mixed, 1), (mixed, "a")):
        with pytest.raises(SessionError) as caught:
            sample_of(record, index, task="t")
        assert caught.value.code is ErrorCode.UNKNOWN_INDEX

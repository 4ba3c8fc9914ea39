"""What the session wire accepts, and from whom."""

import pytest
from pydantic import ValidationError

from agentrl_core import (
    CUSTOM_INDEX,
    Heartbeat,
    InteractRequest,
    Reply,
    RewardItem,
    SampleStatus,
    StartRequest,
    TaskInfo,
    WorkerStatus,
)


def test_published_status_values_are_all_known():
    published = (
        "running,completed,agent context limit,agent validation failed,agent invalid action,"
        "task limit reached,unknown,task error,cancelled"
    )
    assert [status.value for status in SampleStatus] == published.split(",")


@pytest.mark.parametrize("name", ["metric", "metrics"])
def test_reply_reads_both_spellings_of_metrics(name):
    assert Reply.model_validate({name: {"score": 0.5}}).metrics == {"score": 0.5}


def test_reply_of_a_published_controller_to_a_start_is_enough():
    reply = Reply.model_validate({"messages": [{"role": "user", "content": "go"}], "tools": []})
    assert (reply.status, reply.finish, reply.reward) == (SampleStatus.RUNNING, False, 0.0)


def test_reply_ignores_fields_of_the_future():
    assert Reply.model_validate({"finish": True, "position": 3}).finish


@pytest.mark.parametrize("reward", ["nan", "inf", "-inf"])
def test_reply_refuses_a_reward_that_is_no_number(reward):
    with pytest.raises(ValidationError, match="finite"):
        Reply.model_validate({"reward": float(reward)})


@pytest.mark.parametrize("reward", ["nan", "inf"])
def test_reward_item_refuses_a_reward_that_is_no_number(reward):
    with pytest.raises(ValidationError, match="finite"):
        RewardItem(reward=float(reward))


def test_reply_refuses_a_status_that_nobody_published():
    with pytest.raises(ValidationError, match="status"):
        Reply.model_validate({"status": "fine"})


def test_start_without_an_index_is_a_custom_one():
    assert StartRequest(name="t", custom_task={"a": 1}).index == CUSTOM_INDEX == -1


@pytest.mark.parametrize("index", [0, "0", -1, "easy/3"])
def test_index_keeps_its_type(index):
    parsed = StartRequest.model_validate_json(StartRequest(name="t", index=index).model_dump_json()).index
    assert (parsed, type(parsed)) == (index, type(index))


def test_interact_keeps_what_a_message_holds():
    wire = {"role": "assistant", "content": "a", "reasoning_content": "b"}
    (message,) = InteractRequest.model_validate({"messages": [wire]}).messages
    assert message.to_wire() == wire


def test_heartbeat_of_a_published_worker_has_no_splits():
    beat = Heartbeat.model_validate(
        {"name": "t", "address": "http://127.0.0.1:1/api", "concurrency": 2, "indices": [0, "a"], "id": "x"}
    )
    assert (beat.indices, beat.splits) == ([0, "a"], None)


def test_task_info_reads_a_published_listing():
    info = TaskInfo.model_validate(
        {
            "indices": [0, 1],
            "workers": {
                "7": {
                    "id": 7,
                    "address": "http://127.0.0.1:1/api",
                    "capacity": 4,
                    "current": 1,
                    "last_visit": "now",
                    "status": "COMA",
                    "stale": True,
                    "locked": False,
                }
            },
        }
    )
    worker = info.workers["7"]
    assert (worker.id, worker.capacity, worker.status, worker.stale) == (7, 4, WorkerStatus.COMA, True)

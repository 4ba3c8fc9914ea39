import json
import time
from typing import Any

import pytest

from agentrl_controller import ControllerConfig, views
from agentrl_controller.controller import Controller
from agentrl_controller.conversations import MAX_BODY_BYTES, MAX_TEXT, Conversation, clip
from agentrl_controller.history import POINT_S, SPAN_S, History, quantile
from agentrl_controller.sessions import Session, SessionState
from agentrl_controller.transcripts import Entry
from agentrl_controller.views import SessionFilter, changes
from agentrl_core import Heartbeat, SessionError


@pytest.fixture
def idle() -> Controller:
    """A controller that runs nothing."""
    return Controller(ControllerConfig())


def add_worker(controller: Controller, *, task: str = "task", port: int = 1, capacity: int = 10) -> Any:
    beat = Heartbeat(
        name=task, address=f"http://host:{port}/api", concurrency=capacity, indices=list(range(100))
    )
    return controller.registry.heartbeat(beat, now=time.monotonic())


def add_sessions(controller: Controller, worker: Any, count: int, **changes: Any) -> list[Any]:
    added = []
    for n in range(count):
        fields = {"started": 1_000.0 + n, "last_used": time.monotonic(), "custom_task": None, **changes}
        session = Session(controller.sessions.new_id(), worker.task, n, worker=worker, **fields)
        controller.sessions.add(session)
        added.append(session)
    return added


def page(controller: Controller, **options: Any) -> Any:
    wanted = SessionFilter(
        **{k: options.pop(k) for k in ("task", "state", "worker", "search") if k in options}
    )
    return views.session_page(controller, wanted, epoch=0.0, **options)


def counted(requests: int, *, errors: int = 0, interact: list[int] | None = None) -> Any:
    histogram = {"bounds": [1.0, 2.0], "counts": interact or [0, 0, 0]}
    return {"requests": requests, "errors": errors, "interact_s": histogram, "worker_s": histogram}


# --- history


def test_a_point_holds_the_rates_and_latencies_of_its_five_seconds():
    history = History()
    history.sample(99.0, counted(10), live=1, waiting=0)
    for second in range(5):
        history.sample(
            100.0 + second,
            counted(20 + 10 * second, errors=second + 1, interact=[second + 1, 0, 0]),
            live=7,
            waiting=2,
        )
    assert history.points["95"] == {"at": 95, "live": 1, "waiting": 0}
    point = history.points["100"]
    # From 99.0 to 104.0: 50 requests, 5 errors, and 5 latencies spread over the bucket from 0 to 1 s.
    assert (point["requests_per_s"], point["errors_per_s"]) == (10.0, 1.0)
    assert (point["interact_p50_s"], point["live"], point["waiting"]) == (0.5, 7, 2)


def test_points_older_than_a_quarter_of_an_hour_go():
    history = History()
    for second in range(SPAN_S + 100):
        history.sample(float(second), counted(second), live=0, waiting=0)
    assert len(history.points) == SPAN_S // POINT_S
    assert min(map(int, history.points)) == 100


def test_a_window_looks_back_no_further_than_asked():
    history = History()
    assert history.over(10.0) == {}
    for second, requests in enumerate([0, 0, 0, 100, 100, 100]):
        history.sample(float(second), counted(requests), live=0, waiting=0)
    assert history.over(2.0)["requests_per_s"] == 0.0
    assert history.over(5.0)["requests_per_s"] == 20.0


def test_a_while_without_answers_has_no_latency():
    history = History()
    history.sample(0.0, counted(0), live=0, waiting=0)
    history.sample(1.0, counted(5), live=0, waiting=0)
    assert history.over(10.0)["interact_p99_s"] is None


@pytest.mark.parametrize(
    ("share", "counts", "expected"),
    [
        (0.5, [10, 0, 0], 0.5),
        (0.5, [5, 5, 0], 1.0),
        (0.75, [5, 5, 0], 2.0),
        (0.99, [0, 0, 7], 3.0),
        (0.99, [0, 0, 0], None),
    ],
)
def test_a_quantile_lies_within_its_bucket(share, counts, expected):
    assert quantile(share, bounds=[1.0, 3.0], counts=counts) == expected


# --- overview and workers


def test_the_overview_counts_slots_queue_and_states(idle):
    worker = add_worker(idle, capacity=10)
    add_worker(idle, port=2, capacity=5).stale = True
    add_sessions(idle, worker, 3, state=SessionState.BUSY)
    add_sessions(idle, worker, 2, state=SessionState.IDLE)
    view = views.overview(idle, History())
    assert (view["live"], view["waiting"], view["states"]) == (5, 0, {"busy": 3, "idle": 2})
    task = view["tasks"]["task"]
    assert (task["used"], task["capacity"], task["workers_alive"], task["workers_draining"]) == (5, 15, 2, 1)
    assert task["num_samples"] == 100
    assert len(task["examples"]) <= 24


def test_the_overview_of_a_controller_without_workers_is_empty_not_broken(idle):
    view = views.overview(idle, History())
    assert (view["live"], view["tasks"], view["points"], view["requests_per_s"]) == (0, {}, {}, None)


def test_a_lost_worker_counts_no_capacity_and_comes_first(idle):
    add_worker(idle, port=1)
    lost = add_worker(idle, port=2)
    lost.status, lost.reason = "COMA", "no heartbeat for 11 s"
    view = views.worker_list(idle, epoch=100.0)
    assert view["order"] == ["task/2", "task/1"]
    assert view["workers"]["task/2"]["reason"] == "no heartbeat for 11 s"
    assert view["workers"]["task/1"]["last_visit"] == pytest.approx(100.0 + time.monotonic(), abs=5)
    assert views.overview(idle, History())["tasks"]["task"]["capacity"] == 10


def test_workers_are_found_by_task_address_and_id(idle):
    add_worker(idle, task="shop", port=11)
    add_worker(idle, task="maze", port=33)
    found = {
        text: views.worker_list(idle, epoch=0.0, search=text)["order"] for text in ("sho", ":33", "2", "?")
    }
    assert found == {"sho": ["shop/1"], ":33": ["maze/2"], "2": ["maze/2"], "?": []}


# --- pages of sessions


def test_pages_of_ten_thousand_sessions_hold_each_once_newest_first(idle):
    sessions = add_sessions(idle, add_worker(idle, capacity=10_000), 10_000)
    seen: list[str] = []
    view: Any = {"next": None}
    while view["next"] is not None or not seen:
        view = page(idle, cursor=view["next"], limit=200)
        assert view["before"] == len(seen)
        assert set(view["order"]) == set(view["sessions"])
        seen += view["order"]
    assert seen == [str(session.id) for session in reversed(sessions)]


def test_a_page_stays_where_it_is_while_newer_sessions_start(idle):
    worker = add_worker(idle)
    add_sessions(idle, worker, 30)
    second = page(idle, cursor=page(idle, limit=10)["next"], limit=10)
    add_sessions(idle, worker, 5, started=5_000.0)
    cursor = page(idle, limit=15)["next"]
    assert page(idle, cursor=cursor, limit=10)["order"] == second["order"]


def test_sessions_of_the_same_moment_are_neither_skipped_nor_repeated(idle):
    sessions = add_sessions(idle, add_worker(idle), 7, started=1.5)
    first = page(idle, limit=4)
    second = page(idle, cursor=first["next"], limit=4)
    assert sorted(first["order"] + second["order"]) == sorted(str(session.id) for session in sessions)


def test_filters_narrow_a_page(idle):
    shop = add_worker(idle, task="shop")
    maze = add_worker(idle, task="maze", port=2)
    add_sessions(idle, shop, 3, state=SessionState.BUSY)
    (one, *_) = add_sessions(idle, maze, 2, state=SessionState.IDLE)
    counts = [
        page(idle, **fields)["found"]
        for fields in ({}, {"task": "shop"}, {"state": SessionState.IDLE}, {"worker": str(maze.id)})
    ]
    assert counts == [5, 3, 2, 2]
    assert page(idle, search=str(one.id)[2:9])["order"] == [str(one.id)]
    assert page(idle, search="1")["found"] >= 2  # Two samples, and whichever id holds the digit.
    assert page(idle, task="shop", state=SessionState.IDLE)["order"] == []


@pytest.mark.parametrize("cursor", ["", "x", "1.0", "1.0_x", "nan_"])
def test_a_cursor_that_is_none_is_refused(idle, cursor):
    with pytest.raises(SessionError, match="cursor"):
        page(idle, cursor=cursor)


# --- conversations


def entry(kind: Any, **body: Any) -> Entry:
    return Entry(at=1.0, kind=kind, body=json.dumps(body).encode())


def test_a_conversation_sums_its_rewards_up():
    entries = [
        entry(
            "start", messages=[{"role": "user", "content": "go"}], tools=[{"type": "function"}], reward=0.0
        ),
        entry("agent", messages=[{"role": "assistant", "content": "hi"}], reward=99),
        entry("environment", messages=[], reward=0.25, status="running", metrics={"score": 0.5}),
        entry("environment", messages=[], reward=0.5, finish=True, status="completed"),
    ]
    rows = Conversation().rows(entries)
    assert [row["total"] for row in rows] == [0.0, 0.0, 0.25, 0.75]
    assert [row.get("reward") for row in rows] == [0.0, None, 0.25, 0.5]
    assert rows[1]["messages"] == [{"role": "assistant", "content": "hi"}]
    assert rows[3]["finish"] is True


def test_an_entry_is_read_once_and_a_conversation_that_began_anew_is_read_anew():
    conversation = Conversation()
    entries = [entry("start", reward=1.0), entry("environment", reward=1.0)]
    before = conversation.rows(entries)
    after = conversation.rows([*entries, entry("environment", reward=1.0)])
    assert [row is known for row, known in zip(after, before, strict=False)] == [True, True]
    assert after[-1]["total"] == 3.0
    assert conversation.rows([entry("environment", reward=5.0)])[0]["total"] == 5.0


@pytest.mark.parametrize("body", [b"{", b"[1]", b"\xff", b"[" * 5_000])
def test_what_is_no_message_body_is_shown_raw(body):
    (row,) = Conversation().rows([Entry(at=1.0, kind="agent", body=body)])
    assert row["raw"].startswith(body.decode(errors="replace")[:10])


def test_a_body_too_large_to_show_is_named_by_its_size():
    (row,) = Conversation().rows([Entry(at=1.0, kind="agent", body=b" " * (MAX_BODY_BYTES + 1))])
    assert row["too_large_bytes"] == MAX_BODY_BYTES + 1


def test_long_texts_and_embedded_files_are_cut():
    cut = clip(
        {
            "text": "x" * (MAX_TEXT + 5),
            "url": "data:image/png;base64," + "A" * 900,
            "n": [2**60, 0.5, float("inf")],
        }
    )
    assert cut["text"].endswith("… 5 more characters")
    assert cut["url"] == "data:image/png;base64, 922 characters"
    assert cut["n"] == [str(2**60), 0.5, "inf"]


def test_a_session_is_shown_with_its_conversation_from_an_entry_on(idle):
    (session,) = add_sessions(idle, add_worker(idle), 1, num_exchanges=1, custom_task={"a": 1}, client="team")
    for kind in ("start", "agent", "environment"):
        idle.transcripts.add(session.id, kind, b'{"messages":[],"reward":0.5}')
    view = views.session_detail(idle, session.id, Conversation(), epoch=0.0, first=1)
    assert (view["num_entries"], list(view["entries"]), view["reward"]) == (3, ["1", "2"], 1.0)
    assert (view["rewards"], view["is_live"], view["is_whole"]) == ([0.5], True, True)
    assert (view["custom_task"], view["client"]) == ('{"a":1}', "team")


def test_a_session_whose_beginning_is_no_longer_kept_says_so(idle):
    (session,) = add_sessions(idle, add_worker(idle), 1, num_exchanges=4)
    assert not views.session_detail(idle, session.id, Conversation(), epoch=0.0)["is_whole"]
    idle.transcripts.add(session.id, "agent", b"{}")
    assert not views.session_detail(idle, session.id, Conversation(), epoch=0.0)["is_whole"]


def test_an_ended_session_is_still_shown(idle):
    (session,) = add_sessions(idle, add_worker(idle), 1)
    idle.sessions.end(session, SessionState.LOST, reason="its worker went away")
    view = views.session_detail(idle, session.id, Conversation(), epoch=0.0)
    assert (view["state"], view["is_live"], view["reason"]) == ("lost", False, "its worker went away")
    with pytest.raises(SessionError, match="unknown"):
        views.session_detail(idle, 1, Conversation(), epoch=0.0)


# --- changes


def test_changes_hold_what_differs_and_nothing_else():
    before = {"a": 1, "b": [1], "t": {"x": {"n": 1}, "y": {"n": 2}, "z": {"n": 3}}}
    after = {"a": 1, "b": [1, 2], "t": {"x": {"n": 1}, "y": {"n": 5}, "w": {"n": None}}}
    assert changes(before, after) == {
        "set": {"b": [1, 2]},
        "rows": {"t": {"y": {"n": 5}, "w": {"n": None}}},
        "gone": {"t": ["z"]},
    }
    assert changes(after, after) == {}


def test_changes_from_nothing_are_the_whole_view():
    view = {"a": None, "t": {}, "u": {"x": 1}}
    assert changes({}, view) == {"set": {"a": None}, "rows": {"t": {}, "u": {"x": 1}}}


def test_a_page_of_sessions_changes_by_the_session_that_moved(idle):
    sessions = add_sessions(idle, add_worker(idle), 50, state=SessionState.IDLE)
    before = page(idle)
    sessions[7].move(SessionState.BUSY)
    told = changes(before, page(idle))
    assert list(told) == ["rows"]
    assert list(told["rows"]["sessions"]) == [str(sessions[7].id)]

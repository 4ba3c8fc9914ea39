import time

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from agentrl_controller.registry import Worker
from agentrl_controller.sessions import Session, Sessions, SessionState
from agentrl_core import SessionError


def a_worker():
    return Worker(1, "t", "http://w/api", capacity=3, last_visit=0.0)


def add(sessions, worker):
    now = time.monotonic()
    session = Session(sessions.new_id(), "t", 0, None, worker, started=time.time(), last_used=now, client="c")
    sessions.add(session)
    return session


def test_ids_are_large_random_and_distinct():
    sessions, worker = Sessions(max_finished=10), a_worker()
    ids = {add(sessions, worker).id for _ in range(200)}
    assert len(ids) == 200
    assert all(0 <= session_id < 2**53 for session_id in ids)
    assert max(ids) > 2**40


def test_an_ended_session_frees_its_slot_once_and_is_remembered():
    sessions, worker = Sessions(max_finished=10), a_worker()
    session = add(sessions, worker)
    sessions.end(session, SessionState.FINISHED)
    sessions.end(session, SessionState.LOST, reason="later")
    assert worker.sessions == set()
    assert sessions.find(session.id).state is SessionState.FINISHED
    assert sessions.ended_count == {SessionState.FINISHED: 1}


def test_old_ends_are_forgotten_by_number_and_by_age():
    sessions, worker = Sessions(max_finished=2), a_worker()
    ended = [add(sessions, worker) for _ in range(3)]
    for session in ended:
        sessions.end(session, SessionState.FINISHED)
    assert sessions.forget(older_than_s=60.0) == ended[:1]
    with pytest.raises(SessionError, match="is unknown"):
        sessions.find(ended[0].id)
    assert sessions.find(ended[2].id) is ended[2]
    sessions.forget(older_than_s=-1.0)
    with pytest.raises(SessionError):
        sessions.find(ended[2].id)


def test_only_waiting_sessions_are_idle():
    sessions, worker = Sessions(max_finished=2), a_worker()
    waiting, busy = add(sessions, worker), add(sessions, worker)
    waiting.move(SessionState.IDLE)
    busy.move(SessionState.IDLE)
    busy.move(SessionState.BUSY)
    waiting.last_used = busy.last_used = time.monotonic() - 10
    assert list(sessions.idle(longer_than_s=5)) == [waiting]


class Life(RuleBasedStateMachine):
    """Whatever is tried, slots and table agree, and an end is an end."""

    def __init__(self):
        super().__init__()
        self.sessions, self.worker = Sessions(max_finished=1000), a_worker()
        self.all = []
        self.ends = {}

    @rule()
    def begin(self):
        self.all.append(add(self.sessions, self.worker))

    @rule(number=st.integers(0, 100), state=st.sampled_from(list(SessionState)))
    def step(self, number, state):
        if not self.all:
            return
        session = self.all[number % len(self.all)]
        try:
            if state.has_ended:
                self.sessions.end(session, state)
            else:
                session.move(state)
        except ValueError:
            return
        if session.state.has_ended:
            self.ends.setdefault(session.id, session.state)

    @invariant()
    def slots_and_table_agree(self):
        live = {session.id for session in self.all if not session.state.has_ended}
        assert self.worker.sessions == set(self.sessions.live) == live
        assert self.sessions.by_task.total() == self.sessions.by_client.total() == len(live)

    @invariant()
    def an_end_is_an_end(self):
        for session in self.all:
            if session.id in self.ends:
                assert session.state is self.ends[session.id]
        assert self.sessions.ended_count.total() == len(self.ends)


TestLife = Life.TestCase

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl_workers.ledger import Ledger, LedgerError


def test_each_episode_ends_once_and_the_sums_add_up():
    ledger = Ledger()
    ledger.admit(["a", "b", "c", "d"])
    ledger.train(["a"])
    ledger.filter(["b"], reason="stale")
    ledger.fail(["c"], reason="environment_error")
    ledger.check()
    assert ledger.counts() == {
        "admitted": 4,
        "trained": 1,
        "filtered": {"stale": 1},
        "failed": {"environment_error": 1},
        "pending": 1,
    }
    assert ledger.pending == {"d"}


@pytest.mark.parametrize(
    "end", [lambda ledger: ledger.train(["a"]), lambda ledger: ledger.fail(["a"], reason="x")]
)
def test_an_end_for_an_episode_that_has_none_to_come_is_refused(end):
    ledger = Ledger()
    with pytest.raises(LedgerError):
        end(ledger)
    ledger.admit(["a"])
    end(ledger)
    with pytest.raises(LedgerError, match="has ended before or was never admitted"):
        end(ledger)
    ledger.check()


def test_an_episode_is_admitted_once_at_a_time():
    ledger = Ledger()
    ledger.admit(["a"])
    with pytest.raises(LedgerError, match="admitted twice"):
        ledger.admit(["a"])


@given(st.lists(st.tuples(st.sampled_from(["admit", "train", "filter", "fail"]), st.integers(0, 9))))
def test_the_sums_hold_after_whatever_is_tried_and_after_a_restart(actions):
    ledger = Ledger()
    for action, number in actions:
        options = {} if action in ("admit", "train") else {"reason": str(number % 2)}
        with contextlib.suppress(LedgerError):
            getattr(ledger, action)([f"e{number}"], **options)
        ledger.check()
    restored = Ledger.restore(ledger.state())
    assert restored.pending == frozenset()
    assert restored.admitted == ledger.admitted - len(ledger.pending)
    assert (restored.trained, restored.filtered, restored.failed) == (
        ledger.trained,
        ledger.filtered,
        ledger.failed,
    )

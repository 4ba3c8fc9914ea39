"""The account of every admitted episode: pending, then exactly once trained, filtered or failed."""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from agentrl_core import AgentRLError


class LedgerError(AgentRLError):
    """An episode was booked twice or never admitted: a fault of the trainer."""


class Ledger:
    """Books each episode's end once; its sums always add up to what was admitted."""

    def __init__(self) -> None:
        self._pending: set[str] = set()
        self.admitted = 0
        self.trained = 0
        self.filtered: Counter[str] = Counter()
        """Episodes that ended well but were not trained on, by reason."""
        self.failed: Counter[str] = Counter()
        """Episodes without a usable end, by class."""

    @property
    def pending(self) -> frozenset[str]:
        """Admitted episodes that have no end yet."""
        return frozenset(self._pending)

    def admit(self, episodes: Iterable[str]) -> None:
        """Book episodes that begin.

        Raises:
            LedgerError: one of them is pending already.
        """
        for episode in episodes:
            if episode in self._pending:
                raise LedgerError(f"episode `{episode}` was admitted twice")
            self._pending.add(episode)
            self.admitted += 1

    def train(self, episodes: Iterable[str]) -> None:
        """Book episodes that an update was made of."""
        self.trained += self._close(episodes)

    def filter(self, episodes: Iterable[str], *, reason: str) -> None:
        """Book episodes that are left out of training, and why."""
        self.filtered[reason] += self._close(episodes)

    def fail(self, episodes: Iterable[str], *, reason: str) -> None:
        """Book episodes that gave no result, and the class of the failure."""
        self.failed[reason] += self._close(episodes)

    def _close(self, episodes: Iterable[str]) -> int:
        count = 0
        for episode in episodes:
            if episode not in self._pending:
                raise LedgerError(f"episode `{episode}` has ended before or was never admitted")
            self._pending.remove(episode)
            count += 1
        return count

    def check(self) -> None:
        """Compare the sums.

        Raises:
            LedgerError: they do not add up to what was admitted.
        """
        ended = self.trained + self.filtered.total() + self.failed.total()
        if ended + len(self._pending) != self.admitted:
            raise LedgerError(
                f"{self.admitted} admitted, but {ended} ended and {len(self._pending)} are pending"
            )

    def counts(self) -> dict[str, Any]:
        """The sums, with reasons, for reports."""
        return {
            "admitted": self.admitted,
            "trained": self.trained,
            "filtered": dict(self.filtered),
            "failed": dict(self.failed),
            "pending": len(self._pending),
        }

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps: the sums without the pending, which begin again."""
        return {
            "admitted": self.admitted - len(self._pending),
            "trained": self.trained,
            "filtered": dict(self.filtered),
            "failed": dict(self.failed),
        }

    @classmethod
    def restore(cls, state: Mapping[str, Any]) -> "Ledger":
        """The ledger of a checkpoint."""
        ledger = cls()
        ledger.admitted = state["admitted"]
        ledger.trained = state["trained"]
        ledger.filtered = Counter(state["filtered"])
        ledger.failed = Counter(state["failed"])
        ledger.check()
        return ledger

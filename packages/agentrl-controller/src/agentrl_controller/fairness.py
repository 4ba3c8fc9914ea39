"""Turns for everybody: smooth weighted round robin, as nginx deals with its upstream servers."""

from collections.abc import Collection, Mapping


class RoundRobin:
    """Deals turns. Over time each name that takes part gets its weight's share, without bursts.

    Args:
        weights: by name; 1 where a name is absent.
    """

    def __init__(self, weights: Mapping[str, float] | None = None) -> None:
        self._weights = weights or {}
        self._credits: dict[str, float] = {}

    def choose(self, names: Collection[str]) -> str:
        """Whose turn it is among those that take part now; it counts as taken.

        Raises:
            ValueError: nobody takes part.
        """
        if not names:
            raise ValueError("nobody takes part")
        if len(names) == 1:
            return next(iter(names))
        total = 0.0
        # Who stays away neither saves up turns nor owes any.
        shares = {name: self._credits.get(name, 0.0) for name in names}
        for name in names:
            weight = self._weights.get(name, 1.0)
            shares[name] += weight
            total += weight
        chosen = max(shares, key=lambda name: shares[name])
        shares[chosen] -= total
        self._credits = shares
        return chosen

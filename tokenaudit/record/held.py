"""What a hook holds until its trainer comes back to it, in bounded memory."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

from tokenaudit.log.writer import Row
from tokenaudit.record.hooks import Hooks
from tokenaudit.record.waiting_rows import ROW_COST, cost_of

MOST_ELEMENTS = 500_000_000
"""What one `Held` may hold, counted like the queue of a recorder."""


K = TypeVar("K")
V = TypeVar("V")


class Held(dict[K, V]):
    """Entries in the order in which they came; where they take too much, the oldest are given up, as not recorded.

    Args:
        hooks: whose log counts what is given up.
    """

    def __init__(self, hooks: Hooks) -> None:
        super().__init__()
        self._hooks = hooks
        self._costs: dict[K, int] = {}
        self._cost = 0

    def hold(self, key: K, value: V, rows: Iterable[Row] = ()) -> None:
        """Add an entry, which holds `rows`."""
        self.drop(key)
        self[key] = value
        self._costs[key] = ROW_COST + cost_of([*rows])
        self._cost += self._costs[key]
        while self._cost > MOST_ELEMENTS and len(self) > 1:
            self.drop(next(iter(self)))
            self._hooks.lose("the trainer never came back to what waits for it")

    def drop(self, key: K) -> V | None:
        """Take an entry out; None if there is none."""
        self._cost -= self._costs.pop(key, 0)
        return self.pop(key, None)

    def drop_oldest(self) -> V:
        """Take the oldest entry out. Raises a `LookupError` if there is none."""
        if not self:
            raise LookupError("the trainer went on with something that was never seen")
        key = next(iter(self))
        value = self[key]
        self.drop(key)
        return value

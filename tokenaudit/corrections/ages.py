"""Sums over stretches of tokens of one version, by how old these are."""

from __future__ import annotations

import numpy as np

from tokenaudit.lifecycle.staleness import staleness
from tokenaudit.log.columns import Floats, Int64s

OLDEST_AGE = 127
"""Older tokens count with this age, so that the number of ages is bounded."""
AGES = OLDEST_AGE + 2
"""How many ages there are, that of tokens from the future included."""


def ages(version: Int64s, train_step: Int64s | int) -> Int64s:
    """The staleness of stretches of one version at a step, from -1 (the future) to `OLDEST_AGE`."""
    return np.clip(staleness(version, train_step), -1, OLDEST_AGE)


class Grouping:
    """Rows of figures that are summed up by a key.

    Args:
        key: of each row, shape [S], 0 or more.
        count: how many keys there are.
    """

    def __init__(self, key: Int64s, count: int) -> None:
        self._order = np.argsort(key, kind="stable")
        ordered = key[self._order]
        self._starts = np.flatnonzero(np.diff(ordered, prepend=-1))
        self._keys = ordered[self._starts]
        self._count = count

    def sums(self, figures: Floats) -> Floats:
        """Sums of figures of shape [F x S], of shape [F x keys]."""
        found = np.zeros((len(figures), self._count))
        if len(self._keys):
            found[:, self._keys] = np.add.reduceat(figures[:, self._order], self._starts, axis=1)
        return found

    def largest(self, values: Floats) -> Floats:
        """The largest value of each key, -inf where it has none."""
        found = np.full(self._count, -np.inf)
        if len(self._keys):
            found[self._keys] = np.maximum.reduceat(values[self._order], self._starts)
        return found

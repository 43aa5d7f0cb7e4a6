"""Sums over stretches of tokens of one version, by how old these are."""

from __future__ import annotations

import numpy as np

from tokenaudit.lifecycle.staleness import staleness
from tokenaudit.log.columns import Int64s

OLDEST_AGE = 127
"""Older tokens count with this age, so that the number of ages is bounded."""
AGES = OLDEST_AGE + 2
"""How many ages there are, that of tokens from the future included."""


def ages(version: Int64s, train_step: Int64s | int) -> Int64s:
    """The staleness of stretches of one version at a step, from -1 (the future) to `OLDEST_AGE`."""
    return np.clip(staleness(version, train_step), -1, OLDEST_AGE)

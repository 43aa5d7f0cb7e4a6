"""The two columns of log-probabilities, and which of their values can be judged."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from tokenaudit.log.columns import Bools, Lists, nulls

BOTH = ("logprobs", "train_logprobs")
"""The column of the engine and that of the trainer."""
SENTINEL = 1000.0
"""Log-probabilities from its negative down, and from it up, stand for something else."""


def with_nan(lists: Lists, array: pa.Array | None) -> Lists:
    """A list column of log-probabilities, its null elements as NaN."""
    if array is None or len(lists.null_element_rows) == 0:
        return lists
    return lists._replace(values=np.where(nulls(array.flatten()), np.nan, lists.values))


def are_all_judged(*sides: np.ndarray[Any, Any]) -> bool:
    """Whether every value of all sides, which have some, is finite and no sentinel."""
    return all(side.min() > -SENTINEL and side.max() < SENTINEL for side in sides)


def is_judged(values: np.ndarray[Any, Any]) -> Bools:
    """Which values are finite and no sentinels."""
    return np.abs(values) < SENTINEL

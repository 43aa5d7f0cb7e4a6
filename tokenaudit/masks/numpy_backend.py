"""Masks on numpy: what computes where torch isn't installed."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from tokenaudit.lifecycle.staleness import is_fresh
from tokenaudit.log.columns import Int64s
from tokenaudit.masks.batch import MaskBatch, Masks


class _Computed(NamedTuple):
    masks: Masks

    def result(self) -> Masks:
        """The masks."""
        return self.masks


class NumpyBackend:
    """Computes at once, in the calling thread."""

    description = "numpy"

    def submit(self, batch: MaskBatch) -> _Computed:
        """Compute the masks of a batch."""
        return _Computed(compute_masks(batch))


def compute_masks(batch: MaskBatch) -> Masks:
    """The masks of a batch, in passes over all of its tokens."""
    lengths = np.diff(batch.offsets)
    fresh = is_fresh(batch.versions, np.repeat(batch.oldest_fresh, lengths))
    effective = fresh if batch.semantic is None else fresh & batch.semantic
    trained = _segment_counts(effective.view(np.uint8), batch.offsets)
    trainable = lengths if batch.semantic is None else _segment_counts(batch.semantic.view(np.uint8), batch.offsets)
    return Masks(effective.view(np.int8), trained, trainable - trained, lengths - trainable)


def _segment_counts(flags: np.ndarray[Any, np.dtype[np.uint8]], offsets: Int64s) -> Int64s:
    """Sum of the flags of each response; reduceat alone would give an empty one the flag behind it."""
    counts = np.zeros(len(offsets) - 1, dtype=np.int64)
    with_tokens = np.flatnonzero(offsets[1:] > offsets[:-1])
    if len(with_tokens):
        counts[with_tokens] = np.add.reduceat(flags, offsets[:-1][with_tokens], dtype=np.int64)
    return counts

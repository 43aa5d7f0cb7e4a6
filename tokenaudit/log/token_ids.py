"""Whether a response continues the tokens of its previous put, told from token ids without keeping them."""

from __future__ import annotations

from typing import Any

import numpy as np

from tokenaudit.log.columns import Int64s, Lists

UNKNOWN, DIFFERENT, SAME = -1, 0, 1
"""Verdicts: no token ids on both sides; the earlier ids are not a prefix of the later ones; they are."""

_STEP = np.uint64(0x9E3779B97F4A7C15)
_FIRST = np.uint64(0xBF58476D1CE4E5B9)
_SECOND = np.uint64(0x94D049BB133111EB)


class PrefixMemory:
    """Remembers length and fingerprint of every response's last put.

    A fingerprint is the sum, modulo 2**64, of one well-mixed number per (position, token id), so a prefix has
    one too. Two different id lists share one with a chance of about 2**-64.
    """

    def __init__(self) -> None:
        self._last: dict[tuple[int, int, int], int] = {}
        self._lengths = np.zeros(0, dtype=np.int64)
        self._prints = np.zeros(0, dtype=np.uint64)
        self._event: int | None = None
        self._segments: dict[int, int] = {}

    def verdicts(
        self,
        event_ids: Int64s,
        tasks: Int64s,
        rollout_ids: Int64s,
        has_ids: np.ndarray[Any, np.dtype[np.bool_]],
        ids: Lists,
    ) -> np.ndarray[Any, np.dtype[np.int8]]:
        """Compare the next put rows, shape [R], with the previous put of their response.

        Args:
            event_ids: event of each row.
            tasks: task code of each row.
            rollout_ids: rollout of each row.
            has_ids: whether the row's ids count; the others have none to compare.
            ids: the ids of all rows, flattened.
        """
        before = len(self._lengths)
        previous = np.full(len(event_ids), -1, dtype=np.int64)
        keys = zip(event_ids.tolist(), tasks.tolist(), rollout_ids.tolist(), strict=True)
        for row, (event_id, task, rollout_id) in enumerate(keys):
            if event_id != self._event:
                self._event = event_id
                self._segments = {}
            segment = self._segments.get(rollout_id, 0)
            self._segments[rollout_id] = segment + 1
            key = (task, rollout_id, segment)
            previous[row] = self._last.get(key, -1)
            self._last[key] = before + row
        lengths = np.where(has_ids, ids.lengths, -1)
        self._lengths = np.concatenate([self._lengths, lengths])
        earlier = np.where(previous >= 0, self._lengths[previous], -1)
        comparable = has_ids & (earlier >= 0)
        shared = np.where(comparable, np.minimum(earlier, ids.lengths), 0)
        of_prefix, of_all = _fingerprints(ids, shared)
        self._prints = np.concatenate([self._prints, of_all])
        same = comparable & (earlier <= ids.lengths)
        same &= np.where(previous >= 0, self._prints[previous], np.uint64(0)) == of_prefix
        verdict = np.where(same, SAME, DIFFERENT).astype(np.int8)
        verdict[~comparable] = UNKNOWN
        return verdict


def _fingerprints(
    ids: Lists, prefix: Int64s
) -> tuple[np.ndarray[Any, np.dtype[np.uint64]], np.ndarray[Any, np.dtype[np.uint64]]]:
    """Fingerprints of the first `prefix` ids of each row, and of all its ids."""
    starts = np.cumsum(ids.lengths) - ids.lengths
    positions = np.arange(len(ids.values), dtype=np.uint64) - np.repeat(starts, ids.lengths).astype(np.uint64)
    mixed = ids.values.astype(np.int64).view(np.uint64) * _FIRST ^ (positions + np.uint64(1)) * _STEP
    mixed = (mixed ^ mixed >> np.uint64(30)) * _FIRST
    mixed = (mixed ^ mixed >> np.uint64(27)) * _SECOND
    mixed ^= mixed >> np.uint64(31)
    sums = np.concatenate([np.zeros(1, dtype=np.uint64), np.cumsum(mixed, dtype=np.uint64)])
    return sums[starts + prefix] - sums[starts], sums[starts + ids.lengths] - sums[starts]

"""Whether a response continues the tokens of its previous put, decided by token ids without keeping them."""

from __future__ import annotations

from typing import Any

import numpy as np

from tokenaudit.log.columns import Bools, Columns, Int64s, Lists

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
        self, all_ids: Lists, events: Columns, responses: Columns, is_put: Bools
    ) -> np.ndarray[Any, np.dtype[np.int8]]:
        """Compare the put rows of the next batch, shape [R], with the previous put of their response.

        Args:
            all_ids: the token ids of all its rows; they count where they are as many as the response has tokens.
            events: its event columns by name; see `row_checks.ReducedBatch`.
            responses: its response columns by name.
            is_put: which of its rows are puts.
        """
        event_ids, tasks = events["event_id"][is_put], events["task"][is_put]
        rollout_ids = responses["rollout_id"][is_put]
        has_ids = ~all_ids.is_null & (all_ids.lengths == responses["tokens"]) & ~all_ids.has_null_element
        has_ids, lengths = has_ids[is_put], all_ids.lengths[is_put]
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
        self._lengths = np.concatenate([self._lengths, np.where(has_ids, lengths, -1)])
        earlier = np.where(previous >= 0, self._lengths[previous], -1)
        comparable = has_ids & (earlier >= 0)
        shared = np.where(comparable, np.minimum(earlier, lengths), 0)
        of_prefix, of_all = _fingerprints(all_ids.elements_of(is_put), lengths, shared)
        self._prints = np.concatenate([self._prints, of_all])
        same = comparable & (earlier <= lengths)
        same &= np.where(previous >= 0, self._prints[previous], np.uint64(0)) == of_prefix
        verdict = np.where(same, SAME, DIFFERENT).astype(np.int8)
        verdict[~comparable] = UNKNOWN
        return verdict


def _fingerprints(
    ids: np.ndarray[Any, Any], lengths: Int64s, prefix: Int64s
) -> tuple[np.ndarray[Any, np.dtype[np.uint64]], np.ndarray[Any, np.dtype[np.uint64]]]:
    """Fingerprints of the first `prefix` ids of each row, and of all its ids, of which it has `lengths`."""
    starts = np.cumsum(lengths) - lengths
    positions = np.arange(len(ids), dtype=np.uint64) - np.repeat(starts, lengths).astype(np.uint64)
    mixed = ids.astype(np.int64).view(np.uint64) * _FIRST ^ (positions + np.uint64(1)) * _STEP
    mixed = (mixed ^ mixed >> np.uint64(30)) * _FIRST
    mixed = (mixed ^ mixed >> np.uint64(27)) * _SECOND
    mixed ^= mixed >> np.uint64(31)
    sums = np.concatenate([np.zeros(1, dtype=np.uint64), np.cumsum(mixed, dtype=np.uint64)])
    return sums[starts + prefix] - sums[starts], sums[starts + lengths] - sums[starts]

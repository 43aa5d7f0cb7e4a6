"""Whether a response continues the tokens of its previous put, decided by token ids without keeping them."""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import numpy as np

from tokenaudit.log.columns import Bools, Columns, Int64s, Lists
from tokenaudit.log.log_file import MAX_ROW_ELEMENTS

UInt64s = np.ndarray[Any, np.dtype[np.uint64]]

UNKNOWN, DIFFERENT, SAME = -1, 0, 1
"""Verdicts: no token ids on both sides; the earlier ids are not a prefix of the later ones; they are."""

_BASE = 0x9E3779B97F4A7C15
"""Odd, so that every power has an inverse modulo 2**64; 5 modulo 8, so that powers come back as late as they can."""
_TILE = 2**15
"""Values that are multiplied at a time: 256 KiB."""


class PrefixMemory:
    """Remembers length and fingerprint of every response's last put.

    See `fingerprints` for how likely it is that two different id lists share one.
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
        of_prefix, of_all = prefix_fingerprints(all_ids.elements_of(is_put), lengths, shared)
        self._prints = np.concatenate([self._prints, of_all])
        same = comparable & (earlier <= lengths)
        same &= np.where(previous >= 0, self._prints[previous], np.uint64(0)) == of_prefix
        verdict = np.where(same, SAME, DIFFERENT).astype(np.int8)
        verdict[~comparable] = UNKNOWN
        return verdict


class _Powers(NamedTuple):
    """Powers of `_BASE`: with exponents from -`_TILE` to `_TILE` - 1, and with multiples of `_TILE` from 0 on.

    Those of the first from 0 on also apart, and modulo 2**32.
    """

    around_zero: UInt64s
    by_tile: UInt64s
    rising: UInt64s
    short_rising: np.ndarray[Any, np.dtype[np.uint32]]


@cache
def _powers() -> _Powers:
    around_zero = np.full(2 * _TILE, _BASE, dtype=np.uint64)
    around_zero[0] = pow(_BASE, -_TILE, 2**64)
    by_tile = np.full(MAX_ROW_ELEMENTS // _TILE + 2, pow(_BASE, _TILE, 2**64), dtype=np.uint64)
    by_tile[0] = 1
    powers = np.multiply.accumulate(around_zero)
    rising = powers[_TILE:]
    return _Powers(powers, np.multiply.accumulate(by_tile), rising, rising.astype(np.uint32))


def _power(exponents: Int64s) -> UInt64s:
    """`_BASE` to the power of whole numbers between `-_TILE` and the length of the longest row."""
    powers = _powers()
    result = powers.around_zero[np.minimum(exponents, _TILE - 1) + _TILE]
    far = np.flatnonzero(exponents >= _TILE)
    result[far] = powers.around_zero[exponents[far] % _TILE + _TILE] * powers.by_tile[exponents[far] // _TILE]
    return result


def fingerprints(values: np.ndarray[Any, Any], lengths: Int64s) -> UInt64s:
    """The fingerprint of each row of whole numbers, of shape [R]: the sum of value x `_BASE` ** place, modulo 2**64.

    It doesn't depend on the other rows. Rows of one length that differ in one place, or by a swap of two ids of 32
    bits, never share one; others do with a chance of about 2**-64. Rows made to share one can be found: they are no
    mistake of a recorder, which is what is looked for.

    Args:
        values: the numbers of all rows, one row after the other, of any type of whole numbers.
        lengths: how many each row has, of shape [R].
    """
    return _weighted_sums(values, lengths, np.dtype(np.uint64))


def short_fingerprints(values: np.ndarray[Any, np.dtype[np.uint32]], lengths: Int64s) -> UInt64s:
    """The same modulo 2**32, in a third of the time; see `fingerprints`."""
    return _weighted_sums(values, lengths, np.dtype(np.uint32)) & np.uint64(0xFFFFFFFF)


def _weighted_sums(values: np.ndarray[Any, Any], lengths: Int64s, word: np.dtype[Any]) -> UInt64s:
    """Fingerprints; of their bits, those are right that products of type `word` have."""
    prints = np.zeros(len(lengths), dtype=np.uint64)
    filled = np.flatnonzero(lengths)
    if len(filled) == 0:
        return prints
    starts = (np.cumsum(lengths) - lengths)[filled]
    tiles = np.arange(0, len(values), _TILE)
    # Pieces end where rows or tiles do. A tile fits the cache of a core, so its products are never in memory.
    row_of_tile = np.searchsorted(starts, tiles, side="right") - 1
    cuts = np.flatnonzero(starts[row_of_tile] < tiles)
    pieces = np.insert(starts, row_of_tile[cuts] + 1, tiles[cuts])
    row_start = np.insert(starts, row_of_tile[cuts] + 1, starts[row_of_tile[cuts]])
    first_piece = np.searchsorted(pieces, tiles).tolist()
    powers = _powers()
    rising = powers.rising if word == np.uint64 else powers.short_rising
    sums = np.empty(len(pieces), dtype=word)
    room = np.empty(_TILE, dtype=word)
    for tile, first, last in zip(tiles.tolist(), first_piece, [*first_piece[1:], len(pieces)], strict=True):
        own = values[tile : tile + _TILE]
        own = own.astype(np.int64).view(np.uint64) if word == np.uint64 else own
        products = np.multiply(own, rising[: len(own)], out=room[: len(own)])
        np.add.reduceat(products, pieces[first:last] - tile, out=sums[first:last])
    # From places in the tile to places in the row.
    sums = sums.astype(np.uint64, copy=False) * _power(pieces // _TILE * _TILE - row_start)
    prints[filled] = np.add.reduceat(sums, np.arange(len(starts)) + np.searchsorted(starts[row_of_tile[cuts]], starts))
    return prints


def prefix_fingerprints(values: np.ndarray[Any, Any], lengths: Int64s, prefix: Int64s) -> tuple[UInt64s, UInt64s]:
    """Fingerprints of the first `prefix` values of each row, and of all its values, of which it has `lengths`."""
    parts = fingerprints(values, np.stack([prefix, lengths - prefix], axis=1).reshape(-1))
    return parts[0::2], parts[0::2] + parts[1::2] * _power(prefix)

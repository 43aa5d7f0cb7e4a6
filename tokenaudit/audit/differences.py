"""Differences between the log-probabilities of trainer and engine, summed up by rows and versions.

Both columns are looked at in the one pass over the log. Sums are made row by row, so that no border of a batch or file
changes them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

from tokenaudit.audit.logprobs import Logprobs
from tokenaudit.corrections.logprobs import BOTH, is_judged
from tokenaudit.log import columns as col
from tokenaudit.log.columns import LARGEST, Bools, Floats, Int64s, Lists
from tokenaudit.log.row_checks import BatchColumns

SAMPLED = 64
"""Tokens of a row, evenly spread, that stand for all of it where a sum won't do."""
PAIR_SUMS = ("n", "x", "y", "xx", "yy", "xy", "x2", "y2", "xx2", "yy2", "x2y", "xy2")
"""Sums over sampled tokens and the token behind each; x is the engine's, y the trainer's, 2 stands for the latter."""
MOST_DELTA = 80.0
"""Differences are cut here, where a ratio squared still fits double precision."""
_CHUNK = 65_536
"""Tokens that are looked at together, few enough for the caches of a core."""


class Differences(NamedTuple):
    """The trainer's log-probabilities minus the engine's, by S stretches: trainable tokens of a row of one version.

    Attributes:
        row: row of each stretch, ascending.
        version: version of its tokens; a negative one is no version.
        tokens: trainable tokens with both log-probabilities.
        delta: sum of their differences.
        abs_delta: sum of |difference|.
        ratio: sum of exp(difference).
        squared_ratio: sum of its square.
        outside: tokens whose ratio is off 1 by more than epsilon.
        equal: tokens with a difference of exactly 0.
        sure: those of them that have 0 on both sides.
        largest: the largest |difference|.
        sampled: how many of its tokens were sampled.
        stride: tokens that each of these stands for.
        samples: their |difference|, float32, stretch by stretch.
        pair_rows: the P rows that have sampled pairs.
        pairs: `PAIR_SUMS` of these, of shape [12 x P].
    """

    row: Int64s
    version: Int64s
    tokens: Int64s
    delta: Floats
    abs_delta: Floats
    ratio: Floats
    squared_ratio: Floats
    outside: Int64s
    equal: Int64s
    sure: Int64s
    largest: Floats
    sampled: Int64s
    stride: Int64s
    samples: np.ndarray[Any, np.dtype[np.float32]]
    pair_rows: Int64s
    pairs: Floats


def joined_differences(parts: Iterable[tuple[int, Differences | None]]) -> Differences | None:
    """Those of a log, given those of its batches in order, each with its first row; None where no batch has any."""
    there = [
        part._replace(row=part.row + first, pair_rows=part.pair_rows + first)
        for first, part in parts
        if part is not None
    ]
    return Differences(*(np.concatenate(arrays, axis=-1) for arrays in zip(*there, strict=True))) if there else None


class _Stretches(NamedTuple):
    """Where stretches of one version begin among the tokens that are looked at, and whether their runs train them."""

    row: Int64s
    version: Int64s
    begin: Int64s
    trainable: Bools


def differences(columns: BatchColumns, logprobs: Mapping[str, Logprobs], epsilon: float) -> Differences | None:
    """The differences of a batch; None where it lacks a column.

    Looked at are rows with both log-probabilities, and a version, for every token. Tokens of recorded runs that hold
    both kinds count as not trainable: which ones are isn't recorded.
    """
    if len(logprobs) < len(BOTH):
        return None
    rows = columns.rows
    rollout, trained = (logprobs[name].lists for name in BOTH)
    tokens, versions, mask = rollout.lengths, columns.versions, columns.mask
    stamp = columns.integers("model_step")
    own = _rows_of_runs(columns, tokens)
    usable = (tokens > 0) & (tokens == trained.lengths)
    per_token = (versions.lengths <= tokens) & ((versions.lengths == tokens) | (stamp >= 0))
    per_token &= (mask.lengths == tokens) | mask.is_null
    if columns.recorded_runs is not None:
        per_token &= ~columns.recorded_runs.has_runs
    usable &= per_token | own
    lengths = np.where(usable, tokens, 0)
    first = np.cumsum(lengths) - lengths
    stretches = _stretches(columns, usable, own, first)
    old, new = (side.elements_of(usable) for side in (rollout, trained))
    is_used = _trainable(mask, stretches, usable, own, lengths)
    bounds = np.append(stretches.begin, len(old))
    sides = [logprobs[name] for name in BOTH]
    is_plain = all(side.is_plain for side in sides)
    is_tame = is_plain and max(side.high for side in sides) - min(side.low for side in sides) <= MOST_DELTA
    sums = np.zeros((9, len(stretches.row)))
    for low, high in col.bounded_spans(lengths, rows, _CHUNK):
        start, stop = int(first[low]), int(first[high - 1] + lengths[high - 1])
        span = slice(*np.searchsorted(stretches.begin, [start, stop]).tolist())
        if start < stop:
            used = is_used[start:stop] if is_used is not None else None
            at = bounds[span.start : span.stop + 1] - start
            _sum_up(sums[:, span], old[start:stop], new[start:stop], used, at, epsilon, is_tame)
    counted, delta, abs_delta, ratio, squared_ratio, outside, equal, sure, largest = sums
    sampled, stride, samples, pair_rows, pairs = _sampled(old, new, is_used, lengths, first, stretches, is_plain)
    outside, equal, sure = (whole.astype(np.int64) for whole in (outside, equal, sure))
    return Differences(
        stretches.row, stretches.version, counted.astype(np.int64), delta, abs_delta, ratio, squared_ratio, outside,
        equal, sure, largest, sampled, stride, samples, pair_rows, pairs,
    )  # fmt: skip


def _rows_of_runs(columns: BatchColumns, tokens: Int64s) -> Bools:
    """Rows whose recorded runs say the version of every token."""
    recorded = columns.recorded_runs
    if recorded is None:
        return np.zeros(columns.rows, dtype=np.bool_)
    is_bad = (recorded.tokens < 1) | ~recorded.is_versioned
    bad = np.bincount(recorded.owner[is_bad], minlength=columns.rows)
    return recorded.has_runs & (recorded.sums == tokens) & (bad == 0)


def _stretches(columns: BatchColumns, usable: Bools, own: Bools, first: Int64s) -> _Stretches:
    versions, stamp = columns.versions, columns.integers("model_step")
    heads, ends = columns.version_heads, np.cumsum(versions.lengths)
    owner = np.searchsorted(ends, heads, side="right")
    values = versions.values[heads]
    if values.dtype == np.uint64:
        values = np.minimum(values, np.uint64(LARGEST))
    listed = usable[owner] & ~own[owner]
    stamped = np.flatnonzero(usable & ~own & (versions.lengths < columns.lists(BOTH[0]).lengths))
    parts = [
        (owner[listed], values[listed].astype(np.int64), (heads - (ends - versions.lengths)[owner])[listed]),
        (stamped, stamp[stamped], versions.lengths[stamped]),
    ]
    flags = [np.ones(len(part[0]), dtype=np.bool_) for part in parts]
    recorded = columns.recorded_runs
    if recorded is not None:
        owner = recorded.owner
        used = usable[owner] & own[owner]
        begin = np.cumsum(recorded.tokens) - recorded.tokens
        run = np.cumsum(recorded.lengths) - recorded.lengths
        offset = begin - np.append(begin, 0)[run][owner]
        parts.append((owner[used], recorded.model_step[used], offset[used]))
        flags.append((recorded.trainable == recorded.tokens)[used])
    row, version, offset = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    begin = first[row] + offset
    order = np.argsort(begin, kind="stable")
    return _Stretches(row[order], version[order], begin[order], np.concatenate(flags)[order])


def _trainable(mask: Lists, stretches: _Stretches, usable: Bools, own: Bools, lengths: Int64s) -> Bools | None:
    """Whether each token that is looked at is trainable; None where all are."""
    has_mask = usable & ~own & ~mask.is_null
    if stretches.trainable.all() and not has_mask.any():
        return None
    total = int(lengths.sum())
    if not own.any() and (mask.lengths == lengths).all():
        return mask.values != 0
    trainable = np.repeat(stretches.trainable, np.diff(stretches.begin, append=total))
    trainable[np.repeat(has_mask, lengths)] = mask.elements_of(has_mask) != 0
    return trainable


def _sum_up(
    sums: Floats,
    rollout: np.ndarray[Any, Any],
    trained: np.ndarray[Any, Any],
    used: Bools | None,
    bounds: Int64s,
    epsilon: float,
    is_tame: bool,
) -> None:
    """Fill `sums`, of shape [9 x stretches], for tokens of some rows; `bounds` are those of the stretches in them.

    Single tokens are computed in the precision of the columns, sums in double precision. `is_tame` says that no value
    has to be left out, and no difference to be cut.
    """
    if not is_tame:
        good = is_judged(rollout) & is_judged(trained)
        used = good if used is None else used & good
        rollout, trained = (np.where(good, side, 0) for side in (rollout, trained))
    delta = np.subtract(trained, rollout, dtype=np.result_type(rollout, trained, np.float32))
    begin, lengths = bounds[:-1], np.diff(bounds)

    def count(where: Bools) -> Int64s:
        return np.add.reduceat(where.view(np.int8), begin, dtype=np.int32)

    if used is not None:
        delta *= used
        sums[0] = count(used)
    else:
        sums[0] = lengths
    if not is_tame:
        np.clip(delta, -MOST_DELTA, MOST_DELTA, out=delta)
    # tokens left out have a ratio of 1 and a difference of 0 here
    left_out = lengths - sums[0]
    sums[1] = np.add.reduceat(delta, begin, dtype=np.float64)
    is_equal = delta == 0
    if np.count_nonzero(is_equal) > left_out.sum():
        sums[6] = count(is_equal) - left_out
    if rollout.max() == 0:
        is_equal &= rollout == 0
        if used is not None:
            is_equal &= used
        sums[7] = count(is_equal)
    ratio = np.exp(delta)
    np.abs(delta, out=delta)
    sums[2] = np.add.reduceat(delta, begin, dtype=np.float64)
    sums[8] = np.maximum.reduceat(delta, begin)
    # the ratio of smaller differences is inside, with a margin for its rounding
    far = np.flatnonzero(delta > 0.99 * math.log1p(epsilon))
    is_outside = np.abs(ratio[far] - 1) > epsilon
    sums[5] = np.bincount(np.searchsorted(begin, far[is_outside], side="right") - 1, minlength=len(begin))
    wide = ratio.astype(np.float64)
    sums[3] = np.add.reduceat(wide, begin) - left_out
    wide *= wide
    sums[4] = np.add.reduceat(wide, begin) - left_out


def _sampled(
    old: np.ndarray[Any, Any],
    new: np.ndarray[Any, Any],
    is_used: Bools | None,
    lengths: Int64s,
    first: Int64s,
    stretches: _Stretches,
    is_plain: bool,
) -> tuple[Int64s, Int64s, np.ndarray[Any, np.dtype[np.float32]], Int64s, Floats]:
    """Samples with their number and stride by stretch, and the sums of pairs with their rows: see `Differences`.

    `is_plain` says that no value has to be left out.
    """
    stride = np.maximum(-(-lengths // SAMPLED), 1)
    counts = -(-lengths // stride)
    begin = np.cumsum(counts) - counts
    total = int(counts.sum())
    place = np.arange(total) * np.repeat(stride, counts) + np.repeat(first - begin * stride, counts)

    def values(positions: Int64s) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any], Bools]:
        """Of the engine, of the trainer, and whether they count."""
        sides = old.take(positions), new.take(positions)
        found = np.ones(len(positions), dtype=np.bool_) if is_used is None else is_used.take(positions)
        for side in () if is_plain else sides:
            found &= is_judged(side)
        return *sides, found

    x, y, is_good = values(place)
    sampled = np.diff(np.searchsorted(place[is_good], stretches.begin), append=np.count_nonzero(is_good))
    samples = np.minimum(np.abs(y[is_good] - x[is_good]), MOST_DELTA).astype(np.float32, copy=False)
    # the last token of a row has none behind
    ends_row = (counts > 0) & ((counts - 1) * stride == lengths - 1)
    is_good[(begin + counts - 1)[ends_row]] = False
    place += 1
    x2, y2, is_pair = values(np.minimum(place, len(old) - 1, out=place))
    is_pair &= is_good
    x, y, x2, y2 = (side[is_pair].astype(np.float64) for side in (x, y, x2, y2))
    pairs_of = np.diff(np.append(0, np.cumsum(is_pair))[np.append(begin, total)])
    pair_rows = np.flatnonzero(pairs_of)
    pairs = np.zeros((len(PAIR_SUMS), len(pair_rows)))
    if len(pair_rows):
        heads = (np.cumsum(pairs_of) - pairs_of)[pair_rows]
        pairs[0] = pairs_of[pair_rows]
        factors = (
            (x, None), (y, None), (x, x), (y, y), (x, y), (x2, None), (y2, None), (x2, x2), (y2, y2), (x2, y), (x, y2),
        )  # fmt: skip
        product = np.empty(len(x))
        for sums, (one, other) in zip(pairs[1:], factors, strict=True):
            term = one if other is None else np.multiply(one, other, out=product)
            np.add.reduceat(term, heads, out=sums)
    return sampled, stride[stretches.row], samples, pair_rows, pairs

"""Whether the engine's log-probabilities and the trainer's can be of the same weights and the same tokens.

Both sides of a fresh token come from the same weights, so their ratio is 1 on average, and what they differ by stays
small. Rows that one cause explains are left out of the search for the next.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from itertools import pairwise
from typing import Any, NamedTuple, cast

import numpy as np

from tokenaudit.audit.differences import PAIR_SUMS, Differences
from tokenaudit.audit.offpolicy import trained_ages
from tokenaudit.audit.table import LogTable
from tokenaudit.audit.traits import shared_traits
from tokenaudit.log.columns import Bools, Floats, Int64s

LEAST_TOKENS = 10_000
"""Tokens from which on a task is judged by itself; smaller tasks are judged together."""
COPIED_SHARE = 0.999
"""Tokens with equal values that no recomputation under newer weights yields."""
SHIFTED_MARGIN = 0.2
"""How much closer a neighbour's log-probabilities are than the token's own, as correlation."""
GROWN = 4.0
"""Growth of the mean |difference| that no training explains."""
OUTLYING = 8.0
"""Times the median of the rows put about the same time."""
OUTLYING_SHARE = (0.003, 0.5)
"""Rows that may be that far off: fewer are chance, and more are the median themselves."""
RATIO_OFF = 0.02
"""How far the mean ratio of fresh tokens may be off 1."""

_SURE_OF = 4.0
"""Standard errors, over rows, that a mean ratio must be off."""
_LARGEST_RATIO = 10.0
"""Mean ratios of rows are cut here where they are above 1, as one giant would hide all others."""
_STEADY = 0.02
"""Variance of the ratio, over its squared mean, up to which a factor on all tokens explains it."""
_LEAST_GROWN = 2_000
"""Fresh tokens whose |difference| has grown before that is judged."""
_LEAST_OUTLIERS = 5
_ROW_TOKENS, _OUTLIER_TOKENS, _COPIED_TOKENS = 8, 16, 16
"""Tokens of a row before its own mean counts."""
_BLOCK_TOKENS, _BLOCK_ROWS = 1_000, (8, 64)
"""What a block of consecutive steps holds at least; the rows are a twentieth of all, within these bounds."""
_SMALL = 1e-3
"""A median |difference| below it is that of engines that compute alike; it counts as this much."""


class Fault(StrEnum):
    """What is wrong between engine and trainer."""

    COPIED = "copied"
    SHIFTED = "shifted"
    GROWN = "grown"
    OUTLYING = "outlying"
    RATIO = "ratio"


class EngineFault(NamedTuple):
    """One cause: its kind, the rows of the log concerned, ascending, and what holds for them."""

    kind: Fault
    rows: Int64s
    text: str


class EngineVerdict(NamedTuple):
    """What is wrong, and how many fresh tokens, tokens of staleness 1 or more, and tokens at all were judged."""

    faults: tuple[EngineFault, ...]
    fresh: int
    aged: int
    tokens: int


class _Rows(NamedTuple):
    """Rows with both log-probabilities, in log order; sums over trainable tokens, fresh ones being of staleness 0.

    `aged`, `aged_equal`, `known` and `equal` leave out tokens with 0 on both sides, of which nothing can be told: those
    of staleness 1 or more, those of them that are equal, and both for all ages. `pairs` has the shape [12 x rows].
    """

    row: Int64s
    task: Int64s
    step: Int64s
    tokens: Floats
    fresh: Floats
    fresh_abs: Floats
    fresh_largest: Floats
    fresh_ratio: Floats
    fresh_squared: Floats
    aged: Floats
    aged_equal: Floats
    known: Floats
    equal: Floats
    pairs: Floats

    def only(self, chosen: Bools) -> _Rows:
        """Some of the rows."""
        if chosen.all():
            return self
        at = np.flatnonzero(chosen)
        return _Rows(*(cast("Any", column.take(at, axis=-1)) for column in self))


def judged_engine(table: LogTable, found: Differences, train_step: Int64s) -> EngineVerdict:
    """Hold the engine's log-probabilities against the trainer's; the arguments are those of `offpolicy.ages`."""
    whole = _rows(table, found, train_step)
    faults: list[EngineFault] = []
    judged = dict.fromkeys(("fresh", "aged", "tokens"), 0)
    for name in judged:
        for part in _parts(whole, name):
            judged[name] += int(getattr(part, name).sum())
    explained = np.zeros(len(whole.row), dtype=np.bool_)
    searches = (("aged", _copied), ("tokens", _shifted), ("fresh", _grown), ("fresh", _outlying), ("fresh", _ratio_off))
    for measure, search in searches:
        for part in _parts(whole.only(~explained), measure):
            for fault in search(part, table):
                faults.append(fault)
                explained[np.searchsorted(whole.row, fault.rows)] = True
    return EngineVerdict(tuple(faults), **judged)


def _rows(table: LogTable, found: Differences, train_step: Int64s) -> _Rows:
    rows, index = np.unique(found.row, return_inverse=True)
    age = trained_ages(found, train_step)
    informative, equal = found.tokens - found.sure, found.equal - found.sure

    def by_row(values: Floats | Int64s, where: Bools) -> Floats:
        return np.bincount(index[where], values[where], minlength=len(rows)).astype(np.float64, copy=False)

    is_known, is_fresh, is_aged = age >= -1, age == 0, age >= 1
    pairs = np.zeros((len(PAIR_SUMS), len(rows)))
    pairs[:, np.searchsorted(rows, found.pair_rows)] = found.pairs
    return _Rows(
        row=rows, task=table["task"][rows], step=table["train_step"][rows],
        tokens=by_row(found.tokens, is_known), fresh=by_row(found.tokens, is_fresh),
        fresh_abs=by_row(found.abs_delta, is_fresh), fresh_largest=by_row(found.largest, is_fresh),
        fresh_ratio=by_row(found.ratio, is_fresh), fresh_squared=by_row(found.squared_ratio, is_fresh),
        aged=by_row(informative, is_aged), aged_equal=by_row(equal, is_aged),
        known=by_row(informative, is_known), equal=by_row(equal, is_known), pairs=pairs,
    )  # fmt: skip


def _parts(rows: _Rows, measure: str) -> Iterator[_Rows]:
    """The rows of every task with enough tokens of a measure, and those of all others if they have enough together."""
    sums = np.bincount(rows.task, getattr(rows, measure), minlength=1)
    is_large = sums >= LEAST_TOKENS
    for task in np.flatnonzero(is_large).tolist():
        yield rows.only(rows.task == task)
    if sums[~is_large].sum() >= LEAST_TOKENS:
        yield rows.only(~is_large[rows.task])


def _blocks(rows: _Rows, weights: Floats, least_rows: int) -> Int64s:
    """A number for each row, rising with the steps: rows of a block have enough tokens together, and are enough."""
    heads = np.flatnonzero(np.diff(rows.step, prepend=rows.step[0] - 1))
    tokens = np.add.reduceat(weights, heads)
    counted = np.add.reduceat(weights >= _ROW_TOKENS, heads, dtype=np.int64)
    number, numbers, held, held_rows = 0, list[int](), 0.0, 0
    for own, own_rows in zip(tokens.tolist(), counted.tolist(), strict=True):
        numbers.append(number)
        held, held_rows = held + own, held_rows + own_rows
        if held >= _BLOCK_TOKENS and held_rows >= least_rows:
            number, held, held_rows = number + 1, 0.0, 0
    if held or held_rows:
        # what is left over at the end is too little for a block of its own
        numbers = [min(one, max(number - 1, 0)) for one in numbers]
    return np.repeat(numbers, np.diff(heads, append=len(rows.row)))


def _least_rows(rows: _Rows) -> int:
    low, high = _BLOCK_ROWS
    return min(max(int((rows.fresh >= _ROW_TOKENS).sum()) // 20, low), high)


def _copied(rows: _Rows, _: LogTable) -> Iterator[EngineFault]:
    is_equal = (rows.known > 0) & (rows.equal >= COPIED_SHARE * rows.known)
    counted = is_equal & (rows.aged >= _COPIED_TOKENS) & (rows.aged_equal >= COPIED_SHARE * rows.aged)
    tokens = int(rows.aged[counted].sum())
    if tokens >= LEAST_TOKENS:
        share = 100 * rows.aged_equal[counted].sum() / tokens
        text = f"train_logprobs equal logprobs on {share:.1f} % of {tokens:,} tokens of staleness 1 or more: one column"
        yield EngineFault(Fault.COPIED, rows.row[is_equal], f"{text} is a copy of the other, under whatever weights")


def _shifted(rows: _Rows, _: LogTable) -> Iterator[EngineFault]:
    block = _blocks(rows, rows.pairs[0], 1)
    own, behind, before = _correlations(
        np.stack([np.bincount(block, sums) for sums in rows.pairs]).astype(np.float64, copy=False)
    )
    for which, other, place in ((behind, before, "behind"), (before, behind, "before")):
        is_shifted = (which >= own + SHIFTED_MARGIN) & (which > other)
        where = is_shifted[block] & (rows.tokens > 0)
        if rows.tokens[where].sum() >= LEAST_TOKENS:
            sums = rows.pairs[:, where].sum(axis=1, keepdims=True)
            itself, after, ahead = (float(one[0]) for one in _correlations(sums))
            neighbour = after if place == "behind" else ahead
            text = f"train_logprobs are shifted by one token: they correlate {neighbour:.2f} with the logprobs of the"
            yield EngineFault(Fault.SHIFTED, rows.row[where], f"{text} token {place}, and {itself:.2f} with their own")


def _correlations(sums: Floats) -> tuple[Floats, Floats, Floats]:
    """Correlations, given `PAIR_SUMS` of shape [12 x K], each of shape [K]; 0 where values don't vary.

    Of the trainer's with the engine's of the same token, with the engine's of the token behind, and the one before.
    """
    n, x, y, xx, yy, xy, x2, y2, xx2, yy2, x2y, xy2 = sums / np.maximum(sums[0], 1)

    def correlation(product: Floats, a: Floats, aa: Floats, b: Floats, bb: Floats) -> Floats:
        spread = np.sqrt(np.maximum((aa - a * a) * (bb - b * b), 0))
        return np.where(spread > 0, (product - a * b) / np.where(spread > 0, spread, 1), 0) * (n > 0)

    return correlation(xy, x, xx, y, yy), correlation(x2y, x2, xx2, y, yy), correlation(xy2, x, xx, y2, yy2)


def _medians(rows: _Rows, block: Int64s) -> Floats:
    """By block, ascending numbers, the median over rows of the mean |difference| of their fresh tokens."""
    counted = rows.fresh >= _ROW_TOKENS
    means = np.where(counted, rows.fresh_abs / np.maximum(rows.fresh, 1), 0)
    found = np.full(int(block.max()) + 1, np.nan)
    means, block = means[counted], block[counted]
    bounds = np.searchsorted(block, np.arange(len(found) + 1)).tolist()
    for number, (first, last) in enumerate(pairwise(bounds)):
        if first < last:
            found[number] = np.median(means[first:last])
    return found


def _grown(rows: _Rows, _: LogTable) -> Iterator[EngineFault]:
    block = _blocks(rows, rows.fresh, _least_rows(rows))
    medians = np.maximum(_medians(rows, block), _SMALL)
    least = np.fmin.accumulate(medians)
    before = np.concatenate([[np.inf], least[:-1]])
    is_far, is_near = medians >= GROWN * before, medians >= GROWN / 2 * before
    for first, last in _spells(is_near):
        where = (block >= first) & (block < last)
        enough = is_far[first:last].sum() >= 2 and rows.fresh[where & is_far[block]].sum() >= _LEAST_GROWN
        if enough:
            # what grows slowly is named from where it has doubled
            level, base = rows.fresh_abs[where].sum() / rows.fresh[where].sum(), before[first]
            text = f"the mean |difference| of log-probabilities of fresh tokens is {level:.2g}, {level / base:.0f}"
            text += f" times the {base:.2g} of before; {_ratio_text(rows.only(where), 'engine and trainer have')}"
            yield EngineFault(Fault.GROWN, rows.row[where], text)


def _spells(flags: Bools) -> Iterator[tuple[int, int]]:
    """First and behind the last position of every stretch of true flags."""
    bounds = np.flatnonzero(np.diff(flags.astype(np.int8), prepend=0, append=0))
    yield from zip(bounds[0::2].tolist(), bounds[1::2].tolist(), strict=True)


def _outlying(rows: _Rows, table: LogTable) -> Iterator[EngineFault]:
    block = _blocks(rows, rows.fresh, _BLOCK_ROWS[1])
    median = np.maximum(_medians(rows, block), _SMALL)[block]
    counted = rows.fresh >= _OUTLIER_TOKENS
    # one value that only fills a place puts no row off
    means = (rows.fresh_abs - rows.fresh_largest) / np.maximum(rows.fresh, 1)
    # rows whose tokens are less certain differ more: that must not explain it
    certainty = np.abs(rows.pairs[PAIR_SUMS.index("x")]) / np.maximum(rows.pairs[0], 1)
    usual = np.median(certainty[counted]) if counted.any() else 0.0
    is_off = counted & (means >= OUTLYING * median) & (means >= OUTLYING / 2 * median * certainty / max(usual, 1e-9))
    low, high = OUTLYING_SHARE
    if not (is_off.sum() >= _LEAST_OUTLIERS and low * counted.sum() <= is_off.sum() <= high * counted.sum()):
        return
    share = f"{100 * is_off.sum() / counted.sum():.1f} %"
    level, usual_level = np.median(means[is_off]), np.median(median[is_off])
    text = f"fresh tokens of {share} of the rows are at least {OUTLYING:.0f} times farther off than the median (mean"
    text += f" |difference| {level:.2g} against {usual_level:.2g})"
    own, behind, before = (float(one[0]) for one in _correlations(rows.pairs[:, is_off].sum(axis=1, keepdims=True)))
    if max(behind, before) >= own + SHIFTED_MARGIN:
        text += (
            f", shifted by one token (correlation {max(behind, before):.2f} with a neighbour, {own:.2f} with their own)"
        )
    else:
        text += ": one engine of several seems to have other weights"
    first, last = np.flatnonzero(is_off)[[0, -1]].tolist()
    since = counted & (np.arange(len(counted)) >= first) & (np.arange(len(counted)) <= last)
    traits = shared_traits(table, rows.row[is_off], rows.row[since])
    text += f"; what they share: {', '.join(traits)}" if traits else "; nothing recorded tells them from the others"
    yield EngineFault(Fault.OUTLYING, rows.row[is_off], text)


def _ratio_off(rows: _Rows, _: LogTable) -> Iterator[EngineFault]:
    block = _blocks(rows, rows.fresh, 1)
    off, sure = _deviation(rows, block)
    is_off = (np.abs(off) > RATIO_OFF) & sure
    (overall,), (is_sure,) = _deviation(rows, np.zeros_like(block))
    for sign in (-1, 1):
        blocks = np.flatnonzero(is_off & (np.sign(off) == sign))
        where = np.isin(block, blocks)
        if sign * overall > RATIO_OFF and is_sure:
            # between the first and the last block that are off for sure
            where = (block >= blocks[0]) & (block <= blocks[-1]) if len(blocks) else np.ones_like(where)
        elif rows.fresh[where].sum() < LEAST_TOKENS:
            continue
        own = rows.only(where)
        text = f"of {int(own.fresh.sum()):,} fresh tokens, {_ratio_text(own, 'engine and trainer seem to have')}"
        text += f" (mean |difference| of log-probabilities {own.fresh_abs.sum() / own.fresh.sum():.2g})"
        yield EngineFault(Fault.RATIO, own.row, text)
        return


def _ratio_text(rows: _Rows, who: str) -> str:
    """The mean ratio of fresh tokens, and what it speaks for."""
    tokens = rows.fresh.sum()
    ratio, squared = rows.fresh_ratio.sum() / tokens, rows.fresh_squared.sum() / tokens
    text = f"the mean ratio of trainer to engine is {ratio:.3g}"
    if 1 - ratio > RATIO_OFF and squared / ratio**2 - 1 < _STEADY:
        return f"{text}, about the same for all: the engine's seem renormalised, as by top-p, top-k or a temperature"
    return f"{text}: {who} other weights, or the values are of other tokens"


def _deviation(rows: _Rows, block: Int64s) -> tuple[Floats, Bools]:
    """By block, how far the mean ratio of fresh tokens is off 1, and whether that is more than chance.

    The standard error is that of a ratio of sums over rows, whose tokens aren't independent of each other.
    """
    tokens = np.bincount(block, rows.fresh)
    mean = np.bincount(block, rows.fresh_ratio) / np.maximum(tokens, 1)
    cut = np.minimum(rows.fresh_ratio, _LARGEST_RATIO * rows.fresh)
    cut_mean = np.bincount(block, cut) / np.maximum(tokens, 1)
    judged, values = np.where(mean > 1, cut_mean, mean), np.where((mean > 1)[block], cut, rows.fresh_ratio)
    spread = np.bincount(block, (values - judged[block] * rows.fresh) ** 2)
    error = np.sqrt(spread) / np.maximum(tokens, 1)
    return judged - 1, (np.abs(judged - 1) > _SURE_OF * error) & (tokens > 0)

"""Whether the engine's log-probabilities and the trainer's can be of the same weights and the same tokens.

Both sides of a fresh token come from the same weights, so their ratio is 1 on average, and what they differ by stays
small. Rows that one cause explains are left out of the search for the next.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from functools import partial
from typing import NamedTuple

import numpy as np

from tokenaudit.audit.differences import Differences
from tokenaudit.audit.engine_rows import (
    LEAST_TOKENS,
    MOST_BLOCK_ROWS,
    SMALL,
    EngineRows,
    engine_rows,
    growth,
    least_rows,
    levels,
    step_blocks,
    task_parts,
    uncertainty,
)
from tokenaudit.audit.table import LogTable
from tokenaudit.audit.traits import shared_traits
from tokenaudit.log.columns import Bools, Floats, Int64s

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
_FEW, _HALF_OF_FEW = 0.2, 1.6
"""Share of rows whose level counts where half may be off, and the times of it that the median of all may be."""
_BY_UNCERTAINTY = 0.5
"""How far off rows must be for their uncertainty, as a share of how far they must be at all."""
_SURELY_SHARED, _ALSO_OFF = 0.9, 2.0
"""Share of the rows of a kind that are so many times off at least, from which on all rows of it are."""
_LEAST_OLD = 1_000
"""Tokens that were old when they were put, from which on they tell whether a column is a copy."""
_OUTLIER_TOKENS, _SHORT_OUTLIER_TOKENS, _COPIED_TOKENS = 16, 6, 16
"""Tokens of a row before it is judged by itself."""


class Fault(StrEnum):
    """What is wrong between engine and trainer."""

    COPIED = "copied"
    SHIFTED = "shifted"
    GROWN = "grown"
    OUTLYING = "outlying"
    RATIO = "ratio"


class EngineFault(NamedTuple):
    """One cause.

    Attributes:
        kind: what is wrong.
        rows: the rows of the log concerned, ascending.
        text: what holds for them.
        is_sure: whether nothing else explains it.
        zeros: tokens with an engine's log-probability of 0 that would explain a mean ratio below 1.
    """

    kind: Fault
    rows: Int64s
    text: str
    is_sure: bool = True
    zeros: float = np.inf


class EngineVerdict(NamedTuple):
    """What is wrong, and how many fresh tokens, tokens of staleness 1 or more, and tokens at all were judged."""

    faults: tuple[EngineFault, ...]
    fresh: int
    aged: int
    tokens: int


def judged_engine(table: LogTable, found: Differences, train_step: Int64s) -> EngineVerdict:
    """Hold the engine's log-probabilities against the trainer's; the arguments are those of `engine_rows`."""
    whole = engine_rows(table, found, train_step)
    faults: list[EngineFault] = []
    judged = dict.fromkeys(("fresh", "aged", "tokens"), 0)
    for name in judged:
        for part in task_parts(whole, name):
            judged[name] += int(getattr(part, name).sum())
    explained = np.zeros(len(whole.row), dtype=np.bool_)
    # first what even the closest rows show; what some rows hold is for the search behind, and what most do for the next
    searches = (
        ("aged", _copied), ("tokens", _shifted), ("fresh", partial(_grown, _FEW)), ("fresh", _outlying),
        ("fresh", partial(_grown, 0.5)), ("fresh", _ratio_off),
    )  # fmt: skip
    for measure, search in searches:
        for part in task_parts(whole.only(~explained), measure):
            for fault in search(part, table):
                _add(faults, fault, table)
                explained[np.searchsorted(whole.row, fault.rows)] = True
    return EngineVerdict(tuple(faults), **judged)


def _add(faults: list[EngineFault], fault: EngineFault, table: LogTable) -> None:
    """Add a fault; what drifts while others of its task do is of the same cause, such as most engines being stale."""
    for at, other in enumerate(faults):
        is_drift = {fault.kind, other.kind} in ({Fault.GROWN}, {Fault.GROWN, Fault.OUTLYING})
        is_at_once = fault.rows[0] <= other.rows[-1] and other.rows[0] <= fault.rows[-1]
        if is_drift and is_at_once and table["task"][fault.rows[0]] == table["task"][other.rows[0]]:
            main, more = (fault, other) if other.kind is Fault.OUTLYING else (other, fault)
            faults[at] = main._replace(rows=np.union1d(main.rows, more.rows), text=f"{main.text}; besides, {more.text}")
            return
    faults.append(fault)


def _copied(rows: EngineRows, _: LogTable) -> Iterator[EngineFault]:
    """By tokens that were old at their put; where hardly any are, by those that grew old while they waited.

    Of the latter a trainer that computes just as the engine does, and when a response is put, has equal values too.
    """
    is_equal = (rows.known > 0) & (rows.equal >= COPIED_SHARE * rows.known)
    counted = is_equal & (rows.aged >= _COPIED_TOKENS) & (rows.aged_equal >= COPIED_SHARE * rows.aged)
    tokens = int(rows.aged[counted].sum())
    is_sure = rows.old[is_equal].sum() >= _LEAST_OLD
    if tokens >= LEAST_TOKENS and (is_sure or rows.old.sum() < _LEAST_OLD):
        share = 100 * rows.aged_equal[counted].sum() / tokens
        text = f"train_logprobs equal logprobs on {share:.1f} % of {tokens:,} tokens of staleness 1 or more: one column"
        text += " is a copy of the other, under whatever weights"
        if not is_sure:
            text += ", or the trainer computes just like the engine, and when a response is put"
        yield EngineFault(Fault.COPIED, rows.row[is_equal], text, is_sure)


def _shifted(rows: EngineRows, _: LogTable) -> Iterator[EngineFault]:
    block = step_blocks(rows, rows.pairs[0], 1)
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


def _grown(share: float, rows: EngineRows, _: LogTable) -> Iterator[EngineFault]:
    """What a share of the rows lies below has grown, and with it the mean, and not by less certain tokens alone."""
    block = step_blocks(rows, rows.fresh, least_rows(rows))
    low, relative = levels(rows, block, share)
    mean = np.bincount(block, rows.fresh_abs) / np.maximum(np.bincount(block, rows.fresh), 1)
    low = np.maximum(low, SMALL)
    times, others = growth(low), np.fmin(growth(relative), growth(mean))
    is_far = (times >= GROWN) & (others >= GROWN / 2)
    for first, last in _spells((times >= GROWN / 2) & (others >= GROWN / 4)):
        where = (block >= first) & (block < last)
        enough = is_far[first:last].sum() >= 2 and rows.fresh[where & is_far[block]].sum() >= _LEAST_GROWN
        if enough:
            # what grows slowly is named from where it has doubled
            level, base = rows.fresh_abs[where].sum() / rows.fresh[where].sum(), low[first] / times[first]
            text = f"the mean |difference| of log-probabilities of fresh tokens is {level:.2g}, {level / base:.0f}"
            text += f" times the {base:.2g} of before; {_ratio_text(rows.only(where), 'engine and trainer have')}"
            yield EngineFault(Fault.GROWN, rows.row[where], text)


def _spells(flags: Bools) -> Iterator[tuple[int, int]]:
    """First and behind the last position of every stretch of true flags."""
    bounds = np.flatnonzero(np.diff(flags.astype(np.int8), prepend=0, append=0))
    yield from zip(bounds[0::2].tolist(), bounds[1::2].tolist(), strict=True)


def _outlying(rows: EngineRows, table: LogTable) -> Iterator[EngineFault]:
    block = step_blocks(rows, rows.fresh, MOST_BLOCK_ROWS)
    # where half of the rows are off, the median may be one of them
    few, half = (levels(rows, block, share) for share in (_FEW, 0.5))
    usual, relative = (
        np.fmin(of_half, _HALF_OF_FEW * of_few)[block] for of_few, of_half in zip(few, half, strict=True)
    )
    usual = np.maximum(usual, SMALL)
    # one value that only fills a place puts no row off
    means = (rows.fresh_abs - rows.fresh_largest) / np.maximum(rows.fresh, 1)
    # rows whose tokens are less certain differ more: that must not explain it
    times = np.minimum(means / usual, means / uncertainty(rows) / np.maximum(relative, 1e-12) / _BY_UNCERTAINTY)
    counted = rows.fresh >= (_OUTLIER_TOKENS if _is_of_long_rows(rows) else _SHORT_OUTLIER_TOKENS)
    is_off = counted & (times >= OUTLYING)
    low, high = OUTLYING_SHARE
    if not (is_off.sum() >= _LEAST_OUTLIERS and low * counted.sum() <= is_off.sum() <= high * counted.sum()):
        return
    share = f"{100 * is_off.sum() / counted.sum():.1f} %"
    level, usual_level = np.median(means[is_off]), np.median(usual[is_off])
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
    told = ", ".join(trait.text for trait in traits)
    text += f"; what they share: {told}" if told else "; nothing recorded tells them from the others"
    # others of the same kind are of the same engine: weights grow old slowly, and not all rows have fresh tokens
    also = times >= _ALSO_OFF
    for trait in traits[:1]:
        like = trait.has[rows.row]
        if also[since & like].mean() >= _SURELY_SHARED:
            is_off[first : last + 1] |= like[first : last + 1]
    yield EngineFault(Fault.OUTLYING, rows.row[is_off], text)


def _is_of_long_rows(rows: EngineRows) -> bool:
    """Whether rows that are long enough to be judged by themselves have most of the fresh tokens."""
    return 2 * rows.fresh[rows.fresh >= _OUTLIER_TOKENS].sum() >= rows.fresh.sum()


def _ratio_off(rows: EngineRows, _: LogTable) -> Iterator[EngineFault]:
    block = step_blocks(rows, rows.fresh, 1)
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
        missing = 1 - own.fresh_ratio.sum() / own.fresh.sum()
        zeros = missing * own.tokens.sum() if missing > 0 else np.inf
        yield EngineFault(Fault.RATIO, own.row, text, zeros=float(zeros))
        return


def _ratio_text(rows: EngineRows, who: str) -> str:
    """The mean ratio of fresh tokens, and what it speaks for."""
    tokens = rows.fresh.sum()
    ratio, squared = rows.fresh_ratio.sum() / tokens, rows.fresh_squared.sum() / tokens
    text = f"the mean ratio of trainer to engine is {ratio:.3g}"
    if 1 - ratio > RATIO_OFF and squared / ratio**2 - 1 < _STEADY:
        return f"{text}, about the same for all: the engine's seem renormalised, as by top-p, top-k or a temperature"
    return f"{text}: {who} other weights, or the values are of other tokens"


def _deviation(rows: EngineRows, block: Int64s) -> tuple[Floats, Bools]:
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

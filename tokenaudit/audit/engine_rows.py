"""The rows with log-probabilities of both sides, as sums over their tokens, and what lies about the same among them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple, cast

import numpy as np

from tokenaudit.audit.differences import PAIR_SUMS, Differences
from tokenaudit.audit.offpolicy import trained_ages
from tokenaudit.audit.table import LogTable
from tokenaudit.log.columns import Bools, Floats, Int64s

ROW_TOKENS = 8
"""Tokens of a row before its own mean counts."""
SMALL = 1e-3
"""A level of |difference| below it is that of engines that compute alike; it counts as this much."""
LEAST_TOKENS = 10_000
"""Tokens from which on a task is judged by itself; smaller tasks are judged together."""
MOST_BLOCK_ROWS = 64
"""Rows that a block of consecutive steps holds at least, in a long log."""
_BLOCK_TOKENS, _LEAST_BLOCK_ROWS = 1_000, 8
"""Tokens and rows that a block holds at least; of rows a twentieth of all, within these bounds."""


class EngineRows(NamedTuple):
    """Rows with both log-probabilities, in log order; sums over trainable tokens, fresh ones being of staleness 0.

    `aged` to `equal` leave out tokens with 0 on both sides, of which nothing can be told: those of staleness 1 or more,
    those of them that are equal, those that had that staleness when they were put, and all and those that are equal.
    `pairs` has the shape [12 x rows].
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
    old: Floats
    known: Floats
    equal: Floats
    pairs: Floats

    def only(self, chosen: Bools) -> EngineRows:
        """Some of the rows."""
        if chosen.all():
            return self
        at = np.flatnonzero(chosen)
        return EngineRows(*(cast("Any", column.take(at, axis=-1)) for column in self))


def engine_rows(table: LogTable, found: Differences, train_step: Int64s) -> EngineRows:
    """The rows that have differences; the arguments are those of `offpolicy.trained_ages`, and the table of the log."""
    rows, index = np.unique(found.row, return_inverse=True)
    age = trained_ages(found, train_step)
    informative, equal = found.tokens - found.sure, found.equal - found.sure

    def by_row(values: Floats | Int64s, where: Bools) -> Floats:
        return np.bincount(index[where], values[where], minlength=len(rows)).astype(np.float64, copy=False)

    is_known, is_fresh, is_aged = age >= -1, age == 0, age >= 1
    is_old = is_aged & (trained_ages(found, table["train_step"]) >= 1)
    pairs = np.zeros((len(PAIR_SUMS), len(rows)))
    pairs[:, np.searchsorted(rows, found.pair_rows)] = found.pairs
    return EngineRows(
        row=rows, task=table["task"][rows], step=table["train_step"][rows],
        tokens=by_row(found.tokens, is_known), fresh=by_row(found.tokens, is_fresh),
        fresh_abs=by_row(found.abs_delta, is_fresh), fresh_largest=by_row(found.largest, is_fresh),
        fresh_ratio=by_row(found.ratio, is_fresh), fresh_squared=by_row(found.squared_ratio, is_fresh),
        aged=by_row(informative, is_aged), aged_equal=by_row(equal, is_aged),
        old=by_row(informative, is_old),
        known=by_row(informative, is_known), equal=by_row(equal, is_known), pairs=pairs,
    )  # fmt: skip


def task_parts(rows: EngineRows, measure: str) -> Iterator[EngineRows]:
    """The rows of every task with enough tokens of a measure, and those of all others if they have enough together."""
    sums = np.bincount(rows.task, getattr(rows, measure), minlength=1)
    is_large = sums >= LEAST_TOKENS
    for task in np.flatnonzero(is_large).tolist():
        yield rows.only(rows.task == task)
    if sums[~is_large].sum() >= LEAST_TOKENS:
        yield rows.only(~is_large[rows.task])


def step_blocks(rows: EngineRows, weights: Floats, least_rows: int) -> Int64s:
    """A number for each row, rising with the steps: rows of a block have enough tokens together, and are enough."""
    heads = np.flatnonzero(np.diff(rows.step, prepend=rows.step[0] - 1))
    tokens = np.add.reduceat(weights, heads)
    counted = np.add.reduceat(weights >= _row_tokens(weights), heads, dtype=np.int64)
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


def least_rows(rows: EngineRows) -> int:
    """Rows that a block must hold: a twentieth of all, within bounds."""
    return min(max(int((rows.fresh >= _row_tokens(rows.fresh)).sum()) // 20, _LEAST_BLOCK_ROWS), MOST_BLOCK_ROWS)


def levels(rows: EngineRows, block: Int64s, share: float) -> tuple[Floats, Floats]:
    """By block, below what a share of the rows lies: the mean |difference| of fresh tokens, and it by uncertainty.

    The second is about the same for rows that the model is sure of and for others.
    """
    counted = np.flatnonzero(rows.fresh >= _row_tokens(rows.fresh))
    own, blocks = block[counted], int(block.max()) + 1
    means = rows.fresh_abs[counted] / rows.fresh[counted]
    ends = np.cumsum(np.bincount(own, minlength=blocks))
    begins = np.append(0, ends[:-1])
    is_filled = ends > begins
    at = (begins + np.floor(share * (ends - begins)).astype(np.int64))[is_filled]

    def level(values: Floats) -> Floats:
        found = np.full(blocks, np.nan)
        found[is_filled] = values[np.lexsort((values, own))][at]
        return found

    return level(means), level(means / uncertainty(rows)[counted])


def _row_tokens(tokens: Floats) -> float:
    """Tokens of a row before its own mean counts, given those of all rows; fewer where most rows are short."""
    filled = tokens[tokens > 0]
    return min(ROW_TOKENS, float(np.median(filled))) if len(filled) else ROW_TOKENS


def uncertainty(rows: EngineRows) -> Floats:
    """By row, the mean |log-probability| of the engine's, at least `SMALL`: what is less certain differs more."""
    return np.maximum(np.abs(rows.pairs[PAIR_SUMS.index("x")]) / np.maximum(rows.pairs[0], 1), SMALL)


def growth(levels: Floats) -> Floats:
    """Times the least of the blocks before."""
    levels = np.maximum(levels, 1e-12)
    return levels / np.fmin.accumulate(np.append(levels[0], levels[:-1]))

"""Log-probabilities of a batch, each column by itself: odd values, and zeros by place, per row."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from tokenaudit.audit.contents import Arrays
from tokenaudit.corrections.logprobs import BOTH, SENTINEL, with_nan
from tokenaudit.log import columns as col
from tokenaudit.log.columns import Bools, Int64s, Lists
from tokenaudit.log.row_checks import BatchColumns

POSITIVE_LOGPROB = 0.01
"""Log-probabilities above it are no rounding of 0."""
SURE_LOGPROB = -0.001
"""A model is sure of tokens above it, so that the other side may well say exactly 0."""
_CHUNK = 65_536
ZERO_RUN = 3
"""Zero log-probabilities side by side that look like fill values."""


class Logprobs(NamedTuple):
    """A column of log-probabilities, flattened, null elements as NaN; its smallest and largest value.

    Both are NaN where a value is, and 0 where there is none.
    """

    lists: Lists
    low: float
    high: float

    @property
    def is_plain(self) -> bool:
        """Whether all of them are log-probabilities, or at least finite ones above the sentinels."""
        return self.low > -SENTINEL and self.high < SENTINEL


def read_logprobs(columns: BatchColumns) -> dict[str, Logprobs]:
    """The columns of log-probabilities that a batch has."""
    found = {n: with_nan(columns.lists(n), columns.array(n)) for n in BOTH if columns.array(n) is not None}
    return {name: Logprobs(lists, *_range(lists.values)) for name, lists in found.items()}


def _range(values: np.ndarray[Any, Any]) -> tuple[float, float]:
    """The smallest and the largest value; NaN where one is NaN, 0 without values."""
    if len(values) == 0:
        return 0, 0
    # so many at a time stay in the cache of a core between the two
    chunks = [values[at : at + _CHUNK] for at in range(0, len(values), _CHUNK)]
    lows, highs = zip(*((chunk.min(), chunk.max()) for chunk in chunks), strict=True)
    return float(np.min(lows)), float(np.max(highs))


def scan_logprobs(columns: BatchColumns, logprobs: Mapping[str, Logprobs]) -> Arrays:
    """Per row, for each column that the batch has: what is odd about its values, and where they are exactly 0.

    Under the name of the column: `_len` (entries, -1 for a null list), `_null`, `_nan`, `_inf`, `_sentinel` (odd values
    of each kind), `_odd_trained` (trainable odd ones), `_positive`, `_zeros` (trainable tokens in runs of zeros),
    `_zero` (trainable zeros), `_zero_last`, `_zero_first`, `_zero_end` (those at the end of the row, right behind
    masked tokens, and right before them) and `_only_zero` (1 where the only token has 0). Zeros don't count where the
    other side says that the model was sure, but is not exactly 0 itself; for each of the places, `_both_last` and so on
    are those that are 0 on both sides, and `_sure_last` and so on those that don't count. Of the mask, `edges_first`
    and `edges_end`: places of the last two kinds.
    """
    arrays: Arrays = {}
    for name, own in logprobs.items():
        others = [other.lists for other_name, other in logprobs.items() if other_name != name]
        arrays |= _of_column(columns, name, own, others[0] if others else None)
    if logprobs:
        lengths = next(iter(logprobs.values())).lists.lengths
        arrays |= _edges(told_mask(columns, lengths), columns.rows)
    return arrays


def _of_column(columns: BatchColumns, name: str, logprobs: Logprobs, other: Lists | None) -> Arrays:
    rows, array = columns.rows, columns.batch.columns[name]
    counts = (
        "null", "nan", "inf", "sentinel", "odd_trained", "zeros", "positive", "zero", "zero_last", "zero_first",
        "zero_end", "only_zero", "both_last", "both_first", "both_end", "sure_last", "sure_first", "sure_end",
    )  # fmt: skip
    arrays: Arrays = {f"{name}_len": col.list_lengths(array, rows)}
    arrays |= {f"{name}_{what}": np.zeros(rows, dtype=np.int64) for what in counts}
    if array.type == pa.null():
        return arrays
    own, high, is_plain = logprobs.lists, logprobs.high, logprobs.is_plain
    values, lengths = own.values, own.lengths
    if len(values) == 0 or (is_plain and high < 0):
        return arrays
    ends = np.cumsum(lengths)
    mask = told_mask(columns, lengths)

    def count(what: str, positions: Int64s) -> None:
        arrays[f"{name}_{what}"] = np.bincount(np.searchsorted(ends, positions, side="right"), minlength=rows)

    if not is_plain:
        is_null = np.zeros(len(values), dtype=np.bool_)
        if columns.lists(name).null_element_rows.size:
            is_null = col.nulls(array.flatten())
        odd = {
            "null": is_null,
            "nan": np.isnan(values) & ~is_null,
            "inf": np.isinf(values),
            "sentinel": (np.abs(values) >= SENTINEL) & np.isfinite(values),
        }
        for what, where in odd.items():
            count(what, np.flatnonzero(where))
        bad = np.flatnonzero(np.logical_or.reduce(list(odd.values())))
        count("odd_trained", bad[aligned_mask(mask, lengths, len(values))[bad]])
    if not high <= POSITIVE_LOGPROB:
        count("positive", np.flatnonzero((values > POSITIVE_LOGPROB) & np.isfinite(values)))
    zeros = np.flatnonzero(values == 0.0)
    if len(zeros):
        _count_zeros(arrays, name, zeros, own, mask, other)
    return arrays


def _count_zeros(arrays: Arrays, name: str, zeros: Int64s, own: Lists, mask: Lists, other: Lists | None) -> None:
    rows, lengths = len(own.lengths), own.lengths
    ends = np.cumsum(lengths)
    owner = np.searchsorted(ends, zeros, side="right")
    is_sure = is_above_0 = np.zeros(len(zeros), dtype=np.bool_)
    if other is not None:
        fits = other.lengths[owner] == lengths[owner]
        shift = (np.cumsum(other.lengths) - ends)[owner]
        beside = np.full(len(zeros), -np.inf)
        beside[fits] = other.values[(zeros + shift)[fits]]
        is_sure = beside > SURE_LOGPROB
        # exactly 0 on both sides may be one fill value as well
        is_above_0 = is_sure & (beside != 0)
    trained = aligned_mask(mask, lengths, len(own.values)) if len(mask.values) else None
    is_trained = np.ones(len(zeros), dtype=np.bool_) if trained is None else trained[zeros]

    def count(what: str, where: Bools | Int64s) -> None:
        arrays[f"{name}_{what}"] = np.bincount(owner[where], minlength=rows)

    count("only_zero", (lengths[owner] == 1) & ~is_above_0)
    runs = np.flatnonzero(is_trained & ~is_sure)
    count("zeros", runs[_in_long_runs(zeros[runs], owner[runs])])
    counted = is_trained & ~is_above_0
    last = zeros == ends[owner] - 1
    count("zero", counted)
    places = {"last": last}
    if trained is not None:
        first = zeros == (ends - lengths)[owner]
        behind, before = (np.clip(zeros + step, 0, len(trained) - 1) for step in (-1, 1))
        places |= {"first": ~first & ~trained[behind], "end": ~last & ~trained[before]}
    for place, where in places.items():
        count(f"zero_{place}", counted & where)
        count(f"both_{place}", counted & is_sure & where)
        count(f"sure_{place}", is_trained & is_above_0 & where)


def _in_long_runs(positions: Int64s, owner: Int64s) -> Bools:
    """Which positions, ascending, belong to runs of at least `ZERO_RUN` side by side in one row."""
    if len(positions) == 0:
        return np.zeros(0, dtype=np.bool_)
    begins = np.ones(len(positions), dtype=np.bool_)
    begins[1:] = (np.diff(positions) != 1) | (np.diff(owner) != 0)
    run = np.cumsum(begins) - 1
    return np.bincount(run)[run] >= ZERO_RUN


def _edges(mask: Lists, rows: int) -> Arrays:
    """Per row, trainable tokens right behind masked ones, and right before them."""
    values = mask.values
    if len(values) == 0:
        return {name: np.zeros(rows, dtype=np.int64) for name in ("edges_first", "edges_end")}
    ends = np.cumsum(mask.lengths)
    changes = np.flatnonzero(values[1:] != values[:-1]) + 1
    owner = np.searchsorted(ends, changes, side="right")
    inside = changes != (ends - mask.lengths)[owner]
    changes, owner = changes[inside], owner[inside]
    rises = values[changes] != 0
    return {
        "edges_first": np.bincount(owner[rises], minlength=rows),
        "edges_end": np.bincount(owner[~rises], minlength=rows),
    }


def told_mask(columns: BatchColumns, lengths: Int64s) -> Lists:
    """The semantic mask of a batch, with that of recorded runs where each is trained as a whole or not at all.

    Args:
        columns: the batch.
        lengths: elements per row of a list of tokens; runs that don't add up to them tell nothing.
    """
    mask, recorded = columns.mask, columns.recorded_runs
    if recorded is None:
        return mask
    owner, tokens, trainable = recorded.owner, recorded.tokens, recorded.trainable
    is_clear = (tokens > 0) & (tokens <= lengths[owner]) & ((trainable == 0) | (trainable == tokens))
    told = recorded.has_runs & mask.is_null & (recorded.sums == lengths) & (lengths > 0)
    told &= np.bincount(owner, ~is_clear, minlength=columns.rows) == 0
    joined = np.where(told, lengths, mask.lengths)
    of_runs, chosen = np.repeat(told, joined), told[owner]
    values = np.zeros(len(of_runs), dtype=np.bool_)
    values[of_runs] = np.repeat(trainable[chosen] > 0, tokens[chosen])
    values[~of_runs] = mask.values != 0
    return Lists(values, joined, mask.is_null & ~told, mask.null_element_rows)


def aligned_mask(mask: Lists, lengths: Int64s, elements: int) -> Bools:
    """Whether each element of lists of `lengths` is trainable; a mask of another length counts as all ones."""
    trained = np.ones(elements, dtype=np.bool_)
    fits = (mask.lengths == lengths) & ~mask.is_null
    if fits.all():
        return mask.values != 0
    target = np.repeat(fits, lengths)
    trained[target] = mask.values[np.repeat(fits, mask.lengths)] != 0
    return trained

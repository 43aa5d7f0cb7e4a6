"""Version runs that a log stores itself, in place of a version and a mask entry per token."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from tokenaudit.contracts.schema import VERSION_RUNS
from tokenaudit.log.columns import Bools, Int64s, Lists, integers, nulls
from tokenaudit.log.faults import BatchFaults, FaultKind
from tokenaudit.log.version_runs import MISSING_VERSION, Runs, run_heads

_NO_VERSION = -(2**63)
"""Stands for a null version: no accepted value equals it."""
_LARGEST = 2**31 - 1


class GivenRuns(NamedTuple):
    """The run column of a batch of rows, flattened.

    Attributes:
        model_step: version of each run, int64; `_NO_VERSION` where null.
        tokens: length of each run, int64.
        trainable: tokens of each run whose semantic mask is not 0, int64.
        lengths: runs per row, int64 of shape [rows].
        has_runs: whether a row gives runs, of shape [rows]; an empty list does.
        null_rows: rows with a null run, or a run without its tokens.
        sums: tokens per row, int64 of shape [rows]; -1 for rows that give no runs.
    """

    model_step: Int64s
    tokens: Int64s
    trainable: Int64s
    lengths: Int64s
    has_runs: Bools
    null_rows: Int64s
    sums: Int64s

    @property
    def is_versioned(self) -> Bools:
        """Which runs have a version."""
        return self.model_step != _NO_VERSION


def given_runs(array: pa.Array | None, rows: int) -> GivenRuns | None:
    """The run column; None where no row gives runs."""
    if array is None or array.null_count == rows:
        return None
    listed: Any = array
    lengths = integers(listed.value_lengths(), rows, fill=0)
    runs = listed.flatten()
    count = len(runs)
    model_step = integers(runs.field("model_step"), count, fill=_NO_VERSION)
    tokens, trainable = (integers(runs.field(name), count, fill=0) for name in ("tokens", "trainable"))
    is_null = nulls(runs) | nulls(runs.field("tokens")) | nulls(runs.field("trainable"))
    owner = np.repeat(np.arange(rows), lengths)
    sums = np.zeros(rows, dtype=np.int64)
    np.add.at(sums, owner, np.clip(tokens, 0, _LARGEST))
    has_runs = ~nulls(array)
    null_rows = np.unique(owner[is_null])
    return GivenRuns(model_step, tokens, trainable, lengths, has_runs, null_rows, np.where(has_runs, sums, -1))


def check_runs(
    given: GivenRuns,
    versions: Lists,
    mask: Lists,
    lengths: Int64s,
    is_put: Bools,
    faults: BatchFaults,
    *,
    allow_missing_versions: bool,
) -> None:
    """Note what is wrong with the runs of put rows; `lengths` are the tokens of each row, -1 where unknown."""
    rows = len(is_put)
    where = is_put & given.has_runs
    holds_null = np.zeros(rows, dtype=np.bool_)
    holds_null[given.null_rows] = True
    faults.add(FaultKind.NULL_ELEMENT, VERSION_RUNS, where & holds_null, lambda _: f"{VERSION_RUNS} holds a null")
    is_versioned = given.is_versioned
    is_bad = (given.tokens < 1) | (given.tokens > _LARGEST)
    is_bad |= (given.trainable < 0) | (given.trainable > given.tokens)
    is_bad |= is_versioned & ((given.model_step < 0) | (given.model_step > _LARGEST))
    owner = np.repeat(np.arange(rows), given.lengths)

    def any_of(is_wrong: Bools) -> Bools:
        found = np.zeros(rows, dtype=np.bool_)
        found[owner[is_wrong]] = True
        return found

    def first_bad(row: int) -> str:
        run = int(np.flatnonzero(is_bad & (owner == row))[0])
        version = given.model_step[run] if is_versioned[run] else "null"
        return f"a run of version {version} with {given.tokens[run]} tokens, {given.trainable[run]} trainable"

    bad = where & ~holds_null & any_of(is_bad)
    faults.add(FaultKind.BAD_RUN, VERSION_RUNS, bad, first_bad)
    beside = where & ~(versions.is_null & mask.is_null)
    faults.add(
        FaultKind.RUNS_BESIDE_TOKENS,
        VERSION_RUNS,
        beside,
        lambda _: "runs beside response_model_steps or response_mask",
    )
    faults.add(
        FaultKind.RUNS_LENGTH,
        VERSION_RUNS,
        where & ~bad & ~holds_null & (lengths >= 0) & (given.sums != lengths),
        lambda row: f"runs of {given.sums[row]} tokens for {lengths[row]} tokens",
    )
    if not allow_missing_versions:
        faults.add(
            FaultKind.TOO_FEW_VERSIONS,
            VERSION_RUNS,
            where & ~holds_null & any_of(~is_versioned),
            lambda _: "a run without a version",
        )


def with_given_runs(given: GivenRuns, good: Bools, reduced: Runs) -> Runs:
    """The runs of all faultless rows, in order.

    Args:
        given: the run column.
        good: the faultless put rows, of shape [rows].
        reduced: runs of those rows that don't give any, told from their tokens.
    """
    own = _merged(given, good & given.has_runs)
    is_own = given.has_runs[good]
    counts = np.empty(len(is_own), dtype=np.int64)
    counts[is_own] = own.counts
    counts[~is_own] = reduced.counts
    from_own = np.repeat(is_own, counts)

    def woven(ours: np.ndarray[Any, Any], others: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        values = np.empty(len(from_own), dtype=np.int32)
        values[from_own] = ours
        values[~from_own] = others
        return values

    return Runs(
        counts,
        woven(own.model_step, reduced.model_step),
        woven(own.tokens, reduced.tokens),
        woven(own.trainable, reduced.trainable),
    )


def _merged(given: GivenRuns, chosen: Bools) -> Runs:
    """The runs of some rows, neighbours of one version made one: a log may split them."""
    kept = np.repeat(chosen, given.lengths)
    lengths = given.lengths[chosen]
    model_step = given.model_step[kept]
    heads = run_heads(model_step, lengths)
    tokens, trainable = given.tokens[kept], given.trainable[kept]
    if len(heads):
        tokens, trainable = (np.add.reduceat(values, heads) for values in (tokens, trainable))
    owner = np.repeat(np.arange(len(lengths)), lengths)
    head_versions = model_step[heads]
    return Runs(
        counts=np.bincount(owner[heads], minlength=len(lengths)).astype(np.int64),
        model_step=np.where(head_versions == _NO_VERSION, MISSING_VERSION, head_versions).astype(np.int32),
        tokens=tokens.astype(np.int32),
        trainable=trainable.astype(np.int32),
    )

"""One batch of rows, reduced to a few numbers per row; everything that looks at single tokens is here.

A scan remembers nothing, so threads may scan batches in any order.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from tokenaudit.audit.contents import Arrays, id_numbers, logprob_numbers
from tokenaudit.audit.differences import Differences, differences
from tokenaudit.audit.logprobs import aligned_mask, read_logprobs, scan_logprobs, told_mask
from tokenaudit.contracts.schema import EventKind
from tokenaudit.log import columns as col
from tokenaudit.log.columns import Int64s
from tokenaudit.log.digest import KIND_CODE, UNKNOWN_CODE
from tokenaudit.log.faults import BatchFaults, FaultKind
from tokenaudit.log.row_checks import BatchColumns, RowNumbers
from tokenaudit.log.structural_checks import check_runs
from tokenaudit.log.version_runs import RecordedRuns

RUN_FAULTS = (FaultKind.NULL_ELEMENT, FaultKind.BAD_RUN, FaultKind.RUNS_BESIDE_TOKENS, FaultKind.RUNS_LENGTH)
"""What can be wrong with the runs of a row; a row's code is the position in this list, from 1."""

_PUT = KIND_CODE[EventKind.PUT]
_TEXTS_KEPT = 20
_INTEGERS = (
    "event_id", "train_step", "model_step", "group_id", "rollout_id", "batch_size", "response_len", "prior_len",
    "prompt_len", "experts_len", "tool_turns", "seq_staleness", "start_model_step", "loss_tokens",
)  # fmt: skip


class Scanned(NamedTuple):
    """One batch, reduced: numbers per row, by name, and names of tasks and finish reasons by their codes in the batch.

    `first_row` is its first row in the log. `texts` are the first few unknown events and statuses, by column and row.
    `differences` are those of its log-probabilities; None where it lacks a column.
    """

    first_row: int
    arrays: Arrays
    tasks: tuple[str, ...]
    reasons: tuple[str | None, ...]
    texts: dict[tuple[str, int], str]
    differences: Differences | None = None

    @property
    def rows(self) -> int:
        """Its rows."""
        return len(self.arrays["kind"])


def scan_batch(columns: BatchColumns, epsilon: float) -> Scanned:
    """Reduce a batch to numbers per row; `epsilon` is half the width of the range that ratios should be in."""
    rows, batch = columns.rows, columns.batch
    texts: dict[tuple[str, int], str] = {}
    reasons: dict[str | None, int] = {}
    arrays: Arrays = {name: columns.integers(name) for name in _INTEGERS if name in columns.batch.columns}
    arrays |= {"kind": columns.kind, "status": columns.status, "task": columns.tasks[0], "tokens": columns.tokens}
    for name, codes in (("event", columns.kind), ("status", columns.status)):
        for row in np.flatnonzero(codes == UNKNOWN_CODE)[:_TEXTS_KEPT].tolist():
            texts[name, row] = col.text_at(batch.columns[name], row)
    arrays["finish_reason"] = col.text_codes(
        columns.array("finish_reason"), rows, lambda text: reasons.setdefault(text, len(reasons))
    )
    reward = col.reals(columns.array("reward"), rows)
    arrays["reward"] = np.where(np.isfinite(reward), reward, np.nan)
    arrays["agentic"] = col.flags(columns.array("agentic"), rows)
    arrays |= _versions(columns)
    arrays |= _mask(columns, arrays.get("prior_len"))
    if columns.recorded_runs is not None:
        _overlay_runs(arrays, columns.recorded_runs, columns)
    if "response_ids" in columns.batch.columns:
        ids, logprobs = columns.lists("response_ids"), columns.lists("logprobs")
        has_reason = arrays["finish_reason"] != reasons.get(None, -1)
        arrays |= id_numbers(
            ids, told_mask(columns, ids.lengths), logprobs, arrays.get("prior_len"), arrays["kind"] == _PUT, has_reason
        )
    if "trained_mask" in columns.batch.columns:
        arrays["trained_mask_len"] = col.list_lengths(columns.array("trained_mask"), rows)
    if "logprobs" in batch.columns:
        arrays |= logprob_numbers(columns.lists("logprobs"))
    logprobs = read_logprobs(columns)
    arrays |= scan_logprobs(columns, logprobs)
    found = differences(columns, logprobs, epsilon)
    return Scanned(batch.first_row, arrays, columns.tasks[1], tuple(reasons), texts, found)


def _starts(lengths: Int64s) -> Int64s:
    return np.cumsum(lengths) - lengths


def _zeros(names: Iterable[str], rows: int) -> Arrays:
    return {name: np.zeros(rows, dtype=np.int64) for name in names}


def _versions(columns: BatchColumns) -> Arrays:
    """Per row: entries (-1 for a null list), oldest, newest, falls from token to token, negative ones."""
    versions, mask, rows = columns.versions, columns.mask, columns.rows
    values = versions.values
    oldest, newest = columns.version_spans
    arrays: Arrays = {
        "versions_len": np.where(versions.is_null, -1, versions.lengths),
        "versions_null": versions.has_null_element,
        # changed where runs are recorded
        "oldest": oldest.copy(),
        "newest": newest.copy(),
        **_zeros(("version_falls", "negative", "negative_trained"), rows),
    }
    if len(values) == 0:
        return arrays
    filled = np.flatnonzero(versions.lengths)
    starts = _starts(versions.lengths)
    heads = columns.version_heads
    runs = values[heads].astype(np.int64)
    first_run = np.searchsorted(heads, starts[filled])
    falls = runs[1:] < runs[:-1]
    falls[first_run[1:] - 1] = False
    if falls.any():
        owner = np.searchsorted(starts, heads[1:][falls], side="right") - 1
        arrays["version_falls"] = np.bincount(owner, minlength=rows)
    if runs.min() < 0:
        owner = np.repeat(np.arange(rows), versions.lengths)
        is_negative = values < 0
        arrays["negative"] = np.bincount(owner[is_negative], minlength=rows)
        is_trained = is_negative & aligned_mask(mask, versions.lengths, len(values))
        arrays["negative_trained"] = np.bincount(owner[is_trained], minlength=rows)
    return arrays


def _mask(columns: BatchColumns, prior_len: Int64s | None) -> Arrays:
    """Per row: entries (-1 for a null mask), ones, ones among the prior tokens, and whether there is anything else."""
    mask, rows = columns.mask, columns.rows
    values = mask.values
    arrays: Arrays = {
        "mask_len": np.where(mask.is_null, -1, mask.lengths),
        "mask_null": mask.has_null_element,
        "mask_odd": np.zeros(rows, dtype=np.bool_),
        **_zeros(("mask_ones", "prior_ones"), rows),
    }
    if len(values) == 0:
        return arrays
    if values.dtype != np.bool_ and (values.min() < 0 or values.max() > 1):
        owner = np.repeat(np.arange(rows), mask.lengths)
        arrays["mask_odd"][owner[(values != 0) & (values != 1)]] = True
    prior = np.zeros(rows, dtype=np.int64) if prior_len is None else np.clip(prior_len, 0, mask.lengths)
    parts = np.stack([prior, mask.lengths - prior], axis=1).reshape(-1)
    filled = np.flatnonzero(parts)
    ones = np.zeros(len(parts), dtype=np.int64)
    ones[filled] = columns.mask_ones.between(_starts(parts)[filled])
    arrays["prior_ones"] = ones[0::2]
    arrays["mask_ones"] = ones[0::2] + ones[1::2]
    return arrays


def _overlay_runs(arrays: Arrays, recorded: RecordedRuns, columns: BatchColumns) -> None:
    """Put what recorded runs say in the place of what rows without versions and masks say.

    New are `runs_fault` (0: none, else see `RUN_FAULTS`), `runs_sum` (tokens of all runs) and `runs_unversioned`
    (tokens of runs without a version).
    """
    rows, tokens, batch = columns.rows, arrays["tokens"], columns.batch
    faults = BatchFaults(batch.places, rows)
    is_beside = ~(columns.versions.is_null & columns.mask.is_null)
    check_runs(recorded, RowNumbers(arrays, {}), is_beside, faults, allow_missing_versions=True)
    code = np.zeros(rows, dtype=np.int64)
    for number, kind in enumerate(RUN_FAULTS, 1):
        code[faults.where(kind) & (code == 0)] = number
    good = recorded.has_runs & (code == 0)
    owner = recorded.owner
    has_version = recorded.is_versioned
    arrays["runs_fault"], arrays["runs_sum"] = code, recorded.sums
    arrays["runs_unversioned"] = np.where(good, _run_sums(owner, np.where(has_version, 0, recorded.tokens), rows), 0)
    # Of a damaged row nothing is known; one finding is enough.
    arrays["versions_len"] = np.where(good, recorded.sums, np.where(code > 0, tokens, arrays["versions_len"]))
    used = good[owner] & has_version
    for name, first_of in (("oldest", np.minimum), ("newest", np.maximum)):
        values = np.full(rows, np.iinfo(np.int64).max if name == "oldest" else np.iinfo(np.int64).min)
        first_of.at(values, owner[used], recorded.model_step[used])
        arrays[name][good] = np.where(np.bincount(owner[used], minlength=rows) > 0, values, arrays[name])[good]
    falls = (recorded.model_step[1:] < recorded.model_step[:-1]) & used[1:] & used[:-1] & (owner[1:] == owner[:-1])
    arrays["version_falls"][good] = np.bincount(owner[1:][falls], minlength=rows)[good]
    arrays["mask_len"][good] = recorded.sums[good]
    arrays["mask_ones"][good] = _run_sums(owner, recorded.trainable, rows)[good]
    prior = np.clip(arrays["prior_len"], 0, None) if "prior_len" in arrays else np.zeros(rows, dtype=np.int64)
    starts = np.cumsum(recorded.tokens) - recorded.tokens
    first_run = np.cumsum(recorded.lengths) - recorded.lengths
    position = starts - np.append(starts, 0)[first_run][owner]
    # Where prior_len cuts a run that holds both kinds of tokens, as many as possible count as trainable.
    ones = np.minimum(np.clip(prior[owner] - position, 0, recorded.tokens), recorded.trainable)
    arrays["prior_ones"][good] = _run_sums(owner, ones, rows)[good]


def _run_sums(owner: Int64s, values: Int64s, rows: int) -> Int64s:
    sums = np.zeros(rows, dtype=np.int64)
    np.add.at(sums, owner, values)
    return sums

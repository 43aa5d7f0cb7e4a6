"""One batch of rows, reduced to a few numbers per row; everything that looks at single tokens is here.

A scan remembers nothing, so threads may scan batches in any order.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from tokenaudit.audit.scan_runs import overlay_runs
from tokenaudit.contracts.schema import EventKind
from tokenaudit.log import columns as col
from tokenaudit.log.batch_columns import BatchColumns
from tokenaudit.log.columns import Bools, Int64s, Lists
from tokenaudit.log.digest import KIND_CODE, UNKNOWN_CODE
from tokenaudit.log.version_runs import Ones

Arrays = dict[str, np.ndarray[Any, Any]]

SENTINEL_LOGPROB = -1000.0
"""Log-probabilities below it stand for something else."""
POSITIVE_LOGPROB = 0.01
"""Log-probabilities above it are no rounding of 0."""
PAD_RUN = 3
"""Equal token ids at the end of a response that look like padding, and zero log-probabilities like fill values."""

_PUT = KIND_CODE[EventKind.PUT]
_TEXTS_KEPT = 20
_INTEGERS = (
    "event_id", "train_step", "model_step", "group_id", "rollout_id", "batch_size", "response_len", "prior_len",
    "prompt_len", "experts_len", "tool_turns", "seq_staleness", "start_model_step", "loss_tokens",
)  # fmt: skip


class Scanned(NamedTuple):
    """One batch, reduced.

    Attributes:
        path: its file.
        first_row: its first row in that file.
        arrays: per row, by name; see `tokenaudit.audit.table`.
        tasks: task names by code in the batch.
        reasons: finish reasons by code in the batch.
        texts: unknown events and statuses, by column and row of the batch; the first few.
    """

    path: Path
    first_row: int
    arrays: Arrays
    tasks: tuple[str, ...]
    reasons: tuple[str | None, ...]
    texts: dict[tuple[str, int], str]


def scan_batch(columns: BatchColumns) -> Scanned:
    """Reduce a batch to numbers per row."""
    rows, batch = columns.rows, columns.batch
    texts: dict[tuple[str, int], str] = {}
    reasons: dict[str | None, int] = {}
    arrays: Arrays = {name: columns.integers(name) for name in _INTEGERS if name in columns}
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
    mask = columns.mask
    arrays |= _versions(columns)
    arrays |= _mask(columns, arrays.get("prior_len"))
    if columns.recorded_runs is not None:
        overlay_runs(arrays, columns.recorded_runs, columns)
    if "response_ids" in columns:
        arrays |= _ids(columns.lists("response_ids"), mask, arrays["kind"] == _PUT)
    if "trained_mask" in columns:
        arrays["trained_mask_len"] = col.list_lengths(columns.array("trained_mask"), rows)
    for name in ("logprobs", "train_logprobs"):
        if name in columns:
            arrays |= _logprobs(name, batch.columns[name], rows, mask)
    return Scanned(batch.path, batch.first_row, arrays, columns.tasks[1], tuple(reasons), texts)


def _starts(lengths: Int64s) -> Int64s:
    return np.cumsum(lengths) - lengths


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
        "version_falls": np.zeros(rows, dtype=np.int64),
        "negative": np.zeros(rows, dtype=np.int64),
        "negative_trained": np.zeros(rows, dtype=np.int64),
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
        is_trained = is_negative & _aligned_mask(mask, versions.lengths, len(values))
        arrays["negative_trained"] = np.bincount(owner[is_trained], minlength=rows)
    return arrays


def _aligned_mask(mask: Lists, lengths: Int64s, elements: int) -> Bools:
    """For lists of `lengths`: whether each element is trainable; rows whose mask has another length count as all ones.

    Args:
        mask: the semantic masks.
        lengths: elements per row, of shape [rows].
        elements: their sum.
    """
    trained = np.ones(elements, dtype=np.bool_)
    fits = (mask.lengths == lengths) & ~mask.is_null
    if fits.all():
        return mask.values != 0
    target = np.repeat(fits, lengths)
    trained[target] = mask.values[np.repeat(fits, mask.lengths)] != 0
    return trained


def _mask(columns: BatchColumns, prior_len: Int64s | None) -> Arrays:
    """Per row: entries (-1 for a null mask), ones, ones among the prior tokens, and whether there is anything else."""
    mask, rows = columns.mask, columns.rows
    values = mask.values
    arrays: Arrays = {
        "mask_len": np.where(mask.is_null, -1, mask.lengths),
        "mask_null": mask.has_null_element,
        "mask_odd": np.zeros(rows, dtype=np.bool_),
        "mask_ones": np.zeros(rows, dtype=np.int64),
        "prior_ones": np.zeros(rows, dtype=np.int64),
    }
    if len(values) == 0:
        return arrays
    if values.dtype != np.bool_ and (values.min() < 0 or values.max() > 1):
        owner = np.repeat(np.arange(rows), mask.lengths)
        arrays["mask_odd"][owner[(values != 0) & (values != 1)]] = True
    prior = np.zeros(rows, dtype=np.int64) if prior_len is None else np.clip(prior_len, 0, mask.lengths)
    parts = np.stack([prior, mask.lengths - prior], axis=1).reshape(-1)
    ones = _sums(columns.mask_ones, parts)
    arrays["prior_ones"] = ones[0::2]
    arrays["mask_ones"] = ones[0::2] + ones[1::2]
    return arrays


def _sums(ones: Ones, lengths: Int64s) -> Int64s:
    """Ones in consecutive parts of a mask."""
    filled = np.flatnonzero(lengths)
    sums = np.zeros(len(lengths), dtype=np.int64)
    sums[filled] = ones.between(_starts(lengths)[filled])
    return sums


def _ids(ids: Lists, mask: Lists, is_put: Bools) -> Arrays:
    """Per row: entries (-1 for a null list), and the run of one id at the end: its length, id, trainable tokens."""
    rows, values = len(ids.lengths), ids.values
    arrays: Arrays = {
        "ids_len": np.where(ids.is_null, -1, ids.lengths),
        "tail_run": np.zeros(rows, dtype=np.int64),
        "tail_id": np.zeros(rows, dtype=np.int64),
        "tail_trained": np.zeros(rows, dtype=np.int64),
    }
    ends, starts, mask_ends = np.cumsum(ids.lengths), _starts(ids.lengths), np.cumsum(mask.lengths)
    candidates = np.flatnonzero(is_put & (ids.lengths >= PAD_RUN))
    last = ends[candidates] - 1
    same = np.ones(len(candidates), dtype=np.bool_)
    for back in range(1, PAD_RUN):
        same &= values[last] == values[last - back]
    for row in candidates[same].tolist():
        own = values[starts[row] : ends[row]]
        others = np.flatnonzero(own != own[-1])
        run = len(own) - (int(others[-1]) + 1 if len(others) else 0)
        fits = not mask.is_null[row] and mask.lengths[row] == ids.lengths[row]
        trained = int((mask.values[mask_ends[row] - run : mask_ends[row]] != 0).sum()) if fits else run
        arrays["tail_run"][row], arrays["tail_id"][row], arrays["tail_trained"][row] = run, int(own[-1]), trained
    return arrays


def _logprobs(name: str, array: pa.Array, rows: int, mask: Lists) -> Arrays:
    """Per row: entries (-1 for a null list), odd values of each kind, trained odd ones, tokens in trained zero runs."""
    lengths = col.list_lengths(array, rows)
    arrays: Arrays = {f"{name}_len": lengths}
    counts = ("null", "nan", "inf", "sentinel", "odd_trained", "zeros", "positive")
    arrays |= {f"{name}_{what}": np.zeros(rows, dtype=np.int64) for what in counts}
    if array.type == pa.null():
        return arrays
    flat = array.flatten()
    lengths = np.maximum(lengths, 0)
    is_null = col.nulls(flat)
    values = flat.fill_null(np.nan).to_numpy(zero_copy_only=False) if flat.null_count else flat.to_numpy()
    odd = {
        "null": is_null,
        "nan": np.isnan(values) & ~is_null,
        "inf": np.isinf(values),
        "sentinel": (values <= SENTINEL_LOGPROB) & np.isfinite(values),
    }
    is_zero = values == 0.0
    is_positive = (values > POSITIVE_LOGPROB) & np.isfinite(values)
    if not is_zero.any() and not is_positive.any() and not any(where.any() for where in odd.values()):
        return arrays
    owner = np.repeat(np.arange(rows), lengths)
    arrays[f"{name}_positive"] = np.bincount(owner[is_positive], minlength=rows)
    trained = _aligned_mask(mask, lengths, len(values))
    for what, where in odd.items():
        arrays[f"{name}_{what}"] = np.bincount(owner[where], minlength=rows)
    bad = np.logical_or.reduce(list(odd.values()))
    arrays[f"{name}_odd_trained"] = np.bincount(owner[bad & trained], minlength=rows)
    arrays[f"{name}_zeros"] = _long_runs(is_zero & trained, owner, rows)
    return arrays


def _long_runs(flags: Bools, owner: Int64s, rows: int) -> Int64s:
    """Per row, elements in runs of at least `PAD_RUN` true flags."""
    positions = np.flatnonzero(flags)
    if len(positions) == 0:
        return np.zeros(rows, dtype=np.int64)
    begins = np.ones(len(positions), dtype=np.bool_)
    begins[1:] = (np.diff(positions) != 1) | (np.diff(owner[positions]) != 0)
    run = np.cumsum(begins) - 1
    long = np.bincount(run)[run] >= PAD_RUN
    return np.bincount(owner[positions[long]], minlength=rows)

"""Masks into Parquet: the semantic masks are read again in bounded batches, masked, and written in log order."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tokenaudit.contracts import metrics as m
from tokenaudit.contracts.errors import LogError, Problem
from tokenaudit.contracts.schema import VERSION_RUNS
from tokenaudit.log.batches import map_batches
from tokenaudit.log.columns import Int64s, bounded_spans
from tokenaudit.log.files import Log
from tokenaudit.log.log_file import MAX_BATCH_ROWS, MAX_ROW_ELEMENTS
from tokenaudit.log.pieces import LogBatch
from tokenaudit.masks.backends import Backend, Int32s, MaskBatch, Masks, Pending, segment_counts
from tokenaudit.masks.filters import Filtered, Masking
from tokenaudit.masks.plan import MaskPlan
from tokenaudit.masks.semantic import semantic_masks

META_KIND = "tokenaudit.kind"
META_DEVICE = "tokenaudit.device"
META_INPUT = "tokenaudit.input"
META_CONFIG = "tokenaudit.config"
META_CORRECTION = "tokenaudit.correction"
KIND_MASKS = "tokenaudit.masks"

_MASKED_CORRECTION, _LOSS_TOKENS, _WEIGHTS = "masked_correction_tokens", "loss_tokens", "weights"
_AHEAD_BYTES = 64 << 20
_PART_TOKENS = 4_000_000
"""Tokens that are masked at a time."""
_PENDING_BATCHES = 2


@dataclass(slots=True)
class MaskTotals:
    """What was written.

    Attributes:
        responses: rows.
        trained_tokens: tokens whose effective mask is 1.
        masked_stale_tokens: tokens in the loss, but stale.
        masked_semantic_tokens: tokens not in the loss.
        masked_correction_tokens: tokens in the loss, and fresh, that a filter takes out of it.
        unjudged_tokens: tokens in the loss that the filter can't judge, and leaves there.
    """

    responses: int = 0
    trained_tokens: int = 0
    masked_stale_tokens: int = 0
    masked_semantic_tokens: int = 0
    masked_correction_tokens: int = 0
    unjudged_tokens: int = 0


class _Part(NamedTuple):
    """Consecutive entries of a plan, and the mask column of the rows they come from."""

    entries: slice
    pending: Pending


def mask_schema(metadata: dict[str, str], *, filtered: bool = False, weight_type: str | None = None) -> pa.Schema:
    """The columns of a file of masks; with a filter, what it takes away, and its weights where their type is given."""
    fields: dict[str, pa.DataType] = {
        "train_step": pa.int32(),
        "task_name": pa.string(),
        "group_id": pa.int64(),
        "rollout_id": pa.int64(),
        "segment": pa.int32(),
        "effective_mask": pa.list_(pa.int8()),
        m.TRAINED_TOKENS.name: pa.int64(),
        m.MASKED_STALE_TOKENS.name: pa.int64(),
        m.MASKED_SEMANTIC_TOKENS.name: pa.int64(),
        "taken": pa.bool_(),
    }
    if filtered:
        fields |= {_MASKED_CORRECTION: pa.int64(), _LOSS_TOKENS: pa.int64()}
    if weight_type is not None:
        fields[_WEIGHTS] = pa.list_({"float32": pa.float32(), "float64": pa.float64()}[weight_type])
    return pa.schema(list(fields.items()), metadata=metadata)


def write_masks(
    target: BinaryIO,
    log: Log,
    plan: MaskPlan,
    backend: Backend,
    *,
    content_hash: str,
    config: dict[str, Any],
    masking: Masking | None = None,
    with_weights: bool = False,
    on_progress: Callable[[int], None] | None = None,
) -> MaskTotals:
    """Mask the responses of a plan and write them as Parquet, in the order of their rows in the log.

    Args:
        target: the file.
        log: the log that the plan was made from.
        plan: the responses.
        backend: computes the masks.
        content_hash: hash of the digest that the plan was made from, for the metadata.
        config: the resolved config that the plan was made with, for the metadata.
        masking: takes further tokens out of the loss; None: nothing does.
        with_weights: write its weights, too.
        on_progress: called with the number of rows of the log read so far.

    Raises:
        LogError: the log can't be read again, doesn't say which tokens of a response are in the loss, a response is
            longer than any, or the masking can judge no token.
    """
    tokens = plan.tokens()
    longest = int(tokens.max(initial=0))
    if longest > MAX_ROW_ELEMENTS:
        hint = f"masks are made of up to {MAX_ROW_ELEMENTS} tokens per response; leave it out with --task or --step"
        raise LogError(Problem(f"a response of {longest} tokens", log.name, hint))
    metadata = {
        META_KIND: KIND_MASKS,
        META_DEVICE: backend.description,
        META_INPUT: content_hash,
        META_CONFIG: json.dumps(config, ensure_ascii=False),
    }
    if masking is not None:
        metadata[META_CORRECTION] = masking.description
    weight_type = masking.weight_type if masking is not None and with_weights else None
    schema = mask_schema(metadata, filtered=masking is not None, weight_type=weight_type)
    totals = MaskTotals()
    token_filter = None if masking is None else masking.begin(log, plan)
    with pq.ParquetWriter(target, schema, compression="zstd") as writer:
        for part in _computed(log, plan, tokens, backend, on_progress):
            masks = part.pending.result()
            columns = _columns(plan, part.entries, masks)
            if token_filter is not None:
                filtered = token_filter.of(part.entries)
                columns |= _filtered(masks, filtered)
                totals.masked_correction_tokens += int(columns[_MASKED_CORRECTION].sum())
                masks = masks._replace(trained=columns[m.TRAINED_TOKENS.name])
            arrays = [pa.array(columns[name]) for name in schema.names]
            writer.write_batch(pa.record_batch(arrays, schema=schema))
            totals.responses += len(masks.trained)
            totals.trained_tokens += int(masks.trained.sum())
            totals.masked_stale_tokens += int(masks.masked_stale.sum())
            totals.masked_semantic_tokens += int(masks.masked_semantic.sum())
    if masking is not None and token_filter is not None:
        totals.unjudged_tokens = token_filter.unjudged_tokens
        if token_filter.unjudged_tokens and not token_filter.judged_tokens:
            what = f"{masking.description} can judge none of the {totals.unjudged_tokens} tokens in the loss"
            raise LogError(Problem(what, log.name, "`tokenaudit corrections` says why"))
    return totals


def _computed(
    log: Log, plan: MaskPlan, tokens: Int64s, backend: Backend, on_progress: Callable[[int], None] | None
) -> Iterator[_Part]:
    """The parts of a plan; while one is written the next ones are read and computed."""
    waiting: deque[_Part] = deque()
    first_row = 0
    batches = map_batches(
        log,
        ("event_id", "response_mask", VERSION_RUNS),
        lambda batch: batch,
        rows_of=lambda batch: batch.rows,
        weigh=lambda batch: sum(array.nbytes for array in batch.columns.values()),
        limit=_AHEAD_BYTES,
        on_progress=on_progress,
    )
    for batch in batches:
        first, last = np.searchsorted(plan.log_row, [first_row, first_row + batch.rows]).tolist()
        # Version runs are short, however many tokens they stand for, so that a batch of them may hold any number.
        for low, high in bounded_spans(tokens[first:last], MAX_BATCH_ROWS, _PART_TOKENS):
            entries = slice(first + low, first + high)
            waiting.append(_Part(entries, backend.submit(_mask_batch(plan, entries, batch, first_row))))
            if len(waiting) >= _PENDING_BATCHES:
                yield waiting.popleft()
        first_row += batch.rows
    yield from waiting


def _mask_batch(plan: MaskPlan, entries: slice, batch: LogBatch, first_row: int) -> MaskBatch:
    """Some entries of a plan, token by token; their rows are in `batch`, which begins at `first_row` of the log."""
    rows = slice(int(plan.log_row[entries.start]) - first_row, int(plan.log_row[entries.stop - 1]) - first_row + 1)
    own = {name: array[rows] for name, array in batch.columns.items()}
    batch = LogBatch(batch.places.from_row(rows.start), first_row + rows.start, own, rows.stop - rows.start)
    first_row += rows.start
    runs = slice(int(plan.first_run[entries.start]), int(plan.first_run[entries.stop]))
    run_tokens = plan.run_tokens[runs]
    tokens_before = np.concatenate([[0], np.cumsum(run_tokens, dtype=np.int64)])
    offsets = tokens_before[plan.first_run[entries.start : entries.stop + 1] - runs.start]
    return MaskBatch(
        versions=np.repeat(plan.run_version[runs], run_tokens),
        semantic=semantic_masks(plan.of(np.arange(entries.start, entries.stop)), batch, first_row, offsets),
        offsets=offsets,
        oldest_fresh=plan.oldest_fresh[entries],
    )


def _columns(plan: MaskPlan, entries: slice, masks: Masks) -> dict[str, Any]:
    tasks = pa.DictionaryArray.from_arrays(plan.task[entries].astype(np.int32), pa.array(plan.tasks, pa.string()))
    return {
        "train_step": plan.train_step[entries].astype(np.int32),
        "task_name": tasks.cast(pa.string()),
        "group_id": plan.group_id[entries],
        "rollout_id": plan.rollout_id[entries],
        "segment": plan.segment[entries].astype(np.int32),
        "effective_mask": pa.ListArray.from_arrays(_offsets(masks), masks.effective),
        m.TRAINED_TOKENS.name: masks.trained,
        m.MASKED_STALE_TOKENS.name: masks.masked_stale,
        m.MASKED_SEMANTIC_TOKENS.name: masks.masked_semantic,
        "taken": plan.is_taken[entries],
    }


def _offsets(masks: Masks) -> Int32s:
    """Where the tokens of each response begin, and the end of the last."""
    lengths = masks.trained + masks.masked_stale + masks.masked_semantic
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)


def _filtered(masks: Masks, filtered: Filtered) -> dict[str, Any]:
    """The columns that a filter changes or adds."""
    offsets = _offsets(masks)
    effective = masks.effective & filtered.keep
    trained = segment_counts(effective.view(np.uint8), offsets)
    weights = pa.array(filtered.weights, mask=~filtered.is_judged)
    return {
        "effective_mask": pa.ListArray.from_arrays(offsets, effective),
        m.TRAINED_TOKENS.name: trained,
        _MASKED_CORRECTION: masks.trained - trained,
        _LOSS_TOKENS: filtered.loss_tokens,
        _WEIGHTS: pa.ListArray.from_arrays(offsets, weights),
    }

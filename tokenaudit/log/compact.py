"""A log made small: version runs in place of token columns, and everything else that replay reads as it is."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tokenaudit.contracts.errors import LogError, Problem
from tokenaudit.contracts.schema import (
    COLUMN_BY_NAME,
    META_CONFIG,
    META_LIMITS,
    META_MISSING_PARTS,
    META_MISSING_RANKS,
    META_SCHEMA_VERSION,
    META_SOURCE,
    SCHEMA_VERSION,
    TOKEN_COLUMNS,
    VERSION_RUNS,
    ColumnType,
)
from tokenaudit.log.batches import read_batches
from tokenaudit.log.columns import Bools, Int64s, lists
from tokenaudit.log.digest import PRIOR_ASSUMED, PRIOR_UNKNOWN, Digest
from tokenaudit.log.files import Log
from tokenaudit.log.pieces import LogBatch
from tokenaudit.log.reading import outside_quarantine
from tokenaudit.log.semantic_masks import masks_of, split_at_masks
from tokenaudit.log.token_ids import DIFFERENT, SAME
from tokenaudit.log.version_runs import MISSING_VERSION, Runs, interleaved_runs, is_prefix, recorded_runs
from tokenaudit.log.writer import RUN_TYPE, run_structs

_MASK = "response_mask"
_REWRITTEN = ("response_len", "prior_len", VERSION_RUNS)
_ROWS_PER_GROUP = 65_536
_TYPES = {
    ColumnType.TEXT: pa.string(),
    ColumnType.INTEGER: pa.int64(),
    ColumnType.FLAG: pa.bool_(),
    ColumnType.REAL: pa.float64(),
}


@dataclass(frozen=True, slots=True)
class Compacted:
    """What was written.

    Attributes:
        rows: rows, as many as in the log without what is quarantined.
        tokens: tokens of its responses.
        runs: version runs that stand for them.
        left_out: columns of the log that were left out.
    """

    rows: int
    tokens: int
    runs: int
    left_out: tuple[str, ...]


def write_compact(
    target: BinaryIO, log: Log, digest: Digest, on_progress: Callable[[int], None] | None = None
) -> Compacted:
    """Write a log with version runs; replaying it under any config gives the same numbers.

    Runs end where a mask changes, so that they give the masks too; runs that the log gives itself stay as they are.

    Args:
        target: the file.
        log: the log.
        digest: its digest; the groups that it leaves out are left out.
        on_progress: called with the number of rows read so far.

    Raises:
        LogError: only token ids show what a response continues from, so that they can't be left out.
    """
    prior_len = _prior_lengths(digest)
    names = [name for name in log.columns if name not in TOKEN_COLUMNS and name not in _REWRITTEN]
    fields = {name: _TYPES[COLUMN_BY_NAME[name].type] for name in names}
    fields |= {"response_len": pa.int32(), "prior_len": pa.int32(), VERSION_RUNS: pa.list_(RUN_TYPE)}
    schema = pa.schema(list(fields.items()), metadata=_metadata(log))
    read = [*names, *(name for name in (_MASK, VERSION_RUNS) if name in log.columns)]
    first_row = rows = waiting_rows = runs = 0
    waiting: list[pa.RecordBatch] = []
    with pq.ParquetWriter(target, schema, compression="zstd") as writer:
        for batch in read_batches(log, read, on_progress):
            waiting.append(_compacted(batch, first_row, digest, prior_len, schema))
            runs += len(waiting[-1][VERSION_RUNS].flatten())
            first_row += batch.rows
            rows += len(waiting[-1])
            waiting_rows += len(waiting[-1])
            if waiting_rows >= _ROWS_PER_GROUP:
                writer.write_table(pa.Table.from_batches(waiting, schema), row_group_size=waiting_rows)
                waiting, waiting_rows = [], 0
        if waiting_rows:
            writer.write_table(pa.Table.from_batches(waiting, schema), row_group_size=waiting_rows)
    return Compacted(
        rows=rows,
        tokens=int(digest.responses.tokens.sum()),
        runs=runs,
        left_out=tuple(name for name in log.columns if name in TOKEN_COLUMNS),
    )


def _metadata(log: Log) -> dict[str, str]:
    limits = json.dumps(log.limits, ensure_ascii=False) if log.limits else None
    known = {META_CONFIG: log.config_json, META_SOURCE: log.source, META_LIMITS: limits}
    known |= {key: str(count) for key, count in log.lost_events.items()}
    known[META_MISSING_RANKS] = "; ".join(log.missing_ranks) or None
    known[META_MISSING_PARTS] = "; ".join(log.missing_parts) or None
    return {META_SCHEMA_VERSION: str(SCHEMA_VERSION)} | {
        key: value for key, value in known.items() if value is not None
    }


def _compacted(
    batch: LogBatch, first_row: int, digest: Digest, prior_len: tuple[Int64s, Bools], schema: pa.Schema
) -> pa.RecordBatch:
    first, last = np.searchsorted(digest.log_row, [first_row, first_row + batch.rows]).tolist()
    batch, rows = _without_quarantined(batch, digest, digest.log_row[first:last] - first_row)
    is_absent = np.ones(batch.rows, dtype=np.bool_)
    is_absent[rows] = False

    def spread(values: Int64s, absent: Bools) -> pa.Array:
        column = np.zeros(batch.rows, dtype=np.int32)
        column[rows] = values[first:last]
        mask = is_absent.copy()
        mask[rows] = absent[first:last]
        return pa.array(column, mask=mask)

    columns: dict[str, Any] = {
        name: array.cast(schema.field(name).type)
        for name, array in batch.columns.items()
        if name in schema.names and name not in _REWRITTEN
    }
    known, is_unknown = prior_len
    columns["response_len"] = spread(digest.responses.tokens, np.zeros(len(known), dtype=np.bool_))
    columns["prior_len"] = spread(known, is_unknown)
    columns[VERSION_RUNS] = _run_lists(_split_runs(batch, digest, first, last, rows), rows, is_absent)
    absent = {name: pa.nulls(batch.rows, schema.field(name).type) for name in schema.names if name not in columns}
    return pa.record_batch([(columns | absent)[name] for name in schema.names], schema=schema)


def _without_quarantined(batch: LogBatch, digest: Digest, rows: Int64s) -> tuple[LogBatch, Int64s]:
    """A batch without the rows that are quarantined, and where some of the others, `rows`, stand in it."""
    stays = outside_quarantine(batch, digest)
    if stays.all():
        return batch, rows
    columns = {name: array.filter(pa.array(stays)) for name, array in batch.columns.items()}
    return batch._replace(columns=columns, rows=int(stays.sum())), (np.cumsum(stays) - 1)[rows]


def _split_runs(batch: LogBatch, digest: Digest, first: int, last: int, rows: Int64s) -> Runs:
    """The runs of responses `first` to `last` of the digest, which stand in `rows` of the batch."""
    begin, end = digest.responses.first_run[[first, last]].tolist()
    whole = Runs(
        np.diff(digest.responses.first_run[first : last + 1]),
        digest.runs.model_step[begin:end],
        digest.runs.tokens[begin:end],
        digest.runs.trainable[begin:end],
    )
    column = batch.columns.get(_MASK)
    picked = pa.array(rows)
    split = split_at_masks(whole, masks_of(lists(None if column is None else column.take(picked), len(rows))))
    own = batch.columns.get(VERSION_RUNS)
    recorded = None if own is None else recorded_runs(own.take(picked), len(rows))
    if recorded is None:
        return split
    has_runs = recorded.has_runs
    return interleaved_runs(has_runs, recorded.runs(has_runs), split.of(~has_runs))


def _run_lists(runs: Runs, rows: Int64s, is_absent: Bools) -> pa.Array:
    """The runs of the responses in some rows as a list column; the other rows are null."""
    counts = np.zeros(len(is_absent), dtype=np.int64)
    counts[rows] = runs.counts
    offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    return pa.ListArray.from_arrays(
        pa.array(offsets), run_structs(runs), type=pa.list_(RUN_TYPE), mask=pa.array(is_absent)
    )


def _prior_lengths(digest: Digest) -> tuple[Int64s, Bools]:
    """Prior lengths to record, and where none is recorded because the runs themselves give it.

    Token ids that differ from the put before are recorded as a prior length of 0. Ids that agree say no more than
    the versions do, or they can't be left out.
    """
    responses = digest.responses
    is_unknown = responses.prior_len == PRIOR_UNKNOWN
    differs = is_unknown & (responses.continues_ids == DIFFERENT)
    known = np.where(is_unknown | (responses.prior_len == PRIOR_ASSUMED), 0, responses.prior_len)
    needed = [
        row
        for row in np.flatnonzero(is_unknown & (responses.continues_ids == SAME)).tolist()
        if not _runs_tell(digest, row)
    ]
    if needed:
        what = f"only response_ids say what {len(needed)} responses continue from"
        where = f"{digest.name}, row {digest.log_row[needed[0]]} of the log"
        raise LogError(Problem(what, where, "record prior_len, or keep the log as it is"))
    return known, is_unknown & ~differs


def _runs_tell(digest: Digest, row: int) -> bool:
    """Whether the versions of a response begin with those of its put before, whatever config stamps them."""
    earlier, later = (_raw_runs(digest, index) for index in (int(digest.responses.previous[row]), row))
    is_stamped = any(version == MISSING_VERSION for version, _ in (*earlier, *later))
    return not is_stamped and is_prefix(earlier, later)


def _raw_runs(digest: Digest, row: int) -> list[tuple[int, int]]:
    first, last = digest.responses.first_run[row : row + 2].tolist()
    runs = digest.runs
    return list(zip(runs.model_step[first:last].tolist(), runs.tokens[first:last].tolist(), strict=True))

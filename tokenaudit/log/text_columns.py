"""Columns of names in encodings that pyarrow can't decode into dictionaries, made dictionaries in bounded memory."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.types as pat

from tokenaudit.contracts.errors import LogError, Problem

MAX_TEXT_BYTES = 2**26
"""Bytes of one column of names in a row group above which a log is refused."""
NAMES_ARE_SHORT = "it holds names, a few characters each"
"""What to do about one that is refused."""

_MAX_GATHERED_BYTES = 2**24
"""Bytes of different names in the row groups that a thread reads; with a common beginning a small file holds many."""
_BYTES_AT_ONCE = 2**26
_PENDING_BYTES = 2**22


def rows_at_once(uncompressed_bytes: int, batch_rows: int) -> int:
    """Rows of a column chunk that may be decoded at once, since each could repeat all the bytes of its chunk."""
    return max(1, min(batch_rows, _BYTES_AT_ONCE // max(uncompressed_bytes, 1)))


def dictionary_batches(decoded: Iterator[pa.RecordBatch], batch_rows: int, where: str) -> Iterator[pa.RecordBatch]:
    """Gather small batches of plain text into batches of `batch_rows` rows that hold every name once.

    Args:
        decoded: consecutive rows.
        batch_rows: rows of the batches made, at least; the last one may have fewer.
        where: the place in the log, for people.

    Raises:
        LogError: the names take more than `_MAX_GATHERED_BYTES`.
    """
    parts: list[pa.RecordBatch] = []
    rows = pending = gone = 0
    for batch in decoded:
        parts.append(_encoded(batch))
        rows += batch.num_rows
        pending += _text_bytes(parts[-1])
        is_full = rows >= batch_rows
        if not is_full and pending <= _PENDING_BYTES:
            continue
        parts = [_unified(parts)]
        held, pending = _text_bytes(parts[0]), 0
        if gone + held > _MAX_GATHERED_BYTES:
            what = f"columns of names hold more than {_MAX_GATHERED_BYTES // 2**20} MiB of different names"
            raise LogError(Problem(what, where, NAMES_ARE_SHORT))
        if is_full:
            yield parts[0]
            parts, rows, gone = [], 0, gone + held
    if parts:
        yield _unified(parts)


def _encoded(batch: pa.RecordBatch) -> pa.RecordBatch:
    columns = [column if pat.is_dictionary(column.type) else column.dictionary_encode() for column in batch.columns]
    return pa.RecordBatch.from_arrays(columns, names=batch.schema.names)


def _text_bytes(batch: pa.RecordBatch) -> int:
    dictionaries = [column.dictionary for column in batch.columns]
    return sum(dictionary.nbytes for dictionary in dictionaries)


def _unified(parts: list[pa.RecordBatch]) -> pa.RecordBatch:
    return pa.Table.from_batches(parts).unify_dictionaries().combine_chunks().to_batches()[0]

"""Rows of Parquet files, in memory that a small file of a billion equal values can't blow up."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tokenaudit.contracts.errors import Problem, SourceError
from tokenaudit.importers.base import Context
from tokenaudit.importers.fields import MAX_TOKENS
from tokenaudit.importers.files import SourceRecord

_ROWS_AT_ONCE = 1024
_ELEMENTS_AT_ONCE = 4_000_000
_BYTES_AT_ONCE = 64 * 2**20
_TEXTS = (pa.types.is_string, pa.types.is_large_string, pa.types.is_binary, pa.types.is_large_binary)


def parquet_records(path: Path, chosen: Callable[[pa.Schema], list[str]], context: Context) -> Iterator[SourceRecord]:
    """The rows of a file; columns that aren't chosen are never read.

    Args:
        path: the file.
        chosen: the names of the columns to read.
        context: its progress is advanced when the file is done.

    Raises:
        SourceError: the file can't be read, or holds lists that are too long.
    """
    try:
        schema = pq.read_schema(path)
        names = chosen(schema)
        # a long text that every row repeats would otherwise be there once for each of them
        with pq.ParquetFile(path, pre_buffer=False, read_dictionary=_texts(schema, names)) as parquet:
            number = 0
            for group in range(parquet.num_row_groups):
                size = _rows_at_once(parquet.metadata.row_group(group), names, path)
                for batch in parquet.iter_batches(batch_size=size, row_groups=[group], columns=names):
                    for row in _rows(batch, path):
                        yield SourceRecord(row, f"{path}, row {number}")
                        number += 1
        context.advance(path.stat().st_size)
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        what = f"can't read: {str(error).splitlines()[0]}"
        raise SourceError(Problem(what, str(path), "copy the file again")) from error


def _texts(schema: pa.Schema, names: Collection[str]) -> list[str]:
    """The columns of texts or bytes; columns that hold others inside have none of their own name in the file."""
    chosen = [field for field in schema if field.name in names]
    return [field.name for field in chosen if any(is_one(field.type) for is_one in _TEXTS)]


def _rows_at_once(group: pq.RowGroupMetaData, names: Collection[str], path: Path) -> int:
    """Rows of a row group that are decoded at once, by their size in the footer."""
    rows = max(group.num_rows, 1)
    columns = [group.column(index) for index in range(group.num_columns)]
    read = [column for column in columns if _top(column.path_in_schema, names)]
    elements = max((column.num_values // rows for column in read), default=0)
    if elements > MAX_TOKENS:
        raise _too_long(elements, path)
    width = max((column.total_uncompressed_size // rows for column in read), default=0)
    return max(1, min(_ROWS_AT_ONCE, _ELEMENTS_AT_ONCE // max(elements, 1), _BYTES_AT_ONCE // max(width, 1)))


def _top(leaf: str, names: Collection[str]) -> bool:
    return any(leaf == name or leaf.startswith(f"{name}.") for name in names)


def _rows(batch: pa.RecordBatch, path: Path) -> Iterator[dict[str, Any]]:
    columns = [_values(column, path) for column in batch.columns]
    for values in zip(*columns, strict=True):
        yield dict(zip(batch.schema.names, values, strict=True))


def _values(column: pa.Array, path: Path) -> Iterator[Any]:
    """The values of a column; lists are made one by one, and equal texts of a dictionary only once."""
    if isinstance(column, pa.DictionaryArray):
        texts = column.dictionary.to_pylist()
        return (None if index is None else texts[index] for index in column.indices.to_pylist())
    if pa.types.is_list(column.type) or pa.types.is_large_list(column.type):
        ends = column.offsets.to_numpy()
        longest = int(np.diff(ends).max(initial=0))
        if longest > MAX_TOKENS:
            raise _too_long(longest, path)
    return (value.as_py() for value in column)


def _too_long(elements: int, path: Path) -> SourceError:
    hint = f"responses of up to {MAX_TOKENS} tokens are read"
    return SourceError(Problem(f"lists of {elements} elements", str(path), hint))

"""The rows of a merged log in batches: every file is read from its front, and rows are put in the merged order.

Event ids are those of the merged log, times are since the origin of the clock that began first.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.types as pat

from tokenaudit.contracts.schema import COLUMN_BY_NAME, RUN_FIELDS, ColumnType
from tokenaudit.log.columns import ABSENT, Int64s, bounded_spans, integers
from tokenaudit.log.log_file import LIST_COLUMNS, MAX_BATCH_ROWS, TARGET_BATCH_ELEMENTS, LogFile
from tokenaudit.log.merged_order import MergedOrder, clock_shifts, shifted_times
from tokenaudit.log.pieces import LogBatch, Piece, RowPlaces, batch_rows, piece_batches, pieces_of

_EVENT_ID, _TIME = "event_id", "time_us"
_WHOLE_SHARES = 4
"""Files that are read side by side in batches of full size; more of them share the memory of so many."""
_LONG_ROW_BYTES = 256
_RUN = pa.struct([(name, pa.int64()) for name in RUN_FIELDS])
_COMMON_TYPES: dict[ColumnType, pa.DataType] = {
    ColumnType.TEXT: pa.dictionary(pa.int32(), pa.string()),
    ColumnType.INTEGER: pa.int64(),
    ColumnType.INTEGER_LIST: pa.large_list(pa.int64()),
    ColumnType.MASK_LIST: pa.large_list(pa.int64()),
    ColumnType.RUN_LIST: pa.large_list(_RUN),
    ColumnType.FLAG: pa.bool_(),
    ColumnType.REAL: pa.float64(),
    ColumnType.REAL_LIST: pa.large_list(pa.float64()),
}


def merged_batches(files: Sequence[LogFile], order: MergedOrder, columns: Sequence[str]) -> Iterator[LogBatch]:
    """The batches of a merged log; arguments and errors as for `batches.read_batches`."""
    paths = tuple(file.path for file in files)
    read = [name for name in columns if name != _EVENT_ID]
    lists = [name for name in read if name in LIST_COLUMNS]
    share = max(1, len({file.rank for file in files}) // _WHOLE_SHARES)
    pieces = [_SharedPiece(piece, batch_rows(piece, lists, share)) for piece in pieces_of(files)]
    shift = clock_shifts(files)
    last_row = np.full(len(files), -1)
    last_row[order.file] = order.row
    sources = [_FileRows(read, share, last) for last in last_row.tolist()]
    position = {path: index for index, path in enumerate(paths)}
    for piece in pieces:
        sources[position[piece.piece.file.path]].pieces.append(piece)
    try:
        for first, stop in _spans(order, files, pieces, share):
            file, row = order.file[first:stop], order.row[first:stop]
            arrays = _merged_rows(sources, read, file, row) if read else {}
            if _EVENT_ID in columns:
                arrays[_EVENT_ID] = _nullable(order.event_id[first:stop])
            if _TIME in arrays:
                time = shifted_times(integers(arrays[_TIME], stop - first, fill=ABSENT), shift[file])
                arrays[_TIME] = _nullable(time)
            yield LogBatch(RowPlaces(paths, 0, file, row), first, arrays, stop - first)
    finally:
        for source in sources:
            source.close()


class _SharedPiece(NamedTuple):
    """A piece of a file, and the rows of its batches."""

    piece: Piece
    rows: int


def _spans(
    order: MergedOrder, files: Sequence[LogFile], pieces: Sequence[_SharedPiece], share: int
) -> Iterator[tuple[int, int]]:
    """The merged log, cut into batches that hold about as much as those of one file: a row weighs what its piece says.

    Whatever the rows hold, a batch takes no more than two batches of each file that is read beside the others.
    """
    rows_before = np.cumsum([0, *(file.rows for file in files)])[:-1]
    starts = np.array([piece.rows_before + piece.first_row for piece, _ in pieces], dtype=np.int64)
    weights = np.array([-(-TARGET_BATCH_ELEMENTS // (share * rows)) for _, rows in pieces], dtype=np.int64)
    of_row = np.searchsorted(starts, rows_before[order.file] + order.row, side="right") - 1
    return bounded_spans(weights[of_row], MAX_BATCH_ROWS, TARGET_BATCH_ELEMENTS)


class _Rows(NamedTuple):
    """Consecutive rows of a file; without any column, a record batch doesn't know how many they are."""

    columns: pa.RecordBatch
    rows: int


class _FileRows:
    """The rows of a file, from its front to the last one that is needed; then the file is closed.

    Attributes:
        pieces: its pieces, in order.
    """

    def __init__(self, columns: Sequence[str], share: int, last_row: int) -> None:
        self.pieces: list[_SharedPiece] = []
        self._last_row = last_row
        self._batches = self._read(columns, share)
        self._columns = pa.RecordBatch.from_pydict({})
        self._begin = self._end = 0

    def _read(self, columns: Sequence[str], share: int) -> Generator[LogBatch, None, None]:
        for piece, rows in self.pieces:
            yield from piece_batches(piece, columns, share=share, rows=rows)

    def between(self, first: int, stop: int) -> Iterator[_Rows]:
        """Consecutive rows; calls go forward through the file."""
        while first < stop:
            if first >= self._end:
                batch = next(self._batches)
                self._begin = batch.places.first_row
                self._end = self._begin + batch.rows
                self._columns = pa.RecordBatch.from_pydict(batch.columns)
                continue
            rows = min(stop, self._end) - first
            yield _Rows(self._columns.slice(first - self._begin, rows), rows)
            first += rows
        if stop > self._last_row:
            self.close()

    def close(self) -> None:
        """Close the file."""
        self._batches.close()
        self._columns = pa.RecordBatch.from_pydict({})


def _merged_rows(
    sources: Sequence[_FileRows], columns: Sequence[str], file: np.ndarray[Any, np.dtype[np.int32]], row: Int64s
) -> dict[str, pa.Array]:
    """The next rows of some files, in the order of `file` and `row`."""
    by_file = np.argsort(file, kind="stable")
    bounds = np.flatnonzero(np.diff(file[by_file], prepend=-1, append=-1)).tolist()
    picked = np.empty(len(row), dtype=np.int64)
    parts: list[_Rows] = []
    rows_before = 0
    for begin, end in pairwise(bounds):
        own = by_file[begin:end]
        first, stop = int(row[own[0]]), int(row[own[-1]]) + 1
        picked[own] = row[own] - first + rows_before
        parts.extend(sources[int(file[own[0]])].between(first, stop))
        rows_before += stop - first
    order = _RowOrder(picked)
    return {name: order.of(array) for name, array in _joined(parts, columns)}


class _RowOrder:
    """Which rows of joined arrays make a batch: `picked`, of shape [rows]."""

    def __init__(self, picked: Int64s) -> None:
        self._picked = pa.array(picked)
        bounds = np.flatnonzero(np.diff(picked, prepend=-2, append=-2) != 1)
        self._stretches = [(int(picked[first]), stop - first) for first, stop in pairwise(bounds.tolist())]

    def of(self, array: pa.Array) -> pa.Array:
        """These rows; long lists are copied stretch by stretch, where Arrow would copy them element by element."""
        if len(self._stretches) == 1:
            return array.slice(*self._stretches[0])
        if array.nbytes < _LONG_ROW_BYTES * len(array):
            return array.take(self._picked)
        return pa.concat_arrays([array.slice(first, rows) for first, rows in self._stretches])


def _joined(parts: Sequence[_Rows], columns: Sequence[str]) -> Iterator[tuple[str, pa.Array]]:
    """The columns of all parts below each other, by name; types that differ become the widest of their kind."""
    schema = parts[0].columns.schema
    if all(part.columns.schema.equals(schema) for part in parts):
        whole = pa.Table.from_batches([part.columns for part in parts], schema)
        yield from ((name, pa.concat_arrays(whole[name].chunks)) for name in schema.names)
        return
    present = {name for part in parts for name in part.columns.schema.names}
    for name in (name for name in columns if name in present):
        arrays = [part.columns[name] if name in part.columns.schema.names else pa.nulls(part.rows) for part in parts]
        types = {array.type for array in arrays if not pat.is_null(array.type)}
        kind = COLUMN_BY_NAME[name].type
        common = types.pop() if len(types) == 1 else _COMMON_TYPES[kind]
        yield name, pa.concat_arrays([_as_type(kind, array, common) for array in arrays])


def _as_type(kind: ColumnType, part: pa.Array, common: pa.DataType) -> pa.Array:
    if pat.is_null(part.type):
        return pa.nulls(len(part), common)
    if part.type == common:
        return part
    if kind is ColumnType.INTEGER:
        return _nullable(integers(part, len(part), fill=ABSENT))
    if kind is ColumnType.TEXT:
        return (part if pat.is_dictionary(part.type) else part.dictionary_encode()).cast(common)
    return part.cast(common, safe=False)


def _nullable(values: Int64s) -> pa.Array:
    """Integers as a column, null where they are `ABSENT`."""
    return pa.array(values, mask=values == ABSENT)

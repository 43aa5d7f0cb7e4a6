"""Consecutive row groups of a file, read in batches of bounded size."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tokenaudit.contracts.errors import LogError, Problem
from tokenaudit.contracts.schema import EventKind
from tokenaudit.log.columns import (
    Int64s,
    check_dictionary,
    integers,
    is_text_list,
    nulls,
    number_lists,
    plain_lists,
    text_codes,
)
from tokenaudit.log.log_file import (
    COPY_AGAIN,
    LIST_COLUMNS,
    MAX_BATCH_ROWS,
    MAX_ROW_ELEMENTS,
    TARGET_BATCH_ELEMENTS,
    TEXT_COLUMNS,
    VERSIONS,
    LogFile,
    first_line,
    text_elements,
)
from tokenaudit.log.prefetch import Prefetch
from tokenaudit.log.text_columns import dictionary_batches, rows_at_once

MAX_UNBOUNDED_ELEMENTS = 2**28
"""List elements of a row group that lacks the length of a response: one row could hold them all."""
SMALL_PIECE_ELEMENTS = 2**23
"""List elements that a thread may hold at once, whatever rows they stand in."""
_PIECE_BATCHES = 4
_LANE_BYTES = 16 << 20
_BUFFER_BYTES = 1 << 20
"""How much of a column is read from a file at a time; without it pyarrow reads whole column chunks."""
_LEAST_BUFFER_BYTES = 1 << 14

DAMAGED = "damaged Parquet file"
"""What is wrong with a file that can't be decoded behind its footer, in a `Problem`."""

_NOT_DECODABLE = ("Not yet implemented", "Expected all lists to be of size")
"""What pyarrow says of valid files; the second before version 26, of nulls among lists of a fixed size."""
_ENCODE_OTHERWISE = (
    "update pyarrow, or write the file again: with lists of any length and the writer's default encodings"
)

_OTHER_EVENTS = frozenset(kind.value for kind in EventKind if kind is not EventKind.PUT)


class RowPlaces(NamedTuple):
    """Which row of which file each row of a batch is.

    Attributes:
        paths: the files; without `file` there is one.
        first_row: row of the one file that the batch begins with, counted from 0.
        file: index into `paths` of each row, where rows of several files are merged.
        row: row of that file.
    """

    paths: tuple[Path, ...]
    first_row: int
    file: np.ndarray[Any, np.dtype[np.int32]] | None = None
    row: Int64s | None = None

    def at(self, position: int) -> tuple[Path, int]:
        """File and row of a row of the batch."""
        if self.file is None or self.row is None:
            return self.paths[0], self.first_row + position
        return self.paths[int(self.file[position])], int(self.row[position])

    def from_row(self, position: int) -> RowPlaces:
        """The places of the rows from one on."""
        if self.file is None or self.row is None:
            return self._replace(first_row=self.first_row + position)
        return self._replace(file=self.file[position:], row=self.row[position:])

    def text(self, rows: int) -> str:
        """The places of the first rows, for people."""
        (first, begin), (last, end) = self.at(0), self.at(rows - 1)
        return f"{first}, rows {begin} to {end}" if first == last else f"{first}, row {begin}, to {last}, row {end}"


class LogBatch(NamedTuple):
    """Consecutive rows of a log.

    Attributes:
        places: where they stand.
        first_row: row of the log, all files together, that the batch begins with.
        columns: the columns read, as Arrow arrays by name.
        rows: rows in the batch.
    """

    places: RowPlaces
    first_row: int
    columns: dict[str, pa.Array]
    rows: int


class Piece(NamedTuple):
    """Consecutive row groups of a file, read by one thread.

    Attributes:
        file: the file.
        row_groups: their indices.
        first_row: row of the file that the first of them begins with.
        rows: rows in them.
        rows_before: rows of the log in the files before.
    """

    file: LogFile
    row_groups: range
    first_row: int
    rows: int
    rows_before: int

    @property
    def place(self) -> str:
        """Its rows, for people."""
        return f"{self.file.path}, rows {self.first_row} to {self.first_row + self.rows - 1}"

    def is_delta_text(self, name: str) -> bool:
        """Whether a column holds names in an encoding that pyarrow decodes to no dictionary."""
        chunks = (self.file.chunks[index].get(name) for index in self.row_groups)
        return name in TEXT_COLUMNS and any(chunk is not None and chunk.is_delta_text for chunk in chunks)

    def most_bytes(self, columns: Sequence[str]) -> int:
        """Bytes before compression of some columns in the largest row group."""
        groups = [self.file.chunks[index] for index in self.row_groups]
        return max(sum(sizes[name].uncompressed_bytes for name in columns if name in sizes) for sizes in groups)


def pieces_of(files: Iterable[LogFile]) -> Iterator[Piece]:
    """Files, cut at row groups into pieces that keep a thread busy for a while."""
    rows_before = 0
    for file in files:
        first_group = first_row = rows = 0
        for index in range(file.metadata.num_row_groups):
            rows += file.metadata.row_group(index).num_rows
            if rows >= _PIECE_BATCHES * file.batch_rows or index == file.metadata.num_row_groups - 1:
                yield Piece(file, range(first_group, index + 1), first_row, rows, rows_before)
                first_group, first_row, rows = index + 1, first_row + rows, 0
        rows_before += file.rows


def piece_batches(
    piece: Piece, columns: Sequence[str], *, by_column: bool = False, share: int = 1, rows: int | None = None
) -> Iterator[LogBatch]:
    """The batches of a piece.

    Args:
        piece: what to read.
        columns: names of the columns to read; those that the file lacks are left out.
        by_column: read every list column in a thread of its own.
        share: the part of the memory, one of so many, that it may take.
        rows: rows per batch, where `batch_rows` gave them already.
    """
    file = piece.file
    wanted = [name for name in columns if name in file.columns]
    lists = [name for name in wanted if name in LIST_COLUMNS]
    others = [name for name in wanted if name not in LIST_COLUMNS]
    first_row = piece.first_row
    try:
        size = batch_rows(piece, lists, share) if rows is None else rows
        lanes = [[name] for name in lists[1:]] if by_column else []
        lanes.insert(0, [*others, *lists[:1]] if by_column else wanted)
        for arrays, read in _laned_batches(piece, lanes, size, share):
            for name, array in arrays.items():
                if name in TEXT_COLUMNS:
                    check_dictionary(array)
                arrays[name] = plain_lists(array)
                if name == VERSIONS and is_text_list(array.type):
                    arrays[name] = _numbers(arrays[name], f"{file.path}, behind row {first_row}")
            yield LogBatch(RowPlaces((file.path,), first_row), piece.rows_before + first_row, arrays, read)
            first_row += read
        if first_row != piece.first_row + piece.rows:
            missing = piece.first_row + piece.rows - first_row
            where = f"{file.path}, behind row {first_row}"
            raise LogError(Problem(f"{DAMAGED}: {missing} rows are missing", where, COPY_AGAIN))
    except (pa.ArrowException, OSError) as error:
        where, what = f"{file.path}, behind row {first_row}", first_line(error)
        if what.startswith(_NOT_DECODABLE):
            raise LogError(Problem(f"pyarrow can't decode a column: {what}", where, _ENCODE_OTHERWISE)) from error
        raise LogError(Problem(f"{DAMAGED}: {what}", where, COPY_AGAIN)) from error


def _numbers(array: pa.Array, where: str) -> pa.Array:
    try:
        return number_lists(array)
    except pa.ArrowInvalid as error:
        what = f"column {VERSIONS!r} holds a text that is no whole number: {first_line(error)}"
        raise LogError(Problem(what, where, "record the number of train steps in the weights, not a label")) from error


def _laned_batches(
    piece: Piece, lanes: list[list[str]], size: int, share: int = 1
) -> Iterator[tuple[dict[str, pa.Array], int]]:
    """Columns by name and rows of every batch; all lanes but the first are read ahead by threads of their own."""
    delta_texts = [name for lane in lanes for name in lane if piece.is_delta_text(name)]
    if delta_texts:
        lanes = [[name for name in lane if name not in delta_texts] for lane in lanes]
        lanes = [*filter(None, lanes), delta_texts]
    with ExitStack() as stack:
        first, *others = (_record_batches(piece, lane, size, share) for lane in lanes)
        prefetched = [
            stack.enter_context(Prefetch([lane], 1, lambda batch: batch.nbytes, _LANE_BYTES)) for lane in others
        ]
        readers = [iter(first), *map(iter, prefetched)]
        waiting = [next(reader, None) for reader in readers]
        # Lanes of a damaged file can end at different rows; the count of rows shows it.
        while all(batch is not None for batch in waiting):
            # pyarrow also ends a batch where a dictionary changes, so lanes needn't be cut at the same rows
            rows = min(batch.num_rows for batch in waiting if batch is not None)
            columns: dict[str, pa.Array] = {}
            for position, batch in enumerate(waiting):
                assert batch is not None
                columns |= zip(batch.schema.names, batch.slice(0, rows).columns, strict=True)
                left = batch.slice(rows)
                waiting[position] = left if left.num_rows else next(readers[position], None)
            yield columns, rows


def _record_batches(piece: Piece, columns: list[str], batch_rows: int, share: int) -> Iterator[pa.RecordBatch]:
    """One thread's reading; pyarrow's own threads would only get in the way of the others.

    Args:
        piece: what to read.
        columns: either of delta texts only, or without any.
        batch_rows: rows per batch.
        share: as for `piece_batches`.
    """
    are_delta = any(map(piece.is_delta_text, columns))
    size = rows_at_once(piece.most_bytes(columns), batch_rows) if are_delta else batch_rows
    texts_in_lists = text_elements(piece.file.metadata) if VERSIONS in columns else []
    options = {
        "metadata": piece.file.metadata,
        "pre_buffer": False,
        "buffer_size": max(_BUFFER_BYTES // share, _LEAST_BUFFER_BYTES),
        # A long name that every row repeats would otherwise be there once for each of them.
        "read_dictionary": [
            *(name for name in TEXT_COLUMNS if name in columns and not are_delta),
            *texts_in_lists,
        ],
    }
    with pq.ParquetFile(piece.file.path, **options) as parquet:
        # pyarrow can't join lists whose dictionaries differ, as those of two row groups do.
        parts = [[group] for group in piece.row_groups] if texts_in_lists else [list(piece.row_groups)]
        read = chain.from_iterable(
            parquet.iter_batches(batch_size=size, row_groups=part, columns=columns, use_threads=False) for part in parts
        )
        yield from dictionary_batches(read, batch_rows, piece.place) if are_delta else read


def batch_rows(piece: Piece, lists: list[str], share: int = 1) -> int:
    """Rows per batch: those of the file, or fewer where long responses stand together; many without list columns.

    The footer holds the elements of a row group but not those of a row, so a small file could hold one row of
    billions. `response_len` is read first: it bounds the rows, or the row groups must be small enough to be decoded
    whatever their rows hold.

    Args:
        piece: what is read.
        lists: the list columns that are read; those that the file lacks are passed over.
        share: as for `piece_batches`.

    Raises:
        LogError: rows that no response is long enough for.
    """
    lists = [name for name in lists if name in piece.file.columns]
    if not lists:
        return max(MAX_BATCH_ROWS // share, 1)
    rows, groups = max(piece.file.batch_rows // share, 1), [piece.file.chunks[index] for index in piece.row_groups]
    elements = max(sum(sizes[name].values for sizes in groups if name in sizes) for name in lists)
    if elements <= SMALL_PIECE_ELEMENTS // share:
        return rows
    lengths = _recorded_lengths(piece)
    where = piece.place
    if lengths is None:
        if elements > MAX_UNBOUNDED_ELEMENTS:
            what = f"a row group holds {elements} list elements and doesn't give the length of every response"
            hint = f"write response_len, or row groups of up to {MAX_UNBOUNDED_ELEMENTS} elements"
            raise LogError(Problem(what, where, hint))
        return rows
    longest, recorded = int(lengths.max(initial=0)), int(np.maximum(lengths, 1).sum())
    if min(longest, elements) > MAX_ROW_ELEMENTS or elements - recorded > MAX_ROW_ELEMENTS:
        what = f"lists of {elements} elements for responses of {recorded} tokens, the longest of {longest}"
        hint = f"tokenaudit reads up to {MAX_ROW_ELEMENTS} tokens per response; record long ones as runs"
        raise LogError(Problem(what, where, hint))
    while rows > 1 and _largest_batch(lengths, rows) > 2 * TARGET_BATCH_ELEMENTS // share:
        rows = -(-rows // 2)
    return rows


def _recorded_lengths(piece: Piece) -> Int64s | None:
    """`response_len` of all rows, 0 where there is no put; None unless every put has one."""
    columns = [name for name in ("event", "response_len") if name in piece.file.columns]
    if "response_len" not in columns:
        return None
    lengths: list[Int64s] = []
    for arrays, rows in _laned_batches(piece, [columns], piece.rows):
        recorded = arrays["response_len"]
        may_be_put = text_codes(arrays.get("event"), rows, lambda text: int(text in _OTHER_EVENTS)) == 0
        if (nulls(recorded) & may_be_put).any():
            return None
        lengths.append(np.maximum(integers(recorded, rows, fill=0), 0))
    return np.concatenate(lengths)


def _largest_batch(lengths: Int64s, rows: int) -> int:
    """Elements of the largest batch of this many rows."""
    return int(np.add.reduceat(lengths, np.arange(0, len(lengths), rows)).max()) if len(lengths) else 0

"""The rows of a log in batches of bounded size, read one after the other or ahead by several threads."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from typing import Generic, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tokenaudit.contracts.errors import LogError, Problem
from tokenaudit.contracts.schema import EventKind
from tokenaudit.log.columns import Int64s, check_dictionary, integers, nulls, plain_lists, text_codes
from tokenaudit.log.files import Log, LogBatch
from tokenaudit.log.log_file import (
    COPY_AGAIN,
    LIST_COLUMNS,
    MAX_BATCH_ROWS,
    MAX_ROW_ELEMENTS,
    TARGET_BATCH_ELEMENTS,
    TEXT_COLUMNS,
    LogFile,
    first_line,
)
from tokenaudit.log.text_columns import dictionary_batches, rows_at_once

T = TypeVar("T")


class Prefetch(Generic[T]):
    """Runs iterables in threads; whoever iterates gets their items, one part after the other.

    A thread that ends a part begins the next one, whether or not anybody has come that far. It waits while the items
    that wait weigh `limit` or more, so that one item a thread may exceed it; the part that is being read always has
    room for an item. An exception is raised at the place in the order where it happened. Leaving the `with` block
    ends the threads.

    Args:
        parts: what to run; one thread at a time touches a part.
        workers: threads.
        weigh: the weight of an item, such as its bytes.
        limit: the weight that may wait, all parts together.
    """

    def __init__(self, parts: Sequence[Iterable[T]], workers: int, weigh: Callable[[T], int], limit: int) -> None:
        self._parts = parts
        self._weigh = weigh
        self._limit = limit
        self._changed = threading.Condition()
        self._waiting: list[deque[tuple[T, int]]] = [deque() for _ in parts]
        self._is_done = [False for _ in parts]
        self._errors: list[BaseException | None] = [None for _ in parts]
        self._weight = self._next = self._reading = 0
        self._is_abandoned = False
        threads = min(workers, len(parts))
        self._threads = [threading.Thread(target=self._work, daemon=True) for _ in range(threads)]

    def __enter__(self) -> Prefetch[T]:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._is_abandoned = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()

    def __iter__(self) -> Iterator[T]:
        for part, waiting in enumerate(self._waiting):
            with self._changed:
                self._reading = part
                self._changed.notify_all()
            yield from self._items(part, waiting)
            error = self._errors[part]
            if error is not None:
                raise error

    def _items(self, part: int, waiting: deque[tuple[T, int]]) -> Iterator[T]:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: waiting or self._is_done[part])
                if not waiting:
                    return
                item, weight = waiting.popleft()
                self._weight -= weight
                self._changed.notify_all()
            yield item

    def _work(self) -> None:
        while True:
            with self._changed:
                part = self._next
                if self._is_abandoned or part == len(self._parts):
                    return
                self._next += 1
            self._run(part)

    def _run(self, part: int) -> None:
        waiting = self._waiting[part]
        try:
            for item in self._parts[part]:
                weight = self._weigh(item)
                with self._changed:
                    self._changed.wait_for(lambda: self._has_room(part))
                    if self._is_abandoned:
                        return
                    waiting.append((item, weight))
                    self._weight += weight
                    self._changed.notify_all()
        except BaseException as error:  # noqa: BLE001 - it is raised again where the items are read
            self._errors[part] = error
        finally:
            with self._changed:
                self._is_done[part] = True
                self._changed.notify_all()

    def _has_room(self, part: int) -> bool:
        is_read_next = part == self._reading and not self._waiting[part]
        return self._weight < self._limit or is_read_next or self._is_abandoned


MAX_UNBOUNDED_ELEMENTS = 2**28
"""List elements of a row group that lacks the length of a response: one row could hold them all."""
SMALL_PIECE_ELEMENTS = 2**23
"""List elements that a thread may hold at once, whatever rows they stand in."""
MAX_WORKERS = 8
"""Threads that read; more of them would only hold more memory."""

_PIECE_BATCHES = 4
_LANE_BYTES = 16 << 20
_BUFFER_BYTES = 1 << 20
"""How much of a column is read from a file at a time; without it pyarrow reads whole column chunks."""

_NOT_IMPLEMENTED = "Not yet implemented"
_ENCODE_OTHERWISE = "write the file again with another encoding of its columns, such as the writer's default"

_OTHER_EVENTS = frozenset(kind.value for kind in EventKind if kind is not EventKind.PUT)

T = TypeVar("T")


class _Piece(NamedTuple):
    """Consecutive row groups of a file, read by one thread.

    Attributes:
        file: the file.
        row_groups: their indices.
        first_row: row of the file that the first of them begins with.
        rows: rows in them.
    """

    file: LogFile
    row_groups: range
    first_row: int
    rows: int

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


def read_batches(
    log: Log, columns: Sequence[str], on_progress: Callable[[int], None] | None = None
) -> Iterator[LogBatch]:
    """Stream the rows of a log, one batch in memory at a time.

    Args:
        log: an opened log.
        columns: names of the columns to read; those a file lacks are left out of its batches.
        on_progress: called with the number of rows read so far.

    Raises:
        LogError: a file is damaged behind its footer, vanished, or holds rows longer than any response.
    """
    rows_done = 0
    for piece in _pieces(log):
        for batch in _piece_batches(piece, columns):
            yield batch
            rows_done += batch.rows
            if on_progress is not None:
                on_progress(rows_done)


def map_batches(
    log: Log,
    columns: Sequence[str],
    function: Callable[[LogBatch], T],
    *,
    rows_of: Callable[[T], int],
    weigh: Callable[[T], int],
    limit: int,
    on_progress: Callable[[int], None] | None = None,
) -> Iterator[T]:
    """What `function` makes of every batch of a log, in the order of the log; threads work ahead of the reader.

    Args:
        log: an opened log.
        columns: as for `read_batches`.
        function: called by several threads at a time.
        rows_of: rows of the batch behind a value.
        weigh: bytes that a value keeps in memory.
        limit: bytes that may wait to be read; every thread has one value and one batch in hand besides.
        on_progress: called with the number of rows read so far.

    Raises:
        LogError: as for `read_batches`.
    """
    pieces = list(_pieces(log))
    workers = worker_count()
    by_column = len(pieces) < workers
    parts = [map(function, _piece_batches(piece, columns, by_column=by_column)) for piece in pieces]
    rows_done = 0
    with Prefetch(parts, workers, weigh, limit) as values:
        for value in values:
            yield value
            rows_done += rows_of(value)
            if on_progress is not None:
                on_progress(rows_done)


def worker_count() -> int:
    """Threads to read with: the cores this process may use."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(cores, MAX_WORKERS)


def _pieces(log: Log) -> Iterator[_Piece]:
    """The log, cut at row groups into pieces that keep a thread busy for a while."""
    for file in log.files:
        first_group = first_row = rows = 0
        for index in range(file.metadata.num_row_groups):
            rows += file.metadata.row_group(index).num_rows
            if rows >= _PIECE_BATCHES * file.batch_rows or index == file.metadata.num_row_groups - 1:
                yield _Piece(file, range(first_group, index + 1), first_row, rows)
                first_group, first_row, rows = index + 1, first_row + rows, 0


def _piece_batches(piece: _Piece, columns: Sequence[str], *, by_column: bool = False) -> Iterator[LogBatch]:
    """The batches of a piece; `by_column` reads every list column in a thread of its own."""
    file = piece.file
    wanted = [name for name in columns if name in file.columns]
    lists = [name for name in wanted if name in LIST_COLUMNS]
    others = [name for name in wanted if name not in LIST_COLUMNS]
    first_row = piece.first_row
    try:
        batch_rows = _batch_rows(piece, lists)
        lanes = [[name] for name in lists[1:]] if by_column else []
        lanes.insert(0, [*others, *lists[:1]] if by_column else wanted)
        for arrays, rows in _laned_batches(piece, lanes, batch_rows):
            for name, array in arrays.items():
                if name in TEXT_COLUMNS:
                    check_dictionary(array)
                arrays[name] = plain_lists(array)
            yield LogBatch(file.path, first_row, arrays, rows)
            first_row += rows
        if first_row != piece.first_row + piece.rows:
            missing = piece.first_row + piece.rows - first_row
            where = f"{file.path}, behind row {first_row}"
            raise LogError(Problem(f"damaged Parquet file: {missing} rows are missing", where, COPY_AGAIN))
    except (pa.ArrowException, OSError) as error:
        where, what = f"{file.path}, behind row {first_row}", first_line(error)
        if what.startswith(_NOT_IMPLEMENTED):
            raise LogError(Problem(f"pyarrow can't decode a column: {what}", where, _ENCODE_OTHERWISE)) from error
        raise LogError(Problem(f"damaged Parquet file: {what}", where, COPY_AGAIN)) from error


def _laned_batches(piece: _Piece, lanes: list[list[str]], batch_rows: int) -> Iterator[tuple[dict[str, pa.Array], int]]:
    """Columns by name and rows of every batch; all lanes but the first are read ahead by threads of their own."""
    delta_texts = [name for lane in lanes for name in lane if piece.is_delta_text(name)]
    if delta_texts:
        lanes = [[name for name in lane if name not in delta_texts] for lane in lanes]
        lanes = [*filter(None, lanes), delta_texts]
    with ExitStack() as stack:
        first, *others = (_record_batches(piece, lane, batch_rows) for lane in lanes)
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


def _record_batches(piece: _Piece, columns: list[str], batch_rows: int) -> Iterator[pa.RecordBatch]:
    """One thread's reading; pyarrow's own threads would only get in the way of the others.

    Args:
        piece: what to read.
        columns: either of delta texts only, or without any.
        batch_rows: rows per batch.
    """
    are_delta = any(map(piece.is_delta_text, columns))
    size = rows_at_once(piece.most_bytes(columns), batch_rows) if are_delta else batch_rows
    options = {
        "metadata": piece.file.metadata,
        "pre_buffer": False,
        "buffer_size": _BUFFER_BYTES,
        # A long name that every row repeats would otherwise be there once for each of them.
        "read_dictionary": [name for name in TEXT_COLUMNS if name in columns and not are_delta],
    }
    with pq.ParquetFile(piece.file.path, **options) as parquet:
        read = parquet.iter_batches(
            batch_size=size, row_groups=list(piece.row_groups), columns=columns, use_threads=False
        )
        yield from dictionary_batches(read, batch_rows, piece.place) if are_delta else read


def _batch_rows(piece: _Piece, lists: list[str]) -> int:
    """Rows per batch: those of the file, or fewer where long responses stand together; many without list columns.

    The footer holds the elements of a row group but not those of a row, so a small file could hold one row of
    billions. `response_len` is read first: it bounds the rows, or the row groups must be small enough to be decoded
    whatever their rows hold.
    """
    if not lists:
        return MAX_BATCH_ROWS
    rows, groups = piece.file.batch_rows, [piece.file.chunks[index] for index in piece.row_groups]
    elements = max(sum(sizes[name].values for sizes in groups if name in sizes) for name in lists)
    if elements <= SMALL_PIECE_ELEMENTS:
        return rows
    lengths = _recorded_lengths(piece)
    where = piece.place
    if lengths is None:
        if elements > MAX_UNBOUNDED_ELEMENTS:
            what = f"a row group holds {elements} list elements and doesn't tell the length of every response"
            hint = f"write response_len, or row groups of up to {MAX_UNBOUNDED_ELEMENTS} elements"
            raise LogError(Problem(what, where, hint))
        return rows
    longest, recorded = int(lengths.max(initial=0)), int(np.maximum(lengths, 1).sum())
    if min(longest, elements) > MAX_ROW_ELEMENTS or elements - recorded > MAX_ROW_ELEMENTS:
        what = f"lists of {elements} elements for responses of {recorded} tokens, the longest of {longest}"
        hint = f"tokenaudit reads up to {MAX_ROW_ELEMENTS} tokens per response; record long ones as runs"
        raise LogError(Problem(what, where, hint))
    while rows > 1 and _largest_batch(lengths, rows) > 2 * TARGET_BATCH_ELEMENTS:
        rows = -(-rows // 2)
    return rows


def _recorded_lengths(piece: _Piece) -> Int64s | None:
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

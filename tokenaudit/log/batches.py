"""The rows of a log in batches of bounded size, read one after the other or ahead by several threads."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import TypeVar

import numpy as np

from tokenaudit.log.files import Log
from tokenaudit.log.merged_batches import merged_batches
from tokenaudit.log.pieces import LogBatch, piece_batches, pieces_of
from tokenaudit.log.prefetch import Prefetch

T = TypeVar("T")

MAX_WORKERS = 8
"""Threads that read; more of them would only hold more memory."""
_KEPT_BYTES = 16 << 20
"""More than any array made of a batch takes."""


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
    for batch in chain.from_iterable(_parts(log, columns)):
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
    workers = worker_count()
    _keep_freed_memory()
    parts = [map(function, part) for part in _parts(log, columns, workers)]
    rows_done = 0
    with Prefetch(parts, workers, weigh, limit) as values:
        for value in values:
            yield value
            rows_done += rows_of(value)
            if on_progress is not None:
                on_progress(rows_done)


def _keep_freed_memory() -> None:
    """Have arrays of later batches reuse the memory of earlier ones, which otherwise goes back to the system each time.

    glibc keeps blocks up to the largest one freed so far, and twice as much at the end of its heap: see mallopt(3),
    M_MMAP_THRESHOLD. The block itself is never touched. Other C libraries do as they do.
    """
    np.empty(_KEPT_BYTES, dtype=np.uint8)


def worker_count() -> int:
    """Threads to read with: the cores this process may use."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(cores, MAX_WORKERS)


def _parts(log: Log, columns: Sequence[str], workers: int = 1) -> list[Iterator[LogBatch]]:
    """The batches of a log in parts that threads may read side by side; rows that are merged are one part."""
    if log.order is not None:
        return [merged_batches(log.files, log.order, columns)]
    pieces = list(pieces_of(log.files))
    # pieces that would leave threads idle at the end are read by several
    shared_from = len(pieces) - len(pieces) % workers
    return [piece_batches(piece, columns, by_column=at >= shared_from) for at, piece in enumerate(pieces)]

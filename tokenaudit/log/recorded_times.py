"""When the events of a log happened. Replay doesn't need it, so a digest lacks it: a few columns are read again."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tokenaudit.contracts.errors import LogError, Problem
from tokenaudit.log import columns as col
from tokenaudit.log.batches import read_batches
from tokenaudit.log.columns import ABSENT, Int64s
from tokenaudit.log.digest import Digest
from tokenaudit.log.files import Log
from tokenaudit.log.reading import outside_quarantine

_TIME = "time_us"


def recorded_times(log: Log, digest: Digest, on_progress: Callable[[int], None] | None = None) -> Int64s:
    """The time of every event of a digest: the largest `time_us` of its rows, `ABSENT` where none has one.

    Times of a log of many ranks are those of its merged clock. A log without the column isn't read.

    Args:
        log: an opened log.
        digest: its digest, with or without quarantine.
        on_progress: called with the number of rows read so far.

    Returns:
        Microseconds, in the shape [E] of `digest.events`.

    Raises:
        LogError: the log can't be read, or is no longer the one that was digested.
    """
    count = len(digest.events.kind)
    if _TIME not in log.columns:
        return np.full(count, ABSENT, dtype=np.int64)
    ids, times = [np.zeros(0, dtype=np.int64)], [np.zeros(0, dtype=np.int64)]
    for batch in read_batches(log, ("event", "event_id", "task_name", "group_id", _TIME), on_progress):
        stays = outside_quarantine(batch, digest)
        event_id = col.integers(batch.columns.get("event_id"), batch.rows, fill=ABSENT)[stays]
        time = col.integers(batch.columns.get(_TIME), batch.rows, fill=ABSENT)[stays]
        for parts, part in zip((ids, times), _by_event(event_id, time), strict=True):
            parts.append(part)
    # an event may go on in the next batch
    _, by_event = _by_event(np.concatenate(ids), np.concatenate(times))
    if len(by_event) != count:
        raise LogError(
            Problem("the log holds other events than before", log.name, "don't change a log while it is read")
        )
    return by_event


def _by_event(event_id: Int64s, time: Int64s) -> tuple[Int64s, Int64s]:
    """Id and largest time of every event, of rows in the order of the log."""
    starts = np.flatnonzero(np.diff(event_id, prepend=event_id[:1] - 1))
    return event_id[starts], np.maximum.reduceat(time, starts) if len(starts) else time

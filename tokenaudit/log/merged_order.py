"""The order in which the events of several ranks make one log: by their clocks, as `merged_order` says.

A rank's own order is kept, and what several ranks record of one train step counts once. Memory grows with rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from tokenaudit.contracts.errors import LogError, Problem
from tokenaudit.contracts.schema import EventKind
from tokenaudit.log.clock_check import RankedEvents, clock_note
from tokenaudit.log.columns import ABSENT, INT32_MAX, LARGEST, Columns, Int64s, integers, text_codes
from tokenaudit.log.digest import KIND_CODE, kind_code
from tokenaudit.log.log_file import LogFile
from tokenaudit.log.pieces import piece_batches, pieces_of
from tokenaudit.log.ranks import LATEST_US, ranks_text, two_runs

_REFRESH, _TAKE, _SYNC = (KIND_CODE[kind] for kind in (EventKind.REFRESH, EventKind.TAKE, EventKind.SYNC))
_INTEGERS = ("event_id", "train_step", "model_step", "time_us")
_NO_STEP = -1


@dataclass(frozen=True, slots=True, eq=False)
class MergedOrder:
    """N rows of a merged log; every array has the shape [N]. Rows of one file keep their order.

    Attributes:
        file: index of the file that each row stands in.
        row: row of that file.
        event_id: its new event id, counted from 1; `ABSENT` where it is null.
        notes: what a person should know about the clocks, in sentences.
        last_steps: the largest train step that each rank recorded, by rank, ascending; ranks without any aside.
    """

    file: np.ndarray[tuple[int], np.dtype[np.int32]]
    row: Int64s
    event_id: Int64s
    notes: tuple[str, ...]
    last_steps: dict[int, int]


def merged_order(files: Sequence[LogFile]) -> MergedOrder:
    """Merge the events of the files of several ranks.

    An event's time is its clock's origin plus the largest `time_us` of its rows; where it has none, or one before the
    event before it, that of the event before it; at first, the origin. Events are ordered by time, those of one time by
    rank. A refresh or sync of a train step that another rank records before is left out.

    Args:
        files: the files of a log, in reading order; each has a rank.

    Raises:
        LogError: two runs of a rank, takes from several ranks, or a file that can't be read.
    """
    ranks = [rank for file in files if (rank := file.rank) is not None]
    by_rank = sorted(range(len(files)), key=lambda index: ranks[index].rank)
    rows = _scanned([files[index] for index in by_rank])
    counts = [files[index].rows for index in by_rank]
    file = np.repeat(np.array(by_rank, dtype=np.int32), counts)
    row = np.concatenate([np.arange(count) for count in counts])
    rank = np.array([found.rank for found in ranks], dtype=np.int64)[file]
    bounds = np.flatnonzero(np.diff(rank, prepend=-1, append=-1)).tolist()
    event_id = rows["event_id"]
    # by the clock that began first; a rank's own begins at its shift
    shift = clock_shifts(files)[file]
    time = np.maximum(shifted_times(rows["time_us"], shift), shift)

    def place(index: int) -> str:
        return f"{files[file[index]].path}, row {row[index]}"

    problems: list[Problem] = []
    for first, last in pairwise(bounds):
        own = slice(first, last)
        time[own] = np.maximum.accumulate(time[own])
        reached = np.maximum.accumulate(event_id[own])
        falls = np.flatnonzero((event_id[own][1:] < reached[:-1]) & (event_id[own][1:] != ABSENT))
        if len(falls):
            index = first + int(falls[0]) + 1
            where = f"{place(index)}, column event_id"
            problems.append(two_runs(int(rank[first]), int(reached[falls[0]]), int(event_id[index]), where))
    is_start = np.ones(len(event_id), dtype=np.bool_)
    is_start[1:] = (event_id[1:] != event_id[:-1]) | (rank[1:] != rank[:-1])
    starts = np.flatnonzero(is_start)
    ends = np.append(starts, len(event_id))[1:]
    events = RankedEvents(
        kind=rows["kind"][starts],
        train_step=rows["train_step"][starts],
        rank=rank[starts],
        time=time[ends - 1],
    )
    problems.extend(_take_problems(events, [place(index) for index in _first_takes(events, starts)]))
    if problems:
        raise LogError(problems)
    order = np.lexsort((events.rank, events.time))
    kept, notes = _once(events, rows, starts, order)
    order = order[kept[order]]
    clocks = clock_note(events, kept)
    lengths = (ends - starts)[order]
    picked = np.repeat(starts[order] - (np.cumsum(lengths) - lengths), lengths) + np.arange(int(lengths.sum()))
    number = np.repeat(np.arange(1, len(order) + 1), lengths)
    # what no log may hold stays, and is a fault of its row
    own_id = event_id[picked]
    new_id = np.where((own_id == ABSENT) | (own_id == LARGEST), own_id, number)
    return MergedOrder(file[picked], row[picked], new_id, (*clocks, *notes), _last_steps(rank, rows["train_step"]))


def _last_steps(rank: Int64s, train_step: Int64s) -> dict[int, int]:
    known = (train_step >= 0) & (train_step <= INT32_MAX)
    numbers, owner = np.unique(rank[known], return_inverse=True)
    last = np.zeros(len(numbers), dtype=np.int64)
    np.maximum.at(last, owner, train_step[known])
    return dict(zip(numbers.tolist(), last.tolist(), strict=True))


def clock_shifts(files: Sequence[LogFile]) -> Int64s:
    """For each file, microseconds from the origin of the clock that began first to that of its own clock."""
    origins = np.array([file.rank.clock_origin_us for file in files if file.rank is not None], dtype=np.int64)
    return origins - origins.min(initial=LATEST_US)


def shifted_times(time_us: Int64s, shift: Int64s) -> Int64s:
    """Times by the clock that began first, from those by clocks that began `shift` later; `ABSENT` where they are."""
    return np.where(time_us == ABSENT, ABSENT, np.clip(time_us, -LATEST_US, LATEST_US - 1) + shift)


def _scanned(files: Sequence[LogFile]) -> Columns:
    """What decides the order, of all rows of some files: the integer columns and the kinds of events."""
    parts: list[Columns] = []
    for piece in pieces_of(files):
        for batch in piece_batches(piece, ("event", *_INTEGERS)):
            arrays: Columns = {name: integers(batch.columns.get(name), batch.rows, fill=ABSENT) for name in _INTEGERS}
            arrays["kind"] = text_codes(batch.columns.get("event"), batch.rows, kind_code).astype(np.int8)
            parts.append(arrays)
    nothing = np.zeros(0, dtype=np.int64)
    return {name: np.concatenate([nothing, *(part[name] for part in parts)]) for name in (*_INTEGERS, "kind")}


def _first_takes(events: RankedEvents, starts: Int64s) -> list[int]:
    """The first row of the first take of each rank that has one."""
    takes = np.flatnonzero(events.kind == _TAKE)
    _, first = np.unique(events.rank[takes], return_index=True)
    return starts[takes[first]].tolist()


def _take_problems(events: RankedEvents, places: Sequence[str]) -> Iterator[Problem]:
    """Takes come from one rank; `places` are those of the first take of each rank."""
    if len(places) > 1:
        takers = np.unique(events.rank[events.kind == _TAKE]).tolist()
        where = "; ".join(places[:2]) + ("; …" if len(places) > 2 else "")
        yield Problem(f"takes come from ranks {ranks_text(takers)}", where, "record takes on one rank, which trains")


def _once(
    events: RankedEvents, rows: Columns, starts: Int64s, order: Int64s
) -> tuple[np.ndarray[tuple[int], np.dtype[np.bool_]], tuple[str, ...]]:
    """Events that aren't left out because another rank records the same before; and what to know about them.

    Args:
        events: the events.
        rows: the rows.
        starts: first row of each event.
        order: the events in the order of time.
    """
    is_step = (rows["train_step"] >= 0) & (rows["train_step"] <= INT32_MAX)
    of_row = np.where(rows["kind"] == _SYNC, 2 * rows["train_step"] + 1, 2 * rows["train_step"])
    of_row = np.where(is_step & np.isin(rows["kind"], (_REFRESH, _SYNC)), of_row, _NO_STEP)
    kept = np.ones(len(starts), dtype=np.bool_)
    if len(starts) == 0:
        return kept, ()
    code = np.minimum.reduceat(of_row, starts)
    # rows that differ in what they are make a fault, which must not vanish
    code[code != np.maximum.reduceat(of_row, starts)] = _NO_STEP
    shared = order[code[order] != _NO_STEP]
    _, first, owner = np.unique(code[shared], return_index=True, return_inverse=True)
    counting = shared[first][owner]
    is_later = events.rank[shared] != events.rank[counting]
    later, counting = shared[is_later], counting[is_later]
    kept[later] = False
    version = rows["model_step"][starts]
    differs = np.flatnonzero((version[later] != version[counting]) & (events.kind[later] == _SYNC))
    if len(differs) == 0:
        return kept, ()
    one, other = int(counting[differs[0]]), int(later[differs[0]])
    steps = len(np.unique(events.train_step[later[differs]]))
    note = (
        f"ranks record different versions for the syncs of {steps} train steps, such as step"
        f" {events.train_step[one]}: {_version(version[one])} on rank {events.rank[one]},"
        f" {_version(version[other])} on rank {events.rank[other]}; the first counts"
    )
    return kept, (note,)


def _version(value: int) -> str:
    return "none" if value == ABSENT else str(value)

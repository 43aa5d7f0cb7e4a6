"""How versions move with the steps of a run: where they stand still, and where they only repeat what a put says."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

import numpy as np

from tokenaudit.audit.table import LogTable
from tokenaudit.contracts.schema import EventKind
from tokenaudit.log.columns import Bools, Int64s
from tokenaudit.log.digest import KIND_CODE
from tokenaudit.log.row_checks import ABSENT

LEAST_FROZEN = 5
"""Steps that the newest version must at least stand still for."""
FROZEN_INTERVALS = 3
"""Sync intervals that it must at least stand still for."""
LEAST_CONTINUED = 10
"""Rollouts continued over a sync that a verdict on their versions needs."""
LEAST_IN_A_ROW = 20
"""Such rollouts in a row that end in a single version, where others don't: the run began to fill in."""
FILLED_SHARE = 0.99
"""Share of them that ends in a single version where versions are filled in."""

_SYNC = KIND_CODE[EventKind.SYNC]


def newest_versions(table: LogTable) -> Int64s:
    """The newest version of each row, the one of its put included where tokens are left for it; else `ABSENT`."""
    return np.maximum(table["newest"], np.where(_is_stamped(table), table["model_step"], ABSENT))


def oldest_versions(table: LogTable) -> Int64s:
    """The oldest version of each row, the one of its put included where it stamps tokens; else `ABSENT`."""
    oldest = table["oldest"]
    is_older = (oldest == ABSENT) | (table["model_step"] < oldest)
    return np.where(_is_stamped(table) & is_older, table["model_step"], oldest)


def _is_stamped(table: LogTable) -> Bools:
    return (table["tokens"] > np.maximum(table["versions_len"], 0)) & table.present("model_step")


class Standstill(NamedTuple):
    """Steps from `first` to `last`, both with puts, in which no put has a newer version than `version`."""

    version: int
    first: int
    last: int

    @property
    def steps(self) -> int:
        """How many steps it takes."""
        return self.last - self.first + 1


def standstills(train_step: Int64s, newest: Int64s) -> list[Standstill]:
    """The stretches of steps between rises of the newest version, from step and newest version of puts, any order."""
    steps, index = np.unique(train_step, return_inverse=True)
    if len(steps) == 0:
        return []
    of_step = np.full(len(steps), np.iinfo(np.int64).min)
    np.maximum.at(of_step, index.reshape(-1), newest)
    reached = np.maximum.accumulate(of_step)
    begins = np.flatnonzero(np.diff(reached, prepend=reached[0] - 1))
    ends = np.append(begins[1:], len(steps)) - 1
    columns = (reached[begins], steps[begins], steps[ends])
    return list(map(Standstill, *(column.tolist() for column in columns)))


def usual_interval(stretches: list[Standstill]) -> int:
    """Steps from rise to rise, by the median; 1 where the version never rises."""
    gaps = np.diff([stretch.first for stretch in stretches])
    return max(1, int(np.median(gaps))) if len(gaps) else 1


def frozen(stretches: list[Standstill], interval: int, most_queued: int = 0) -> list[Standstill]:
    """Those that last max(5, 3 intervals) steps or more.

    Args:
        stretches: all of a run, in order.
        interval: steps between two syncs.
        most_queued: steps for which what fills the queues at the begin of a run may be trained, before what newer
            weights made comes out behind it; a run that ends with its first version isn't excused so.
    """
    least = max(LEAST_FROZEN, FROZEN_INTERVALS * interval)
    begin = max(least, most_queued + 1) if len(stretches) > 1 else least
    return [stretch for at, stretch in enumerate(stretches) if stretch.steps >= (begin if at == 0 else least)]


def continued_over_sync(table: LogTable, goes_on: Bools) -> Bools:
    """Put rows whose response got tokens of two weights or more, by what the log says when it was put.

    Args:
        table: the rows.
        goes_on: put rows that go on from the tokens of their response's put before, of shape [rows].
    """
    is_sync = table["kind"] == _SYNC
    newest = newest_versions(table)
    named = np.where(table.present("model_step") & (table.is_put | is_sync), table["model_step"], ABSENT)
    # Without a version of its own, a put has the newest that the log showed before it.
    reached = np.maximum.accumulate(np.maximum(named, np.where(table.is_put, newest, ABSENT)))
    at_put = np.where(named == ABSENT, reached, named)
    rows = np.flatnonzero(goes_on)
    before = table.previous[rows]
    grew = (table["tokens"][rows] > table["tokens"][before]) & (table["tokens"][before] > 0)
    crossed = np.zeros(table.rows, dtype=np.bool_)
    crossed[rows] = grew & (at_put[before] < at_put[rows]) & (at_put[before] != ABSENT)
    return _since(table, crossed, goes_on)


def _since(table: LogTable, begins: Bools, goes_on: Bools) -> Bools:
    """Rows in `begins` and the later puts of their responses, as long as these go on."""
    marked, last = begins.copy(), 0
    while marked.sum() > last:
        last = int(marked.sum())
        marked |= goes_on & marked[table.previous]
    return marked


def first_and_last(table: LogTable) -> tuple[Int64s, Bools]:
    """The first put row of each row's response (the row itself where it has no put before), and whether it is the last.

    Both have the shape [rows].
    """
    first = np.where(table.previous >= 0, table.previous, np.arange(table.rows))
    while not np.array_equal(further := first[first], first):
        first = further
    is_last = table.is_put.copy()
    is_last[table.previous[table.previous >= 0]] = False
    return first, is_last


def single_version(table: LogTable) -> Bools:
    """Put rows with tokens whose recorded versions are all one, or that go on and have that of their put alone."""
    oldest = oldest_versions(table)
    return (
        table.known
        & (table["tokens"] > 0)
        & ((table["versions_len"] >= 0) | (table.present("prior_len") & (table["prior_len"] > 0)))
        & (oldest != ABSENT)
        & (oldest == newest_versions(table))
    )


def filled(is_single: Bools) -> Bools:
    """Which of the responses that were continued over a sync, in log order, have one version because it is filled in.

    All single ones where 99 % are, else those that are 20 or more in a row.
    """
    if len(is_single) >= LEAST_CONTINUED and is_single.mean() >= FILLED_SHARE:
        return is_single
    run = np.cumsum(~is_single)
    lengths = np.bincount(run[is_single], minlength=int(run[-1]) + 1) if len(run) else run
    return is_single & (lengths[run] >= LEAST_IN_A_ROW) if len(run) else is_single


class Filler(StrEnum):
    """What versions repeat; the value says it in a finding."""

    STEP = "the step of the put"
    BEFORE = "the step of the put - 1"
    PUT = "the model_step of the put"
    FIRST = "the version of the response's first put"


def fillers(table: LogTable, rows: Int64s, first: Int64s) -> list[Filler]:
    """What the single version of put rows equals in 99 % of them; `first` is the version when each was first put."""
    version, step = oldest_versions(table)[rows], table["train_step"][rows]
    equal = {
        Filler.STEP: version == step,
        Filler.BEFORE: version == step - 1,
        Filler.PUT: version == table["model_step"][rows],
        Filler.FIRST: version == first,
    }
    return [filler for filler, where in equal.items() if len(rows) and where.mean() >= FILLED_SHARE]

"""Whether the clocks of ranks agree: an event lies inside its train step, as the rank that takes records the steps."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tokenaudit.contracts.errors import plural
from tokenaudit.contracts.schema import EventKind
from tokenaudit.log.columns import Bools, Int64s
from tokenaudit.log.digest import KIND_CODE

_PUT, _REFRESH, _TAKE, _SYNC = (
    KIND_CODE[kind] for kind in (EventKind.PUT, EventKind.REFRESH, EventKind.TAKE, EventKind.SYNC)
)
_EVER, _NEVER = -(2**63), 2**63 - 1
_MOST_NAMED = 10


class RankedEvents(NamedTuple):
    """E events of all ranks, those of a rank in its order; every array has the shape [E].

    Attributes:
        kind: code of the kind of event.
        train_step: its train step.
        rank: the rank that recorded it.
        time: microseconds by which it is merged.
    """

    kind: Int64s
    train_step: Int64s
    rank: Int64s
    time: Int64s


def clock_note(events: RankedEvents, kept: Bools) -> tuple[str, ...]:
    """A sentence that names the ranks whose events lie outside their train steps, and by how much; or none.

    On the rank that takes, a step begins at its refresh, or where there is none at the last take of a step before, and
    ends where the next one begins; the last one ends at its take where no refreshes are recorded, else never. A refresh
    comes after the last take before its step, a sync after that of its step.

    Args:
        events: the events.
        kept: those that are part of the merged log.
    """
    takes = np.flatnonzero(events.kind == _TAKE)
    if len(takes) == 0:
        return ()
    taker = int(events.rank[takes[0]])
    judged = np.flatnonzero(kept & (events.rank != taker) & np.isin(events.kind, (_PUT, _REFRESH, _SYNC)))
    judged = judged[events.train_step[judged] >= 0]
    kind, step, time = events.kind[judged], events.train_step[judged], events.time[judged]
    steps = _Steps(RankedEvents(*(array[events.rank == taker] for array in events)))
    begins = np.select(
        [kind == _PUT, kind == _REFRESH], [steps.begin(step), steps.last_take(step - 1)], steps.last_take(step)
    )
    ends = np.where(kind == _SYNC, _NEVER, steps.end(step))
    early = np.where(time < begins, begins - time, 0)
    late = np.where(time > ends, time - ends, 0)
    off = np.maximum(early, late)
    named = []
    for rank in np.unique(events.rank[judged][off > 0]).tolist():
        of_rank = (events.rank[judged] == rank) & (off > 0)
        worst = int(np.argmax(np.where(of_rank, off, 0)))
        side = "late" if late[worst] else "early"
        named.append(f"rank {rank} ({plural(int(of_rank.sum()), 'event')}, up to {_duration(int(off[worst]))} {side})")
    if not named:
        return ()
    more = f" and {plural(len(named) - _MOST_NAMED, 'other rank')}" if len(named) > _MOST_NAMED else ""
    return (
        f"by the clocks of the ranks, events lie outside their train steps as rank {taker} records those:"
        f" {', '.join(named[:_MOST_NAMED])}{more}; synchronise the clocks of the hosts, or let every"
        " rank record the train step that the buffer is in",
    )


class _Steps:
    """When train steps begin and end by the events of one rank."""

    def __init__(self, events: RankedEvents) -> None:
        self._takes = _by_step(events, (_TAKE,))
        self._refreshes = _by_step(events, (_REFRESH,))
        self._both = _by_step(events, (_TAKE, _REFRESH))

    def begin(self, step: Int64s) -> Int64s:
        """When steps of shape [N] begin."""
        refresh = self._first_refresh(step)
        return np.where(refresh == _NEVER, self.last_take(step - 1), refresh)

    def end(self, step: Int64s) -> Int64s:
        """When they end."""
        refresh, last_take = self._first_refresh(step + 1), self.last_take(step)
        steps, times = self._both
        earliest = np.append(np.minimum.accumulate(times[::-1])[::-1], _NEVER)
        of_later = earliest[np.searchsorted(steps, step, side="right")]
        if len(self._refreshes[0]) == 0:
            return np.where(np.isin(step, self._takes[0]), last_take, of_later)
        return np.where(refresh == _NEVER, of_later, refresh)

    def last_take(self, step: Int64s) -> Int64s:
        """The time of the last take of these steps or steps before; `_EVER` without any."""
        steps, times = self._takes
        latest = np.concatenate([[_EVER], np.maximum.accumulate(times)])
        return latest[np.searchsorted(steps, step, side="right")]

    def _first_refresh(self, step: Int64s) -> Int64s:
        """The time of their first refresh; `_NEVER` without one."""
        steps, times = self._refreshes
        index = np.searchsorted(steps, step)
        is_there = np.append(steps, _NEVER)[index] == step
        return np.where(is_there, np.append(times, _NEVER)[index], _NEVER)


def _by_step(events: RankedEvents, kinds: tuple[int, ...]) -> tuple[Int64s, Int64s]:
    """Steps and times of events of some kinds, ordered by step, those of one step by time."""
    where = np.isin(events.kind, kinds)
    step, time = events.train_step[where], events.time[where]
    order = np.lexsort((time, step))
    return step[order], time[order]


def _duration(microseconds: int) -> str:
    """A time span in its unit."""
    if microseconds < 1_000:
        return f"{microseconds} µs"
    return f"{microseconds / 1e3:.3f} ms" if microseconds < 1_000_000 else f"{microseconds / 1e6:.3f} s"

"""The records of one task and status, in the order in which they leave.

Staleness grows by one a step for every record at the same time, so the order by oldest version stands still
while ages grow. Only records whose staleness is pinned at 0 (no member has a token) move against the others;
they have a heap of their own.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from enum import StrEnum

from tokenaudit.lifecycle.members import Group
from tokenaudit.lifecycle.types import Status

_SLACK = 64


class ReplayPolicy(StrEnum):
    """The order in which records leave a pool."""

    STALENESS = "staleness"
    """Largest record staleness first, then the order of the puts: uses old data before it expires."""
    FIFO = "fifo"
    """The order of the puts."""


class Record:
    """A group in the buffer.

    Attributes:
        group: the group.
        status: the pool it is in.
        timestamp: place in the order of the puts.
        oldest: smallest version of its tokens; None without tokens.
        aging_from: the version its staleness counts from; None while the staleness is pinned at 0.
        expiry_step: the train step at which its next member expires; None when none ever does.
    """

    __slots__ = ("aging_from", "expiry_step", "group", "oldest", "status", "timestamp")

    def __init__(self, group: Group, status: Status, timestamp: int) -> None:
        self.group = group
        self.status = status
        self.timestamp = timestamp
        self.oldest: int | None = None
        self.aging_from: int | None = None
        self.expiry_step: int | None = None


class Pool:
    """Records in policy order: the stalest first, then by timestamp; pinned ones count as staleness 0.

    Heap entries of records that left or moved stay behind until they surface, or until they outnumber the
    records.
    """

    __slots__ = ("_aging", "_pinned", "_records")

    def __init__(self) -> None:
        self._records: dict[int, Record] = {}
        self._aging: list[tuple[int, int]] = []
        self._pinned: list[int] = []

    def __len__(self) -> int:
        return len(self._records)

    def __iter__(self) -> Iterator[Record]:
        return iter(self._records.values())

    def add(self, record: Record) -> None:
        """Hold a record; call again after its `aging_from` changed."""
        timestamp = record.timestamp
        self._records[timestamp] = record
        if record.aging_from is None:
            heapq.heappush(self._pinned, timestamp)
        else:
            heapq.heappush(self._aging, (record.aging_from, timestamp))
        if len(self._aging) + len(self._pinned) > 2 * len(self._records) + _SLACK:
            self._rebuild()

    def remove(self, record: Record) -> None:
        """Forget a record."""
        del self._records[record.timestamp]

    def pop_first(self, clock: int) -> Record:
        """Remove and return the first record in order.

        Args:
            clock: the train step that staleness is counted at.

        Raises:
            IndexError: the pool is empty.
        """
        records, aging, pinned = self._records, self._aging, self._pinned
        while aging and not _is_current(records.get(aging[0][1]), aging[0][0]):
            heapq.heappop(aging)
        while pinned and not _is_current(records.get(pinned[0]), None):
            heapq.heappop(pinned)
        if not aging and not pinned:
            raise IndexError("no record to take")
        if not pinned:
            timestamp = heapq.heappop(aging)[1]
        elif not aging or (clock - 1, pinned[0]) < aging[0]:
            timestamp = heapq.heappop(pinned)
        else:
            timestamp = heapq.heappop(aging)[1]
        return records.pop(timestamp)

    def _rebuild(self) -> None:
        self._aging = [
            (record.aging_from, timestamp)
            for timestamp, record in self._records.items()
            if record.aging_from is not None
        ]
        self._pinned = [timestamp for timestamp, record in self._records.items() if record.aging_from is None]
        heapq.heapify(self._aging)
        heapq.heapify(self._pinned)


def _is_current(record: Record | None, aging_from: int | None) -> bool:
    return record is not None and record.aging_from == aging_from

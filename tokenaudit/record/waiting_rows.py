"""Rows between the call that records them and the part that holds them, in bounded memory."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from enum import StrEnum

from tokenaudit.contracts.schema import TOKEN_COLUMNS
from tokenaudit.log.writer import Row

_SIZED = (*TOKEN_COLUMNS, "task_name", "finish_reason")
PART_ELEMENTS = 16_000_000
"""Elements of token columns, characters of texts, and `ROW_COST` per row, at which a part is sealed."""
ROW_COST = 64
"""What a row counts for, beside its lists, in bounds of memory."""


def cost_of(rows: Sequence[Row]) -> int:
    """What rows take in bounds of memory: their list elements, the characters of their texts, and `ROW_COST` each."""
    sized = (row[name] for row in rows for name in _SIZED if row.get(name) is not None)
    return ROW_COST * len(rows) + sum(map(len, sized))


class WhenFull(StrEnum):
    """What a recorder does when its queue is full."""

    BLOCK = "block"
    """The caller waits until the writer caught up; no event is ever lost."""
    DROP = "drop"
    """The event is dropped and counted; a gap in the event ids shows where."""


class EventQueue:
    """Events that wait for the writer, oldest first. Not for two threads at once.

    Args:
        most: what they may take, as `cost_of` counts it.
    """

    def __init__(self, most: int) -> None:
        self._events: deque[tuple[list[Row], int]] = deque()
        self._most = most
        self._cost = 0

    def __len__(self) -> int:
        return len(self._events)

    def has_room(self, cost: int) -> bool:
        """Whether an event fits; one that is larger than the whole queue fits an empty one."""
        return self._cost == 0 or self._cost + cost <= self._most

    def add(self, rows: list[Row], cost: int) -> None:
        """Add the rows of an event behind the others."""
        self._events.append((rows, cost))
        self._cost += cost

    def pop(self) -> list[Row]:
        """The rows of the oldest event, which leaves the queue."""
        rows, cost = self._events.popleft()
        self._cost -= cost
        return rows


class UnsealedRows:
    """Rows that wait to be sealed.

    Attributes:
        rows: the rows, in order.
        events: events they belong to.
    """

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Forget the rows; they are sealed."""
        self.rows: list[Row] = []
        self.events = self._cost = 0
        self._since: float | None = None

    def start_clock(self) -> None:
        """There is something to seal from now on, if there was nothing before."""
        if self._since is None:
            self._since = time.monotonic()

    def add(self, rows: list[Row]) -> None:
        """Add the rows of one event."""
        self.start_clock()
        self.rows.extend(rows)
        self.events += 1
        self._cost += cost_of(rows)

    def seconds_left(self, seconds: float) -> float | None:
        """How long what is there may go on waiting, if it may wait for `seconds`; None without anything."""
        return None if self._since is None else max(0.0, self._since + seconds - time.monotonic())

    def is_due(self, rows: int, seconds: float) -> bool:
        """Whether there are `rows` rows, or many elements, or what is there has waited for `seconds`."""
        if self._since is None:
            return False
        waited = time.monotonic() - self._since
        return len(self.rows) >= rows or self._cost >= PART_ELEMENTS or waited >= seconds

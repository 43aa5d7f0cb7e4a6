"""The rollout engine: members make one token per token time, and a group ends with its last member."""

from __future__ import annotations

import heapq
from collections import deque

from tokenaudit.simulate.flight import Flight


class Meter:
    """Adds up the simulated time in which it is on, in microseconds. It begins off."""

    __slots__ = ("_counted", "_since", "_total")

    def __init__(self) -> None:
        self._total = 0
        self._counted = 0
        self._since: int | None = None

    def set(self, is_on: bool, now: int) -> None:
        """Turn it on or off at an instant that is not before the last one; to what it already is, too."""
        if self._since is not None:
            self._total += now - self._since
        self._since = now if is_on else None

    def lap(self, now: int) -> int:
        """Time it was on since the last lap ended."""
        total = self._total if self._since is None else self._total + now - self._since
        lap = total - self._counted
        self._counted = total
        return lap


class Engine:
    """Groups being generated.

    Ends come in order of time; those of one instant in order of spawning over all tasks, then in member order, so
    the order is total and doesn't depend on how the heap was filled.

    Args:
        max_concurrency: responses generated at once, first spawned first served; None: any number.
    """

    def __init__(self, max_concurrency: int | None = None) -> None:
        self._slots = max_concurrency
        self._flights: dict[int, Flight] = {}
        self._ends: list[tuple[int, int, int]] = []
        self._waiting: deque[tuple[int, int]] = deque()
        self._next_order = 0
        self.busy = Meter()
        """On while a response is being generated."""

    @property
    def next_end(self) -> int | None:
        """When the next member ends; None if none is being generated."""
        return self._ends[0][0] if self._ends else None

    def spawn(self, flight: Flight, now: int) -> None:
        """Begin to generate the members of a group that aren't completed."""
        order = flight.order = self._next_order
        self._next_order += 1
        self._flights[order] = flight
        for member in range(len(flight.start)):
            if not flight.is_done_before(member):
                flight.unfinished += 1
                self._waiting.append((order, member))
        self._fill(now)

    def pop_end(self) -> Flight | None:
        """End the next member; its group, if that was the last one.

        Raises:
            IndexError: nothing is being generated.
        """
        now, order, _ = heapq.heappop(self._ends)
        flight = self._flights[order]
        flight.unfinished -= 1
        self._fill(now)
        if flight.unfinished:
            return None
        return self._flights.pop(order)

    def abort(self, now: int) -> list[Flight]:
        """Cut off everything; the groups that haven't ended, in order of spawning."""
        flights = list(self._flights.values())
        self._flights.clear()
        self._ends.clear()
        self._waiting.clear()
        self.busy.set(False, now)
        return flights

    def flights(self) -> list[Flight]:
        """The groups that haven't ended, in order of spawning."""
        return list(self._flights.values())

    def _fill(self, now: int) -> None:
        while self._waiting and (self._slots is None or len(self._ends) < self._slots):
            order, member = self._waiting.popleft()
            flight = self._flights[order]
            flight.start[member] = now
            end = now + flight.remaining[member] * flight.token_time_us[member]
            heapq.heappush(self._ends, (end, order, member))
        self.busy.set(bool(self._ends), now)

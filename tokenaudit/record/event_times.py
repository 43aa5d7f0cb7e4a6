"""Where the `time_us` of events comes from: the clock, which never goes back, or the caller alone."""

from __future__ import annotations

import time

from tokenaudit.contracts.errors import Problem, RecordError
from tokenaudit.log.writer import Row
from tokenaudit.record.ranks import Rank

_LATEST_US = 2**63 - 1


class RunClock:
    """Microseconds since a run began. The system's clock sets it once, so that a change of that one moves no event.

    Attributes:
        origin_us: microseconds of the Unix epoch at which `time_us` is 0.

    Args:
        origin_us: the same, of a run that goes on; None: such that it is `reached_us` now.
        reached_us: the time that the run has reached already, 0 or more.
    """

    def __init__(self, origin_us: int | None, reached_us: int) -> None:
        self._started_ns, epoch_us = _both_clocks()
        self.origin_us = epoch_us - reached_us if origin_us is None else origin_us
        # the system's clock may have been set back since then, or be another host's
        self._first_us = max(epoch_us - self.origin_us, reached_us)
        self._latest_us = self.now_us()

    def now_us(self) -> int:
        """The time now; at most what 64 bits hold."""
        return min(self._first_us + (time.monotonic_ns() - self._started_ns) // 1000, _LATEST_US)

    def stamp(self, rows: list[Row], called_us: int) -> None:
        """Give the rows of an event without a time that of its call, or of the event before if that was called later.

        For one thread at a time, in the order of the events.
        """
        self._latest_us = max(self._latest_us, called_us)
        for row in rows:
            if row.get("time_us") is None:
                row["time_us"] = self._latest_us


def _both_clocks() -> tuple[int, int]:
    """The monotonic clock in nanoseconds and the system's in microseconds, read together as closely as in 5 tries.

    A process that has to wait in between would put its events before or behind those of other ranks.
    """
    readings = [(time.monotonic_ns(), time.time_ns(), time.monotonic_ns()) for _ in range(5)]
    before_ns, epoch_ns, after_ns = min(readings, key=lambda reading: reading[2] - reading[0])
    return (before_ns + after_ns) // 2, epoch_ns // 1000


class CallerTimes:
    """Events have the time that the caller gives. Those of a rank need one, counted from the epoch, which ranks share.

    Attributes:
        origin_us: microseconds of the Unix epoch at which `time_us` is 0; None where nothing says it.

    Args:
        origin_us: the same, of a run that goes on.
        rank: the rank, if there is one.

    Raises:
        RecordError: the rank's run, which goes on, counts from another instant.
    """

    def __init__(self, origin_us: int | None, rank: Rank | None) -> None:
        if rank and origin_us:
            what = (
                f"time_us of the rank's parts counts from {origin_us} microseconds after the epoch, not from the epoch"
            )
            raise RecordError(Problem(what, "the recorder", "record into another folder, or with the clock as before"))
        self.origin_us = 0 if rank else origin_us
        self._is_required = rank is not None

    def now_us(self) -> int:
        """No clock is read."""
        return 0

    def stamp(self, rows: list[Row], called_us: int) -> None:
        """Raises a `RecordError` for an event that needs a time and has none."""
        del called_us
        if self._is_required and rows[0].get("time_us") is None:
            hint = "give microseconds of the Unix epoch: events of ranks are merged by time"
            raise RecordError(Problem("time_us is missing", f"the {rows[0]['event']}", hint))

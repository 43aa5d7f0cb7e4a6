"""How long something has been the case."""

from __future__ import annotations


class Meter:
    """Adds up the simulated time in which it is on, in microseconds. It begins off."""

    __slots__ = ("_since", "_told", "_total")

    def __init__(self) -> None:
        self._total = 0
        self._told = 0
        self._since: int | None = None

    def set(self, is_on: bool, now: int) -> None:
        """Turn it on or off at an instant that is not before the last one; to what it already is, too."""
        if self._since is not None:
            self._total += now - self._since
        self._since = now if is_on else None

    def lap(self, now: int) -> int:
        """Time it was on since the last lap ended."""
        total = self._total if self._since is None else self._total + now - self._since
        lap = total - self._told
        self._told = total
        return lap

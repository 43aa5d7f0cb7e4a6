"""Where the refreshes and takes of a replay come from."""

from __future__ import annotations

from enum import StrEnum


class TimelineKind(StrEnum):
    """Where refreshes and takes come from."""

    RECORDED = "recorded"
    """The log's own events, in order."""
    SIMULATED = "simulated"
    """For every step: refresh, the puts of that step, take."""

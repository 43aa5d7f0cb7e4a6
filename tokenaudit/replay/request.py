"""What a run is asked to do: the choices that a command line or a notebook hands to every session."""

from __future__ import annotations

from enum import StrEnum


class TimelineKind(StrEnum):
    """Where refreshes and takes come from."""

    RECORDED = "recorded"
    """The log's own events, in order."""
    SIMULATED = "simulated"
    """For every step: refresh, the puts of that step, take."""


class PromptOrder(StrEnum):
    """How the groups of each task are ordered when a workload is derived from a log."""

    FIRST_PUT = "first-put"
    """As they were first put. A log always tells it, but groups that ended early move to the front."""
    GROUP_ID = "group-id"
    """By rising group id: the order in which groups began, where ids were counted up as prompts were drawn."""

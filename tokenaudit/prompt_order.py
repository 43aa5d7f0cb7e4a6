"""The orders in which a simulation can begin the prompts of a log."""

from __future__ import annotations

from enum import StrEnum


class PromptOrder(StrEnum):
    """How the groups of each task are ordered when a workload is derived from a log."""

    FIRST_PUT = "first-put"
    """As they were first put. A log always tells it, but groups that ended early move to the front."""
    GROUP_ID = "group-id"
    """By rising group id: the order in which groups began, where ids were counted up as prompts were drawn."""

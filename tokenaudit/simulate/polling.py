"""Waiting by polling, without a poll that finds nothing new."""

from __future__ import annotations


def next_poll(base: int, interval: int, now: int, *, may_be_now: bool = False) -> int:
    """The first instant, at least one interval behind `base`, at which a poll sees what happened at `now`.

    Args:
        base: when the waiting began.
        interval: time between polls, at least 1.
        now: when something happened.
        may_be_now: whether a poll at `now` itself would still see it.
    """
    elapsed = now - base
    polls = -(-elapsed // interval) if may_be_now else elapsed // interval + 1
    return base + max(1, polls) * interval

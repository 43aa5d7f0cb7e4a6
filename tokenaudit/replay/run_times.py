"""How long a recorded run generated, and how long its trainer waited, by the times of its events."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from tokenaudit.config.model import Config, Mode
from tokenaudit.contracts.schema import EventKind
from tokenaudit.log.columns import ABSENT, Int64s
from tokenaudit.log.digest import KIND_CODE, Events
from tokenaudit.log.ranks import LATEST_US

_PUT, _SAMPLE, _REFRESH, _TAKE, _SYNC = (
    KIND_CODE[kind] for kind in (EventKind.PUT, EventKind.SAMPLE, EventKind.REFRESH, EventKind.TAKE, EventKind.SYNC)
)


@dataclass(frozen=True, slots=True)
class RunTimes:
    """How long a run took, in microseconds.

    Attributes:
        rollout_us: time in which the rollout GPUs were there to generate; None if unknown.
        wait_us: time in which the trainer waited for a batch; None if unknown.
        rollout_missing: why the one is unknown.
        wait_missing: why the other is.
    """

    rollout_us: int | None
    wait_us: int | None
    rollout_missing: str = ""
    wait_missing: str = ""


COLOCATED_WAIT = "training and rollouts take turns on the same GPUs"
_NO_TIMES = "the log has no time_us"


class _UnknownTimeError(Exception):
    """What isn't known; never leaves this module."""


def times_of_log(events: Events, time: Int64s, config: Config) -> RunTimes:
    """How long a recorded run took, by the times of its events.

    Disaggregated, rollout GPUs are there from the first event to the last. The trainer waits from where its step
    begins to its take: from the sync before; where weights aren't synced after every step, from the second refresh
    behind the take before, as the first one comes with that take; in the first step from the first event. A sync that
    comes while the trainer waits is of an empty batch: for `sync_time_us` of the config before it, nobody waited.

    Colocated, they generate from the last refresh or sync before the first put of a step to its take, and train
    between; so no trainer waits.

    Args:
        events: the events of a digest.
        time: the time of each, `ABSENT` where it has none; shape [E].
        config: its mode and its `sync_time_us`.
    """
    is_known = time != ABSENT
    if not is_known.any():
        is_colocated = config.mode is Mode.COLOCATED
        return RunTimes(None, None, _NO_TIMES, COLOCATED_WAIT if is_colocated else _NO_TIMES)
    wrong = is_known & ((time < 0) | (time >= LATEST_US))
    if wrong.any():
        missing = f"time_us is negative or above 2^62 in {int(wrong.sum())} events"
        return RunTimes(None, None, missing, missing)
    marks = _marks(events, time)
    if config.mode is Mode.COLOCATED:
        rollout_us, missing = _known(lambda: _windows(marks))
        return RunTimes(rollout_us, None, missing, COLOCATED_WAIT)
    rollout_us, missing = _known(lambda: _span(events, time, is_known))
    first = int(time[is_known][0])
    wait_us, wait_missing = _known(lambda: _waits(marks, first, config.timeline.sync_time_us))
    return RunTimes(rollout_us, wait_us, missing, wait_missing)


class _Mark(NamedTuple):
    """An event that times are known by; its time is None where it has none."""

    kind: int
    train_step: int
    time: int | None


def _marks(events: Events, time: Int64s) -> list[_Mark]:
    """The events but samples; of puts without another event between them, the first."""
    places = np.flatnonzero(events.kind != _SAMPLE)
    kind = events.kind[places]
    places = places[(kind != _PUT) | (np.concatenate([[_TAKE], kind[:-1]]) != _PUT)]
    columns = (events.kind[places].tolist(), events.train_step[places].tolist(), time[places].tolist())
    return [_Mark(kind, step, None if at == ABSENT else at) for kind, step, at in zip(*columns, strict=True)]


def _known(measure: Callable[[], int]) -> tuple[int | None, str]:
    try:
        return measure(), ""
    except _UnknownTimeError as error:
        return None, str(error)


def _span(events: Events, time: Int64s, is_known: np.ndarray[Any, np.dtype[np.bool_]]) -> int:
    """From the first event to the last one."""
    is_put = events.kind == _PUT
    untimed = int((is_put & ~is_known).sum())
    if untimed:
        raise _UnknownTimeError(_untimed_text(untimed, int(is_put.sum()), "put"))
    known = time[is_known]
    return int(known.max()) - int(known.min())


def _untimed_text(untimed: int, events: int, noun: str) -> str:
    if untimed == events:
        return f"no {noun} of the log has time_us"
    return f"{untimed:,} of {events:,} {noun}s have no time_us"


def _check_order(marks: list[_Mark]) -> None:
    """Refuse takes that are missing or have no time, and times that go back."""
    takes = [mark for mark in marks if mark.kind == _TAKE]
    if not takes:
        raise _UnknownTimeError("the log records no take")
    untimed = sum(mark.time is None for mark in takes)
    if untimed:
        raise _UnknownTimeError(_untimed_text(untimed, len(takes), "take"))
    latest = 0
    for mark in marks:
        if mark.kind != _PUT and mark.time is not None:
            if mark.time < latest:
                raise _UnknownTimeError(f"time_us goes back at step {mark.train_step}")
            latest = mark.time


def _waits(marks: list[_Mark], first: int, sync_time_us: int | None) -> int:
    """The time that the trainer waited, all steps together."""
    _check_order(marks)
    waited = refreshes = 0
    since: int | None = first
    step: int | None = None
    taken_at = 0
    for mark in marks:
        if mark.kind == _TAKE:
            assert mark.time is not None
            if mark.train_step == step:
                waited += mark.time - taken_at
            elif since is None:
                what = f"nothing says when the training of step {step} ended"
                raise _UnknownTimeError(f"{what}: a sync or a second refresh behind its take, with time_us")
            else:
                waited += max(0, mark.time - since)
            step, taken_at, since, refreshes = mark.train_step, mark.time, None, 0
        elif mark.kind == _REFRESH:
            refreshes += 1
            if since is None and refreshes > 1:
                since = mark.time
        elif mark.kind == _SYNC:
            if since is not None and step is not None and mark.train_step > step:
                if mark.time is None or sync_time_us is None:
                    lacking = (
                        "its sync has no time_us" if mark.time is None else "the config has no timeline.sync_time_us"
                    )
                    raise _UnknownTimeError(f"step {mark.train_step} had an empty batch, and {lacking}")
                waited += max(0, mark.time - sync_time_us - since)
            since = mark.time
    return waited


def _windows(marks: list[_Mark]) -> int:
    """The time in which a colocated run generated, all steps together."""
    _check_order(marks)
    generated = 0
    since: int | None = None
    has_put = False
    step: int | None = None
    taken_at = 0
    for mark in marks:
        if mark.kind == _TAKE:
            assert mark.time is not None
            if mark.train_step == step:
                generated += mark.time - taken_at
            elif since is None:
                what = f"nothing says when the rollouts of step {mark.train_step} began"
                raise _UnknownTimeError(f"{what}: a refresh or a sync before their puts, with time_us")
            else:
                generated += mark.time - since
            step, taken_at, since, has_put = mark.train_step, mark.time, None, False
        elif mark.kind == _PUT:
            has_put = True
        elif mark.time is not None and (since is None or not has_put):
            since = mark.time
    return generated

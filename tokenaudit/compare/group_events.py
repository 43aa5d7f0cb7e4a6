"""A run's events that concern groups, kept compactly: a few machine integers per event, so that a run fits twice."""

from __future__ import annotations

from array import array
from enum import IntEnum

import numpy as np
import polars as pl

from tokenaudit.lifecycle.events import (
    Fate,
    GroupExpired,
    GroupPut,
    GroupRejected,
    GroupTaken,
    MembersExpired,
    Where,
)
from tokenaudit.lifecycle.members import MemberFacts
from tokenaudit.lifecycle.staleness import ExpiryReason, staleness
from tokenaudit.lifecycle.types import Status
from tokenaudit.replay.events import PutReconciled, PutSkipped, RunEvent, StepClosed

REASONS: tuple[ExpiryReason, ...] = tuple(ExpiryReason)
"""Reasons by code."""
PLACES: tuple[Where, ...] = tuple(Where)
"""Places by code."""
NO_AGE = -(2**63)
"""Age of events that have none."""


class Kind(IntEnum):
    """What happened to a group."""

    PUT = 0
    """It was put; tokens: all of them."""
    FAILED = 1
    """It was discarded at put because it failed; tokens: all of them."""
    FILTERED = 2
    """It was discarded at put because the run's own filter rejected it; tokens: all of them."""
    RESET = 3
    """It expired and its expired members lost their tokens; tokens: those, and those of the fresh members."""
    DISCARDED = 4
    """It expired and is lost; tokens: of expired members, of fresh ones."""
    MEMBERS_RESET = 5
    """More members of it lost their tokens while it waited; tokens: those."""
    TAKEN = 6
    """It was trained; tokens: trained, masked as stale, masked by the recorded mask."""
    SKIPPED = 7
    """A recorded put of it would not have happened; tokens: avoided."""
    RECONCILED = 8
    """A put didn't continue what is held; tokens: restarted, regenerated, carried in."""


class GroupEvents:
    """Observes a run: `add` takes every event, `frame` gives them as a table."""

    def __init__(self) -> None:
        self._tasks: dict[str, int] = {}
        self._row = 0
        self._steps: list[int] = []
        self._kinds, self._reasons, self._places = array("b"), array("b"), array("b")
        self._rows, self._task = array("i"), array("i")
        # The staleness of a taken group is a sum over its members.
        self._group, self._ages = array("q"), array("q")
        self._tokens = (array("q"), array("q"), array("q"))

    def add(self, event: RunEvent) -> None:
        """Keep an event, if it concerns a group."""
        match event:
            case StepClosed():
                self._steps.append(event.train_step)
                self._row += 1
            case GroupPut():
                self._append(event, Kind.PUT, event.responses.measures.tokens)
            case GroupTaken():
                measures, stale = event.responses.measures, event.stale_tokens()
                trained, semantic = measures.trainable_tokens - stale, measures.tokens - measures.trainable_tokens
                age = measures.staleness_sum(event.train_step)
                self._append(event, Kind.TAKEN, trained, stale, semantic, age=age)
            case GroupExpired():
                self._append_expired(event)
            case GroupRejected():
                kind = Kind.FAILED if event.status is Status.FAILED else Kind.FILTERED
                self._append(event, kind, event.responses.measures.tokens)
            case MembersExpired():
                self._append(event, Kind.MEMBERS_RESET, event.expired.tokens)
            case PutSkipped():
                self._append(event, Kind.SKIPPED, event.avoided_tokens)
            case PutReconciled():
                tokens = event.restarted_tokens, event.regenerated_tokens, event.carried_in_tokens
                self._append(event, Kind.RECONCILED, *tokens)

    def _append_expired(self, event: GroupExpired) -> None:
        kind = Kind.DISCARDED if event.fate is Fate.DISCARDED else Kind.RESET
        ages = [age for facts in event.expired.facts() for age in _age(facts, event.reason, event.train_step)]
        self._append(
            event,
            kind,
            event.expired.tokens,
            event.fresh.tokens,
            age=max(ages, default=NO_AGE),
            reason=REASONS.index(event.reason),
            place=PLACES.index(event.where),
        )

    def _append(
        self,
        event: GroupPut | GroupTaken | GroupExpired | GroupRejected | MembersExpired | PutSkipped | PutReconciled,
        kind: Kind,
        *tokens: int,
        age: int = NO_AGE,
        reason: int = -1,
        place: int = -1,
    ) -> None:
        self._kinds.append(kind)
        self._reasons.append(reason)
        self._places.append(place)
        self._rows.append(self._row)
        self._task.append(self._tasks.setdefault(event.task_name, len(self._tasks)))
        self._ages.append(age)
        self._group.append(event.group_id)
        for position, column in enumerate(self._tokens):
            column.append(tokens[position] if position < len(tokens) else 0)

    def frame(self) -> pl.DataFrame:
        """One row per event, in order.

        Columns: train_step (null in the tail), kind, task, group_id, reason, place, age, and tokens_0 to tokens_2; the
        codes are those of `Kind`, `REASONS` and `PLACES`, -1 for none.
        """
        steps = pl.Series(self._steps, dtype=pl.Int64).extend_constant(None, 1)
        tasks = pl.Series(list(self._tasks), dtype=pl.String)
        return pl.DataFrame(
            {
                "train_step": steps.gather(_numbers(self._rows, np.int32)),
                "kind": _numbers(self._kinds, np.int8),
                "task": tasks.gather(_numbers(self._task, np.int32)),
                "group_id": _numbers(self._group, np.int64),
                "reason": _numbers(self._reasons, np.int8),
                "place": _numbers(self._places, np.int8),
                "age": _numbers(self._ages, np.int64),
                **{f"tokens_{index}": _numbers(column, np.int64) for index, column in enumerate(self._tokens)},
            }
        )


def _numbers(values: array[int], dtype: type[np.signedinteger]) -> np.ndarray:
    return np.frombuffer(values, dtype=dtype) if len(values) else np.empty(0, dtype=dtype)


def _age(facts: MemberFacts, reason: ExpiryReason, train_step: int) -> list[int]:
    """The staleness that made a response expire, if any: of its newest trainable token, or of its oldest."""
    *_, oldest, newest_trainable = facts
    version = newest_trainable if reason is ExpiryReason.TOKEN else oldest
    return [] if version is None else [staleness(version, train_step)]

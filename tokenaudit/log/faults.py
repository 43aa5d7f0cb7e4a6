"""Structural faults: rows that replay can't interpret, gathered from the whole log before anything is said."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import numpy as np

from tokenaudit.contracts.errors import Problem
from tokenaudit.log.pieces import RowPlaces

SHOWN_FAULTS = 20
"""Faults that are named with file, row and value; the others are counted."""


class FaultKind(StrEnum):
    """What can be wrong with a row; the value is the wording of the count."""

    UNKNOWN_EVENT = "unknown event"
    UNKNOWN_STATUS = "unknown status"
    EVENT_ID_FALLS = "event_id falls"
    MIXED_EVENT = "rows of one event differ"
    MISSING_VALUE = "missing value"
    NEGATIVE_VALUE = "negative value"
    VALUE_TOO_LARGE = "value too large"
    NO_LENGTH = "no response length"
    PRIOR_TOO_LONG = "prior_len above the response length"
    TOO_MANY_VERSIONS = "more versions than tokens"
    TOO_FEW_VERSIONS = "fewer versions than tokens and no model_step"
    MASK_LENGTH = "mask length differs from the response length"
    BAD_RUN = "version run that can't be"
    RUNS_LENGTH = "version runs don't add up to the response length"
    RUNS_BESIDE_TOKENS = "version runs beside token columns"
    NULL_ELEMENT = "null element in a list"
    NO_TIME = "time below 1"
    TWO_GROUPS = "rollout in two groups"


HINTS: dict[FaultKind, str] = {
    FaultKind.UNKNOWN_EVENT: "events are put, sample, refresh, take and sync",
    FaultKind.UNKNOWN_STATUS: "statuses are init, completed, aborted, expired, failed and filtered",
    FaultKind.EVENT_ID_FALLS: "rows must be in the order of events; files are read in name order, so pad part numbers",
    FaultKind.MIXED_EVENT: "give every put, sample, refresh, take and sync an event_id of its own",
    FaultKind.MISSING_VALUE: "fill it in when recording",
    FaultKind.NEGATIVE_VALUE: "versions, lengths and sizes are 0 or more",
    FaultKind.VALUE_TOO_LARGE: "versions, lengths, steps and sizes fit 32 bits, ids and times are below 2**63 - 1",
    FaultKind.NO_LENGTH: "give response_len, response_ids or a full response_model_steps",
    FaultKind.PRIOR_TOO_LONG: "prior_len counts leading tokens of this response",
    FaultKind.TOO_MANY_VERSIONS: "response_model_steps has one entry per token of the response, or fewer",
    FaultKind.TOO_FEW_VERSIONS: "record model_step, or try -s timeline.stamp_missing=true for a log without versions",
    FaultKind.MASK_LENGTH: "response_mask has one entry per token of the response; null means all ones",
    FaultKind.BAD_RUN: "a run has a version of 0 or more and 1 or more tokens, of which 0 to all are trainable",
    FaultKind.RUNS_LENGTH: "runs cover all tokens of the response",
    FaultKind.RUNS_BESIDE_TOKENS: "give response_version_runs, or response_model_steps and response_mask, in one row",
    FaultKind.NULL_ELEMENT: "lists hold one number per token; leave out the list instead",
    FaultKind.NO_TIME: "times are microseconds, 1 or more",
    FaultKind.TWO_GROUPS: "a rollout_id belongs to one group of its task; its rows there are its segments",
}


@dataclass(frozen=True, slots=True)
class Fault:
    """One faulty row, for a message."""

    path: Path
    row: int
    column: str
    what: str
    kind: FaultKind

    def problem(self) -> Problem:
        """The fault as it is shown."""
        return Problem(self.what, f"{self.path}, row {self.row}, column {self.column}", HINTS[self.kind])


class BatchFaults:
    """Faults of one batch of rows.

    Args:
        places: where they stand.
        rows: rows in the batch.
    """

    def __init__(self, places: RowPlaces, rows: int) -> None:
        self.places = places
        self.is_faulty = np.zeros(rows, dtype=np.bool_)
        self.counts: Counter[FaultKind] = Counter()
        self.shown: list[tuple[int, Fault]] = []
        """Rows of the batch, and faults of theirs."""
        self._notes: list[tuple[FaultKind, str, np.ndarray[Any, np.dtype[np.bool_]], Callable[[int], str]]] = []

    def add(
        self,
        kind: FaultKind,
        column: str,
        is_faulty: np.ndarray[Any, np.dtype[np.bool_]],
        describe: Callable[[int], str],
    ) -> None:
        """Note faulty rows.

        Args:
            kind: what is wrong.
            column: the column to look at.
            is_faulty: of shape [rows].
            describe: says what is wrong with a row, given its position in the batch.
        """
        if not is_faulty.any():
            return
        positions = np.flatnonzero(is_faulty)
        self._notes.append((kind, column, is_faulty, describe))
        self.is_faulty |= is_faulty
        self.counts[kind] += len(positions)
        for position in positions[:SHOWN_FAULTS].tolist():
            self.shown.append((position, Fault(*self.places.at(position), column, describe(position), kind)))

    def where(self, kind: FaultKind) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Rows with a fault of one kind, of shape [rows]."""
        found = np.zeros(len(self.is_faulty), dtype=np.bool_)
        for noted, _, is_faulty, _ in self._notes:
            if noted is kind:
                found |= is_faulty
        return found

    def of_rows(self, where: np.ndarray[Any, np.dtype[np.bool_]]) -> BatchFaults:
        """The faults of some of the rows."""
        faults = BatchFaults(self.places, len(self.is_faulty))
        for kind, column, is_faulty, describe in self._notes:
            faults.add(kind, column, is_faulty & where, describe)
        return faults


class Faults:
    """All structural faults of a log."""

    def __init__(self) -> None:
        self.counts: Counter[FaultKind] = Counter()
        self.shown: list[Fault] = []

    def __bool__(self) -> bool:
        return bool(self.counts)

    def extend(self, batch: BatchFaults) -> None:
        """Add the faults of the next batch."""
        self.counts.update(batch.counts)
        room = SHOWN_FAULTS - len(self.shown)
        if room > 0:
            ordered = sorted(batch.shown, key=lambda shown: (shown[0], shown[1].column))
            self.shown.extend(fault for _, fault in ordered[:room])

    def summary(self) -> str:
        """Counts by kind, most frequent first."""
        ordered = sorted(self.counts.items(), key=lambda item: (-item[1], item[0].value))
        return ", ".join(f"{kind.value} ({count})" for kind, count in ordered)

    def problems(self, hint: str) -> list[Problem]:
        """The first faults one by one, then the counts with `hint`."""
        total = sum(self.counts.values())
        closing = Problem(f"{total} structural fault{'s' if total != 1 else ''}: {self.summary()}", None, hint)
        return [*(fault.problem() for fault in self.shown), closing]

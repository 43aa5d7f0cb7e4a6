"""What makes a row structurally faulty, each fault declared once: replay refuses by it, and the audit reports it.

A check looks at arrays of one number per row, whether they are those of a batch or of a whole log.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from tokenaudit.contracts.schema import VERSION_RUNS, EventKind
from tokenaudit.log.columns import ABSENT, INT32_MAX, LARGEST, Bools, marked
from tokenaudit.log.digest import KIND_CODE, NO_VALUE, UNKNOWN_CODE
from tokenaudit.log.faults import BatchFaults, FaultKind
from tokenaudit.log.version_runs import RecordedRuns

_PUT, _SAMPLE, _REFRESH, _TAKE, _SYNC = (
    KIND_CODE[kind] for kind in (EventKind.PUT, EventKind.SAMPLE, EventKind.REFRESH, EventKind.TAKE, EventKind.SYNC)
)
_OF_GROUP, _WITH_VERSION, _WITH_STEP = (_PUT, _SAMPLE), (_PUT, _SYNC), (_PUT, _REFRESH, _TAKE, _SYNC)
_NEEDED = {
    "event_id": (_PUT, _SAMPLE, _REFRESH, _TAKE, _SYNC, UNKNOWN_CODE),
    "train_step": _WITH_STEP,
    "group_id": _OF_GROUP,
    "rollout_id": (_PUT,),
    "batch_size": (_TAKE,),
}
"""The kinds of events whose rows need a value, by column."""


class Rows(Protocol):
    """Rows in log order, as arrays of shape [rows] by name.

    Integer columns are `ABSENT` where null; `kind`, `status` and `task` are codes, `tokens` is the response length (-1
    where unknown), `oldest` and `newest` the outer versions of a row's tokens; `versions_len`, `mask_len`: entries of
    the list (-1 where null), `versions_null`, `mask_null`: whether it holds a null. `id_before`: the event_id that the
    one of a row must not fall below.
    """

    def __getitem__(self, name: str, /) -> np.ndarray[Any, Any]:
        """An array."""
        ...

    def text(self, column: str, row: int) -> str:
        """A value of a column of names, for a message."""
        ...


@dataclass(frozen=True, slots=True)
class StructuralCheck:
    """One thing that can be wrong with a row.

    Attributes:
        kind: what replay counts it as.
        column: the column to look at.
        events: codes of the events whose rows are checked; empty for all.
        is_wrong: where a row of such an event has the fault, of shape [rows].
        message: says what is wrong with a row, given its position.
        only_sound: whether rows with a fault of an earlier check are passed over.
    """

    kind: FaultKind
    column: str
    events: tuple[int, ...]
    is_wrong: Callable[[Rows], Bools]
    message: Callable[[Rows, int], str]
    only_sound: bool = False

    def where(self, rows: Rows) -> Bools:
        """The rows with the fault, of shape [rows]."""
        is_wrong = self.is_wrong(rows)
        return is_wrong & of_events(rows, self.events) if self.events and is_wrong.any() else is_wrong


def of_events(rows: Rows, events: Sequence[int]) -> Bools:
    """Rows of some kinds of events, given as codes."""
    kind = rows["kind"]
    return np.logical_or.reduce([kind == code for code in events])


def has_length(rows: Rows) -> Bools:
    """Rows whose length is known and one that a response can have."""
    tokens = rows["tokens"]
    return (tokens >= 0) & (tokens <= INT32_MAX)


def _unknown(kind: FaultKind, column: str, code: str, events: tuple[int, ...]) -> StructuralCheck:
    return StructuralCheck(
        kind,
        column,
        events,
        lambda rows: rows[code] == UNKNOWN_CODE,
        lambda rows, row: f"unknown {column} {rows.text(column, row)}",
    )


def _missing(column: str, events: tuple[int, ...], null: int = ABSENT) -> StructuralCheck:
    return StructuralCheck(
        FaultKind.MISSING_VALUE, column, events, lambda rows: rows[column] == null, lambda *_: f"{column} is null"
    )


def _beyond_int64(column: str) -> StructuralCheck:
    return StructuralCheck(
        FaultKind.VALUE_TOO_LARGE,
        column,
        _NEEDED[column],
        lambda rows: rows[column] == LARGEST,
        lambda *_: f"{column} is 2**63 - 1 or more",
    )


def _range(column: str, events: tuple[int, ...], *, with_length: bool = False) -> tuple[StructuralCheck, ...]:
    """Sizes and versions are 0 or more and fit 32 bits; `with_length`: only rows whose length is known are checked."""

    def check(kind: FaultKind, is_wrong: Callable[[np.ndarray[Any, Any]], Bools]) -> StructuralCheck:
        return StructuralCheck(
            kind,
            column,
            events,
            lambda rows: is_wrong(rows[column]) & (rows["tokens"] >= 0) if with_length else is_wrong(rows[column]),
            lambda rows, row: f"{column} is {rows[column][row]}",
        )

    return (
        check(FaultKind.NEGATIVE_VALUE, lambda values: (values < 0) & (values != ABSENT)),
        check(FaultKind.VALUE_TOO_LARGE, lambda values: values > INT32_MAX),
    )


def _null_element(column: str, name: str) -> StructuralCheck:
    return StructuralCheck(
        FaultKind.NULL_ELEMENT,
        column,
        (_PUT,),
        lambda rows: rows[name] == 1,
        lambda *_: f"{column} holds a null",
    )


def _version(kind: FaultKind, name: str, is_wrong: Callable[[np.ndarray[Any, Any]], Bools]) -> StructuralCheck:
    return StructuralCheck(
        kind,
        "response_model_steps",
        (_PUT,),
        lambda rows: is_wrong(rows[name]),
        lambda rows, row: f"response_model_steps holds the version {rows[name][row]}",
    )


UNKNOWN_EVENT = _unknown(FaultKind.UNKNOWN_EVENT, "event", "kind", ())
UNKNOWN_STATUS = _unknown(FaultKind.UNKNOWN_STATUS, "status", "status", _OF_GROUP)
VALUES_MISSING = (
    *(_missing(column, events) for column, events in _NEEDED.items()),
    _missing("status", _OF_GROUP, NO_VALUE),
)
IDS_TOO_LARGE = tuple(_beyond_int64(column) for column in ("event_id", "group_id", "rollout_id"))
_COUNTS_TOO_LARGE = tuple(_beyond_int64(column) for column in ("train_step", "batch_size"))
SIZES_OUT_OF_RANGE = (
    *_range("train_step", _WITH_STEP),
    *_range("model_step", _WITH_VERSION),
    *_range("batch_size", (_TAKE,)),
    *_range("response_len", (_PUT,)),
)
PRIOR_OUT_OF_RANGE = _range("prior_len", (_PUT,), with_length=True)
NO_LENGTH = StructuralCheck(
    FaultKind.NO_LENGTH,
    "response_len",
    (_PUT,),
    lambda rows: (rows["response_len"] == ABSENT) & (rows["tokens"] < 0),
    lambda *_: "nothing gives the length of the response",
)
NULL_VERSION = _null_element("response_model_steps", "versions_null")
NULL_IN_MASK = _null_element("response_mask", "mask_null")
_NEGATIVE_VERSION = _version(FaultKind.NEGATIVE_VALUE, "oldest", lambda oldest: (oldest < 0) & (oldest != ABSENT))
VERSION_TOO_LARGE = _version(FaultKind.VALUE_TOO_LARGE, "newest", lambda newest: newest > INT32_MAX)
TOO_MANY_VERSIONS = StructuralCheck(
    FaultKind.TOO_MANY_VERSIONS,
    "response_model_steps",
    (_PUT,),
    lambda rows: has_length(rows) & (rows["versions_len"] > rows["tokens"]),
    lambda rows, row: f"{rows['versions_len'][row]} versions for {rows['tokens'][row]} tokens",
)
_TOO_FEW_VERSIONS = StructuralCheck(
    FaultKind.TOO_FEW_VERSIONS,
    "response_model_steps",
    (_PUT,),
    lambda rows: (
        has_length(rows)
        & ~rows["has_runs"]
        & (np.maximum(rows["versions_len"], 0) < rows["tokens"])
        & (rows["model_step"] == ABSENT)
    ),
    lambda rows, row: (
        f"{max(rows['versions_len'][row], 0)} versions for {rows['tokens'][row]} tokens and no model_step"
    ),
    only_sound=True,
)
MASK_LENGTH = StructuralCheck(
    FaultKind.MASK_LENGTH,
    "response_mask",
    (_PUT,),
    lambda rows: has_length(rows) & (rows["mask_len"] >= 0) & (rows["mask_len"] != rows["tokens"]),
    lambda rows, row: f"{rows['mask_len'][row]} mask entries for {rows['tokens'][row]} tokens",
)
PRIOR_TOO_LONG = StructuralCheck(
    FaultKind.PRIOR_TOO_LONG,
    "prior_len",
    (_PUT,),
    lambda rows: has_length(rows) & (rows["prior_len"] > rows["tokens"]),
    lambda rows, row: f"prior_len is {rows['prior_len'][row]} for {rows['tokens'][row]} tokens",
)

ROW_CHECKS = (
    UNKNOWN_EVENT, UNKNOWN_STATUS, *VALUES_MISSING, *IDS_TOO_LARGE, *_COUNTS_TOO_LARGE, *SIZES_OUT_OF_RANGE, NO_LENGTH,
    NULL_VERSION, NULL_IN_MASK, _NEGATIVE_VERSION, VERSION_TOO_LARGE,
)  # fmt: skip
"""The checks of a row by itself, in the order in which replay makes them; those of recorded runs follow."""
TOKEN_CHECKS = (TOO_MANY_VERSIONS, _TOO_FEW_VERSIONS, MASK_LENGTH, *PRIOR_OUT_OF_RANGE, PRIOR_TOO_LONG)
"""The checks of token columns against the length of the response, which come behind those of recorded runs."""

EVENT_ID_FALLS = StructuralCheck(
    FaultKind.EVENT_ID_FALLS,
    "event_id",
    (),
    lambda rows: (rows["event_id"] < rows["id_before"]) & (rows["event_id"] != ABSENT),
    lambda rows, row: f"event_id {rows['event_id'][row]} comes after {rows['id_before'][row]}",
)


def same_event(rows: Rows, values: np.ndarray[Any, Any] | None = None) -> Bools:
    """Rows of the same event as the row before; given `values` of shape [rows], those whose value differs from it."""
    ids = rows["event_id"]
    is_same = np.zeros(len(ids), dtype=np.bool_)
    is_same[1:] = (ids[1:] == ids[:-1]) & (ids[1:] != ABSENT)
    if values is not None:
        is_same[1:] &= values[1:] != values[:-1]
    return is_same


def _mixed(column: str, value: Callable[[Rows], np.ndarray[Any, Any]]) -> StructuralCheck:
    """The rows of one event agree on what it is."""
    return StructuralCheck(
        FaultKind.MIXED_EVENT,
        column,
        (),
        lambda rows: same_event(rows, value(rows)),
        lambda rows, row: f"{column} differs from the row before, in event {rows['event_id'][row]}",
    )


MIXED_EVENT = (
    _mixed("event", lambda rows: rows["kind"]),
    _mixed("train_step", lambda rows: np.where(of_events(rows, (_SAMPLE,)), 0, rows["train_step"])),
    _mixed(
        "task_name",
        lambda rows: np.where(of_events(rows, (*_OF_GROUP, UNKNOWN_CODE, _TAKE)), rows["task"], NO_VALUE),
    ),
    _mixed("group_id", lambda rows: np.where(of_events(rows, (*_OF_GROUP, UNKNOWN_CODE)), rows["group_id"], 0)),
)


def check_rows(checks: Iterable[StructuralCheck], rows: Rows, faults: BatchFaults, first: int = 0) -> None:
    """Add the faults of a batch.

    Args:
        checks: what is checked, in this order.
        rows: the rows.
        faults: where they are added.
        first: which of the rows is the first one of the batch; those before it were checked already.
    """
    for check in checks:
        where = check.where(rows)[first:]
        if check.only_sound:
            where &= ~faults.is_faulty
        faults.add(check.kind, check.column, where, lambda row, check=check: check.message(rows, first + row))


def check_runs(
    recorded: RecordedRuns, rows: Rows, is_beside: Bools, faults: BatchFaults, *, allow_missing_versions: bool
) -> None:
    """Add the faults of the recorded runs of a batch.

    Args:
        recorded: the runs.
        rows: the rows.
        is_beside: rows with versions or masks per token, of shape [rows].
        faults: where they are added.
        allow_missing_versions: accept runs without a version.
    """
    tokens, owner, is_versioned = rows["tokens"], recorded.owner, recorded.is_versioned
    where = recorded.has_runs & (rows["kind"] == _PUT)
    holds_null = marked(len(where), recorded.null_rows)
    faults.add(FaultKind.NULL_ELEMENT, VERSION_RUNS, where & holds_null, lambda _: f"{VERSION_RUNS} holds a null")
    is_bad = (recorded.tokens < 1) | (recorded.tokens > INT32_MAX)
    is_bad |= (recorded.trainable < 0) | (recorded.trainable > recorded.tokens)
    is_bad |= is_versioned & ((recorded.model_step < 0) | (recorded.model_step > INT32_MAX))

    def first_bad(row: int) -> str:
        run = int(np.flatnonzero(is_bad & (owner == row))[0])
        version = recorded.model_step[run] if is_versioned[run] else "null"
        return f"a run of version {version} with {recorded.tokens[run]} tokens, {recorded.trainable[run]} trainable"

    bad = where & ~holds_null & marked(len(where), owner[is_bad])
    faults.add(FaultKind.BAD_RUN, VERSION_RUNS, bad, first_bad)
    faults.add(
        FaultKind.RUNS_BESIDE_TOKENS,
        VERSION_RUNS,
        where & is_beside,
        lambda _: "runs beside response_model_steps or response_mask",
    )
    faults.add(
        FaultKind.RUNS_LENGTH,
        VERSION_RUNS,
        where & ~bad & ~holds_null & (tokens >= 0) & (recorded.sums != tokens),
        lambda row: f"runs of {recorded.sums[row]} tokens for {tokens[row]} tokens",
    )
    if not allow_missing_versions:
        faults.add(
            FaultKind.TOO_FEW_VERSIONS,
            VERSION_RUNS,
            where & ~holds_null & marked(len(where), owner[~is_versioned]),
            lambda _: "a run without a version",
        )

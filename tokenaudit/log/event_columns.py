"""The columns that say what happens, checked: every row by itself, and how rows follow each other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tokenaudit.contracts.schema import DEFAULT_TASK, EventKind
from tokenaudit.lifecycle.types import Status
from tokenaudit.log import columns as col
from tokenaudit.log.batch_columns import ABSENT, BatchColumns
from tokenaudit.log.columns import Bools, Int64s
from tokenaudit.log.digest import KIND_CODE, NO_VALUE, STATUS_CODE
from tokenaudit.log.faults import BatchFaults, FaultKind

Columns = dict[str, np.ndarray[Any, Any]]
"""Arrays of one number per row, by name."""

INT32_MAX = 2**31 - 1
"""The largest size or version."""
UNKNOWN_CODE = -2
"""Code of an event or status that no log knows."""
_PUT, _SAMPLE, _TAKE, _SYNC = (
    KIND_CODE[kind] for kind in (EventKind.PUT, EventKind.SAMPLE, EventKind.TAKE, EventKind.SYNC)
)
_EVENT_IDENTITY = {
    "event_id": "event_id",
    "kind": "event",
    "train_step": "train_step",
    "task": "task_name",
    "group_id": "group_id",
}
"""What the rows of one event share, by the column that tells it."""


def kind_code(text: str | None) -> int:
    """Index into `KINDS` of an event as a log spells it; null is a put."""
    if text is None:
        return _PUT
    try:
        return KIND_CODE[EventKind(text)]
    except ValueError:
        return UNKNOWN_CODE


def status_code(text: str | None) -> int:
    """Index into `STATUSES` of a status as a log spells it; `NO_VALUE` for null."""
    if text is None:
        return NO_VALUE
    try:
        return STATUS_CODE[Status(text)]
    except ValueError:
        return UNKNOWN_CODE


def event_columns(columns: BatchColumns, faults: BatchFaults, names: dict[str, int]) -> Columns:
    """The columns that say what happens, checked; `ABSENT` where a needed value is null.

    `names` gets the task names; the column `task` holds their indices.
    """
    count = columns.rows

    def task_code(text: str | None) -> int:
        return names.setdefault(DEFAULT_TASK if text is None else text, len(names))

    kind = col.text_codes(columns.array("event"), count, kind_code)
    status = col.text_codes(columns.array("status"), count, status_code)
    rows: Columns = {"kind": kind, "status": status}
    for name in ("event_id", "train_step", "model_step", "group_id", "rollout_id", "batch_size"):
        rows[name] = columns.integers(name)
    rows["task"] = col.text_codes(columns.array("task_name"), count, task_code)
    _check_needed(rows, faults)

    def name_value(name: str) -> Callable[[int], str]:
        return lambda row: f"unknown {name} {col.text_at(columns.batch.columns[name], row)}"

    is_unknown = kind == UNKNOWN_CODE
    is_group = (kind == _PUT) | (kind == _SAMPLE)
    faults.add(FaultKind.UNKNOWN_EVENT, "event", is_unknown, name_value("event"))
    faults.add(FaultKind.UNKNOWN_STATUS, "status", is_group & (status == UNKNOWN_CODE), name_value("status"))
    has_version = (kind == _PUT) | (kind == _SYNC)
    has_step = (kind != _SAMPLE) & ~is_unknown
    for name, where in (
        ("train_step", has_step),
        ("model_step", has_version),
        ("batch_size", kind == _TAKE),
    ):
        check_range(rows[name], name, where & (rows[name] != ABSENT), faults)
    has_version &= rows["model_step"] != ABSENT
    rows["model_step"] = np.where(has_version, rows["model_step"], NO_VALUE)
    rows["train_step"] = np.where(kind == _SAMPLE, 0, rows["train_step"])
    rows["batch_size"] = np.where(kind == _TAKE, rows["batch_size"], 0)
    rows["group_id"] = np.where(is_group | is_unknown, rows["group_id"], 0)
    rows["task"] = np.where(is_group | is_unknown | (kind == _TAKE), rows["task"], NO_VALUE)
    return rows


def _check_needed(rows: Columns, faults: BatchFaults) -> None:
    kind = rows["kind"]
    is_group = (kind == _PUT) | (kind == _SAMPLE)
    needed = {
        "event_id": kind >= UNKNOWN_CODE,
        "train_step": (kind != _SAMPLE) & (kind != UNKNOWN_CODE),
        "group_id": is_group,
        "rollout_id": kind == _PUT,
        "batch_size": kind == _TAKE,
    }
    for name, where in needed.items():
        is_null = where & (rows[name] == ABSENT)
        faults.add(FaultKind.MISSING_VALUE, name, is_null, lambda _, name=name: f"{name} is null")
        is_large = where & (rows[name] == col.LARGEST)
        faults.add(FaultKind.VALUE_TOO_LARGE, name, is_large, lambda _, name=name: f"{name} is 2**63 - 1 or more")
    is_null = is_group & (rows["status"] == NO_VALUE)
    faults.add(FaultKind.MISSING_VALUE, "status", is_null, lambda _: "status is null")


class EventOrder:
    """Checks how the rows of a log follow each other, batch by batch."""

    def __init__(self) -> None:
        self._last: dict[str, int] | None = None

    def check(self, rows: Columns, faults: BatchFaults) -> tuple[tuple[int, int], ...]:
        """Event ids never fall, and the rows of one event agree on what it is."""
        before = self._last or {name: int(rows[name][0]) for name in _EVENT_IDENTITY}
        joined = {name: np.concatenate([np.array([before[name]]), rows[name]]) for name in _EVENT_IDENTITY}
        ids = joined["event_id"]
        reached = np.maximum.accumulate(np.concatenate([np.array([before.get("reached", ids[0])]), ids[1:]]))
        self._last = {name: int(rows[name][-1]) for name in _EVENT_IDENTITY} | {"reached": int(reached[-1])}
        faults.add(
            FaultKind.EVENT_ID_FALLS,
            "event_id",
            (ids[1:] < reached[:-1]) & (ids[1:] != ABSENT),
            lambda row: f"event_id {ids[row + 1]} comes after {reached[row]}",
        )
        same_event = (ids[1:] == ids[:-1]) & (ids[1:] != ABSENT)
        mixed_up: dict[tuple[int, int], None] = {}
        for name, column in _EVENT_IDENTITY.items():
            differs = same_event & (joined[name][1:] != joined[name][:-1])
            faults.add(
                FaultKind.MIXED_EVENT,
                column,
                differs,
                lambda row, column=column: f"{column} differs from the row before, in event {ids[row + 1]}",
            )
            for row in np.flatnonzero(differs).tolist():
                if joined["kind"][row] in (_PUT, _SAMPLE):
                    mixed_up[(int(joined["task"][row]), int(joined["group_id"][row]))] = None
        return tuple(mixed_up)


def check_range(values: Int64s, name: str, where: Bools, faults: BatchFaults) -> None:
    """Sizes and versions are 0 or more and fit 32 bits."""
    for kind, wrong in (
        (FaultKind.NEGATIVE_VALUE, values < 0),
        (FaultKind.VALUE_TOO_LARGE, values > INT32_MAX),
    ):
        faults.add(kind, name, where & wrong, lambda row: f"{name} is {values[row]}")

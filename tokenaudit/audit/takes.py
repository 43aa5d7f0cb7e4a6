"""Takes as the log records them: the rows of take events that name the responses taken."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tokenaudit.audit.table import LogTable
from tokenaudit.contracts.schema import EventKind
from tokenaudit.log.batch_columns import ABSENT
from tokenaudit.log.digest import KIND_CODE

_PUT, _TAKE = KIND_CODE[EventKind.PUT], KIND_CODE[EventKind.TAKE]


class RecordedTake(NamedTuple):
    """A response that a take row names.

    Attributes:
        row: the take row.
        train_step: the step of the take.
        put_rows: rows of the response in its last put before; empty where there is none.
    """

    row: int
    train_step: int
    put_rows: tuple[int, ...]


def has_recorded_takes(table: LogTable) -> bool:
    """Whether take rows name the responses taken."""
    return bool(((table["kind"] == _TAKE) & table.present("rollout_id")).any())


def recorded_takes(table: LogTable) -> list[RecordedTake]:
    """The responses that take rows name, in log order."""
    if not has_recorded_takes(table):
        return []
    of_interest = np.flatnonzero(np.isin(table["kind"], (_PUT, _TAKE)) & table.present("rollout_id"))
    columns = (
        of_interest,
        table["kind"][of_interest],
        table["task"][of_interest],
        table["rollout_id"][of_interest],
        table["train_step"][of_interest],
        table.segment[of_interest],
    )
    last_put: dict[tuple[int, int], list[int]] = {}
    takes: list[RecordedTake] = []
    for row, kind, task, rollout_id, step, segment in zip(*(column.tolist() for column in columns), strict=True):
        if kind == _TAKE:
            if step != ABSENT:
                takes.append(RecordedTake(row, step, tuple(last_put.get((task, rollout_id), ()))))
        elif segment == 0:
            last_put[task, rollout_id] = [row]
        else:
            last_put[task, rollout_id].append(row)
    return takes

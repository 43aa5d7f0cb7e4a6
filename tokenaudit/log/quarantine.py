"""Which rows of a log stay when the groups with structural faults are left out."""

from __future__ import annotations

import numpy as np

from tokenaudit.contracts.schema import DEFAULT_TASK, EventKind
from tokenaudit.log import columns as col
from tokenaudit.log.columns import Bools
from tokenaudit.log.digest import KIND_CODE, Digest
from tokenaudit.log.event_columns import kind_code
from tokenaudit.log.files import LogBatch

_NO_GROUP = -(2**63)
_OF_NO_GROUP = tuple(KIND_CODE[kind] for kind in (EventKind.REFRESH, EventKind.TAKE, EventKind.SYNC))


def is_left(batch: LogBatch, digest: Digest) -> Bools:
    """Whether each row stays: it belongs to no group, or to one that the digest still holds.

    Args:
        batch: rows of the log with `event`, `task_name` and `group_id`, as far as the log has these columns.
        digest: the digest of that log, with or without quarantine.
    """
    if not digest.quarantined_groups:
        return np.ones(batch.rows, dtype=np.bool_)
    events = digest.events
    kept = set(zip(events.task.tolist(), events.group_id.tolist(), strict=True))
    codes = {name: code for code, name in enumerate(digest.tasks)}
    kind = col.text_codes(batch.columns.get("event"), batch.rows, kind_code)
    task = col.text_codes(
        batch.columns.get("task_name"), batch.rows, lambda text: codes.get(DEFAULT_TASK if text is None else text, -1)
    )
    group_id = col.integers(batch.columns.get("group_id"), batch.rows, fill=_NO_GROUP)
    left = np.isin(kind, _OF_NO_GROUP)
    grouped = np.flatnonzero(~left)
    left[grouped] = [pair in kept for pair in zip(task[grouped].tolist(), group_id[grouped].tolist(), strict=True)]
    return left

"""Groups that come again with other responses after they were finished: prompts of another epoch."""

from __future__ import annotations

import numpy as np

from tokenaudit.audit.table import LogTable
from tokenaudit.lifecycle.types import Status
from tokenaudit.log.columns import Bools
from tokenaudit.log.digest import STATUS_CODE

LEAST_GROUPS = 3
"""Groups that must come again so: one or two may share an id by mistake."""
_FINISHED = tuple(STATUS_CODE[status] for status in (Status.COMPLETED, Status.FILTERED))


def begun_anew(table: LogTable) -> Bools:
    """Rows of puts whose group was finished at its put before, and which have none of its responses but its prompt.

    None where fewer than three groups come again so. Prompts are compared by their length, where it is recorded.
    """
    anew = np.zeros(table.rows, dtype=np.bool_)
    rows = np.flatnonzero(table.is_put)
    if len(rows) == 0:
        return anew
    starts = np.flatnonzero(np.diff(table.put_event[rows], prepend=-1))
    is_finished = np.logical_and.reduceat(np.isin(table["status"][rows], _FINISHED), starts)
    seen = np.maximum.reduceat(np.maximum(table.previous, table.moved_from)[rows], starts) >= 0
    task, group_id, prompt = (table[name][rows[starts]] for name in ("task", "group_id", "prompt_len"))
    order = np.lexsort((group_id, task))
    before, now = order[:-1], order[1:]
    is_again = (task[before] == task[now]) & (group_id[before] == group_id[now]) & (prompt[before] == prompt[now])
    puts = now[is_again & is_finished[before] & ~seen[now]]
    if len(np.unique(np.stack([task[puts], group_id[puts]]), axis=1).T) >= LEAST_GROUPS:
        anew[rows] = np.isin(table.put_event[rows], table.put_event[rows[starts[puts]]])
    return anew

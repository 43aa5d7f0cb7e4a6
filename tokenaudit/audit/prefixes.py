"""How many leading ids a response shares with its put before, for the few rows whose prior_len says something else."""

from __future__ import annotations

from typing import Any

import numpy as np

from tokenaudit.audit.puts import PutRuns
from tokenaudit.audit.table import LogTable
from tokenaudit.log import columns as col
from tokenaudit.log.batches import read_batches
from tokenaudit.log.columns import Bools, Int64s
from tokenaudit.log.files import Log

UNTOLD = -1
"""Stands for the shared ids of rows that weren't compared."""
MOST_HELD = 2**22
"""Token ids of earlier puts that are held at once; rows beyond it aren't compared, so that memory stays bounded."""


def shared_prefixes(log: Log | None, table: LogTable, puts: PutRuns | None) -> Int64s:
    """Leading token ids that put rows share with their put before, of shape [rows]; `UNTOLD` where none are compared.

    Compared are rows with ids whose prior_len isn't what the put before had. One of 0 says that the response began
    again; such rows are compared where their versions say that it didn't, as they are older than the put. Where there
    are such rows, this reads the ids again.

    Raises:
        LogError: a file is damaged behind its footer.
    """
    shared = np.full(table.rows, UNTOLD, dtype=np.int64)
    rows = np.flatnonzero(_is_whole(table) & (table.previous >= 0) & table.present("prior_len"))
    before = table.previous[rows]
    prior, tokens = table["prior_len"][rows], table["tokens"][before]
    asked = _is_whole(table)[before] & (prior != tokens)
    again = np.flatnonzero(asked & (prior == 0))
    asked[again] = False
    again = again[table["newest"][before[again]] < table["model_step"][rows[again]]]
    again = again[table["tokens"][rows[again]] >= tokens[again]]
    if puts is not None and len(again):
        asked[again] = puts.begins_with(rows[again], before[again])
    rows, before = rows[asked], before[asked]
    if len(rows) == 0 or log is None:
        return shared
    asked_of = dict(zip(rows.tolist(), before.tolist(), strict=True))
    wanted = set(before.tolist())
    held: dict[int, np.ndarray[Any, Any]] = {}
    room, first = MOST_HELD, 0
    for batch in read_batches(log, ["response_ids"]):
        ids = col.lists(batch.columns.get("response_ids"), batch.rows)
        ends = np.cumsum(ids.lengths)
        in_batch = np.concatenate([rows, before])
        in_batch = np.unique(in_batch[(in_batch >= first) & (in_batch < first + batch.rows)])
        for row in in_batch.tolist():
            own = ids.values[ends[row - first] - ids.lengths[row - first] : ends[row - first]]
            then = held.pop(asked_of.get(row, UNTOLD), None)
            if then is not None:
                room += len(then)
                both = min(len(own), len(then))
                differ = np.flatnonzero(own[:both] != then[:both])
                shared[row] = int(differ[0]) if len(differ) else both
            if row in wanted and len(own) <= room:
                room -= len(own)
                held[row] = own.copy()
        first += batch.rows
    return shared


def _is_whole(table: LogTable) -> Bools:
    """Put rows with all of their ids."""
    return table.known & table["ids_whole"].astype(np.bool_) & (table["ids_len"] == table["tokens"])

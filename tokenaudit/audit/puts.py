"""The version runs of put rows: what a rule about rows asks of the digest."""

from __future__ import annotations

import numpy as np

from tokenaudit.audit.table import LogTable
from tokenaudit.columns import Int64s
from tokenaudit.config import Config
from tokenaudit.digest import KIND_CODE, STATUSES, Digest
from tokenaudit.lifecycle.types import Status
from tokenaudit.runs import MISSING_VERSION
from tokenaudit.schema import EventKind


class PutRuns:
    """Ties the rows of a log to its digest, which leaves out groups with faulty rows.

    Args:
        table: the rows.
        digest: the digest of the same log.
        config: what tells the token limit; None: there is none.

    Attributes:
        rows: row of the log of each response of the digest, shape [R].
        recorded_pools: the pools that the sample events of each group name, in order.
    """

    def __init__(self, table: LogTable, digest: Digest, config: Config | None) -> None:
        self._table = table
        self._digest = digest
        self._config = config
        self.rows = _kept_rows(table, digest)
        self.recorded_pools = _recorded_pools(table)
        self._response: Int64s = np.full(table.rows, -1, dtype=np.int64)
        self._response[self.rows] = np.arange(len(self.rows))

    def response(self, row: int) -> int:
        """Index of a row's response in the digest; -1 where its group was left out."""
        return int(self._response[row])

    def runs(self, row: int) -> list[tuple[int, int]]:
        """(version, tokens) of a put row; empty where its group was left out."""
        return [(version, tokens) for version, tokens, _ in self.full_runs(row)]

    def full_runs(self, row: int) -> list[tuple[int, int, int]]:
        """(version, tokens, trainable tokens) of a put row; empty where its group was left out."""
        response = self.response(row)
        if response < 0:
            return []
        first, last = self._digest.responses.first_run[response : response + 2].tolist()
        runs = self._digest.runs
        return list(
            zip(
                runs.model_step[first:last].tolist(),
                runs.tokens[first:last].tolist(),
                runs.trainable[first:last].tolist(),
                strict=True,
            )
        )

    def fresh_trainable(self, row: int, train_step: int) -> int:
        """Trainable tokens of a put row that are still fresh at a later step."""
        task = self._table.tasks[int(self._table["task"][row])]
        limit = self._config.token_stale_threshold(task) if self._config else None
        return sum(
            trainable
            for version, _, trainable in self.full_runs(row)
            if version == MISSING_VERSION or limit is None or train_step - version - 1 < limit
        )


def _kept_rows(table: LogTable, digest: Digest) -> Int64s:
    """Put rows whose group the digest keeps; it leaves out groups as a whole, so their names tell."""
    rows = np.flatnonzero(table.is_put)
    if len(rows) == len(digest.responses.tokens):
        return rows
    is_put = digest.events.kind == KIND_CODE[EventKind.PUT]
    codes = {name: code for code, name in enumerate(table.tasks)}
    code_of = np.array([codes[name] for name in digest.tasks], dtype=np.int64)
    kept = np.stack([code_of[digest.events.task[is_put]], digest.events.group_id[is_put]], axis=1)
    pairs = np.stack([table["task"][rows], table["group_id"][rows]], axis=1)
    groups, inverse = np.unique(np.concatenate([kept, pairs]), axis=0, return_inverse=True)
    inverse = inverse.reshape(-1)
    is_kept = np.zeros(len(groups), dtype=np.bool_)
    is_kept[inverse[: len(kept)]] = True
    found = rows[is_kept[inverse[len(kept) :]]]
    assert len(found) == len(digest.responses.tokens), "the digest holds other rows than the log"
    return found


def _recorded_pools(table: LogTable) -> dict[tuple[str, int], list[Status]]:
    is_sample = table["kind"] == KIND_CODE[EventKind.SAMPLE]
    begins = np.ones(table.rows, dtype=np.bool_)
    begins[1:] = table["event_id"][1:] != table["event_id"][:-1]
    rows = np.flatnonzero(is_sample & begins & (table["status"] >= 0))
    pools: dict[tuple[str, int], list[Status]] = {}
    columns = (table["task"][rows], table["group_id"][rows], table["status"][rows])
    for task, group_id, status in zip(*(column.tolist() for column in columns), strict=True):
        pools.setdefault((table.tasks[task], group_id), []).append(STATUSES[status])
    return pools

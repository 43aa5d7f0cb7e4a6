"""The version runs of put rows: what a rule about rows asks of the digest."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from tokenaudit.audit.table import LogTable
from tokenaudit.config.model import Config
from tokenaudit.contracts.schema import EventKind
from tokenaudit.lifecycle.staleness import is_fresh, oldest_fresh
from tokenaudit.lifecycle.types import Status
from tokenaudit.log.columns import Bools, Int64s
from tokenaudit.log.digest import KIND_CODE, STATUSES, Digest
from tokenaudit.log.row_checks import ABSENT
from tokenaudit.log.token_ids import SAME, UNKNOWN
from tokenaudit.log.version_runs import MISSING_VERSION

_NO_LIMIT = 2**62
"""Token limit where there is no token rule."""


class PutRun(NamedTuple):
    """Consecutive tokens of one version in a put row; the version of tokens without one is `MISSING_VERSION`."""

    version: int
    tokens: int
    trainable: int


class PutRuns:
    """Ties the rows of a log to its digest, which leaves out groups with faulty rows.

    Args:
        table: the rows.
        digest: the digest of the same log.
        config: what sets the token limit; None: there is none.

    Attributes:
        digest: the digest.
        rows: row of the log of each response of the digest, shape [R].
        recorded_pools: the pools that the sample events of each group name, in order.
    """

    def __init__(self, table: LogTable, digest: Digest, config: Config | None) -> None:
        self._table = table
        self.digest = digest
        self._config = config
        self.rows = _kept_rows(table, digest)
        self.recorded_pools = _recorded_pools(table)
        # Where every group is left out, rows still need a first and a last run to look at.
        self._first_run = np.append(digest.responses.first_run, digest.responses.first_run[-1])
        self._response: Int64s = np.full(table.rows, -1, dtype=np.int64)
        self._response[self.rows] = np.arange(len(self.rows))

    def same_ids(self) -> Bools:
        """Rows whose token ids begin with those of their put before, of shape [rows]."""
        return self._verdict(SAME) & (self._table.previous >= 0)

    def kept(self) -> Int64s:
        """Leading tokens of each row that are those of its put before: as recorded, as the ids, or as versions say."""
        table = self._table
        same = self.same_ids()
        rows = np.flatnonzero(self._verdict(UNKNOWN) & (table.previous >= 0) & ~table.present("prior_len"))
        same[rows] = self.begins_with(rows, table.previous[rows])
        before = table["tokens"][np.maximum(table.previous, 0)]
        return np.where(table.present("prior_len"), table["prior_len"], np.where(same, before, 0))

    def _verdict(self, verdict: int) -> Bools:
        is_so = np.zeros(self._table.rows, dtype=np.bool_)
        is_so[self.rows] = self.digest.responses.continues_ids == verdict
        return is_so

    def response(self, row: int) -> int:
        """Index of a row's response in the digest; -1 where its group was left out."""
        return int(self._response[row])

    def is_kept(self, rows: Int64s) -> Bools:
        """Whether the digest has each put row; it leaves out groups with faulty ones."""
        return self._response[rows] >= 0

    def runs(self, row: int) -> list[PutRun]:
        """The runs of a put row; none where its group was left out."""
        response = self.response(row)
        if response < 0:
            return []
        first, last = self.digest.responses.first_run[response : response + 2].tolist()
        runs = self.digest.runs
        columns = (runs.model_step, runs.tokens, runs.trainable)
        return list(map(PutRun, *(column[first:last].tolist() for column in columns)))

    def fresh_trainable(self, rows: Int64s, train_step: Int64s, spared: Bools | None = None) -> Int64s:
        """Trainable tokens of put rows that are still fresh at a later step, given for each; 0 where left out.

        Of rows in `spared`, given for each, the token rule masks nothing.
        """
        owner, run = self.runs_of(rows)
        limits = [self._config.token_stale_threshold(task) if self._config else None for task in self._table.tasks]
        limits = np.array([_NO_LIMIT if limit is None else limit for limit in limits], dtype=np.int64)
        version = self.digest.runs.model_step[run]
        limit = limits[self._table["task"][rows]]
        oldest = oldest_fresh(train_step, limit if spared is None else np.where(spared, _NO_LIMIT, limit))[owner]
        counts = (version == MISSING_VERSION) | is_fresh(version, oldest)
        trainable = np.where(counts, self.digest.runs.trainable[run], 0)
        return np.bincount(owner, trainable, minlength=len(rows)).astype(np.int64)

    def oldest_version(self, rows: Int64s) -> Int64s:
        """The oldest version of the tokens of put rows; `ABSENT` where none has a version, or the row was left out."""
        owner, run = self.runs_of(rows)
        version = self.digest.runs.model_step[run].astype(np.int64)
        known = version != MISSING_VERSION
        oldest = np.full(len(rows), np.iinfo(np.int64).max)
        np.minimum.at(oldest, owner[known], version[known])
        return np.where(np.bincount(owner[known], minlength=len(rows)) > 0, oldest, ABSENT)

    def mean_version(self, rows: Int64s) -> np.ndarray[Any, np.dtype[np.float64]]:
        """The mean version of the tokens of put rows; NaN where none has a version, or the row was left out."""
        owner, run = self.runs_of(rows)
        version, tokens = self.digest.runs.model_step[run], self.digest.runs.tokens[run]
        tokens = np.where(version == MISSING_VERSION, 0, tokens)
        sums = np.bincount(owner, version * tokens.astype(np.float64), minlength=len(rows))
        count = np.bincount(owner, tokens, minlength=len(rows))
        return sums / np.where(count > 0, count, np.nan)

    def begins_with(self, rows: Int64s, earlier: Int64s) -> Bools:
        """Whether the versions of each put row begin with those of an earlier one; True where one was left out."""
        owner, run = self.runs_of(earlier)
        runs, first_run = self.digest.runs, self._first_run
        own, other = self._response[rows], self._response[earlier]
        known = (own >= 0) & (other >= 0)
        position = run - first_run[np.maximum(other, 0)][owner]
        partner = first_run[np.maximum(own, 0)][owner] + position
        is_there = partner < first_run[np.maximum(own, 0) + 1][owner]
        partner = np.where(is_there, partner, run)
        is_last = run + 1 == first_run[np.maximum(other, 0) + 1][owner]
        fits = np.where(is_last, runs.tokens[partner] >= runs.tokens[run], runs.tokens[partner] == runs.tokens[run])
        differs = ~is_there | ~fits | (runs.model_step[partner] != runs.model_step[run])
        return (np.bincount(owner[differs], minlength=len(rows)) == 0) | ~known

    def runs_of(self, rows: Int64s) -> tuple[Int64s, Int64s]:
        """The runs of several rows: which of the rows each belongs to, and its index in the digest."""
        response = self._response[rows]
        first_run = self._first_run
        first = first_run[np.maximum(response, 0)]
        counts = np.where(response >= 0, first_run[np.maximum(response, 0) + 1] - first, 0)
        owner = np.repeat(np.arange(len(rows)), counts)
        return owner, np.arange(len(owner)) - np.repeat(np.cumsum(counts) - counts, counts) + first[owner]


def _kept_rows(table: LogTable, digest: Digest) -> Int64s:
    """Put rows whose group the digest keeps; it leaves out groups as a whole, so their names decide."""
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

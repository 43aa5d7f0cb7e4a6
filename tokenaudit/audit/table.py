"""All rows of a log as numbers: what the rules about rows look at.

Memory grows with rows, never with tokens.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from tokenaudit.audit.findings import MOST_MEMBERS, Extent, Subject
from tokenaudit.audit.scan import Arrays, Scanned
from tokenaudit.contracts.schema import EventKind
from tokenaudit.log.columns import Bools, Int64s
from tokenaudit.log.digest import KIND_CODE, previous_put, segments
from tokenaudit.log.row_checks import ABSENT
from tokenaudit.log.structural_checks import has_length

_FILL = {"reward": np.nan, "agentic": False}
_PUT, _SAMPLE, _TAKE = (KIND_CODE[kind] for kind in (EventKind.PUT, EventKind.SAMPLE, EventKind.TAKE))


class LogTable:
    """N rows in log order.

    Args:
        parts: scanned batches, in any order.
        ranks: the rank that recorded each row, of shape [N]; None where one recorder wrote the log.

    Attributes:
        rows: N.
        rank: the rank that recorded each row; 0 without ranks.
        has_ranks: whether there are ranks.
        tasks: task names by code.
        reasons: finish reasons by code; None stands for null.
        texts: unknown events and statuses by column and row; the first few.
        is_put: whether a row is a put.
        put_number: number of the put of its rollout, from 1, on put rows; 0 elsewhere.
        previous: row of the same response in the rollout's put before, in the same group; -1 where there is none.
        moved_from: row of the same response in the rollout's put before, in another group; -1 where there is none.
        segment: position among the rows of its rollout in its put.
        put_event: number of the put that a row belongs to; -1 where it is none.
    """

    def __init__(self, parts: Iterable[Scanned], ranks: Int64s | None = None) -> None:
        ordered = sorted(parts, key=lambda part: part.first_row)
        tasks: dict[str, int] = {}
        reasons: dict[str | None, int] = {}
        self.texts: dict[tuple[str, int], str] = {}
        first = 0
        for part in ordered:
            _recode(part.arrays, "task", [tasks.setdefault(name, len(tasks)) for name in part.tasks])
            _recode(part.arrays, "finish_reason", [reasons.setdefault(name, len(reasons)) for name in part.reasons])
            self.texts |= {(name, first + row): text for (name, row), text in part.texts.items()}
            first += part.rows
        self.rows = first
        self.has_ranks = ranks is not None
        self.rank: Int64s = np.zeros(first, dtype=np.int64) if ranks is None else ranks
        self.tasks = tuple(tasks)
        self.reasons = tuple(reasons)
        self._arrays = _joined(ordered)
        self.is_put: Bools = self["kind"] == _PUT
        self._number_puts()

    def __getitem__(self, name: str, /) -> np.ndarray[Any, Any]:
        """A column of shape [N]; see `tokenaudit.audit.scan`. One that no file has is all null."""
        array = self._arrays.get(name)
        return np.full(self.rows, _FILL.get(name, ABSENT)) if array is None else array

    def __contains__(self, name: str) -> bool:
        return name in self._arrays

    def by_rank(self, rows: Int64s) -> list[Int64s]:
        """Rows, ascending, apart by the rank that recorded them: ranks needn't be in lockstep."""
        order = np.argsort(self.rank[rows], kind="stable")
        ends = np.flatnonzero(np.diff(self.rank[rows][order])) + 1
        return [own for own in np.split(rows[order], ends) if len(own)]

    def on_rank(self, row: int) -> str:
        """The rank of a row, for a message; nothing without ranks."""
        return f" on rank {self.rank[row]}" if self.has_ranks else ""

    def text(self, column: str, row: int) -> str:
        """An unknown event or status, for a message."""
        return self.texts.get((column, row), "…")

    def present(self, name: str) -> Bools:
        """Where an integer column holds a value."""
        return self[name] != ABSENT

    @property
    def used_tasks(self) -> tuple[str, ...]:
        """Names of the tasks that puts, samples and takes are about, in order of first appearance."""
        codes = self["task"][np.isin(self["kind"], (_PUT, _SAMPLE, _TAKE))]
        used, first = np.unique(codes, return_index=True)
        return tuple(self.tasks[code] for code in used[np.argsort(first)].tolist())

    @property
    def known(self) -> Bools:
        """Put rows whose length is known and one that a response can have."""
        return self.is_put & has_length(self)

    def subject(self, row: int, *, first_token: int | None = None, tokens: int | None = None) -> Subject:
        """Who a row is about."""
        kind = int(self["kind"][row])
        task = self.tasks[int(self["task"][row])] if kind in (_PUT, _SAMPLE, _TAKE) else None
        group_id = self._value("group_id", row) if kind in (_PUT, _SAMPLE) else None
        if kind == _PUT:
            rollout_id = self._value("rollout_id", row)
            return Subject(task, group_id, rollout_id, int(self.put_number[row]), first_token, tokens)
        step = self._value("train_step", row) if kind != _SAMPLE else None
        return Subject(task, group_id, train_step=step, event_id=self._value("event_id", row))

    def group_subject(self, row: int) -> Subject:
        """The group that a put row belongs to, at that put."""
        return Subject(self.tasks[int(self["task"][row])], self._value("group_id", row), put=int(self.put_number[row]))

    def puts_by_task(self, rows: Int64s) -> list[tuple[str, Int64s]]:
        """Those of the rows, ascending, that belong to puts, apart by task."""
        rows = rows[self.is_put[rows]]
        codes = self["task"][rows]
        return [(self.tasks[code], rows[codes == code]) for code in np.unique(codes).tolist()]

    def of_same_puts(self, rows: Int64s) -> Int64s:
        """All rows of the puts that put rows belong to."""
        return np.flatnonzero(self.is_put & np.isin(self.put_event, np.unique(self.put_event[rows])))

    def extent(self, rows: Int64s) -> Extent:
        """How far put rows, ascending and at least one, reach."""
        puts = np.unique(self.put_event[rows])
        widest = int(np.diff(puts).max(initial=1))
        pairs = np.stack([self["task"][rows], self["rollout_id"][rows]])
        first_of = np.sort(np.unique(pairs, axis=1, return_index=True)[1])
        named = rows[first_of[:MOST_MEMBERS]]
        tasks, rollouts = (self[name][named].tolist() for name in ("task", "rollout_id"))
        return Extent(
            first_put=int(puts[0]) + 1,
            last_put=int(puts[-1]) + 1,
            first_event_id=int(self["event_id"][rows[0]]),
            last_event_id=int(self["event_id"][rows[-1]]),
            lasts=int(self.put_event.max()) - int(puts[-1]) < widest,
            count=len(first_of),
            members=tuple((self.tasks[task], rollout) for task, rollout in zip(tasks, rollouts, strict=True)),
        )

    @property
    def is_split(self) -> Bools:
        """Put rows of rollouts that have several rows in their put."""
        rows = np.flatnonzero(self.is_put)
        is_split = np.zeros(self.rows, dtype=np.bool_)
        if self.segment.any():
            pairs = np.stack([self.put_event[rows], self["rollout_id"][rows]])
            group = np.unique(pairs, axis=1, return_inverse=True)[1].reshape(-1)
            is_split[rows] = np.bincount(group)[group] > 1
        return is_split

    @property
    def spared(self) -> Bools:
        """Put rows whose put has an agentic member, so that the token rule spares them."""
        rows = np.flatnonzero(self.is_put)
        agentic = np.bincount(self.put_event[rows], weights=self["agentic"][rows]) if len(rows) else np.zeros(0)
        spared = np.zeros(self.rows, dtype=np.bool_)
        spared[rows] = agentic[self.put_event[rows]] > 0
        return spared

    def _value(self, name: str, row: int) -> int | None:
        value = int(self[name][row])
        return None if value == ABSENT else value

    def _number_puts(self) -> None:
        rows = np.flatnonzero(self.is_put)
        task, rollout, event = self["task"][rows], self["rollout_id"][rows], self["event_id"][rows]
        # Ids of damaged logs may come back; a put is a stretch of rows with one id.
        event = np.cumsum(np.concatenate([[0], event[1:] != event[:-1]])) if len(rows) else event
        segment = segments(event, rollout)
        before = previous_put(task, rollout, segment)
        self.segment: Int64s = np.zeros(self.rows, dtype=np.int64)
        self.segment[rows] = segment
        before = np.where(before >= 0, rows[before], -1) if len(rows) else before
        same_group = self["group_id"][before] == self["group_id"][rows] if len(rows) else before >= 0
        self.previous: Int64s = np.full(self.rows, -1, dtype=np.int64)
        self.previous[rows] = np.where(same_group, before, -1)
        self.moved_from: Int64s = np.full(self.rows, -1, dtype=np.int64)
        self.moved_from[rows] = np.where(same_group, -1, before)
        self.put_number: Int64s = np.zeros(self.rows, dtype=np.int64)
        self.put_number[rows] = _numbers(task, rollout, event)
        self.put_event: Int64s = np.full(self.rows, -1, dtype=np.int64)
        self.put_event[rows] = event


def _numbers(task: Int64s, rollout: Int64s, event: Int64s) -> Int64s:
    """For each row, how many different events of its task and rollout there were up to it."""
    order = np.lexsort((event, rollout, task))
    numbers = np.zeros(len(order), dtype=np.int64)
    if len(order) == 0:
        return numbers
    same = (task[order[1:]] == task[order[:-1]]) & (rollout[order[1:]] == rollout[order[:-1]])
    begins = np.concatenate([[True], ~same])
    is_new = np.concatenate([[True], ~same | (event[order[1:]] != event[order[:-1]])])
    total = np.cumsum(is_new)
    numbers[order] = total - np.maximum.accumulate(np.where(begins, total - 1, 0))
    return numbers


def _recode(arrays: Arrays, name: str, codes: list[int]) -> None:
    """Replace the codes of one batch by those of the whole log."""
    if codes:
        arrays[name] = np.array(codes, dtype=np.int64)[arrays[name]]


def _joined(parts: Sequence[Scanned]) -> Arrays:
    """The columns of all parts below each other; what a part lacks is null there."""
    joined: Arrays = {}
    for name in dict.fromkeys(name for part in parts for name in part.arrays):
        is_flag = any(part.arrays[name].dtype == np.bool_ for part in parts if name in part.arrays)
        fill = False if is_flag else _missing(name)
        pieces = [part.arrays[name] if name in part.arrays else np.full(part.rows, fill) for part in parts]
        joined[name] = np.concatenate(pieces)
    return joined


def _missing(name: str) -> int:
    """What stands for null in a column that one file lacks: counts are 0, lengths of lists -1."""
    if name.endswith("_len") and name not in ("response_len", "prior_len", "prompt_len", "experts_len"):
        return -1
    counted = ("tail_", "ids_", "logprobs_", "train_logprobs_", "runs_", "edges_")
    return 0 if name.startswith(counted) else ABSENT

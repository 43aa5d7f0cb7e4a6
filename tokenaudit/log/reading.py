"""Read a log into its digest: check and reduce it batch by batch, then tie rows together to events."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from tokenaudit.contracts.errors import LogError, Problem
from tokenaudit.contracts.schema import COLUMNS, DEFAULT_TASK, EventKind
from tokenaudit.log import columns as col
from tokenaudit.log.batches import map_batches, read_batches
from tokenaudit.log.columns import ABSENT, Bools, Columns, Int64s
from tokenaudit.log.digest import (
    KIND_CODE,
    PRIOR_UNKNOWN,
    Digest,
    Events,
    Responses,
    VersionRuns,
    is_first_put,
    kind_code,
    previous_put,
    segments,
)
from tokenaudit.log.faults import Faults
from tokenaudit.log.files import Log
from tokenaudit.log.pieces import LogBatch
from tokenaudit.log.row_checks import BatchColumns, ReducedBatch, RowChecker
from tokenaudit.log.token_ids import UNKNOWN

_PUT = KIND_CODE[EventKind.PUT]
_SAMPLE = KIND_CODE[EventKind.SAMPLE]
_OF_NO_GROUP = tuple(KIND_CODE[kind] for kind in (EventKind.REFRESH, EventKind.TAKE, EventKind.SYNC))

MAX_TASKS = 1_000
"""Tasks a log may have; every step row holds every metric for each of them."""

MAX_RUNS = 2**24
"""Version runs that any log may have; more are refused where responses have more than `MAX_MEAN_RUNS` on average."""
MAX_MEAN_RUNS = 64

_PREFETCH_BYTES = 64 << 20
"""Bytes of checked rows that may wait for the rows before them."""

Group = tuple[int, int]
"""(task code, group id)"""


class _Tables(NamedTuple):
    """The rows of a log by kind: all rows, the responses of put rows, and the runs of those responses."""

    events: Columns
    responses: Columns
    runs: Columns


def read_digest(
    log: Log,
    *,
    quarantine: bool = False,
    allow_missing_versions: bool = False,
    also: Sequence[str] = (),
    on_batch: Callable[[BatchColumns], None] | None = None,
    on_progress: Callable[[int], None] | None = None,
) -> Digest:
    """Read a log once and reduce it.

    Args:
        log: an opened log.
        quarantine: drop the groups that hold structural faults instead of refusing the log.
        allow_missing_versions: accept tokens without a version whose put has no `model_step`; their runs have
            the version `version_runs.MISSING_VERSION`.
        also: columns to read besides those that the digest needs.
        on_batch: called with every batch, also behind the first fault; by several threads, in any order.
        on_progress: called with the number of rows read so far.

    Raises:
        LogError: structural faults, all at once; with `quarantine` only those of rows that belong to no group.
    """
    compare_ids = _needs_ids(log)
    names = [column.name for column in COLUMNS if column.replayed]
    if not compare_ids:
        names.remove("response_ids")
    names += [name for name in also if name not in names]
    checker = RowChecker(allow_missing_versions=allow_missing_versions, compare_ids=compare_ids)
    gathered = _Gathered(quarantine)

    def reduce(batch: LogBatch) -> ReducedBatch:
        columns = BatchColumns(batch)
        if on_batch is not None and batch.rows:
            on_batch(columns)
        return checker.reduce(columns)

    reduced = map_batches(
        log,
        names,
        reduce,
        rows_of=lambda batch: len(batch.faults.is_faulty),
        weigh=lambda batch: batch.nbytes,
        limit=_PREFETCH_BYTES,
        on_progress=on_progress,
    )
    for batch in reduced:
        if len(batch.faults.is_faulty):
            gathered.add(checker.check_order(batch))
    gathered.raise_faults()
    return gathered.digest(log, checker)


def _needs_ids(log: Log) -> bool:
    """Whether a put lacks its length or its prior length, so that token ids have to decide."""
    if "response_ids" not in log.columns:
        return False
    deciding = ("response_len", "prior_len")
    if any(name not in file.columns for file in log.files for name in deciding):
        return True
    for batch in read_batches(log, ("event", *deciding)):
        is_put = col.text_codes(batch.columns.get("event"), batch.rows, kind_code) == _PUT
        if any((col.nulls(batch.columns[name]) & is_put).any() for name in deciding):
            return True
    return False


def outside_quarantine(batch: LogBatch, digest: Digest) -> Bools:
    """Whether each row stays when faulty groups are left out: it belongs to none, or to one the digest still holds.

    Args:
        batch: rows of the log with `event`, `task_name` and `group_id`, as far as the log has these columns.
        digest: the digest of that log, with or without quarantine.
    """
    if not digest.quarantined_groups:
        return np.ones(batch.rows, dtype=np.bool_)
    events = digest.events
    groups = set(zip(events.task.tolist(), events.group_id.tolist(), strict=True))
    codes = {name: code for code, name in enumerate(digest.tasks)}
    kind = col.text_codes(batch.columns.get("event"), batch.rows, kind_code)
    task = col.text_codes(
        batch.columns.get("task_name"), batch.rows, lambda text: codes.get(DEFAULT_TASK if text is None else text, -1)
    )
    group_id = col.integers(batch.columns.get("group_id"), batch.rows, fill=ABSENT)
    stays = np.isin(kind, _OF_NO_GROUP)
    grouped = np.flatnonzero(~stays)
    stays[grouped] = [pair in groups for pair in zip(task[grouped].tolist(), group_id[grouped].tolist(), strict=True)]
    return stays


class _Gathered:
    """The checked rows of a log so far.

    Once a fault is found that won't be quarantined, only further faults are gathered.
    """

    def __init__(self, quarantine: bool) -> None:
        self._quarantine = quarantine
        self._faults = Faults()
        self._ungrouped = Faults()
        self._faulty_groups: dict[Group, None] = {}
        self._faulty_tokens = 0
        self._parts: list[_Tables] = []
        self._put_groups: list[np.ndarray[Any, Any]] = []
        """Groups put behind the first fault, where parts are no longer gathered."""
        self._rows = self._responses = self._runs = 0

    def add(self, batch: ReducedBatch) -> None:
        """Gather the next batch."""
        is_faulty = batch.faults.is_faulty
        batch.responses["log_row"] = np.arange(self._rows, self._rows + len(is_faulty))
        self._rows += len(is_faulty)
        if batch.faults.counts:
            self._faults.extend(batch.faults)
            self._note_groups(batch)
        if self._faults and not self._quarantine:
            self._put_groups.append(_put_groups(batch.events))
            return
        self._limit_runs(batch)
        is_put = batch.events["kind"] == _PUT
        self._faulty_tokens += int(_new_tokens(batch.responses)[is_put & is_faulty].sum())
        self._parts.append(
            _Tables(
                _where(batch.events, ~is_faulty),
                _where(batch.responses, ~is_faulty & is_put),
                {name: getattr(batch.runs, name) for name in VersionRuns._fields},
            )
        )

    def _limit_runs(self, batch: ReducedBatch) -> None:
        """Memory grows with version changes: a log in which the version changes all the time isn't one of a trainer."""
        self._responses += len(batch.runs.counts)
        self._runs += len(batch.runs.tokens)
        if self._runs > max(MAX_RUNS, MAX_MEAN_RUNS * self._responses):
            what = f"the version changes {self._runs} times in the first {self._responses} responses"
            hint = "response_model_steps holds the policy version of each token, which changes at weight syncs"
            raise LogError(Problem(what, f"{batch.faults.places.at(0)[0]}, column response_model_steps", hint))

    def _note_groups(self, batch: ReducedBatch) -> None:
        """Remember the groups of faulty rows; faulty rows outside any group can't be quarantined."""
        positions = np.flatnonzero(batch.faults.is_faulty)
        tasks, group_ids = batch.events["task"][positions], batch.events["group_id"][positions]
        kinds = batch.events["kind"][positions]
        has_group = (tasks >= 0) & (group_ids > np.iinfo(np.int64).min)
        has_group &= (kinds == _PUT) | (kinds == _SAMPLE) | (kinds < 0)
        pairs = zip(tasks[has_group].tolist(), group_ids[has_group].tolist(), strict=True)
        self._faulty_groups.update(dict.fromkeys((*batch.groups_before, *pairs)))
        if not has_group.all():
            ungrouped = col.marked(len(batch.faults.is_faulty), positions[~has_group])
            self._ungrouped.extend(batch.faults.of_rows(ungrouped))

    def raise_faults(self) -> None:
        """Refuse the log if it holds faults that aren't quarantined."""
        if self._ungrouped and self._quarantine:
            hint = "mend the log; rows of no group can't be quarantined"
            raise LogError(self._ungrouped.problems(hint))
        if self._faults and not self._quarantine:
            count = len(self._faulty_groups)
            hint = "mend the log"
            if not self._ungrouped and self._leaves_a_group():
                hint += f", or --quarantine to leave out the {count} group{'s' * (count != 1)} with such rows"
            raise LogError(self._faults.problems(hint))

    def _leaves_a_group(self) -> bool:
        """Whether a group was put that has no faulty row."""
        found = (*(_put_groups(part.events) for part in self._parts), *self._put_groups)
        return any((task, group_id) not in self._faulty_groups for pairs in found for task, group_id in pairs.tolist())

    def digest(self, log: Log, checker: RowChecker) -> Digest:
        """Tie the gathered rows together."""
        tables = _Tables(*(_concatenated(parts) for parts in zip(*self._parts, strict=True)))
        quarantined_tokens = self._faulty_tokens
        if self._faulty_groups:
            tables, dropped_tokens = _without_groups(tables, self._faulty_groups)
            quarantined_tokens += dropped_tokens
        tasks, tables.events["task"] = _tasks_by_appearance(checker.task_codes, tables.events["task"])
        if len(tasks) > MAX_TASKS:
            hint = f"task_name names a task, not a prompt; up to {MAX_TASKS} are supported"
            raise LogError(Problem(f"the log names {len(tasks)} tasks", f"{log.name}, column task_name", hint))
        starts = np.flatnonzero(_is_event_start(tables.events["event_id"]))
        return Digest(
            name=log.name,
            rows=log.rows,
            tasks=tasks,
            events=_events(tables.events, starts),
            responses=_responses(tables),
            runs=VersionRuns(**tables.runs),
            faults={kind.value: count for kind, count in sorted(self._faults.counts.items())},
            quarantined_groups=len(self._faulty_groups),
            quarantined_tokens=quarantined_tokens,
            unscored_rewards=checker.unscored_rewards,
            log_row=tables.responses["log_row"],
        )


def _where(columns: Columns, kept: Bools) -> Columns:
    return {name: array[kept] for name, array in columns.items()}


def _put_groups(events: Columns) -> np.ndarray[Any, Any]:
    """The groups that rows put: task codes and group ids, of shape [groups, 2]."""
    is_put = events["kind"] == _PUT
    return np.unique(np.stack([events["task"][is_put], events["group_id"][is_put]], axis=1), axis=0)


def _concatenated(parts: Sequence[Columns]) -> Columns:
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def _new_tokens(columns: Columns) -> Int64s:
    """New tokens of put rows, as far as the rows alone say: a prior length that isn't recorded counts as 0."""
    return np.maximum(columns["tokens"] - np.maximum(columns["prior_len"], 0), 0)


def _without_groups(tables: _Tables, groups: dict[Group, None]) -> tuple[_Tables, int]:
    """Leave out all events of some groups; also the number of new tokens in the puts left out."""
    events, responses, runs = tables
    is_put = events["kind"] == _PUT
    kept = np.ones(len(is_put), dtype=np.bool_)
    candidates = np.flatnonzero(is_put | (events["kind"] == _SAMPLE))
    pairs = zip(events["task"][candidates].tolist(), events["group_id"][candidates].tolist(), strict=True)
    kept[candidates] = [pair not in groups for pair in pairs]
    kept_response = kept[is_put]
    kept_run = np.repeat(kept_response, responses["run_count"])
    tokens = int(_new_tokens(responses)[~kept_response].sum())
    return _Tables(_where(events, kept), _where(responses, kept_response), _where(runs, kept_run)), tokens


def _tasks_by_appearance(codes: dict[str, int], task: Int64s) -> tuple[tuple[str, ...], Int64s]:
    """Task names in order of first appearance, and the column with codes in that order."""
    used, first = np.unique(task, return_index=True)
    ordered = [code for code in used[np.argsort(first)].tolist() if code >= 0]
    names = list(codes)
    new_code = np.full(len(names) + 1, -1, dtype=np.int64)
    new_code[ordered] = np.arange(len(ordered))
    return tuple(names[code] for code in ordered), new_code[task]


def _is_event_start(event_id: Int64s) -> Bools:
    is_start = np.ones(len(event_id), dtype=np.bool_)
    is_start[1:] = event_id[1:] != event_id[:-1]
    return is_start


def _events(rows: Columns, starts: Int64s) -> Events:
    """One entry per event, from its first row; a put's `model_step` is the largest its rows name."""
    puts_before = np.concatenate([[0], np.cumsum(rows["kind"] == _PUT)])
    model_step = rows["model_step"]
    return Events(
        kind=rows["kind"][starts],
        train_step=rows["train_step"][starts],
        model_step=np.maximum.reduceat(model_step, starts) if len(starts) else model_step,
        task=rows["task"][starts],
        group_id=rows["group_id"][starts],
        batch_size=rows["batch_size"][starts],
        first_response=puts_before[np.append(starts, len(model_step))],
    )


def _responses(tables: _Tables) -> Responses:
    events, responses, _ = tables
    is_put = events["kind"] == _PUT
    task, event_id, rollout_id = events["task"][is_put], events["event_id"][is_put], responses["rollout_id"]
    segment = segments(event_id, rollout_id)
    return Responses(
        rollout_id=rollout_id,
        segment=segment,
        status=responses["status"],
        tokens=responses["tokens"],
        prior_len=responses["prior_len"],
        reward=responses["reward"],
        agentic=responses["agentic"],
        is_first_put=is_first_put(task, rollout_id, event_id),
        previous=previous_put(task, rollout_id, segment),
        # Where prior_len is known otherwise, the ids decide nothing and must not make equal logs differ.
        continues_ids=np.where(responses["prior_len"] == PRIOR_UNKNOWN, responses["continues_ids"], UNKNOWN),
        first_run=np.concatenate([[0], np.cumsum(responses["run_count"])]),
    )

"""A batch of rows goes forward: its columns as arrays, what is wrong with them, the version runs of sound puts."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from tokenaudit.contracts.schema import DEFAULT_TASK, VERSION_RUNS, EventKind
from tokenaudit.log import columns as col
from tokenaudit.log import structural_checks as structural
from tokenaudit.log import version_runs
from tokenaudit.log.columns import ABSENT, INT32_MAX, LARGEST, Bools, Columns, Int64s, Lists
from tokenaudit.log.digest import (
    KIND_CODE,
    NO_VALUE,
    PRIOR_ASSUMED,
    PRIOR_UNKNOWN,
    UNKNOWN_CODE,
    kind_code,
    status_code,
)
from tokenaudit.log.faults import BatchFaults, FaultKind
from tokenaudit.log.pieces import LogBatch
from tokenaudit.log.token_ids import UNKNOWN, PrefixMemory
from tokenaudit.log.version_runs import MISSING_VERSION, Ones, RecordedRuns, Runs, interleaved_runs, run_heads

_CHECKED_INTEGERS = (
    "event_id", "train_step", "model_step", "group_id", "rollout_id", "batch_size", "response_len", "prior_len",
)  # fmt: skip


class RowNumbers(dict[str, np.ndarray[Any, Any]]):
    """What the structural checks look at: arrays of one number per row, by name; see `structural_checks.Rows`.

    Args:
        arrays: the arrays.
        texts: columns of names that they were made of.
    """

    def __init__(self, arrays: Columns, texts: Mapping[str, pa.Array]) -> None:
        super().__init__(arrays)
        self._texts = texts

    def text(self, column: str, row: int) -> str:
        """A value of a column of names, quoted and cut for a message."""
        return col.text_at(self._texts[column], row)


class BatchColumns:
    """A batch; whoever gets an array from it shares it with others and must not change it.

    Attributes:
        batch: the batch.
        rows: rows in it.
    """

    def __init__(self, batch: LogBatch) -> None:
        self.batch = batch
        self.rows = batch.rows
        self._integers: dict[str, Int64s] = {}
        self._lists: dict[str, Lists] = {}

    def array(self, name: str) -> pa.Array | None:
        """A column as it was read; None where the file lacks it."""
        return self.batch.columns.get(name)

    def integers(self, name: str) -> Int64s:
        """A column of integers, `ABSENT` where null; see `columns.integers`."""
        if name not in self._integers:
            self._integers[name] = col.integers(self.array(name), self.rows, fill=ABSENT)
        return self._integers[name]

    def lists(self, name: str) -> Lists:
        """A list column, flattened; see `columns.lists`."""
        if name not in self._lists:
            self._lists[name] = col.lists(self.array(name), self.rows)
        return self._lists[name]

    @cached_property
    def kind(self) -> Int64s:
        """Event kinds by code; see `digest.kind_code`."""
        return col.text_codes(self.array("event"), self.rows, kind_code)

    @cached_property
    def status(self) -> Int64s:
        """Statuses by code; see `digest.status_code`."""
        return col.text_codes(self.array("status"), self.rows, status_code)

    @cached_property
    def tasks(self) -> tuple[Int64s, tuple[str, ...]]:
        """Task of each row as an index into the names behind."""
        names: dict[str, int] = {}

        def code(text: str | None) -> int:
            return names.setdefault(DEFAULT_TASK if text is None else text, len(names))

        return col.text_codes(self.array("task_name"), self.rows, code), tuple(names)

    @property
    def versions(self) -> Lists:
        """The versions per token."""
        return self.lists("response_model_steps")

    @property
    def mask(self) -> Lists:
        """The semantic masks."""
        return self.lists("response_mask")

    @cached_property
    def version_heads(self) -> Int64s:
        """Where a run of one version begins in the flattened versions; see `version_runs.run_heads`."""
        return run_heads(self.versions.values, self.versions.lengths)

    @cached_property
    def mask_ones(self) -> Ones:
        """The ones of the flattened masks."""
        return Ones(self.mask.values)

    @cached_property
    def recorded_runs(self) -> RecordedRuns | None:
        """The version runs that rows hold in place of token columns."""
        return version_runs.recorded_runs(self.array(VERSION_RUNS), self.rows)

    @cached_property
    def tokens(self) -> Int64s:
        """Tokens per response: response_len, else the ids, else the versions or runs; -1 where a row has none."""
        recorded, runs = self.integers("response_len"), self.recorded_runs
        from_ids = col.list_lengths(self.array("response_ids"), self.rows)
        from_versions = np.where(self.versions.is_null, -1 if runs is None else runs.sums, self.versions.lengths)
        return np.where(recorded != ABSENT, recorded, np.where(from_ids >= 0, from_ids, from_versions))

    @cached_property
    def version_spans(self) -> tuple[Int64s, Int64s]:
        """Oldest and newest version of each row's tokens; `ABSENT` where it lists none."""
        oldest, newest = np.full(self.rows, ABSENT), np.full(self.rows, ABSENT)
        filled = np.flatnonzero(self.versions.lengths)
        if len(filled):
            values = self.versions.values[self.version_heads]
            if values.dtype == np.uint64:
                values = np.minimum(values, np.uint64(LARGEST))
            # the smallest number stands for null
            values = np.maximum(values.astype(np.int64), -LARGEST)
            starts = np.cumsum(self.versions.lengths) - self.versions.lengths
            first_run = np.searchsorted(self.version_heads, starts[filled])
            oldest[filled] = np.minimum.reduceat(values, first_run)
            newest[filled] = np.maximum.reduceat(values, first_run)
        return oldest, newest

    def numbers(self) -> RowNumbers:
        """What the structural checks look at.

        A row with recorded runs counts as one without versions and mask; `oldest` and `newest` are left out (`ABSENT`)
        where all versions of the batch are in range.
        """
        runs, tokens = self.recorded_runs, self.tokens
        has_runs = np.zeros(self.rows, dtype=np.bool_) if runs is None else runs.has_runs
        versions = self.versions.values[self.version_heads]
        if len(versions) == 0 or (versions.min() >= 0 and versions.max() <= INT32_MAX):
            oldest = newest = np.full(self.rows, ABSENT)
        else:
            oldest, newest = self.version_spans
        arrays: Columns = {name: self.integers(name) for name in _CHECKED_INTEGERS}
        arrays |= {
            "kind": self.kind,
            "status": self.status,
            "task": self.tasks[0],
            "tokens": np.where(tokens > INT32_MAX, -1, tokens),
            "has_runs": has_runs,
            "oldest": oldest,
            "newest": newest,
        }
        for name, lists in (("versions", self.versions), ("mask", self.mask)):
            arrays[f"{name}_len"] = np.where(lists.is_null | has_runs, -1, lists.lengths)
            arrays[f"{name}_null"] = lists.has_null_element
        return RowNumbers(arrays, self.batch.columns)


_PUT, _SAMPLE, _TAKE, _SYNC = (
    KIND_CODE[kind] for kind in (EventKind.PUT, EventKind.SAMPLE, EventKind.TAKE, EventKind.SYNC)
)
_EVENT_COLUMNS = ("kind", "event_id", "train_step", "model_step", "task", "group_id", "batch_size")
_ORDER_COLUMNS = ("event_id", "kind", "train_step", "task", "group_id")
"""What a row shares with the rows of its event, and must agree on with the row before."""


class ReducedBatch(NamedTuple):
    """One batch, checked and reduced.

    Attributes:
        events: the event columns of all rows, by name: kind, event_id, train_step, model_step, task, group_id,
            batch_size, with the null codes of `digest.Events`; `task` holds indices into `task_names` until the order
            of the rows is checked, then codes of the whole log.
        task_names: task names in the batch.
        responses: the response columns of all rows, by name: rollout_id, status, tokens, prior_len, reward, agentic,
            run_count, and continues_ids once the order is checked; meaningless where a row isn't a faultless put.
        runs: version runs of the faultless puts, in order.
        faults: what is wrong with the batch.
        unscored_rewards: rewards of puts that are infinite.
        ids: token ids where they are compared.
        nbytes: about what all this takes in memory.
        groups_before: groups (task, group id) of earlier rows that a faulty row of this batch is mixed up with.
    """

    events: Columns
    task_names: tuple[str, ...]
    responses: Columns
    runs: Runs
    faults: BatchFaults
    unscored_rewards: int
    ids: Lists | None
    nbytes: int
    groups_before: tuple[tuple[int, int], ...] = ()


class RowChecker:
    """Checks and reduces the batches of one log.

    Args:
        allow_missing_versions: accept tokens without a version whose put has no `model_step`.
        compare_ids: compare token ids between the puts of a response.
    """

    def __init__(self, *, allow_missing_versions: bool, compare_ids: bool) -> None:
        self._allow_missing_versions = allow_missing_versions
        self.task_codes: dict[str, int] = {}
        """Task names by code, in order of appearance in any row."""
        self.unscored_rewards = 0
        """Rewards of puts so far that are infinite."""
        self._before: dict[str, int] | None = None
        self._prefixes = PrefixMemory() if compare_ids else None

    def reduce(self, columns: BatchColumns) -> ReducedBatch:
        """Check rows by themselves, at least one, and reduce them; nothing is remembered, so threads may call it."""
        numbers = columns.numbers()
        faults = self._faults(columns, numbers)
        is_put = numbers["kind"] == _PUT
        runs = _put_runs(columns, numbers, is_put & ~faults.is_faulty)
        events = _events(numbers)
        responses: Columns = {
            "rollout_id": numbers["rollout_id"],
            "status": numbers["status"],
            "tokens": numbers["tokens"],
            "prior_len": _prior_len(columns.versions, numbers),
            "reward": col.rewards(columns.array("reward"), columns.rows),
            "agentic": col.flags(columns.array("agentic"), columns.rows),
            "run_count": np.zeros(columns.rows, dtype=np.int64),
        }
        responses["run_count"][is_put & ~faults.is_faulty] = runs.counts
        reward = columns.array("reward")
        is_infinite = is_put & np.isnan(responses["reward"])
        unscored = 0 if reward is None else int((is_infinite & ~col.nulls(reward)).sum())
        ids = columns.lists("response_ids") if self._prefixes is not None else None
        nbytes = sum(array.nbytes for array in (*events.values(), *responses.values(), *runs, *(ids or ())))
        return ReducedBatch(events, columns.tasks[1], responses, runs, faults, unscored, ids, nbytes)

    def _faults(self, columns: BatchColumns, numbers: RowNumbers) -> BatchFaults:
        """What is wrong with the rows by themselves."""
        faults = BatchFaults(columns.batch.places, columns.rows)
        structural.check_rows(structural.ROW_CHECKS, numbers, faults)
        recorded, allowed = columns.recorded_runs, self._allow_missing_versions
        if recorded is not None:
            is_beside = ~(columns.versions.is_null & columns.mask.is_null)
            structural.check_runs(recorded, numbers, is_beside, faults, allow_missing_versions=allowed)
        skipped = FaultKind.TOO_FEW_VERSIONS if allowed else None
        structural.check_rows(
            (check for check in structural.TOKEN_CHECKS if check.kind is not skipped), numbers, faults
        )
        return faults

    def check_order(self, batch: ReducedBatch) -> ReducedBatch:
        """Check how the next rows follow those before; batches come in the order of the log."""
        events, responses, runs, faults = batch.events, batch.responses, batch.runs, batch.faults
        self.unscored_rewards += batch.unscored_rewards
        codes = [self.task_codes.setdefault(name, len(self.task_codes)) for name in batch.task_names]
        events["task"] = np.array([*codes, NO_VALUE], dtype=np.int64)[events["task"]]
        was_faulty = faults.is_faulty.copy()
        rows = self._with_row_before(events)
        structural.check_rows((structural.EVENT_ID_FALLS, *structural.MIXED_EVENT), rows, faults, first=1)
        mixed = np.flatnonzero(faults.where(FaultKind.MIXED_EVENT))
        mixed = mixed[np.isin(rows["kind"][mixed], (_PUT, _SAMPLE))]
        # the rows begin one before the batch, so these are the groups of the rows before those that are mixed up
        groups_before = zip(rows["task"][mixed].tolist(), rows["group_id"][mixed].tolist(), strict=True)
        is_put = events["kind"] == _PUT
        verdicts = responses["continues_ids"] = np.full(len(is_put), UNKNOWN, dtype=np.int8)
        if batch.ids is not None and self._prefixes is not None:
            verdicts[is_put] = self._prefixes.verdicts(batch.ids, events, responses, is_put)
        newly_faulty = faults.is_faulty & ~was_faulty
        if newly_faulty.any():
            runs = runs.of(~newly_faulty[is_put & ~was_faulty])
            responses["run_count"][newly_faulty] = 0
        return batch._replace(runs=runs, groups_before=tuple(dict.fromkeys(groups_before)))

    def _with_row_before(self, events: Columns) -> RowNumbers:
        """What the order of rows is checked by: the rows of a batch behind the one before them, or behind the first."""
        before = self._before or {name: int(events[name][0]) for name in _ORDER_COLUMNS}
        rows = {name: np.concatenate([np.array([before[name]]), events[name]]) for name in _ORDER_COLUMNS}
        ids = rows["event_id"]
        reached = np.maximum.accumulate(np.concatenate([np.array([before.get("reached", ids[0])]), ids[1:]]))
        self._before = {name: int(events[name][-1]) for name in _ORDER_COLUMNS} | {"reached": int(reached[-1])}
        rows["id_before"] = np.concatenate([reached[:1], reached[:-1]])
        return RowNumbers(rows, {})


def _put_runs(columns: BatchColumns, numbers: RowNumbers, is_sound: Bools) -> Runs:
    """The version runs of the put rows in `is_sound`, those without a fault."""
    versions, mask, recorded = columns.versions, columns.mask, columns.recorded_runs
    by_token = is_sound & ~numbers["has_runs"]
    model_step = numbers["model_step"][by_token]
    runs = version_runs.version_runs(
        numbers["tokens"][by_token],
        versions.elements_of(by_token),
        versions.lengths[by_token],
        np.where(model_step >= 0, model_step, MISSING_VERSION),
        mask.elements_of(by_token),
        mask.lengths[by_token],
        None if versions.lengths[~by_token].any() else columns.version_heads,
        None if mask.lengths[~by_token].any() else columns.mask_ones,
    )
    if recorded is None:
        return runs
    has_runs = recorded.has_runs
    return interleaved_runs(has_runs[is_sound], version_runs.merged(recorded.runs(is_sound & has_runs)), runs)


def _events(numbers: RowNumbers) -> Columns:
    """The event columns, with the null codes of `digest.Events`, and 0 where an event has no such value."""
    kind = numbers["kind"]
    events: Columns = {name: numbers[name] for name in _EVENT_COLUMNS}
    has_version = ((kind == _PUT) | (kind == _SYNC)) & (numbers["model_step"] != ABSENT)
    of_group = (kind == _PUT) | (kind == _SAMPLE) | (kind == UNKNOWN_CODE)
    events["model_step"] = np.where(has_version, numbers["model_step"], NO_VALUE)
    events["train_step"] = np.where(kind == _SAMPLE, 0, numbers["train_step"])
    events["batch_size"] = np.where(kind == _TAKE, numbers["batch_size"], 0)
    events["group_id"] = np.where(of_group, numbers["group_id"], 0)
    events["task"] = np.where(of_group | (kind == _TAKE), numbers["task"], NO_VALUE)
    return events


def _prior_len(versions: Lists, numbers: RowNumbers) -> Int64s:
    """Recorded prior lengths; where missing, the length of the recorded versions if they are a prefix."""
    recorded, tokens = numbers["prior_len"], numbers["tokens"]
    prefix = np.where(versions.is_null, PRIOR_ASSUMED, versions.lengths)
    is_prefix = ~numbers["has_runs"] & (versions.lengths < tokens)
    is_recorded = (numbers["kind"] == _PUT) & (tokens >= 0) & (recorded != ABSENT)
    return np.where(is_recorded, recorded, np.where(is_prefix, prefix, PRIOR_UNKNOWN))

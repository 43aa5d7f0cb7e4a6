"""Check the rows of a batch and reduce its token columns: columns, then faults, then the version runs of sound puts."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tokenaudit.contracts.schema import EventKind
from tokenaudit.log import columns as col
from tokenaudit.log.batch_columns import BatchColumns, RowNumbers
from tokenaudit.log.columns import ABSENT, Bools, Columns, Int64s, Lists
from tokenaudit.log.digest import KIND_CODE, NO_VALUE, PRIOR_ASSUMED, PRIOR_UNKNOWN, UNKNOWN_CODE
from tokenaudit.log.faults import BatchFaults, FaultKind
from tokenaudit.log.structural_checks import (
    EVENT_ID_FALLS,
    MIXED_EVENT,
    ROW_CHECKS,
    TOKEN_CHECKS,
    check_rows,
    check_runs,
)
from tokenaudit.log.token_ids import UNKNOWN, PrefixMemory
from tokenaudit.log.version_runs import MISSING_VERSION, Runs, interleaved_runs, merged, version_runs

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
        events, responses = _events(numbers), _responses(columns, numbers)
        responses["run_count"] = np.zeros(columns.rows, dtype=np.int64)
        responses["run_count"][is_put & ~faults.is_faulty] = runs.counts
        reward = columns.array("reward")
        is_infinite = is_put & np.isnan(responses["reward"])
        unscored = 0 if reward is None else int((is_infinite & ~col.nulls(reward)).sum())
        ids = columns.lists("response_ids") if self._prefixes is not None else None
        nbytes = sum(array.nbytes for array in (*events.values(), *responses.values(), *runs, *(ids or ())))
        return ReducedBatch(events, columns.tasks[1], responses, runs, faults, unscored, ids, nbytes)

    def _faults(self, columns: BatchColumns, numbers: RowNumbers) -> BatchFaults:
        """What is wrong with the rows by themselves."""
        faults = BatchFaults(columns.batch.path, columns.batch.first_row, columns.rows)
        check_rows(ROW_CHECKS, numbers, faults)
        recorded, allowed = columns.recorded_runs, self._allow_missing_versions
        if recorded is not None:
            is_beside = ~(columns.versions.is_null & columns.mask.is_null)
            check_runs(recorded, numbers, is_beside, faults, allow_missing_versions=allowed)
        skipped = FaultKind.TOO_FEW_VERSIONS if allowed else None
        check_rows((check for check in TOKEN_CHECKS if check.kind is not skipped), numbers, faults)
        return faults

    def check_order(self, batch: ReducedBatch) -> ReducedBatch:
        """Check how the next rows follow those before; batches come in the order of the log."""
        events, responses, runs, faults = batch.events, batch.responses, batch.runs, batch.faults
        self.unscored_rewards += batch.unscored_rewards
        codes = [self.task_codes.setdefault(name, len(self.task_codes)) for name in batch.task_names]
        events["task"] = np.array([*codes, NO_VALUE], dtype=np.int64)[events["task"]]
        was_faulty = faults.is_faulty.copy()
        rows = self._with_row_before(events)
        check_rows((EVENT_ID_FALLS, *MIXED_EVENT), rows, faults, first=1)
        groups_before = _groups_before(rows, faults)
        is_put = events["kind"] == _PUT
        verdicts = responses["continues_ids"] = np.full(len(is_put), UNKNOWN, dtype=np.int8)
        if batch.ids is not None and self._prefixes is not None:
            verdicts[is_put] = self._prefixes.verdicts(batch.ids, events, responses, is_put)
        newly_faulty = faults.is_faulty & ~was_faulty
        if newly_faulty.any():
            runs = runs.of(~newly_faulty[is_put & ~was_faulty])
            responses["run_count"][newly_faulty] = 0
        return batch._replace(runs=runs, groups_before=groups_before)

    def _with_row_before(self, events: Columns) -> RowNumbers:
        """What the order of rows is checked by: the rows of a batch behind the one before them, or behind the first."""
        before = self._before or {name: int(events[name][0]) for name in _ORDER_COLUMNS}
        rows = {name: np.concatenate([np.array([before[name]]), events[name]]) for name in _ORDER_COLUMNS}
        ids = rows["event_id"]
        reached = np.maximum.accumulate(np.concatenate([np.array([before.get("reached", ids[0])]), ids[1:]]))
        self._before = {name: int(events[name][-1]) for name in _ORDER_COLUMNS} | {"reached": int(reached[-1])}
        rows["id_before"] = np.concatenate([reached[:1], reached[:-1]])
        return RowNumbers(rows, {})


def _groups_before(rows: RowNumbers, faults: BatchFaults) -> tuple[tuple[int, int], ...]:
    """The groups of the rows before those that are mixed up with them; `rows` begin one row before the batch."""
    mixed = np.flatnonzero(faults.where(FaultKind.MIXED_EVENT))
    of_group = mixed[np.isin(rows["kind"][mixed], (_PUT, _SAMPLE))]
    return tuple(dict.fromkeys(zip(rows["task"][of_group].tolist(), rows["group_id"][of_group].tolist(), strict=True)))


def _put_runs(columns: BatchColumns, numbers: RowNumbers, is_sound: Bools) -> Runs:
    """The version runs of the put rows in `is_sound`, those without a fault."""
    versions, mask, recorded = columns.versions, columns.mask, columns.recorded_runs
    by_token = is_sound & ~numbers["has_runs"]
    model_step = numbers["model_step"][by_token]
    runs = version_runs(
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
    return interleaved_runs(has_runs[is_sound], merged(recorded.runs(is_sound & has_runs)), runs)


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


def _responses(columns: BatchColumns, numbers: RowNumbers) -> Columns:
    """The response columns that the rows alone give."""
    return {
        "rollout_id": numbers["rollout_id"],
        "status": numbers["status"],
        "tokens": numbers["tokens"],
        "prior_len": _prior_len(columns.versions, numbers),
        "reward": col.rewards(columns.array("reward"), columns.rows),
        "agentic": col.flags(columns.array("agentic"), columns.rows),
    }


def _prior_len(versions: Lists, numbers: RowNumbers) -> Int64s:
    """Recorded prior lengths; where missing, the length of the recorded versions if they are a prefix."""
    recorded, tokens = numbers["prior_len"], numbers["tokens"]
    prefix = np.where(versions.is_null, PRIOR_ASSUMED, versions.lengths)
    is_prefix = ~numbers["has_runs"] & (versions.lengths < tokens)
    is_recorded = (numbers["kind"] == _PUT) & (tokens >= 0) & (recorded != ABSENT)
    return np.where(is_recorded, recorded, np.where(is_prefix, prefix, PRIOR_UNKNOWN))

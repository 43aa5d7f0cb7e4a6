"""Check the rows of a batch and reduce its token columns.

Each method looks at one family of columns, notes what is structurally wrong, and hands on plain arrays.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from tokenaudit.contracts.schema import EventKind
from tokenaudit.log import columns as col
from tokenaudit.log.batch_columns import ABSENT, BatchColumns
from tokenaudit.log.columns import Bools, Int64s, Lists
from tokenaudit.log.digest import KIND_CODE, NO_VALUE, PRIOR_ASSUMED, PRIOR_UNKNOWN
from tokenaudit.log.event_columns import INT32_MAX, Columns, EventOrder, check_range, event_columns
from tokenaudit.log.faults import BatchFaults, FaultKind
from tokenaudit.log.files import LogBatch
from tokenaudit.log.given_runs import GivenRuns, check_runs, with_given_runs
from tokenaudit.log.token_ids import UNKNOWN, PrefixMemory
from tokenaudit.log.version_runs import MISSING_VERSION, Runs, version_runs

_LARGEST_REWARD = 1e300
"""Rewards beyond it can't be summed in double precision; like NaN they count as unscored."""
_PUT = KIND_CODE[EventKind.PUT]


class PreparedRows(NamedTuple):
    """One batch, checked and reduced as far as its own rows tell.

    Attributes:
        events: the event columns of all rows; `task` holds indices into `task_names`.
        task_names: task names in the batch.
        responses: the response columns of all rows but `continues_ids`.
        runs: version runs of the put rows that were faultless so far, in order.
        faults: what is wrong so far.
        unscored_rewards: rewards of puts that are infinite.
        ids: token ids where they are compared.
        nbytes: about what all this takes in memory.
    """

    events: Columns
    task_names: tuple[str, ...]
    responses: Columns
    runs: Runs
    faults: BatchFaults
    unscored_rewards: int
    ids: Lists | None
    nbytes: int


class CheckedRows(NamedTuple):
    """One batch, checked.

    Attributes:
        events: the event columns of all rows, by name; see `RowChecker`.
        responses: the response columns of all rows, by name; meaningless where a row isn't a faultless put.
        runs: version runs of the faultless puts, in order.
        faults: what is wrong with the batch.
        groups_before: groups (task, group id) of earlier rows that a faulty row of this batch is mixed up with.
    """

    events: Columns
    responses: Columns
    runs: Runs
    faults: BatchFaults
    groups_before: tuple[tuple[int, int], ...]


class RowChecker:
    """Checks the batches of one log in order.

    Event columns: kind, event_id, train_step, model_step, task, group_id, batch_size, with the null codes of
    `tokenaudit.digest.Events`. Response columns: rollout_id, status, tokens, prior_len, reward, agentic,
    continues_ids, run_count.

    Args:
        allow_missing_versions: accept tokens without a version whose put has no `model_step`.
        compare_ids: compare token ids between the puts of a response.
    """

    def __init__(self, *, allow_missing_versions: bool, compare_ids: bool) -> None:
        self._allow_missing_versions = allow_missing_versions
        self._compare_ids = compare_ids
        self.task_codes: dict[str, int] = {}
        """Task names by code, in order of appearance in any row."""
        self.unscored_rewards = 0
        """Rewards of puts so far that are infinite."""
        self._order = EventOrder()
        self._prefixes = PrefixMemory()

    def check(self, batch: LogBatch) -> CheckedRows:
        """Check the next rows, at least one."""
        return self.follow(self.prepare(BatchColumns(batch)))

    def prepare(self, columns: BatchColumns) -> PreparedRows:
        """What rows tell by themselves, at least one row; nothing is remembered, so threads may call it."""
        faults = BatchFaults(columns.batch.path, columns.batch.first_row, columns.rows)
        names: dict[str, int] = {}
        rows = event_columns(columns, faults, names)
        responses, runs, unscored_rewards = self._response_columns(columns, rows, faults)
        del rows["rollout_id"], rows["status"]
        ids = columns.lists("response_ids") if self._compare_ids else None
        arrays = [*rows.values(), *responses.values(), *runs, *(ids or ())]
        nbytes = sum(array.nbytes for array in arrays)
        return PreparedRows(rows, tuple(names), responses, runs, faults, unscored_rewards, ids, nbytes)

    def follow(self, prepared: PreparedRows) -> CheckedRows:
        """Check how the next prepared rows follow those before; batches come in the order of the log."""
        rows, responses, runs, faults = prepared.events, prepared.responses, prepared.runs, prepared.faults
        self.unscored_rewards += prepared.unscored_rewards
        codes = [self.task_codes.setdefault(name, len(self.task_codes)) for name in prepared.task_names]
        rows["task"] = np.array([*codes, NO_VALUE], dtype=np.int64)[rows["task"]]
        was_faulty = faults.is_faulty.copy()
        groups_before = self._order.check(rows, faults)
        is_put = rows["kind"] == _PUT
        responses["continues_ids"] = self._continues_ids(prepared.ids, rows, responses, is_put)
        newly_faulty = faults.is_faulty & ~was_faulty
        if newly_faulty.any():
            runs = _without_rows(runs, newly_faulty[is_put & ~was_faulty])
            responses["run_count"][newly_faulty] = 0
        return CheckedRows(rows, responses, runs, faults, groups_before)

    def _response_columns(self, columns: BatchColumns, rows: Columns, faults: BatchFaults) -> tuple[Columns, Runs, int]:
        """The columns of put rows, checked, the version runs of the faultless ones, and their infinite rewards."""
        count = columns.rows
        is_put = rows["kind"] == _PUT
        versions, mask, heads = columns.versions, columns.mask, columns.version_heads
        self._check_elements(versions, mask, versions.values[heads], is_put, faults)
        given = columns.given_runs
        tokens = self._lengths(columns, given, is_put, faults)
        known = is_put & (tokens >= 0)
        model_step = rows["model_step"]
        by_token = np.ones(count, dtype=np.bool_)
        if given is not None:
            by_token = ~given.has_runs
            allowed = self._allow_missing_versions
            check_runs(given, versions, mask, tokens, is_put, faults, allow_missing_versions=allowed)
        self._check_counts(tokens, versions, mask, model_step, known & by_token, faults)
        prior_len = self._prior_len(columns, tokens, versions, known, by_token, faults)
        reward = col.reals(columns.array("reward"), count)
        is_scored = np.abs(reward) <= _LARGEST_REWARD
        unscored_rewards = int((is_put & ~is_scored & _is_present(columns.array("reward"), count)).sum())
        good = is_put & ~faults.is_faulty
        told = good & by_token
        reduced = version_runs(
            tokens[told],
            _rows_of(versions, told),
            versions.lengths[told],
            np.where(model_step[told] >= 0, model_step[told], MISSING_VERSION),
            _rows_of(mask, told),
            mask.lengths[told],
            None if versions.lengths[~told].any() else heads,
            None if mask.lengths[~told].any() else columns.mask_ones,
        )
        if given is not None:
            reduced = with_given_runs(given, good, reduced)
        run_count = np.zeros(count, dtype=np.int64)
        run_count[good] = reduced.counts
        responses: Columns = {
            "rollout_id": rows["rollout_id"],
            "status": rows["status"],
            "tokens": tokens,
            "prior_len": prior_len,
            "reward": np.where(is_scored, reward, np.nan),
            "agentic": col.flags(columns.array("agentic"), count),
            "run_count": run_count,
        }
        return responses, reduced, unscored_rewards

    @staticmethod
    def _check_elements(
        versions: Lists, mask: Lists, head_versions: np.ndarray[Any, Any], is_put: Bools, faults: BatchFaults
    ) -> None:
        for name, column in (("response_model_steps", versions), ("response_mask", mask)):
            holds_null = np.zeros(len(is_put), dtype=np.bool_)
            holds_null[column.null_element_rows] = True
            faults.add(FaultKind.NULL_ELEMENT, name, is_put & holds_null, lambda _, name=name: f"{name} holds a null")
        if len(head_versions) == 0 or (head_versions.min() >= 0 and head_versions.max() <= INT32_MAX):
            return
        values = versions.values
        owner = np.repeat(np.arange(len(is_put)), versions.lengths)
        for kind, wrong in (
            (FaultKind.NEGATIVE_VALUE, values < 0),
            (FaultKind.VALUE_TOO_LARGE, values > INT32_MAX),
        ):
            first = dict(zip(owner[wrong][::-1].tolist(), values[wrong][::-1].tolist(), strict=True))
            rows = np.zeros(len(is_put), dtype=np.bool_)
            rows[owner[wrong]] = True
            faults.add(
                kind,
                "response_model_steps",
                is_put & rows,
                lambda row, first=first: f"response_model_steps holds the version {first[row]}",
            )

    def _lengths(self, columns: BatchColumns, given: GivenRuns | None, is_put: Bools, faults: BatchFaults) -> Int64s:
        """Tokens per response: response_len, else the ids, else versions or runs; -1 where a put tells none."""
        versions, recorded = columns.versions, columns.integers("response_len")
        present = recorded != ABSENT
        check_range(recorded, "response_len", is_put & present, faults)
        from_ids = col.list_lengths(columns.array("response_ids"), columns.rows)
        from_versions = np.where(versions.is_null, -1 if given is None else given.sums, versions.lengths)
        tokens = np.where(present, recorded, np.where(from_ids >= 0, from_ids, from_versions))
        faults.add(
            FaultKind.NO_LENGTH,
            "response_len",
            is_put & ~present & (tokens < 0),
            lambda _: "nothing tells the length of the response",
        )
        return np.where(tokens > INT32_MAX, -1, tokens)

    def _check_counts(
        self,
        tokens: Int64s,
        versions: Lists,
        mask: Lists,
        model_step: Int64s,
        known: Bools,
        faults: BatchFaults,
    ) -> None:
        faults.add(
            FaultKind.TOO_MANY_VERSIONS,
            "response_model_steps",
            known & (versions.lengths > tokens),
            lambda row: f"{versions.lengths[row]} versions for {tokens[row]} tokens",
        )
        if not self._allow_missing_versions:
            faults.add(
                FaultKind.TOO_FEW_VERSIONS,
                "response_model_steps",
                known & ~faults.is_faulty & (versions.lengths < tokens) & (model_step == NO_VALUE),
                lambda row: f"{versions.lengths[row]} versions for {tokens[row]} tokens and no model_step",
            )
        faults.add(
            FaultKind.MASK_LENGTH,
            "response_mask",
            known & ~mask.is_null & (mask.lengths != tokens),
            lambda row: f"{mask.lengths[row]} mask entries for {tokens[row]} tokens",
        )

    def _prior_len(
        self,
        columns: BatchColumns,
        tokens: Int64s,
        versions: Lists,
        known: Bools,
        by_token: Bools,
        faults: BatchFaults,
    ) -> Int64s:
        """Recorded prior lengths; where missing, the recorded versions tell if they are a prefix."""
        recorded = columns.integers("prior_len")
        present = known & (recorded != ABSENT)
        check_range(recorded, "prior_len", present, faults)
        faults.add(
            FaultKind.PRIOR_TOO_LONG,
            "prior_len",
            present & (recorded > tokens),
            lambda row: f"prior_len is {recorded[row]} for {tokens[row]} tokens",
        )
        prefix = np.where(versions.is_null, PRIOR_ASSUMED, versions.lengths)
        told = np.where(by_token & (versions.lengths < tokens), prefix, PRIOR_UNKNOWN)
        return np.where(present, recorded, told)

    def _continues_ids(
        self, ids: Lists | None, rows: Columns, responses: Columns, is_put: Bools
    ) -> np.ndarray[Any, Any]:
        """Whether each put continues the token ids of its response's previous put."""
        verdicts = np.full(len(is_put), UNKNOWN, dtype=np.int8)
        if ids is None:
            return verdicts
        has_ids = ~ids.is_null & (ids.lengths == responses["tokens"])
        has_ids[ids.null_element_rows] = False
        of_puts = Lists(_rows_of(ids, is_put), ids.lengths[is_put], ids.is_null[is_put], ids.null_element_rows)
        verdicts[is_put] = self._prefixes.verdicts(
            rows["event_id"][is_put],
            rows["task"][is_put],
            responses["rollout_id"][is_put],
            has_ids[is_put],
            of_puts,
        )
        return verdicts


def _rows_of(lists: Lists, where: Bools) -> np.ndarray[Any, Any]:
    """The elements of the rows in `where`, one row after the other; no copy where the others have none."""
    if not lists.lengths[~where].any():
        return lists.values
    return lists.values[np.repeat(where, lists.lengths)]


def _without_rows(runs: Runs, dropped: Bools) -> Runs:
    """The runs of the responses that aren't dropped, given as bools of shape [R]."""
    kept = np.repeat(~dropped, runs.counts)
    return Runs(runs.counts[~dropped], runs.model_step[kept], runs.tokens[kept], runs.trainable[kept])


def _is_present(array: pa.Array | None, rows: int) -> Bools:
    """Where a column holds a value."""
    return np.zeros(rows, dtype=np.bool_) if array is None else ~col.nulls(array)

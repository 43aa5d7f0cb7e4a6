"""The columns of a batch of rows as plain arrays, each made once however many look at it."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

from tokenaudit.contracts.schema import DEFAULT_TASK, VERSION_RUNS
from tokenaudit.log import columns as col
from tokenaudit.log.columns import ABSENT, INT32_MAX, LARGEST, Columns, Int64s, Lists
from tokenaudit.log.digest import kind_code, status_code
from tokenaudit.log.files import LogBatch
from tokenaudit.log.version_runs import Ones, RecordedRuns, recorded_runs, run_heads

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

    def __contains__(self, name: str) -> bool:
        return name in self.batch.columns

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
        return recorded_runs(self.array(VERSION_RUNS), self.rows)

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

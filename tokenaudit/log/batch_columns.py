"""The columns of a batch of rows as plain arrays, each made once however many look at it."""

from __future__ import annotations

from functools import cached_property

import pyarrow as pa

from tokenaudit.contracts.schema import VERSION_RUNS
from tokenaudit.log import columns as col
from tokenaudit.log.columns import Int64s, Lists
from tokenaudit.log.files import LogBatch
from tokenaudit.log.given_runs import GivenRuns, given_runs
from tokenaudit.log.version_runs import Ones, run_heads

ABSENT = -(2**63)
"""Stands for null in columns of integers: no accepted value equals it."""


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
        """Where a run of one version begins in the flattened versions; see `runs.run_heads`."""
        return run_heads(self.versions.values, self.versions.lengths)

    @cached_property
    def mask_ones(self) -> Ones:
        """The ones of the flattened masks."""
        return Ones(self.mask.values)

    @cached_property
    def given_runs(self) -> GivenRuns | None:
        """The runs that rows give in place of token columns."""
        return given_runs(self.array(VERSION_RUNS), self.rows)

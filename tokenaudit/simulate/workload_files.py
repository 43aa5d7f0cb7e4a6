"""Workloads as Parquet files, read and written in bounded batches.

Masks become runs as they are read, so memory grows with responses, not with tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tokenaudit.contracts.errors import LogError, Problem
from tokenaudit.contracts.schema import (
    DEFAULT_TASK,
    META_CONFIG,
    META_SCHEMA_VERSION,
    META_SOURCE,
    META_TRUNCATED,
    SCHEMA_VERSION,
    WORKLOAD_COLUMNS,
)
from tokenaudit.log import columns as col
from tokenaudit.log.batches import read_batches
from tokenaudit.log.columns import ABSENT, INT32_MAX, Int64s
from tokenaudit.log.faults import SHOWN_FAULTS, BatchFaults, Fault, FaultKind, Faults
from tokenaudit.log.files import Log
from tokenaudit.log.pieces import LogBatch
from tokenaudit.log.reading import MAX_TASKS
from tokenaudit.log.semantic_masks import SemanticMasks, joined, masks_of
from tokenaudit.simulate.workload import ResponseColumns, TaskWorkload, Workload, grouped_by_task

SOURCE = "tokenaudit workload"

_WRITTEN_ROWS = 16_384
_WRITTEN_TOKENS = 4_000_000

SCHEMA = pa.schema(
    [
        ("task_name", pa.string()),
        ("group_id", pa.int64()),
        ("rollout_id", pa.int64()),
        ("response_len", pa.int32()),
        ("token_time_us", pa.int64()),
        ("response_mask", pa.list_(pa.int8())),
        ("agentic", pa.bool_()),
        ("reward", pa.float64()),
        ("failed", pa.bool_()),
        ("filtered", pa.bool_()),
    ]
)
"""How a workload is written."""


def read_workload(log: Log, on_progress: Callable[[int], None] | None = None) -> Workload:
    """Read a workload whose files were opened with `log.open_workload`.

    Args:
        log: the opened files.
        on_progress: called with the number of rows read so far.

    Raises:
        LogError: structural faults, all at once.
    """
    reader = _Reader()
    for batch in read_batches(log, [column.name for column in WORKLOAD_COLUMNS], on_progress):
        if batch.rows:
            reader.add(batch)
    return reader.workload(log)


def write_workload(workload: Workload, path: Path | BinaryIO, config_json: str | None = None) -> None:
    """Write a workload as Parquet.

    Args:
        workload: what to write.
        path: the file.
        config_json: the config of the run it comes from, kept in the metadata.

    Raises:
        OSError: the file can't be written.
    """
    metadata = {
        META_SCHEMA_VERSION: str(SCHEMA_VERSION),
        META_SOURCE: SOURCE,
        META_TRUNCATED: str(workload.truncated_responses),
    }
    if config_json is not None:
        metadata[META_CONFIG] = config_json
    with pq.ParquetWriter(path, SCHEMA.with_metadata(metadata), compression="zstd") as writer:
        for name, task in workload.tasks.items():
            for low, high in col.bounded_spans(task.responses.response_len, _WRITTEN_ROWS, _WRITTEN_TOKENS):
                writer.write_batch(_batch(name, task, np.arange(low, high)))


def _batch(name: str, task: TaskWorkload, rows: Int64s) -> pa.RecordBatch:
    responses = task.responses.take(rows)
    return pa.record_batch(
        {
            "task_name": pa.array([name] * len(rows), pa.string()),
            "group_id": responses.group_id,
            "rollout_id": responses.rollout_id,
            "response_len": responses.response_len.astype(np.int32),
            "token_time_us": responses.token_time_us,
            "response_mask": mask_array(task.masks, rows, responses.response_len),
            "agentic": responses.agentic,
            "reward": pa.array(responses.reward, mask=np.isnan(responses.reward)),
            "failed": responses.failed,
            "filtered": responses.filtered,
        },
        schema=SCHEMA,
    )


def mask_array(masks: SemanticMasks, rows: Int64s, tokens: Int64s) -> pa.Array:
    """The first tokens of some masks as an Arrow list column; null where a response has no mask of its own.

    Args:
        masks: the masks.
        rows: a response per row of the column; -1: null.
        tokens: how many tokens of each.
    """
    counts = np.diff(masks.arrays()[0])
    is_null = np.ones(len(rows), dtype=np.bool_)
    is_null[rows >= 0] = counts[rows[rows >= 0]] == 0
    lengths = np.where(is_null, 0, tokens)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    values = masks.prefixes(rows[~is_null], tokens[~is_null])
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(values), mask=pa.array(is_null))


class _Reader:
    """The checked rows of a workload so far."""

    def __init__(self) -> None:
        self._faults = Faults()
        self._task_codes: dict[str, int] = {}
        self._parts: list[tuple[Int64s, ResponseColumns]] = []
        self._masks: list[SemanticMasks] = []
        self._unscored_rewards = 0

    def add(self, batch: LogBatch) -> None:
        """Check and reduce the next rows."""
        faults = BatchFaults(batch.places, batch.rows)
        task = col.text_codes(batch.columns.get("task_name"), batch.rows, self._task_code)
        responses = self._responses(batch, faults)
        masks = col.lists(batch.columns.get("response_mask"), batch.rows)
        faults.add(
            FaultKind.NULL_ELEMENT, "response_mask", masks.has_null_element, lambda _: "response_mask holds a null"
        )
        length = responses.response_len
        faults.add(
            FaultKind.MASK_LENGTH,
            "response_mask",
            ~masks.is_null & (masks.lengths != length) & (length >= 0) & (length <= INT32_MAX),
            lambda row: f"{masks.lengths[row]} mask entries for {length[row]} tokens",
        )
        if faults.counts:
            self._faults.extend(faults)
        self._parts.append((task, responses))
        if not self._faults:
            self._masks.append(masks_of(masks))

    def workload(self, log: Log) -> Workload:
        """Everything read.

        Raises:
            LogError: there were structural faults.
        """
        task = np.concatenate([part[0] for part in self._parts])
        columns = zip(*(part[1] for part in self._parts), strict=True)
        responses = ResponseColumns._make(np.concatenate(arrays) for arrays in columns)
        self._check_rollouts(log, task, responses)
        if self._faults:
            raise LogError(self._faults.problems("mend the workload, or derive it again with tokenaudit workload"))
        if len(self._task_codes) > MAX_TASKS:
            what = f"the workload has {len(self._task_codes)} tasks"
            raise LogError(Problem(what, log.name, f"tokenaudit simulates up to {MAX_TASKS}; is task_name the prompt?"))
        return Workload(
            name=log.name,
            rows=len(task),
            tasks=grouped_by_task(task, list(self._task_codes), responses, joined(self._masks)),
            truncated_responses=_truncated(log),
            unscored_rewards=self._unscored_rewards,
        )

    def _task_code(self, text: str | None) -> int:
        return self._task_codes.setdefault(DEFAULT_TASK if text is None else text, len(self._task_codes))

    def _responses(self, batch: LogBatch, faults: BatchFaults) -> ResponseColumns:
        needed = {
            name: col.integers(batch.columns.get(name), batch.rows, fill=ABSENT)
            for name in ("group_id", "rollout_id", "response_len", "token_time_us")
        }
        for name, values in needed.items():
            is_null, low = values == ABSENT, 1 if name == "token_time_us" else 0
            faults.add(FaultKind.MISSING_VALUE, name, is_null, lambda _, name=name: f"{name} is null")
            faults.add(
                FaultKind.NO_TIME if low else FaultKind.NEGATIVE_VALUE,
                name,
                ~is_null & (values < low),
                lambda row, name=name, values=values: f"{name} is {values[row]}",
            )
            # The largest number also stands for those that 64 bits can't hold, and no log can hold it as an id.
            is_large = (values == col.LARGEST) & (name != "response_len")
            faults.add(FaultKind.VALUE_TOO_LARGE, name, is_large, lambda _, name=name: f"{name} is 2**63 - 1 or more")
        length = needed["response_len"]
        faults.add(
            FaultKind.VALUE_TOO_LARGE,
            "response_len",
            length > INT32_MAX,
            lambda row: f"response_len is {length[row]}",
        )
        given = batch.columns.get("reward")
        reward = col.rewards(given, batch.rows)
        if given is not None:
            self._unscored_rewards += int((np.isnan(reward) & ~col.nulls(given)).sum())
        return ResponseColumns(
            **needed,
            agentic=col.flags(batch.columns.get("agentic"), batch.rows),
            reward=reward,
            failed=col.flags(batch.columns.get("failed"), batch.rows),
            filtered=col.flags(batch.columns.get("filtered"), batch.rows),
        )

    def _check_rollouts(self, log: Log, task: Int64s, responses: ResponseColumns) -> None:
        """A rollout belongs to one group."""
        order = np.lexsort((responses.group_id, responses.rollout_id, task))
        before, after = order[:-1], order[1:]
        wrong = (
            (task[before] == task[after])
            & (responses.rollout_id[before] == responses.rollout_id[after])
            & (responses.group_id[before] != responses.group_id[after])
            & (responses.rollout_id[after] != ABSENT)
        )
        rows = np.sort(after[wrong])
        if len(rows) == 0:
            return
        self._faults.counts[FaultKind.TWO_GROUPS] += len(rows)
        ends = np.cumsum([file.rows for file in log.files])
        for row in rows[: max(SHOWN_FAULTS - len(self._faults.shown), 0)].tolist():
            file = int(np.searchsorted(ends, row, side="right"))
            in_file = row - int(ends[file] - log.files[file].rows)
            what = f"rollout {responses.rollout_id[row]} is in group {responses.group_id[row]} and another one"
            self._faults.shown.append(Fault(log.files[file].path, in_file, "rollout_id", what, FaultKind.TWO_GROUPS))


def _truncated(log: Log) -> int:
    text = log.metadata.get(META_TRUNCATED, "0")
    return int(text) if text.isascii() and text.isdigit() else 0

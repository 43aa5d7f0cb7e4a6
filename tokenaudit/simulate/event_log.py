"""Write the event log of a simulated run, in the schema that replay reads; streamed, in bounded memory."""

from __future__ import annotations

import json
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tokenaudit.config.model import Config, resolved
from tokenaudit.contracts.errors import LogError, Problem
from tokenaudit.contracts.schema import META_CONFIG, META_SCHEMA_VERSION, META_SOURCE, SCHEMA_VERSION, EventKind
from tokenaudit.lifecycle.types import Response, Status
from tokenaudit.log.log_file import MAX_ROW_ELEMENTS
from tokenaudit.log.semantic_masks import joined
from tokenaudit.log.writer import column_type
from tokenaudit.simulate.entries import LogEntry, PutEntry, RefreshEntry, SampleEntry, SyncEntry, TakeEntry
from tokenaudit.simulate.workload import Workload
from tokenaudit.simulate.workload_files import mask_array

SOURCE = "tokenaudit simulate"

_WRITTEN_ROWS = 16_384
_WRITTEN_TOKENS = 2_000_000

_COLUMNS = (
    "event", "event_id", "train_step", "model_step", "task_name", "group_id", "rollout_id", "status", "response_len",
    "prior_len", "agentic", "reward", "batch_size", "time_us", "generate_time_us",
)  # fmt: skip
"""The columns without lists."""
_SCHEMA = pa.schema([(name, column_type(name)) for name in (*_COLUMNS, "response_model_steps", "response_mask")])


class EventLogWriter:
    """Writes entries to a Parquet file as they come; use it as a context manager.

    Versions are written as far as `model_step` doesn't give them, so the log of a run without partial rollouts has
    none.

    Args:
        path: the file.
        workload: the workload of the run; it has the masks.
        config: the config of the run, kept in the metadata.

    Raises:
        OSError: the file can't be written.
        LogError: while it is written: a response is too long for a log.
    """

    def __init__(self, path: Path | BinaryIO, workload: Workload, config: Config) -> None:
        self._masks = joined([task.masks for task in workload.tasks.values()])
        self._first_mask: dict[str, int] = {}
        responses = 0
        for name, task in workload.tasks.items():
            self._first_mask[name] = responses
            responses += len(task.masks)
        metadata = {
            META_SCHEMA_VERSION: str(SCHEMA_VERSION),
            META_SOURCE: SOURCE,
            META_CONFIG: json.dumps(resolved(config), ensure_ascii=False),
        }
        self._schema = _SCHEMA.with_metadata(metadata)
        self._writer = pq.ParquetWriter(path, self._schema, compression="zstd")
        self._next_event_id = 0
        self._begin_batch()
        self._name_tasks(workload, config)

    def __enter__(self) -> EventLogWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        del error, trace
        try:
            if kind is None:
                self._flush()
        finally:
            self._writer.close()

    def add(self, entry: LogEntry) -> None:
        """Write the next entry."""
        if isinstance(entry, PutEntry):
            self._add_put(entry)
        elif isinstance(entry, RefreshEntry):
            self._add_row(EventKind.REFRESH, train_step=entry.train_step, time_us=entry.time_us)
        elif isinstance(entry, TakeEntry):
            self._add_row(
                EventKind.TAKE,
                train_step=entry.train_step,
                task_name=entry.task_name,
                batch_size=entry.batch_size,
                time_us=entry.time_us,
            )
        elif isinstance(entry, SyncEntry):
            self._add_row(
                EventKind.SYNC, train_step=entry.train_step, model_step=entry.model_step, time_us=entry.time_us
            )
        else:
            self._add_row(
                EventKind.SAMPLE,
                task_name=entry.task_name,
                group_id=entry.group_id,
                status=entry.status.value,
                time_us=entry.time_us,
            )
        self._next_event_id += 1

    def _name_tasks(self, workload: Workload, config: Config) -> None:
        """Name the tasks that the config doesn't, in task order, by the prompts that they begin with.

        A reader lists tasks in order of appearance, and the first groups to end may be of any task, or of none.
        """
        for name, task in workload.tasks.items():
            if name not in config.tasks:
                self.add(SampleEntry(0, name, int(task.responses.group_id[0]), Status.INIT))

    def _add_row(self, event: EventKind, **values: Any) -> None:
        values |= {"event": event.value, "event_id": self._next_event_id}
        self._make_room()
        self._rows.append(tuple(values.get(name) for name in _COLUMNS))
        self._mask_rows.append(-1)
        self._lengths.append(0)
        self._version_counts.append(0)

    def _add_put(self, entry: PutEntry) -> None:
        first = self._first_mask[entry.task_name] + entry.first_response
        for member, response in enumerate(entry.responses):
            self._make_room()
            self._rows.append(
                (
                    EventKind.PUT.value,
                    self._next_event_id,
                    entry.train_step,
                    entry.model_step,
                    entry.task_name,
                    entry.group_id,
                    response.rollout_id,
                    response.status.value,
                    response.tokens,
                    response.prior_len,
                    response.agentic,
                    response.reward,
                    None,
                    entry.time_us,
                    entry.generate_time_us[member],
                )
            )
            self._mask_rows.append(first + member if response.tokens else -1)
            self._lengths.append(response.tokens)
            self._version_counts.append(self._add_versions(response, entry.model_step))

    def _add_versions(self, response: Response, model_step: int) -> int:
        """Remember the versions of a response's tokens before those that `model_step` gives; how many these are."""
        runs = response.runs
        if runs and runs[-1][0] == model_step:
            runs = runs[:-1]
        self._versions.extend(run[0] for run in runs)
        self._version_tokens.extend(run[1] for run in runs)
        count = sum(run[1] for run in runs)
        if count > MAX_ROW_ELEMENTS:
            what = f"a response has {count} tokens of older versions, and a log holds the version of each"
            hint = f"leave out the event log, or simulate responses of at most {MAX_ROW_ELEMENTS} tokens"
            raise LogError(Problem(what, f"rollout {response.rollout_id}", hint))
        self._tokens += count + (response.tokens if self._has_masks else 0)
        return count

    def _make_room(self) -> None:
        if len(self._rows) >= _WRITTEN_ROWS or self._tokens >= _WRITTEN_TOKENS:
            self._flush()

    def _begin_batch(self) -> None:
        self._rows: list[tuple[Any, ...]] = []
        self._mask_rows: list[int] = []
        self._lengths: list[int] = []
        self._version_counts: list[int] = []
        self._versions: list[int] = []
        self._version_tokens: list[int] = []
        self._tokens = 0
        self._has_masks = len(self._masks.arrays()[1]) > 0

    def _flush(self) -> None:
        if not self._rows:
            return
        columns = zip(*self._rows, strict=True)
        arrays: list[pa.Array] = [
            pa.array(values, column_type(name)) for name, values in zip(_COLUMNS, columns, strict=True)
        ]
        arrays.append(self._version_lists())
        arrays.append(
            mask_array(self._masks, np.array(self._mask_rows, dtype=np.int64), np.array(self._lengths, dtype=np.int64))
        )
        self._writer.write_batch(pa.record_batch(arrays, schema=self._schema))
        self._begin_batch()

    def _version_lists(self) -> pa.Array:
        counts = np.array(self._version_counts, dtype=np.int64)
        offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
        values = np.repeat(np.array(self._versions, dtype=np.int32), self._version_tokens)
        return pa.ListArray.from_arrays(pa.array(offsets), pa.array(values), mask=pa.array(counts == 0))

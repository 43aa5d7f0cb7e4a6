"""Rollout logs to disk: rows become Arrow tables, and files appear whole or not at all."""

from __future__ import annotations

import errno
import json
import os
import secrets
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tokenaudit.contracts.schema import (
    COLUMNS,
    META_CONFIG,
    META_LIMITS,
    META_SCHEMA_VERSION,
    META_SOURCE,
    RUN_FIELDS,
    SCHEMA_VERSION,
    TOKEN_COLUMNS,
    VERSION_RUNS,
)
from tokenaudit.log.columns import Lists
from tokenaudit.log.semantic_masks import masks_of, split_at_masks
from tokenaudit.log.version_runs import MISSING_VERSION, Runs, version_runs

Row = dict[str, Any]
"""Values by column; what is absent is null. Lists are one-dimensional numpy arrays."""

RUN_TYPE = pa.struct([(name, pa.int32()) for name in RUN_FIELDS])
"""Type of a version run in a log."""
_TYPES: dict[str, pa.DataType] = {
    "event": pa.string(),
    "event_id": pa.int64(),
    "task_name": pa.string(),
    "group_id": pa.int64(),
    "rollout_id": pa.int64(),
    "status": pa.string(),
    "response_ids": pa.list_(pa.int32()),
    "response_model_steps": pa.list_(pa.int32()),
    "response_mask": pa.list_(pa.int8()),
    "trained_mask": pa.list_(pa.int8()),
    "logprobs": pa.list_(pa.float32()),
    "train_logprobs": pa.list_(pa.float32()),
    "agentic": pa.bool_(),
    "reward": pa.float64(),
    "advantage": pa.float64(),
    "finish_reason": pa.string(),
    "version_precision": pa.string(),
    VERSION_RUNS: pa.list_(RUN_TYPE),
    "generate_time_us": pa.int64(),
    "time_us": pa.int64(),
}
"""Types written; every other column is int32."""


def column_type(name: str) -> pa.DataType:
    """The type of a column, as it is written."""
    return _TYPES.get(name, pa.int32())


def element_type(name: str) -> np.dtype[Any]:
    """The type of the elements of a token column, as it is written."""
    return _element_type(_TYPES[name])


def _element_type(list_type: pa.DataType) -> np.dtype[Any]:
    # pyarrow before 26 needs pandas for `to_pandas_dtype`
    return pa.array([], type=list_type.value_type).to_numpy().dtype


def log_metadata(config_json: str | None, source: str, limits: Sequence[str] = ()) -> dict[str, str]:
    """Key-value metadata of a log file."""
    metadata = {META_SCHEMA_VERSION: str(SCHEMA_VERSION), META_SOURCE: source}
    if config_json is not None:
        metadata[META_CONFIG] = config_json
    return metadata | limit_metadata(limits)


def limit_metadata(limits: Iterable[str]) -> dict[str, str]:
    """What metadata say of what the log's source leaves out; nothing where that is nothing."""
    listed = list(limits)
    return {META_LIMITS: json.dumps(listed, ensure_ascii=False)} if listed else {}


def log_schema(*, token_columns: bool) -> pa.Schema:
    """Columns of a written log: with token columns, or with version runs in their place."""
    left_out = (VERSION_RUNS,) if token_columns else TOKEN_COLUMNS
    names = [column.name for column in COLUMNS if column.name not in left_out]
    return pa.schema([(name, column_type(name)) for name in names])


def log_table(rows: Sequence[Row], *, token_columns: bool, metadata: Mapping[str, str]) -> pa.Table:
    """Rows of a log as an Arrow table.

    Args:
        rows: the rows, in order. Token columns hold numpy arrays; without `token_columns`, versions and masks
            become version runs and the others are left out.
        token_columns: write one entry per token.
        metadata: key-value metadata of the file.
    """
    schema = log_schema(token_columns=token_columns)
    arrays = [_column(field, rows) for field in schema]
    return pa.Table.from_arrays(arrays, schema=schema).replace_schema_metadata(dict(metadata))


def _column(field: pa.Field, rows: Sequence[Row]) -> pa.Array:
    if field.name == VERSION_RUNS:
        return runs_column(rows)
    values = [row.get(field.name) for row in rows]
    if field.name in TOKEN_COLUMNS:
        return _list_column(values, field.type)
    return pa.array(values, type=field.type)


def _list_column(values: Sequence[Any], list_type: pa.DataType) -> pa.Array:
    present = [value for value in values if value is not None]
    dtype = _element_type(list_type)
    flat = np.concatenate(present, dtype=dtype, casting="unsafe") if present else np.zeros(0, dtype=dtype)
    return pa.ListArray.from_arrays(_offsets(values), pa.array(flat), type=list_type)


def _offsets(values: Sequence[Any]) -> pa.Array:
    """Offsets of a list column; a null offset makes its list null."""
    ends = np.cumsum([0 if value is None else len(value) for value in values], dtype=np.int64)
    offsets = np.concatenate([[0], ends]).astype(np.int32)
    is_null = np.array([*(value is None for value in values), False])
    return pa.array(offsets, mask=is_null)


def runs_column(rows: Sequence[Row]) -> pa.Array:
    """Version runs of rows, from `response_len`, `response_model_steps`, `model_step` and `response_mask`.

    Null on rows that are no responses; a run without a version has a null `model_step`. Of every run all or none of
    the tokens are in the loss, so that the runs give the masks too.
    """
    responses = [row for row in rows if row.get("response_len") is not None]
    nothing = np.zeros(0, dtype=np.int32)
    versions = [row.get("response_model_steps") for row in responses]
    masks = [row.get("response_mask") for row in responses]
    steps = [row.get("model_step") for row in responses]
    mask_counts = np.array([0 if value is None else len(value) for value in masks], dtype=np.int64)
    mask = np.concatenate([nothing.astype(np.int8), *(value for value in masks if value is not None)])
    whole = version_runs(
        np.array([row["response_len"] for row in responses], dtype=np.int64),
        np.concatenate([nothing, *(value for value in versions if value is not None)]),
        np.array([0 if value is None else len(value) for value in versions], dtype=np.int64),
        np.array([MISSING_VERSION if step is None else step for step in steps], dtype=np.int64),
        mask,
        mask_counts,
    )
    runs = split_at_masks(whole, masks_of(Lists(mask, mask_counts, mask_counts == 0, np.zeros(0, dtype=np.int64))))
    counts = iter(runs.counts.tolist())
    sizes = [None if row.get("response_len") is None else range(next(counts)) for row in rows]
    return pa.ListArray.from_arrays(_offsets(sizes), run_structs(runs), type=pa.list_(RUN_TYPE))


def run_structs(runs: Runs) -> pa.Array:
    """Version runs of all responses, one after the other; one without a version has a null `model_step`."""
    model_step = pa.array(runs.model_step, mask=runs.model_step == MISSING_VERSION)
    return pa.StructArray.from_arrays(
        [model_step, pa.array(runs.tokens), pa.array(runs.trainable)], fields=list(RUN_TYPE)
    )


def seal(table: pa.Table, path: Path) -> None:
    """Write a Parquet file under a hidden name that nobody else has, flush it to the disk, then give it its name.

    Raises:
        FileExistsError: a file of that name is there; it stays as it is.
        OSError: the file can't be written; nothing of it is left.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
    handle = os.open(temporary, flags, 0o666)
    try:
        with os.fdopen(handle, "wb") as file:
            write_parquet(table, file)
            file.flush()
            os.fsync(file.fileno())
        _take_name(temporary, path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise
    sync_folder(path.parent)


def write_parquet(table: pa.Table, file: BinaryIO) -> None:
    """Write a table as a part of a recording is written."""
    pq.write_table(table, file, compression="zstd")


def _take_name(temporary: Path, path: Path) -> None:
    """Rename a file, never in the place of another one: a rename replaces, a link doesn't."""
    try:
        os.link(temporary, path)
    except FileExistsError:
        # over a network the answer to a link that was made can get lost, and the second try finds the first
        if not path.samefile(temporary):
            raise
    except OSError:
        # no links on this file system, where others are kept away by the lock of the folder alone
        if os.path.lexists(path):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path)) from None
        temporary.rename(path)
        return
    with suppress(OSError):
        temporary.unlink()


def sync_folder(folder: Path) -> None:
    """Make renames in a folder last through a power cut, where the system can."""
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)

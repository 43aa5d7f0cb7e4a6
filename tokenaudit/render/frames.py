"""The rows of a result as a flat table, for CSV and Parquet. Its rows add up to the totals."""

from __future__ import annotations

from collections.abc import Sequence
from io import BytesIO
from typing import Any

import polars as pl

from tokenaudit.contracts.metrics import Metric, Total, Unit
from tokenaudit.replay.result import EXPIRED_IDS, TAKEN_IDS, TASKS, TRAIN_STEP, Result, RowData

_STEP, _TAIL = "step", "tail"


def rows_frame(result: Result, *, by_task: bool = False) -> pl.DataFrame:
    """One row per step, and one for the tail unless steps were selected.

    Args:
        result: the result.
        by_task: one row per step and task instead; group ids, where the result has them, are there too.
    """
    labelled = [(_STEP, row) for row in result.steps]
    if not result.selection:
        labelled.append((_TAIL, result.tail))
    with_ids = by_task and any(TAKEN_IDS in row for _, row in labelled)
    records: list[dict[str, Any]] = []
    for label, row in labelled:
        head = {"row": label, TRAIN_STEP: row.get(TRAIN_STEP)}
        if not by_task:
            records.append(head | _values(result.metrics, row, row))
            continue
        for task, part in row[TASKS].items():
            ids = {name: row.get(name, {}).get(task, []) for name in (TAKEN_IDS, EXPIRED_IDS)} if with_ids else {}
            records.append(head | {"task": task} | _values(result.metrics, part, row) | ids)
    return pl.DataFrame(records, schema=_schema(result.metrics, by_task, with_ids), orient="row")


def csv_text(frame: pl.DataFrame) -> str:
    """CSV with a header; lists of ids are separated by spaces."""
    lists = [name for name, dtype in frame.schema.items() if dtype == pl.List(pl.Int64)]
    joined = [pl.col(name).list.eval(pl.element().cast(pl.String)).list.join(" ") for name in lists]
    return frame.with_columns(joined).write_csv()


def parquet_bytes(frame: pl.DataFrame) -> bytes:
    """A Parquet file."""
    buffer = BytesIO()
    frame.write_parquet(buffer, compression="zstd")
    return buffer.getvalue()


def _values(metrics: Sequence[Metric], part: RowData, row: RowData) -> dict[str, Any]:
    """Values by metric; what is the same for the step and all its tasks comes from the row."""
    return {metric.name: (row if metric.total is Total.STATE else part).get(metric.name) for metric in metrics}


def _schema(metrics: Sequence[Metric], by_task: bool, with_ids: bool) -> dict[str, Any]:
    head: dict[str, Any] = {"row": pl.String, TRAIN_STEP: pl.Int64}
    if by_task:
        head["task"] = pl.String
    ids = dict.fromkeys((TAKEN_IDS, EXPIRED_IDS), pl.List(pl.Int64)) if with_ids else {}
    return head | {metric.name: _dtype(metric) for metric in metrics} | ids


def _dtype(metric: Metric) -> Any:
    return pl.Float64 if metric.unit is Unit.REWARD else pl.Int64

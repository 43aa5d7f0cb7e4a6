"""The rows of a result as a flat table, for CSV and Parquet. Its rows add up to the totals."""

from __future__ import annotations

from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

import polars as pl

from tokenaudit.compare.metric_values import Missing, has_steps, row_value
from tokenaudit.contracts.metrics import RATES, Metric, Rate, Total, Unit
from tokenaudit.render.blocks import csv_cell
from tokenaudit.replay.result import EXPIRED_IDS, TAKEN_IDS, TASKS, TRAIN_STEP, Result, RowData
from tokenaudit.replay.session import Run, result_of

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


def steps_frame(result: Result | Run | Path | str, *, by_task: bool = False) -> pl.DataFrame:
    """One row per step with its metrics and rates; the tail after the last step is left out.

    Args:
        result: a result, a run, or a file saved with -o.
        by_task: one row per step and task instead.

    Raises:
        TokenauditError: it is no result.
    """
    run = result_of(result)
    frame = rows_frame(run, by_task=by_task).filter(pl.col("row") == _STEP).drop("row")
    keys = [(row, task) for row in run.steps for task in (row[TASKS] if by_task else [None])]
    counted = {*run.metrics}
    rates = [
        rate for rate in RATES.values() if has_steps(rate) and counted.issuperset(rate.numerator + rate.denominator)
    ]
    columns = [
        pl.Series(rate.name, [_rate_of(row, rate, task) for row, task in keys], dtype=pl.Float64) for rate in rates
    ]
    return frame.with_columns(columns)


def _rate_of(row: RowData, rate: Rate, task: str | None) -> float | None:
    value = row_value(row, rate, task)
    return None if value is None or isinstance(value, Missing) else float(value)


def csv_text(frame: pl.DataFrame) -> str:
    """CSV with a header; lists of ids are separated by spaces, and names can do no harm."""
    lists = [name for name, dtype in frame.schema.items() if dtype == pl.List(pl.Int64)]
    joined = [pl.col(name).list.eval(pl.element().cast(pl.String)).list.join(" ") for name in lists]
    names = [pl.Series("task", map(csv_cell, frame["task"]), pl.String)] if "task" in frame.columns else []
    return frame.with_columns(*joined, *names).write_csv()


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

"""The rows of a result as a flat table, for CSV and Parquet. Its rows add up to the totals."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

import polars as pl

from tokenaudit.compare.metric_values import Figure, Missing, figures_named, has_steps, row_value
from tokenaudit.contracts.metrics import RATES, Rate, Total, Unit
from tokenaudit.render.blocks import csv_cell
from tokenaudit.replay.result import EXPIRED_IDS, TAKEN_IDS, TASKS, TRAIN_STEP, Result, RowData
from tokenaudit.replay.session import Run, result_of

_STEP, _TAIL = "step", "tail"


def rows_frame(
    result: Result | Run | Path | str, *, by_task: bool = False, metrics: Iterable[str] | None = None
) -> pl.DataFrame:
    """One row per step, and one for the tail unless steps were selected.

    Args:
        result: a result, a run, or a file saved with -o.
        by_task: one row per step and task instead; group ids, where the result has them, are there too.
        metrics: names of the metrics and rates that are columns, in order; None: every metric, and no rate.

    Raises:
        TokenauditError: it is no result, or a metric is unknown.
    """
    run = result_of(result)
    names = [metrics] if isinstance(metrics, str) else metrics
    return _frame(run, run.metrics if names is None else figures_named(names), by_task)


def steps_frame(result: Result | Run | Path | str, *, by_task: bool = False) -> pl.DataFrame:
    """One row per step with its metrics and rates; the tail after the last step is left out.

    Args:
        result: a result, a run, or a file saved with -o.
        by_task: one row per step and task instead.

    Raises:
        TokenauditError: it is no result.
    """
    run = result_of(result)
    counted = {*run.metrics}
    rates = [
        rate for rate in RATES.values() if has_steps(rate) and counted.issuperset(rate.numerator + rate.denominator)
    ]
    return _frame(run, (*run.metrics, *rates), by_task).filter(pl.col("row") == _STEP).drop("row")


def _frame(result: Result, figures: Sequence[Figure], by_task: bool) -> pl.DataFrame:
    labelled = [(_STEP, row) for row in result.steps]
    if not result.selection:
        labelled.append((_TAIL, result.tail))
    with_ids = by_task and any(TAKEN_IDS in row for _, row in labelled)
    records: list[dict[str, Any]] = []
    for label, row in labelled:
        head = {"row": label, TRAIN_STEP: row.get(TRAIN_STEP)}
        if not by_task:
            records.append(head | _values(figures, row, row))
            continue
        for task, part in row[TASKS].items():
            ids = {name: row.get(name, {}).get(task, []) for name in (TAKEN_IDS, EXPIRED_IDS)} if with_ids else {}
            records.append(head | {"task": task} | _values(figures, part, row) | ids)
    return pl.DataFrame(records, schema=_schema(figures, by_task, with_ids), orient="row")


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


def parquet_of_rows(columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> bytes:
    """A Parquet file of flat rows, whose columns are all there."""
    return parquet_bytes(pl.DataFrame(list(rows), schema=list(columns), infer_schema_length=None, orient="row"))


def _values(figures: Sequence[Figure], part: RowData, row: RowData) -> dict[str, Any]:
    """Values by figure; what is the same for the step and all its tasks comes from the row."""
    return {
        figure.name: _rate_of(part, figure)
        if isinstance(figure, Rate)
        else (row if figure.total is Total.STATE else part).get(figure.name)
        for figure in figures
    }


def _rate_of(part: RowData, rate: Rate) -> float | None:
    value = row_value(part, rate)
    return None if value is None or isinstance(value, Missing) else float(value)


def _schema(figures: Sequence[Figure], by_task: bool, with_ids: bool) -> dict[str, Any]:
    head: dict[str, Any] = {"row": pl.String, TRAIN_STEP: pl.Int64}
    if by_task:
        head["task"] = pl.String
    ids = dict.fromkeys((TAKEN_IDS, EXPIRED_IDS), pl.List(pl.Int64)) if with_ids else {}
    return head | {figure.name: _dtype(figure) for figure in figures} | ids


def _dtype(figure: Figure) -> Any:
    return pl.Float64 if isinstance(figure, Rate) or figure.unit is Unit.REWARD else pl.Int64

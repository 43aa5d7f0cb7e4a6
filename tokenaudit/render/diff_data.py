"""A comparison as plain data: JSON, and a flat table for CSV."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict
from fractions import Fraction
from typing import Any

import polars as pl

from tokenaudit import __version__
from tokenaudit.compare.compare import DIFF_SCHEMA_VERSION, KIND_DIFF, Comparison, FigureChange, Side
from tokenaudit.compare.exact import plain_number
from tokenaudit.compare.metric_values import FigureValue, Missing
from tokenaudit.contracts.files import json_text
from tokenaudit.render.blocks import csv_cell, json_lines
from tokenaudit.render.cost import cost_changes


def diff_json(comparison: Comparison) -> str:
    """The comparison as JSON, with a line feed at the end; equal comparisons give equal bytes."""
    return json_text(diff_data(comparison))


def diff_data(comparison: Comparison) -> dict[str, Any]:
    """The comparison as plain data. Steps hold what differs; a figure that a side doesn't know is "absent"."""
    divergence = comparison.divergence
    ranked_by = comparison.ranked_by
    costs = list(cost_changes(comparison.a.result.cost, comparison.b.result.cost))
    data: dict[str, Any] = {
        "kind": KIND_DIFF,
        "schema_version": DIFF_SCHEMA_VERSION,
        "tool": f"tokenaudit {__version__}",
        "a": _side_data(comparison.a),
        "b": _side_data(comparison.b),
        "differs": comparison.differs,
        "settings": [asdict(change) for change in comparison.settings],
        "totals": _changes_data(comparison.totals),
        "tasks": {task: _changes_data(changes) for task, changes in comparison.tasks.items()},
        "first_difference": None
        if divergence is None
        else {
            "train_step": divergence.train_step,
            "metrics": [figure.name for figure in divergence.figures],
            "why": list(divergence.why),
        },
        "ranked_by": None if ranked_by is None else ranked_by.name,
        "largest_steps": [step.train_step for step in comparison.largest],
        "steps_only_in_a": list(comparison.only_a),
        "steps_only_in_b": list(comparison.only_b),
        "steps": [{"train_step": step.train_step} | _changes_data(step.changes) for step in comparison.steps],
        "groups": None if comparison.groups is None else asdict(comparison.groups),
        "groups_missing": comparison.groups_missing,
    }
    if costs:
        data["cost"] = {
            name: {"a": plain_number(a), "b": plain_number(b), "change": plain_number(_difference(a, b))}
            for name, a, b in costs
        }
    return data


def _difference(a: Fraction | None, b: Fraction | None) -> Fraction | None:
    return None if a is None or b is None else b - a


def diff_csv(comparison: Comparison) -> str:
    """One row per figure: of the totals, of every task, and of every step where it differs."""
    # Text, so that counts stay whole numbers beside rates.
    names = ("row", "train_step", "task", "metric", "a", "b", "change", "relative", "effect")
    records = [
        {
            name: None if value is None else csv_cell(value) if name == "task" else str(value)
            for name, value in one.items()
        }
        for one in _records(comparison)
    ]
    return pl.DataFrame(records, schema=dict.fromkeys(names, pl.String), orient="row").write_csv()


def diff_jsonl(comparison: Comparison) -> str:
    """The same rows as JSON Lines, with numbers where the CSV has texts."""
    return json_lines(_records(comparison))


def _records(comparison: Comparison) -> Iterator[dict[str, Any]]:
    for change in comparison.totals:
        yield {"row": "total"} | _record(change)
    for task, changes in comparison.tasks.items():
        for change in changes:
            yield {"row": "task", "task": task} | _record(change)
    for step in comparison.steps:
        for change in step.changes:
            yield {"row": "step", "train_step": step.train_step} | _record(change)


def _record(change: FigureChange) -> dict[str, Any]:
    return {"metric": change.figure.name} | _change_data(change)


def _side_data(side: Side) -> dict[str, Any]:
    cost = side.result.cost
    return {
        "label": side.label,
        "kind": side.result.kind,
        "inputs": [asdict(entry) for entry in side.result.inputs],
        "timeline": side.result.timeline,
        "selection": side.result.selection,
        "steps": len(side.result.steps),
        "coverage": asdict(side.result.coverage),
        "warnings": [asdict(notice) for notice in side.result.warnings],
        **({} if cost is None else {"cost": cost.data()}),
    }


def _changes_data(changes: Iterable[FigureChange]) -> dict[str, Any]:
    return {change.figure.name: _change_data(change) for change in changes}


def _change_data(change: FigureChange) -> dict[str, Any]:
    return {
        "a": _plain(change.a),
        "b": _plain(change.b),
        "change": plain_number(change.change),
        "relative": plain_number(change.relative),
        "effect": str(change.effect),
    }


def _plain(value: FigureValue) -> int | float | str | None:
    return str(value) if isinstance(value, Missing) else plain_number(value)

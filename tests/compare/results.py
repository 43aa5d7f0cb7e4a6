"""Results with chosen figures, for what compares and judges."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from tokenaudit.config.model import Config, parse_config, resolved
from tokenaudit.contracts import metrics as m
from tokenaudit.contracts.metrics import LEDGER_FATES, LEDGER_SOURCES, ROW_METRICS, Total
from tokenaudit.replay.result import KIND_REPLAY, TASKS, TRAIN_STEP, Coverage, InputInfo, Result, RowData

Values = Mapping[str, Any]
"""Figures of one task at one step, by metric name; absent ones are 0, or null where a metric may be."""


def made_result(
    steps: Sequence[Mapping[str, Values]],
    *,
    tail: Mapping[str, Values] | None = None,
    config: Mapping[str, Any] | None = None,
    content_hash: str = "sha256:0",
    tasks: Sequence[str] = ("math", "code"),
    **fields: Any,
) -> Result:
    """A run whose step rows hold these figures; `put_groups` is 1 where it isn't given."""
    rows = [_row({task: {"put_groups": 1} | dict(values.get(task, {})) for task in tasks}) for values in steps]
    tail_row = _row({task: (tail or {}).get(task, {}) for task in tasks})
    parsed = parse_config(config, "test") if config else Config()
    result = Result(
        kind=KIND_REPLAY,
        inputs=(InputInfo("log.parquet", 10, content_hash),),
        timeline="recorded",
        config_source="test.toml",
        config=resolved(parsed),
        warnings=(),
        coverage=Coverage(),
        totals=_totals(rows, tail_row, tasks),
        ledger={"total": _account(), TASKS: {task: _account() for task in tasks}},
        steps=[{TRAIN_STEP: step, m.MODEL_STEP.name: step - 1} | row for step, row in enumerate(rows, start=1)],
        tail=tail_row,
    )
    return replace(result, **fields)


def totals_of(**values: Any) -> Result:
    """A run of one step and task with these figures."""
    return made_result([{"math": values}], tasks=("math",))


def with_closed_ledger(result: Result) -> Result:
    """The result with the ledger that its totals come to; what isn't accounted for is held. Saved results need it."""
    tasks = {task: _closed_account(totals) for task, totals in result.totals[TASKS].items()}
    total = _closed_account(result.totals)
    return replace(result, ledger={"total": total, TASKS: tasks})


def _closed_account(totals: RowData) -> dict[str, int]:
    account = {name: totals.get(name, 0) for name in _account()}
    came, ended = (sum(account[one.name] for one in side) for side in (LEDGER_SOURCES, LEDGER_FATES))
    return account | {m.HELD_TOKENS.name: came - ended}


def _account() -> dict[str, int]:
    return {metric.name: 0 for metric in (*LEDGER_SOURCES, *LEDGER_FATES)}


def _empty() -> RowData:
    return {
        metric.name: None if metric.total in (Total.MAX, Total.RANK) else 0
        for metric in ROW_METRICS
        if metric.total is not Total.STATE
    }


def _row(tasks: Mapping[str, Values]) -> RowData:
    parts = {task: _empty() | dict(values) for task, values in tasks.items()}
    return _combined(list(parts.values())) | {TASKS: parts}


def _totals(rows: Sequence[RowData], tail: RowData, tasks: Sequence[str]) -> RowData:
    parts = {task: _over_steps([row[TASKS][task] for row in (*rows, tail)]) for task in tasks}
    return _combined(list(parts.values())) | {TASKS: parts}


def _over_steps(parts: Sequence[RowData]) -> RowData:
    total = _combined(parts)
    for metric in ROW_METRICS:
        if metric.total is Total.LAST:
            total[metric.name] = parts[-2][metric.name] if len(parts) > 1 else 0
    return total


def _combined(parts: Sequence[RowData]) -> RowData:
    data = _empty()
    for name in data:
        known = [part[name] for part in parts if part[name] is not None]
        largest = m.METRICS[name].total in (Total.MAX, Total.RANK)
        data[name] = (max(known) if largest else sum(known)) if known else data[name]
    return data

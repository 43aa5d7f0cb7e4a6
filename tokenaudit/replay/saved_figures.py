"""Whether the figures of a saved result are those that its parts come to."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

from pydantic import ValidationError

from tokenaudit.config.model import Cost
from tokenaudit.contracts.metrics import LEDGER_FATES, LEDGER_SOURCES, QUANTILES, Metric, Total
from tokenaudit.replay.cost import untrained_tokens
from tokenaudit.replay.result import TASKS, TRAIN_STEP, Result, RowData

SUM_PRECISION = 1e-9
"""How far a sum of rewards, in floats, may be from that of its parts, as a share of what is added."""


def is_whole(value: object) -> bool:
    """Whether a value is a whole number of at most 64 bits, as every count and id is."""
    return type(value) is int and -(2**63) <= value < 2**63


def figure_faults(result: Result) -> Iterator[tuple[str, str]]:
    """Figures that can't be, each with the part of the result that holds it; values have to be of the right types."""
    yield from _sum_faults(result)
    yield from _largest_faults(result)
    yield from _cost_faults(result)


def _sum_faults(result: Result) -> Iterator[tuple[str, str]]:
    """Figures that aren't the sum of their parts: of steps and tail, of tasks, of the tokens that came in."""
    rows = [*result.steps, result.tail]
    if result.selection is None:
        for task in (None, *result.tasks):
            yield from (("totals", fault) for fault in _total_faults(result, rows, task))
    for place, row in (("totals", result.totals), *(("steps", row) for row in result.steps), ("tail", result.tail)):
        where = f" at step {row[TRAIN_STEP]}" if place == "steps" else ""
        for metric in result.metrics:
            if metric.total in (Total.SUM, Total.LAST) and metric.name in row:
                parts = [part.get(metric.name, 0) for part in row[TASKS].values()]
                if not _adds_up(row[metric.name], parts):
                    yield (
                        place,
                        f"{metric.name}{where} is {row[metric.name]}, and the tasks' are {_sum(parts)} together",
                    )
    yield from (("ledger", fault) for fault in _account_faults(result))


def _total_faults(result: Result, rows: Sequence[RowData], task: str | None) -> Iterator[str]:
    """The totals, of a task if named, that steps and tail don't add up to."""
    total, *parts = (row if task is None else row[TASKS].get(task, {}) for row in (result.totals, *rows))
    for metric in result.metrics:
        if metric.total in (Total.SUM, Total.STEP_SUM) and metric.name in total:
            values = [part.get(metric.name, 0) for part in parts]
            if not _adds_up(total[metric.name], values):
                of_task = "" if task is None else f" of task {task}"
                yield f"{metric.name}{of_task} is {total[metric.name]}, and steps and tail add up to {_sum(values)}"


def _largest_faults(result: Result) -> Iterator[tuple[str, str]]:
    """Maxima, quantiles and levels that aren't what tasks, or steps and tail, come to."""
    rows = [*result.steps, result.tail]
    for place, row in (("totals", result.totals), *(("steps", row) for row in result.steps), ("tail", result.tail)):
        where = f" at step {row[TRAIN_STEP]}" if place == "steps" else ""
        for metric in result.metrics:
            if fault := _largest_fault(metric, row, row[TASKS].values(), "tasks"):
                yield place, f"{metric.name}{where} {fault}"
    if result.selection is None:
        for task in (None, *result.tasks):
            total, *parts = (row if task is None else row[TASKS].get(task, {}) for row in (result.totals, *rows))
            of_task = "" if task is None else f" of task {task}"
            for metric in result.metrics:
                fault = _largest_fault(metric, total, parts, "steps and tail")
                if fault := fault or _level_fault(metric, total, parts[:-1]):
                    yield "totals", f"{metric.name}{of_task} {fault}"
    for name, (low, high) in result.intervals.items():
        if result.totals.get(name) not in (low, high):
            yield "intervals", f"{name} is {low} to {high}, and {result.totals.get(name)} in the totals"


def _largest_fault(metric: Metric, whole: RowData, parts: Iterable[RowData], named: str) -> str:
    """Why a figure can't be the largest of its parts, or a quantile of what is behind them; empty where it can."""
    if metric.total not in (Total.MAX, Total.RANK) or metric.name not in whole:
        return ""
    value = whole[metric.name]
    known = sorted(part[metric.name] for part in parts if part.get(metric.name) is not None)
    if not known:
        return "" if value is None else f"is {value}, and {named} have none"
    # a quantile of everything is between those of the parts
    least = known[0] if metric.total is Total.RANK and QUANTILES[metric] < 100 else known[-1]
    if value is not None and least <= value <= known[-1]:
        return ""
    shown = "null" if value is None else value
    if least == known[-1]:
        return f"is {shown}, and the largest of {named} is {least}"
    return f"is {shown}, and {named} have {least} to {known[-1]}"


def _level_fault(metric: Metric, total: RowData, steps: Sequence[RowData]) -> str:
    """Why a level of a whole run isn't that of its last step; empty where it is."""
    level = steps[-1].get(metric.name, 0) if steps else 0
    if metric.total is not Total.LAST or metric.name not in total or total[metric.name] == level:
        return ""
    return f"is {total[metric.name]}, and {level} at the last step"


def _account_faults(result: Result) -> Iterator[str]:
    """Accounts that don't close or that differ from the totals."""
    accounts = {"": (result.ledger.get("total", {}), result.totals)}
    for task, account in result.ledger.get(TASKS, {}).items():
        accounts[f" of task {task}"] = account, result.totals[TASKS].get(task, {})
    for owner, (account, totals) in accounts.items():
        missing = [one.name for one in (*LEDGER_SOURCES, *LEDGER_FATES) if one.name not in account]
        damaged = [name for name in missing if name in result.metric_definitions]
        if not missing:
            came, ended = (sum(account[one.name] for one in side) for side in (LEDGER_SOURCES, LEDGER_FATES))
            if came != ended:
                yield f"{came} tokens{owner} came in, and {ended} are accounted for"
        elif damaged:
            yield f"the account{owner} lacks {', '.join(damaged)}"
        for name, tokens in account.items():
            if totals.get(name, tokens) != tokens:
                yield f"{name}{owner} is {tokens}, and {totals[name]} in the totals"
    by_task = [account for account, _ in list(accounts.values())[1:]]
    for name, tokens in result.ledger.get("total", {}).items():
        together = sum(account.get(name, 0) for account in by_task)
        if together != tokens:
            yield f"{name} is {tokens}, and the tasks' are {together} together"


def _cost_faults(result: Result) -> Iterator[tuple[str, str]]:
    """Numbers of GPUs, prices and times that no run has, and tokens that the ledger doesn't add up to."""
    cost, account = result.cost, result.ledger.get("total", {})
    if cost is None:
        return
    try:
        Cost(**{name: getattr(cost, name) for name in Cost.model_fields})
    except ValidationError:
        yield "cost", "GPUs or a price that no config can have"
    for name in ("rollout_us", "wait_us"):
        value = getattr(cost, name)
        if value is not None and not (is_whole(value) and value >= 0):
            yield "cost", f"{name} is {value}"
    for name, tokens in (
        ("tokens", sum(account.get(metric.name, 0) for metric in LEDGER_SOURCES)),
        ("untrained_tokens", untrained_tokens(account)),
    ):
        if getattr(cost, name) != tokens:
            yield "cost", f"{name} is {getattr(cost, name)}, and the ledger's are {tokens}"


def _adds_up(total: int | float, parts: Sequence[int | float]) -> bool:
    together = _sum(parts)
    if type(total) is type(together) is int:
        return total == together
    return abs(total - together) <= SUM_PRECISION * max(1.0, math.fsum(map(abs, parts)))


def _sum(parts: Sequence[int | float]) -> int | float:
    """Exact for whole numbers; for floats as near as they can be."""
    return math.fsum(parts) if any(type(part) is float for part in parts) else sum(parts)

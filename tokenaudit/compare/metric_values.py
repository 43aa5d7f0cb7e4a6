"""Read the figures of a result exactly: metrics as whole numbers, rewards and rates as fractions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from enum import StrEnum
from fractions import Fraction

from tokenaudit.contracts.errors import Problem, UsageError, nearest_hint
from tokenaudit.contracts.metrics import CORRECTION_METRICS, CORRECTION_RATES, METRICS, RATES, Metric, Rate, Total
from tokenaudit.replay.result import TASKS, TRAIN_STEP, Result, RowData

Figure = Metric | Rate
"""What can be compared and judged."""


class Missing(StrEnum):
    """Why a figure has no place in a result."""

    ABSENT = "absent"
    """The result doesn't know the figure: it was made by another release, or the task isn't in it."""


Number = int | Fraction
FigureValue = Number | None | Missing
"""A figure's value; None is "there is none", such as the staleness of an empty batch."""

FIGURES: tuple[Figure, ...] = (*METRICS.values(), *RATES.values())
"""All figures, metrics first."""


CORRECTION_FIGURES: dict[str, Figure] = {figure.name: figure for figure in (*CORRECTION_METRICS, *CORRECTION_RATES)}
"""What a run holds for each correction that was computed, by name."""


def figure_named(name: str) -> Figure | None:
    """The metric or rate of that name."""
    return METRICS.get(name) or RATES.get(name)


def figures_named(names: Iterable[str]) -> list[Figure]:
    """The metrics and rates of those names, in order, each once.

    Raises:
        UsageError: names every unknown one, with the nearest that exists.
    """
    found = {name: figure_named(name) for name in names}
    problems = [
        Problem(f"unknown metric {name!r}", None, nearest_hint(name, (*METRICS, *RATES), "metrics"))
        for name, figure in found.items()
        if figure is None
    ]
    if problems:
        raise UsageError(problems)
    return [figure for figure in found.values() if figure is not None]


def has_totals(figure: Figure) -> bool:
    """Whether a run as a whole has the figure."""
    return isinstance(figure, Rate) or figure.total is not Total.STATE


def has_steps(figure: Figure) -> bool:
    """Whether a step has the figure."""
    return isinstance(figure, Rate) or figure.total is not Total.END


def is_defined_alike(a: Result, b: Result, figure: Figure) -> bool:
    """Whether two results mean the same by a figure: by a metric, or by each of those that a rate is made of."""
    known_a, known_b = a.metric_definitions, b.metric_definitions
    return all(one.name in known_a and known_a[one.name] == known_b.get(one.name) for one in metrics_of(figure))


def metrics_of(figure: Figure) -> frozenset[Metric]:
    """A metric alone, or those that a rate is made of."""
    return frozenset((figure,) if isinstance(figure, Metric) else (*figure.numerator, *figure.denominator))


def total_value(result: Result, figure: Figure, task: str | None = None) -> FigureValue:
    """A figure over the whole run, rows and tail; of one task, if named."""
    if isinstance(figure, Metric) and figure.total is Total.END:
        account = result.ledger.get("total") if task is None else result.ledger.get(TASKS, {}).get(task)
        return Missing.ABSENT if account is None else _metric_value(account, figure)
    return row_value(result.totals, figure, task)


def keyed_rows(result: Result) -> dict[tuple[int, int], RowData]:
    """Step rows by train_step and how many rows of that step came before: a restarted run can repeat a step."""
    rows: dict[tuple[int, int], RowData] = {}
    seen: Counter[int] = Counter()
    for row in result.steps:
        step = row[TRAIN_STEP]
        rows[(step, seen[step])] = row
        seen[step] += 1
    return rows


def row_value(row: RowData, figure: Figure, task: str | None = None) -> FigureValue:
    """A figure in one row; of one task, if named."""
    part = row if task is None else row[TASKS].get(task)
    if part is None:
        return Missing.ABSENT
    if isinstance(figure, Metric):
        return _metric_value(part, figure)
    return _rate_value(part, figure)


def rate_counts(row: RowData, rate: Rate, task: str | None = None) -> tuple[Number, Number] | None:
    """Numerator and denominator of a rate in one row; None where a metric behind it is absent."""
    part = row if task is None else row[TASKS].get(task, {})
    numerator, denominator = _sum(part, rate.numerator), _sum(part, rate.denominator)
    if isinstance(numerator, Missing) or isinstance(denominator, Missing):
        return None
    return numerator, denominator


def is_percentage(figure: Figure) -> bool:
    """Whether people read the figure in percent."""
    return isinstance(figure, Rate) and figure.is_share


def _metric_value(part: RowData, metric: Metric) -> FigureValue:
    if metric.name not in part:
        return Missing.ABSENT
    value = part[metric.name]
    # The decimal that people read and write limits in, not the binary fraction next to it.
    return Fraction(repr(value)) if isinstance(value, float) else value


def _rate_value(part: RowData, rate: Rate) -> FigureValue:
    numerator, denominator = _sum(part, rate.numerator), _sum(part, rate.denominator)
    if isinstance(numerator, Missing) or isinstance(denominator, Missing):
        return Missing.ABSENT
    return Fraction(numerator) / denominator if denominator else None


def _sum(part: RowData, metrics: tuple[Metric, ...]) -> Number | Missing:
    total: Number = 0
    for metric in metrics:
        value = _metric_value(part, metric)
        if isinstance(value, Missing):
            return value
        total += value or 0
    return total

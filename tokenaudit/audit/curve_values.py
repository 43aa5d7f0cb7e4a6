"""The log's own values by step, under every definition that a curve may have.

What was taken comes from the takes that the log records, else from the replay; everything else from the replay.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from tokenaudit.audit.case import Case
from tokenaudit.audit.curve_definitions import DEFINITIONS, OF_TAKES, Definition
from tokenaudit.audit.curve_points import Float64s
from tokenaudit.audit.curve_takes import TakenSeries, taken_series
from tokenaudit.contracts import metrics as m
from tokenaudit.contracts.metrics import METRICS, RATES, Metric
from tokenaudit.log.columns import Int64s
from tokenaudit.replay.ledger import Row, combined

_QUOTIENTS = {"raw_reward_mean": ((m.RAW_REWARDS_SUM,), (m.RAW_REWARDS_COUNT,))}
_SUMS = {"waiting_groups": (m.LEFTOVER_COMPLETED, m.LEFTOVER_ABORTED, m.LEFTOVER_EXPIRED)}
"""Definitions that are no metrics and that the ledger has all the same."""


@dataclass(frozen=True, slots=True)
class LogSeries:
    """The log's values of one definition.

    Attributes:
        definition: what they count.
        steps: ascending, each once.
        values: of the same shape; NaN where a step has none.
        why_none: why there are no values at all; empty where there are some.
    """

    definition: Definition
    steps: Int64s
    values: Float64s
    why_none: str = ""


class LogValues:
    """The log's series, each worked out when it is asked for.

    Args:
        case: the audited log.
    """

    def __init__(self, case: Case) -> None:
        self._case = case
        self._known: dict[str, LogSeries] = {}

    def series(self, name: str) -> LogSeries:
        """The series of a definition."""
        if name not in self._known:
            self._known[name] = self._series(DEFINITIONS[name])
        return self._known[name]

    def alternatives(self, name: str) -> list[LogSeries]:
        """The other series that a curve of a definition could be taken for: those of what was taken first."""
        family = DEFINITIONS[name].family
        others = [one.name for one in DEFINITIONS.values() if one.family == family and one.name != name]
        others.sort(key=lambda other: other in METRICS and METRICS[other] not in OF_TAKES)
        return [series for series in map(self.series, others) if not series.why_none]

    @cached_property
    def _taken(self) -> TakenSeries | str:
        return taken_series(self._case)

    @cached_property
    def _rows(self) -> dict[int, Row]:
        """The ledger's rows by step; after a restart the last one of a step counts, as of curves the last value."""
        rows = self._case.run.ledger.rows if self._case.run else ()
        return {row.train_step: row for row in rows if row.train_step is not None}

    def _series(self, definition: Definition) -> LogSeries:
        name, taken = definition.name, self._taken
        if isinstance(taken, TakenSeries):
            if name in taken.values:
                return LogSeries(definition, taken.steps, taken.values[name])
            if name in taken.why_none:
                return _none(definition, taken.why_none[name])
        if name not in {*METRICS, *RATES, *_QUOTIENTS, *_SUMS}:
            return _none(definition, taken if isinstance(taken, str) else "the log doesn't say")
        if self._case.run is None:
            return _none(definition, f"no replay: {self._case.why_no_replay}")
        if not self._rows:
            return _none(definition, "the log has no take, and the config no steps")
        steps = sorted(self._rows)
        values = np.array([_value(name, self._rows[step]) for step in steps], dtype=np.float64)
        return LogSeries(definition, np.array(steps, dtype=np.int64), values)


def _none(definition: Definition, why: str) -> LogSeries:
    return LogSeries(definition, np.zeros(0, dtype=np.int64), np.zeros(0), why)


def _value(name: str, row: Row) -> float | None:
    """The value of a step row; None for none."""
    if METRICS.get(name) is m.MODEL_STEP:
        return row.model_step
    numerator: Iterable[Metric]
    denominator: Iterable[Metric] = ()
    if name in RATES:
        numerator, denominator = RATES[name].numerator, RATES[name].denominator
    elif name in _QUOTIENTS:
        numerator, denominator = _QUOTIENTS[name]
    else:
        numerator = _SUMS.get(name) or (METRICS[name],)
    account = combined(row.accounts.values())
    above, below = ([account.value(metric) for metric in metrics] for metrics in (numerator, denominator))
    if None in above:
        return None
    total = sum(value for value in above if value is not None)
    if not below:
        return total
    divisor = sum(value for value in below if value is not None)
    return total / divisor if divisor else None

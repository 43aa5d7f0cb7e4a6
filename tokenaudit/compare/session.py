"""From two results to their comparison."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tokenaudit.compare.compare import Comparison, Side, compare
from tokenaudit.compare.metric_values import figures_named
from tokenaudit.contracts.errors import Problem, UsageError, shown
from tokenaudit.replay.result import Result
from tokenaudit.replay.session import Run, result_of


def diff_results(
    a: Result | Run | Path | str,
    b: Result | Run | Path | str,
    *,
    metrics: Sequence[str] | None = None,
    top: int = 5,
    allow_different_log: bool = False,
) -> Comparison:
    """Compare result B with result A: settings, totals, steps, and the fates of groups where both have group ids.

    Args:
        a: the result to compare with: a result, a run, or a file saved with -o.
        b: the result that is compared.
        metrics: names of the metrics and rates to compare; None: everything that either side has.
        top: how many of the steps with the largest change to name, at least 0.
        allow_different_log: compare results of different logs.

    Raises:
        TokenauditError: a side can't be used, a metric is unknown, or the sides come from different logs.
    """
    if isinstance(top, bool) or not isinstance(top, int) or top < 0:
        raise UsageError(Problem(f"top is {shown(top)}", None, "it is a whole number of 0 or more"))
    sides = Side("A", result_of(a)), Side("B", result_of(b))
    if not allow_different_log:
        check_same_log(*sides)
    figures = None if metrics is None else figures_named([metrics] if isinstance(metrics, str) else metrics)
    return compare(*sides, figures=figures, top=top, with_ids=True)


def check_same_log(a: Side, b: Side) -> None:
    """Refuse sides that come from different logs.

    Raises:
        UsageError: they do.
    """
    if not a.result.has_same_log(b.result):
        names = ", ".join(entry.name for side in (a, b) for entry in side.result.inputs)
        hint = a.result.different_log_hint(b.result)
        raise UsageError(Problem("A and B come from different logs", names, hint))

"""From a result and its limits to a verdict."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tokenaudit.contracts.errors import Problem, RuleError, shown
from tokenaudit.gate.baseline import check_baseline, check_complete
from tokenaudit.gate.judge import judge
from tokenaudit.gate.report import GateReport, LocatedRule
from tokenaudit.gate.rule_sources import collect_rules
from tokenaudit.replay.result import Result
from tokenaudit.replay.session import Run, result_of


def gate_result(
    result: Result | Run | Path | str,
    rules: Sequence[str | LocatedRule] = (),
    *,
    baseline: Result | Run | Path | str | None = None,
    allow_different_log: bool = False,
    allow_fewer_steps: bool = False,
    allow_lost_events: bool = False,
) -> GateReport:
    """Judge a result by rules; without any, no outcome such as the dropped share may be worse than in the baseline.

    Args:
        result: what is judged: a result, a run, or a file saved with -o.
        rules: texts such as "expired_groups <= 0" or "dropped_token_rate <= +2%", the latter against the baseline.
        baseline: the result that signed limits are counted from.
        allow_different_log: accept a baseline from another log.
        allow_fewer_steps: accept a run that lacks steps of the baseline; else its signed limits aren't judged.
        allow_lost_events: judge logs whose recorder dropped or refused events by what is there.

    Raises:
        RuleError: rules that can't be read, all of them at once, or nothing to judge.
        ResultError: the result or the baseline can't be used, or comes from a log that lacks events.
    """
    listed = [rules] if isinstance(rules, str) else rules
    wrong = [rule for rule in listed if not isinstance(rule, str | LocatedRule)]
    if wrong:
        raise RuleError(
            Problem(f"{shown(rule)} is no rule", None, "write a text such as 'expired_groups <= 0'") for rule in wrong
        )
    located = [rule for rule in listed if isinstance(rule, LocatedRule)]
    located += collect_rules([rule for rule in listed if isinstance(rule, str)], None, None, None, Path.cwd())
    judged = result_of(result)
    if not allow_lost_events:
        check_complete(judged, str(result) if isinstance(result, Path | str) else judged.inputs[0].name)
    if baseline is None:
        return judge(judged, located)
    against = result_of(baseline)
    source = str(baseline) if isinstance(baseline, Path | str) else "baseline"
    if not allow_lost_events:
        check_complete(against, source)
    check_baseline(judged, against, source, allow_different_log=allow_different_log)
    return judge(judged, located, against, allow_fewer_steps=allow_fewer_steps)

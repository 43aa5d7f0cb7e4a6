"""Judge a result by rules, exactly: whole numbers and fractions decide, never what is shown of them. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from fractions import Fraction

from tokenaudit.compare.compare import Side, setting_changes
from tokenaudit.compare.metric_values import (
    Figure,
    FigureValue,
    Missing,
    Number,
    has_steps,
    has_totals,
    is_defined_alike,
    is_percentage,
    keyed_rows,
    rate_counts,
    row_value,
)
from tokenaudit.compare.metric_values import total_value as run_value
from tokenaudit.contracts import metrics as m
from tokenaudit.contracts.errors import Notice, Problem, RuleError, nearest_hint
from tokenaudit.contracts.metrics import Better, Metric, Rate, Total
from tokenaudit.gate.baseline import SAVE_AGAIN
from tokenaudit.gate.report import BY_DEFAULT, GateReport, LocatedRule, Observation, Origin, Outcome, Verdict
from tokenaudit.gate.rule import Level, Limit, LimitUnit, Operator, Rule, Scope, Sign
from tokenaudit.replay.result import TASKS, TRAIN_STEP, Result, RowData


def judge(
    result: Result, rules: Sequence[LocatedRule], baseline: Result | None = None, *, allow_fewer_steps: bool = False
) -> GateReport:
    """Judge a result.

    Args:
        result: the run.
        rules: all of them are judged; none: no outcome (`OUTCOMES`) may be worse than in the baseline.
        baseline: what relative rules are counted from; `baseline.check_baseline` says whether it suits.
        allow_fewer_steps: judge relative rules although the run lacks steps of the baseline.

    Raises:
        RuleError: a rule names a task that neither run knows, or needs a baseline and there is none; holds all such
            faults.
        ConfigError: the config of a saved result can't be read.
    """
    _check_rules(rules, result, baseline)
    lacking = [] if baseline is None else _lacking_steps(result, baseline)
    verdicts = [
        _judge_rule(located, result, baseline, () if allow_fewer_steps else lacking)
        for located in rules or rules_of_metrics(m.OUTCOMES, BY_DEFAULT)
    ]
    if not rules:
        verdicts = [verdict for verdict in verdicts if verdict.judged or verdict.reason != _NO_VALUE]
    return _report(result, verdicts, baseline, lacking, allow_fewer_steps=allow_fewer_steps)


def judge_for_baseline(result: Result, rules: Sequence[LocatedRule]) -> GateReport:
    """Judge what is to become a baseline: its absolute rules, which may be none.

    Raises:
        RuleError: a rule names an unknown task.
    """
    absolute = [located for located in rules if not located.rule.is_relative]
    _check_scopes(rules, result.tasks)
    return _report(result, [_judge_rule(located, result, None, ()) for located in absolute], None, ())


def baseline_fault(report: GateReport) -> str | None:
    """Why the judged result must not become a baseline; `report` holds its absolute rules only."""
    if not report.steps:
        return "nothing was replayed"
    for verdict in report.verdicts:
        if verdict.outcome is not Outcome.PASSED and verdict.rule.level is Level.ERROR:
            return f"{verdict.rule} {'failed' if verdict.outcome is Outcome.FAILED else 'could not be judged'}"
    return None


def _report(
    result: Result,
    verdicts: Sequence[Verdict],
    baseline: Result | None,
    lacking: Sequence[int],
    *,
    allow_fewer_steps: bool = False,
) -> GateReport:
    return GateReport(
        result.inputs,
        None if baseline is None else baseline.inputs,
        len(result.steps),
        tuple(result.tasks),
        tuple(sorted(verdicts, key=_worst_first)),
        (*result.warnings, *_coverage_notices(result, baseline, lacking, allow_fewer_steps)),
        () if baseline is None else setting_changes(Side("the baseline", baseline), Side("the run", result)),
    )


def _check_rules(rules: Sequence[LocatedRule], result: Result, baseline: Result | None) -> None:
    if not rules and baseline is None:
        hint = "give --rule, --rules, [gate] in the config, or --baseline"
        raise RuleError(Problem("there is nothing to judge: no rule and no baseline", None, hint))
    _check_scopes(rules, result.tasks if baseline is None else dict.fromkeys((*result.tasks, *baseline.tasks)))
    problems = [
        Problem(f"{located.rule} needs a baseline", located.origin.place, "--baseline FILE (baseline=...) names one")
        for located in rules
        if located.rule.is_relative and baseline is None
    ]
    if problems:
        raise RuleError(problems)


def _check_scopes(rules: Sequence[LocatedRule], tasks: Collection[str]) -> None:
    named = [(located.rule.scope.task, located) for located in rules if not located.rule.scope.absent_ok]
    problems = [
        Problem(f"unknown task {task!r} in {located.rule}", located.origin.place, nearest_hint(task, tasks, "tasks"))
        for task, located in named
        if task is not None and task not in tasks
    ]
    if problems:
        raise RuleError(problems)


def rules_of_metrics(figures: Sequence[Figure], origin: Origin) -> list[LocatedRule]:
    """No figure of the whole run may be worse than in the baseline.

    Raises:
        RuleError: figures of which neither more nor less is worse; names all of them.
    """
    operators = {Better.LOWER: Operator.AT_MOST, Better.HIGHER: Operator.AT_LEAST}
    rules: list[LocatedRule] = []
    problems: list[Problem] = []
    for figure in figures:
        unit = LimitUnit.POINTS if is_percentage(figure) else LimitUnit.ONE
        unmoved = Limit(Sign.PLUS, Decimal(0), unit)
        rule = Rule(figure, Scope(), operators.get(figure.better, Operator.AT_MOST), (unmoved,))
        rules.append(LocatedRule(rule, origin))
        if figure.better not in operators:
            hint = f"a rule says which, such as --rule '{rule}'" if has_totals(figure) else "leave it out"
            problems.append(Problem(f"neither more nor less {figure.name} is always worse", origin.name, hint))
    if problems:
        raise RuleError(problems)
    return rules


def _lacking_steps(result: Result, baseline: Result) -> list[int]:
    """The baseline's steps that the run lacks, in order; a step that comes twice counts twice."""
    rows = keyed_rows(result)
    return [step for step, nth in keyed_rows(baseline) if (step, nth) not in rows]


def _coverage_notices(
    result: Result, baseline: Result | None, lacking: Sequence[int], allow_fewer_steps: bool
) -> Iterator[Notice]:
    """What the baseline covers and this run doesn't, so that no rule looks at it."""
    if baseline is None:
        return
    for task in baseline.tasks:
        if not _has_data(result, task) and (task not in result.tasks or _has_data(baseline, task)):
            yield Notice("task-only-in-baseline", f"task {task} is in the baseline and not in this run")
    if lacking:
        message = f"steps of the baseline that this run doesn't have: {len(lacking)}"
        cost = _FEWER_ALLOWED if allow_fewer_steps else ""
        yield Notice("steps-only-in-baseline", message, cost)


_NO_VALUE = "there is no value to judge"
_NOTHING_REPLAYED = "nothing was replayed"
_FEWER_ALLOWED = "accepted with --allow-fewer-steps: whole runs of different lengths are compared"


@dataclass(frozen=True, slots=True)
class _Sample:
    """The figure of a rule in one place: the row of a step or its part of a task, or the whole run."""

    train_step: int | None
    row: RowData
    before: RowData | None
    value: FigureValue
    baseline: FigureValue

    def observed(self, task: str | None) -> Iterator[Observation]:
        """What is observed there, if the figure has a value."""
        if self.value is not None and not isinstance(self.value, Missing):
            known = None if isinstance(self.baseline, Missing) else self.baseline
            yield Observation(self.train_step, task, self.value, known)


def _judge_rule(located: LocatedRule, result: Result, baseline: Result | None, lacking: Sequence[int]) -> Verdict:
    """Judge one rule; `lacking` are steps of the baseline whose absence keeps a relative rule from being judged."""
    rule, task, method = located.rule, located.rule.scope.task, located.rule.scope.method
    if not result.steps or not _has_data(result):
        return Verdict(located, Outcome.NOT_JUDGED, _NOTHING_REPLAYED)
    against = baseline if rule.is_relative else None
    if task is not None and not _has_data(result, task):
        outcome = Outcome.PASSED if rule.scope.absent_ok else Outcome.NOT_JUDGED
        return Verdict(located, outcome, _no_data(rule.scope, task, result))
    if task is not None and against is not None and task in against.tasks and not _has_data(against, task):
        return Verdict(located, Outcome.NOT_JUDGED, f"the baseline has no data of task {task}")
    if method is not None:
        corrected, before = result.corrected(method), against and against.corrected(method)
        if corrected is None:
            return Verdict(located, Outcome.NOT_JUDGED, _why_no_method(result, method))
        if against is not None and before is None:
            hint = "write it anew under this rule"
            return Verdict(located, Outcome.NOT_JUDGED, f"the baseline doesn't hold method {method}; {hint}")
        result, against = corrected, before
    is_by_step = rule.scope.steps is not None
    if method is None and against is not None and not is_defined_alike(result, against, rule.figure):
        what = f"the baseline has no {rule.figure.name} as this release defines it"
        return Verdict(located, Outcome.NOT_JUDGED, f"{what}; {SAVE_AGAIN}")
    missed = [step for step in lacking if not is_by_step or rule.scope.has_step(step)] if against is not None else []
    if missed and against is not None and not is_by_step:
        return Verdict(located, Outcome.NOT_JUDGED, _lacks_steps(missed, against))
    samples = list(_step_samples(rule, result, against)) if is_by_step else [_run_sample(rule, result, against)]
    judged: list[tuple[_Sample, Verdict]] = []
    reasons: list[str] = []
    for sample in samples:
        reason = _why_not_judged(rule, sample)
        if reason:
            reasons.append(reason if sample.train_step is None else f"step {sample.train_step}: {reason}")
        else:
            judged += ((sample, _sample_verdict(located, observed)) for observed in sample.observed(task))
    if missed and against is not None:
        reasons.insert(0, _lacks_steps(missed, against))
    failed = [(sample, verdict) for sample, verdict in judged if verdict.outcome is Outcome.FAILED]
    if reasons and not failed:
        more = f" (and {len(reasons) - 1} more)" if len(reasons) > 1 else ""
        return Verdict(located, Outcome.NOT_JUDGED, reasons[0] + more, judged=len(judged))
    if not judged:
        return Verdict(located, Outcome.NOT_JUDGED, _NO_VALUE if samples else _no_step(rule, result))
    # Of equals the first, so that reports of equal runs are equal.
    sample, verdict = max(failed or judged, key=lambda pair: pair[1].beyond_limit or Fraction(0))
    places = [sample] if is_by_step else list(_step_samples(rule, result, against)) if has_steps(rule.figure) else []
    worst_step, worst_task = _worst_place(rule, places)
    counts = rate_counts(sample.row, rule.figure, task) if isinstance(rule.figure, Rate) else None
    return replace(
        verdict,
        counts=counts,
        worst_step=worst_step,
        worst_task=worst_task,
        judged=len(judged),
        failed=len(failed),
        without_value=sum(sample.value is None for sample in samples),
    )


def _why_no_method(result: Result, method: str) -> str:
    known = result.corrections.get(method)
    if known is not None and known.not_run is not None:
        return f"method {method} was not run: {known.not_run}"
    return f"the result doesn't hold method {method}; judge the log itself, by a replay"


def _has_data(result: Result, task: str | None = None) -> bool:
    """Whether a group was put; of a task, if named. A task that only the config names has none, and only zeros."""
    groups = run_value(result, m.PUT_GROUPS, task)
    return groups is not None and not isinstance(groups, Missing) and groups > 0


def _no_data(scope: Scope, task: str, result: Result) -> str:
    what = f"the run has no data of task {task}"
    if scope.absent_ok:
        return f"{what}, which the rule accepts"
    return f"{what}; {nearest_hint(task, [other for other in result.tasks if _has_data(result, other)], 'tasks')}"


def _lacks_steps(missed: Sequence[int], baseline: Result) -> str:
    span = str(min(missed)) if len(missed) == 1 else f"from {min(missed)} to {max(missed)}"
    what = f"the run lacks {len(missed)} of the baseline's {len(baseline.steps)} steps ({span})"
    return f"{what}; --allow-fewer-steps accepts that"


def _run_sample(rule: Rule, result: Result, baseline: Result | None) -> _Sample:
    figure, task = rule.figure, rule.scope.task
    before = Missing.ABSENT if baseline is None else run_value(baseline, figure, task)
    return _Sample(None, result.totals, None, run_value(result, figure, task), before)


def _step_samples(rule: Rule, result: Result, baseline: Result | None) -> Iterator[_Sample]:
    """One sample per step, of those in the rule's scope if it names steps."""
    rows = {} if baseline is None else keyed_rows(baseline)
    for key, row in keyed_rows(result).items():
        if rule.scope.steps is None or rule.scope.has_step(key[0]):
            yield _row_sample(rule, key[0], rule.scope.task, row, rows.get(key))


def _row_sample(rule: Rule, step: int | None, task: str | None, row: RowData, before: RowData | None) -> _Sample:
    baseline = Missing.ABSENT if before is None else row_value(before, rule.figure, task)
    return _Sample(step, row, before, row_value(row, rule.figure, task), baseline)


def _why_not_judged(rule: Rule, sample: _Sample) -> str:
    """Why a sample can't be judged; empty where it can, or where there is nothing to judge on either side."""
    if isinstance(sample.value, Missing):
        return f"the result doesn't hold {rule.figure.name}"
    if not rule.is_relative:
        return ""
    if isinstance(sample.baseline, Missing):
        return f"the baseline doesn't hold {rule.figure.name} here"
    if sample.value is None and sample.baseline is not None:
        return "there is no value here, and the baseline has one"
    if sample.value is not None and sample.baseline is None:
        return "the baseline has no value here"
    return ""


def _no_step(rule: Rule, result: Result) -> str:
    steps = [row[TRAIN_STEP] for row in result.steps]
    return f"no step is in {rule.scope}; the run has steps {min(steps)} to {max(steps)}"


def _sample_verdict(located: LocatedRule, observed: Observation) -> Verdict:
    rule, value, baseline = located.rule, observed.value, observed.baseline
    limits = {limit: limit.value(baseline) for limit in rule.limits}
    loosest = min(limits.values(), key=lambda limit: rule.operator.beyond(value, limit))
    holds = any(
        rule.operator.holds(value, number) or (limit.is_share and baseline == 0 and value == 0)
        for limit, number in limits.items()
    )
    return Verdict(located, Outcome.PASSED if holds else Outcome.FAILED, value=value, baseline=baseline, limit=loosest)


def _worst_place(rule: Rule, samples: Sequence[_Sample]) -> tuple[Observation | None, Observation | None]:
    """The step that has the worst figure, and the task that has it there."""
    step = _worst(rule, [one for sample in samples for one in sample.observed(rule.scope.task)])
    if step is None or rule.scope.task is not None:
        return step, None
    place = next(sample for sample in samples if sample.train_step == step.train_step)
    tasks = ((task, _row_sample(rule, step.train_step, task, place.row, place.before)) for task in place.row[TASKS])
    return step, _worst(rule, [one for task, sample in tasks for one in sample.observed(task)])


def _worst(rule: Rule, observed: Sequence[Observation]) -> Observation | None:
    """The observation to look at first: the furthest from its baseline, or the most extreme value."""
    total = rule.figure.total if isinstance(rule.figure, Metric) else Total.SUM
    if total is Total.LAST and len({one.train_step for one in observed}) > 1:
        return observed[-1]
    # Steps add up to a sum, so there the growth counts; a maximum is what its largest step is.
    is_sum = total is Total.SUM

    def score(one: Observation) -> Number:
        moved = one.value - (one.baseline or 0) if is_sum else one.value
        if rule.operator is Operator.EQUAL:
            return abs(moved)
        return moved if rule.operator.is_upper else -moved

    return max(observed, key=score, default=None)


def _worst_first(verdict: Verdict) -> tuple[int, Fraction]:
    """Sort key: failed, not judged, failed warnings, the rest; in each the furthest beyond its limit first."""
    is_error = verdict.rule.level is Level.ERROR
    ranks = {Outcome.FAILED: 0, Outcome.NOT_JUDGED: 1, Outcome.PASSED: 4}
    rank = ranks[verdict.outcome] + (0 if is_error or verdict.outcome is Outcome.PASSED else 2)
    if verdict.outcome is not Outcome.FAILED or verdict.beyond_limit is None or verdict.limit is None:
        return rank, Fraction(0)
    # Relative to the limit, so that rules on tokens and on groups can be ordered; beyond 0 is beyond measure.
    if not verdict.limit:
        return rank, Fraction(-(10**12)) - verdict.beyond_limit
    return rank, -verdict.beyond_limit / abs(verdict.limit)

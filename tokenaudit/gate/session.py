"""From a result and its limits to a verdict."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

from tokenaudit.contracts.errors import Notice, NoticeLevel, Problem, RuleError, UsageError, shown
from tokenaudit.contracts.metrics import CORRECTION_METRICS
from tokenaudit.gate.baseline import check_baseline, check_judgeable
from tokenaudit.gate.judge import judge
from tokenaudit.gate.report import GateReport, LocatedRule
from tokenaudit.gate.rule_sources import collect_rules
from tokenaudit.replay.request import Paths, RunOptions, RunRequest
from tokenaudit.replay.result import TASKS, TRAIN_STEP, Corrected, Result
from tokenaudit.replay.session import Run, replay_log, result_of
from tokenaudit.simulate.notices import stuck_problems
from tokenaudit.simulate.session import simulate_workload

if TYPE_CHECKING:
    from tokenaudit.corrections.result import MethodResult, TokenCounts

_ARGUMENT = "rules"
"""What messages call the place of rules that a function was given."""


def gate_log(
    paths: Paths | RunRequest,
    rules: Sequence[str] = (),
    *,
    rules_file: Path | str | None = None,
    methods_file: Path | str | None = None,
    baseline: Result | Run | Path | str | None = None,
    allow_different_log: bool = False,
    allow_fewer_steps: bool = False,
    allow_lost_events: bool = False,
    **options: Unpack[RunOptions],
) -> GateReport:
    """Replay or simulate a log and judge it, as `tokenaudit gate` does; `str` of the report says what did not pass.

    Args:
        paths: files, folders or glob patterns that make up one log or workload; or a whole request.
        rules: texts such as "expired_groups <= 0"; they add to those of `rules_file` and of [gate] in the config.
        rules_file: a TOML file whose [gate] holds rules.
        methods_file: TOML or JSON that lists the methods which rules name; presets need none.
        baseline: the result that signed limits are counted from.
        allow_different_log: as for `gate_result`.
        allow_fewer_steps: as for `gate_result`.
        allow_lost_events: as for `gate_result`.
        options: what else a `RunRequest` holds: `config`, `overrides`, `timeline`, `quarantine`, `isolated`, `cache`,
            `working_dir`, `on_progress`; with `simulate=True` the options of `simulate_workload`.

    Raises:
        TokenauditError: the log, the config, the rules or the baseline can't be used, or a simulated run can't go on.
    """
    simulate = options.pop("simulate", isinstance(paths, RunRequest) and paths.simulate)
    request = RunRequest.of(paths, options, "gate_log(simulate=True)" if simulate else "gate_log")
    request = request.changed({"simulate": simulate})
    texts = _rule_texts(_listed(rules))
    run = run_to_judge(request)
    file = None if rules_file is None else Path(rules_file)
    located = collect_rules(texts, file, run.settings, None, request.working_dir or Path.cwd(), called=_ARGUMENT)
    return gate_result(
        with_corrections(run.result, request, located, None if methods_file is None else Path(methods_file)),
        located,
        baseline=baseline,
        allow_different_log=allow_different_log,
        allow_fewer_steps=allow_fewer_steps,
        allow_lost_events=allow_lost_events,
    )


def run_to_judge(request: RunRequest) -> Run:
    """Replay, or simulate where the request says so.

    Raises:
        TokenauditError: it can't be run, or a simulated run can't go on and so has no figures to judge.
    """
    run = simulate_workload(request) if request.simulate else replay_log(request)
    stuck = stuck_problems(run.result)
    if stuck:
        raise UsageError(stuck)
    return run


def with_corrections(
    result: Result, request: RunRequest, rules: Sequence[LocatedRule], methods_file: Path | None
) -> Result:
    """The result of a replay, with what the off-policy corrections that rules name do to its log.

    Raises:
        TokenauditError: a rule names an unknown method, or the methods can't be read.
    """
    names = list(dict.fromkeys(one.rule.scope.method for one in rules if one.rule.scope.method is not None))
    if methods_file is not None and not names:
        what = "--methods is for rules of methods, and there is none"
        hint = "leave it out, or add a rule such as correction_dropped_token_rate{method=verl} <= 3%"
        raise UsageError(Problem(what, None, hint))
    if not names or request.simulate:
        return result
    from tokenaudit.corrections.devices import choose_arrays
    from tokenaudit.corrections.methods import methods_of, name_of
    from tokenaudit.corrections.result import TokenCounts
    from tokenaudit.corrections.session import corrections_of_log

    report = corrections_of_log(request, methods_of(names, methods_file), choose_arrays("auto")).report
    notices: list[Notice] = []
    found: dict[str, Corrected] = {}
    for method in report.methods:
        unjudged = report.not_judged.tokens + method.unknown_advantage_tokens
        said = f"{unjudged} of {unjudged + method.totals.in_loss} tokens in the loss can't be judged"
        if method.not_run is None and unjudged > method.totals.in_loss:
            found[method.name] = _corrected(replace(method, not_run=said, totals=TokenCounts(), by_task={}, by_step=()))
            continue
        if method.not_run is None and unjudged:
            cost = "Rules look at the others; `tokenaudit corrections` says why."
            notices.append(Notice("unjudged-tokens", f"method {method.name}: {said}", cost, NoticeLevel.CAUTION))
        found[method.name] = _corrected(method)
    corrections = {name: found[name_of(name)] for name in names}
    return replace(result, corrections=corrections, warnings=(*result.warnings, *notices))


def _corrected(method: MethodResult) -> Corrected:
    """What a result holds of a correction."""
    tasks = {task: _counts(part.counts) for task, part in method.by_task.items()}
    steps = [{TRAIN_STEP: step.train_step, TASKS: {}} | _counts(step.counts) for step in method.by_step]
    return Corrected(_counts(method.totals) | {TASKS: tasks}, steps, method.not_run)


def _counts(counts: TokenCounts) -> dict[str, int]:
    values = (counts.in_loss, counts.dropped, counts.responses, counts.responses_dropped_whole)
    return {metric.name: value for metric, value in zip(CORRECTION_METRICS, values, strict=True)}


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
    texts = _rule_texts([rule for rule in _listed(rules) if not isinstance(rule, LocatedRule)])
    located = [rule for rule in _listed(rules) if isinstance(rule, LocatedRule)]
    located += collect_rules(texts, None, None, None, Path.cwd(), called=_ARGUMENT)
    judged = result_of(result)
    source = str(result) if isinstance(result, Path | str) else judged.inputs[0].name
    check_judgeable(judged, source, allow_lost_events=allow_lost_events)
    if baseline is None:
        return judge(judged, located)
    against = result_of(baseline)
    source = str(baseline) if isinstance(baseline, Path | str) else "baseline"
    check_judgeable(against, source, allow_lost_events=allow_lost_events)
    check_baseline(judged, against, source, allow_different_log=allow_different_log)
    return judge(judged, located, against, allow_fewer_steps=allow_fewer_steps)


def _listed(rules: Sequence[str | LocatedRule]) -> Sequence[str | LocatedRule]:
    return [rules] if isinstance(rules, str) else rules


def _rule_texts(rules: Sequence[object]) -> list[str]:
    """The rules, which are texts.

    Raises:
        RuleError: some are not; holds all of them.
    """
    wrong = [rule for rule in rules if not isinstance(rule, str)]
    if wrong:
        hint = "write a text such as 'expired_groups <= 0'"
        raise RuleError(Problem(f"{shown(rule)} is no rule", None, hint) for rule in wrong)
    return [rule for rule in rules if isinstance(rule, str)]

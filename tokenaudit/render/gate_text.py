"""What a verdict says in words: shared by everything that shows a gate's report."""

from __future__ import annotations

from tokenaudit.compare.metric_values import Number
from tokenaudit.gate.report import GateReport, Outcome, Spot, Verdict
from tokenaudit.gate.rule import Level
from tokenaudit.render.exact import apart, change_text, distance_text, number_text, relative_text
from tokenaudit.render.text import NOTHING, count_text, printable


def label(verdict: Verdict) -> str:
    """The outcome in one word, as it counts for the gate."""
    if verdict.outcome is Outcome.FAILED and verdict.rule.level is Level.WARNING:
        return "warning"
    return str(verdict.outcome)


def statement(verdict: Verdict) -> str:
    """Value, limit and distance in one sentence, with enough digits to see the outcome."""
    if verdict.value is None or verdict.limit is None or verdict.excess is None:
        return printable(verdict.reason)
    figure = verdict.rule.figure
    value, limit = apart([verdict.value, verdict.limit], figure)
    if verdict.counts is not None:
        value += f" ({verdict.counts[0]:,} of {verdict.counts[1]:,})"
    step = verdict.worst_step.train_step if verdict.rule.scope.steps is not None and verdict.worst_step else None
    at = "" if step is None else f" at step {step}"
    return f"{value}{at} is {_distance(verdict)} the limit {limit}"


def _distance(verdict: Verdict) -> str:
    value, limit = verdict.value, verdict.limit
    if value is None or limit is None or value == limit:
        return "exactly at"
    side = "above" if value > limit else "below"
    return f"{distance_text(abs(value - limit), verdict.rule.figure)} {side}"


def details(verdict: Verdict) -> list[str]:
    """What else helps: the baseline, where it is worst, how many values were judged."""
    lines: list[str] = []
    if verdict.value is not None and verdict.rule.is_relative and verdict.baseline is not None:
        lines.append(_against_baseline(verdict, verdict.value, verdict.baseline))
    if verdict.outcome is Outcome.FAILED:
        lines += _worst_lines(verdict)
    if verdict.judged > 1:
        beyond = f"{verdict.failed} of " if verdict.failed else ""
        lines.append(f"{beyond}{count_text(verdict.judged, 'step')} {'beyond the limit' if beyond else 'judged'}")
    return lines


def _against_baseline(verdict: Verdict, value: Number, baseline: Number) -> str:
    figure = verdict.rule.figure
    before, after = apart([baseline, value], figure)
    if baseline == 0 and value != 0:
        grew = "grew" if value > 0 else "fell"
        return f"the baseline is 0 and it {grew} to {after}: there is no ratio"
    moved = change_text(baseline, value, figure)
    if moved == "0":
        return f"baseline {before}, no change"
    return f"baseline {before}, change {moved} ({relative_text(baseline, value)})"


def _worst_lines(verdict: Verdict) -> list[str]:
    step, task = verdict.worst_step, verdict.worst_task
    if step is None:
        return []
    line = f"worst step {step.train_step}: {_spot(verdict, step)}"
    if task is not None and task.task is not None:
        line += f"; worst task there {printable(task.task)}: {_spot(verdict, task)}"
    return [line]


def _spot(verdict: Verdict, spot: Spot) -> str:
    figure = verdict.rule.figure
    if not verdict.rule.is_relative:
        return number_text(spot.value, figure)
    if spot.baseline is None:
        return f"{number_text(spot.value, figure)} (baseline {NOTHING})"
    value, baseline = apart([spot.value, spot.baseline], figure)
    return f"{value} (baseline {baseline})"


def improvements(report: GateReport) -> list[Verdict]:
    """Verdicts whose figure is better than the baseline's."""
    return [verdict for verdict in report.verdicts if verdict.has_improved]


def improvement_line(report: GateReport) -> str:
    """What got better, in one line; empty where nothing did."""
    better = improvements(report)
    if not better:
        return ""
    return f"better than the baseline, which can be tightened: {'; '.join(map(_improvement, better))}"


def _improvement(verdict: Verdict) -> str:
    figure = verdict.rule.figure
    known = [number for number in (verdict.baseline, verdict.value) if number is not None]
    return f"{figure.name}{printable(str(verdict.rule.scope))} {' → '.join(apart(known, figure))}"


def summary(report: GateReport) -> str:
    """The verdict, and what it covers."""
    counts = {
        "failed": report.count(Outcome.FAILED, Level.ERROR),
        "not judged": report.count(Outcome.NOT_JUDGED),
        "warned": report.count(Outcome.FAILED, Level.WARNING),
        "passed": report.count(Outcome.PASSED),
    }
    parts = [f"{number:,} {word}" for word, number in counts.items() if number]
    covered = f"{count_text(len(report.verdicts), 'rule')} over {count_text(report.steps, 'step')}"
    tasks = f"{covered}, {count_text(len(report.tasks), 'task')}"
    return f"{tasks}: {', '.join(parts) or 'nothing to judge'}"


def title(report: GateReport) -> str:
    """What was judged, and against what."""
    names = ", ".join(printable(entry.name) for entry in report.inputs)
    if report.baseline is None:
        return names
    return f"{names} against the baseline from {', '.join(printable(entry.name) for entry in report.baseline)}"

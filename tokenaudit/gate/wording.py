"""What a verdict and a report of a gate say in words, with enough digits to see the outcome."""

from __future__ import annotations

from tokenaudit.compare.compare import setting_cells
from tokenaudit.compare.exact import change_text, distance_text, distinct_texts, number_text, relative_text
from tokenaudit.compare.metric_values import Number
from tokenaudit.contracts.errors import NOTHING, plural, printable
from tokenaudit.gate.report import GateReport, Observation, Outcome, Verdict
from tokenaudit.gate.rule import Level

_MOST_SETTINGS = 20
"""Settings that one line names."""
_MOST_RULES = 20
"""Rules that the text of a report names."""


def report_text(report: GateReport) -> str:
    """Everything that didn't pass, the worst first, after the settings that changed: a message for a failing test."""
    shown = [verdict for verdict in report.verdicts if verdict.outcome is not Outcome.PASSED][:_MOST_RULES]
    rules = [f"{label(one)}: {printable(str(one.rule))}: {message(one, '; ')}" for one in shown]
    warnings = [f"warning: {printable(notice.message)}" for notice in report.notices]
    return "\n".join(filter(None, [title(report), settings_line(report), *rules, *warnings, summary(report)]))


def label(verdict: Verdict) -> str:
    """The outcome in one word, as it counts for the gate."""
    if verdict.outcome is Outcome.FAILED and verdict.rule.level is Level.WARNING:
        return "warning"
    return str(verdict.outcome)


def statement(verdict: Verdict) -> str:
    """Value, limit and distance in one sentence, with enough digits to see the outcome."""
    if verdict.value is None or verdict.limit is None or verdict.beyond_limit is None:
        return printable(verdict.reason)
    figure = verdict.rule.figure
    value, limit = distinct_texts([verdict.value, verdict.limit], figure)
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


def message(verdict: Verdict, separator: str) -> str:
    """The statement and the details on one line."""
    return separator.join((statement(verdict), *details(verdict)))


def details(verdict: Verdict) -> list[str]:
    """What else helps: the baseline, where it is worst, how many values were judged."""
    lines: list[str] = []
    if verdict.value is not None and verdict.rule.is_relative and verdict.baseline is not None:
        lines.append(_against_baseline(verdict, verdict.value, verdict.baseline))
    if verdict.outcome is Outcome.FAILED:
        lines += _worst_lines(verdict)
    if verdict.judged > 1:
        beyond = f"{verdict.failed} of " if verdict.failed else ""
        lines.append(f"{beyond}{plural(verdict.judged, 'step')} {'beyond the limit' if beyond else 'judged'}")
    if verdict.without_value:
        lines.append(f"{plural(verdict.without_value, 'step')} without a value")
    return lines


def _against_baseline(verdict: Verdict, value: Number, baseline: Number) -> str:
    figure = verdict.rule.figure
    before, after = distinct_texts([baseline, value], figure)
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
    line = f"worst step {step.train_step}: {_observed_text(verdict, step)}"
    if task is not None and task.task is not None:
        line += f"; worst task there {printable(task.task)}: {_observed_text(verdict, task)}"
    return [line]


def _observed_text(verdict: Verdict, observed: Observation) -> str:
    figure = verdict.rule.figure
    if not verdict.rule.is_relative:
        return number_text(observed.value, figure)
    if observed.baseline is None:
        return f"{number_text(observed.value, figure)} (baseline {NOTHING})"
    value, baseline = distinct_texts([observed.value, observed.baseline], figure)
    return f"{value} (baseline {baseline})"


def summary(report: GateReport) -> str:
    """The verdict, and what it covers."""
    counts = {
        "failed": report.count(Outcome.FAILED, Level.ERROR),
        "not judged": report.count(Outcome.NOT_JUDGED),
        "warned": report.count(Outcome.FAILED, Level.WARNING),
        "passed": report.count(Outcome.PASSED),
    }
    parts = [f"{number:,} {word}" for word, number in counts.items() if number]
    covered = f"{plural(report.steps, 'step')}, {plural(len(report.tasks), 'task')}"
    if not parts:
        # what becomes a baseline is held against its absolute rules, which it may lack
        return f"{covered}; no absolute rule to check"
    return f"{plural(len(report.verdicts), 'rule')} over {covered}: {', '.join(parts)}"


def title(report: GateReport) -> str:
    """What was judged, and against what."""
    names = ", ".join(printable(entry.name) for entry in report.inputs)
    if report.baseline is None:
        return names
    return f"{names} against the baseline from {', '.join(printable(entry.name) for entry in report.baseline)}"


def settings_line(report: GateReport) -> str:
    """The settings that changed since the baseline, the first of them, in one line; empty where none did."""
    texts = ["{} {} → {}".format(*setting_cells(change)) for change in report.settings[:_MOST_SETTINGS]]
    more = len(report.settings) - len(texts)
    texts += [f"{more} more"] * (more > 0)
    return f"settings changed since the baseline: {'; '.join(texts)}" if texts else ""

"""A gate's report for a GitHub Actions job: annotations, then the text for people."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tokenaudit.gate.report import GateReport, Outcome, Verdict
from tokenaudit.gate.rule import Level
from tokenaudit.render.annotations import MOST_ANNOTATIONS, annotation, job_text, more_annotation
from tokenaudit.render.gate_table import render_gate_table
from tokenaudit.render.gate_text import details, improvement_line, statement

_TITLE = "tokenaudit gate"


def render_github(report: GateReport) -> str:
    """Annotations and the report as text, with a line feed at the end."""
    return job_text(_annotations(report), render_gate_table(report))


def _annotations(report: GateReport) -> Iterator[str]:
    shown = [verdict for verdict in report.verdicts if verdict.outcome is not Outcome.PASSED]
    for level in Level:
        yield from _of_level(level, [verdict for verdict in shown if verdict.rule.level is level])
    improved = improvement_line(report)
    if improved:
        yield annotation("notice", improved, {"title": _TITLE})


def _of_level(level: Level, verdicts: Sequence[Verdict]) -> Iterator[str]:
    for verdict in verdicts[:MOST_ANNOTATIONS]:
        yield annotation(level, ". ".join((statement(verdict), *details(verdict))), _properties(verdict))
    more = len(verdicts) - MOST_ANNOTATIONS
    if more > 0:
        yield more_annotation(level, _TITLE, more, "rule")


def _properties(verdict: Verdict) -> dict[str, str | None]:
    origin = verdict.located.origin
    line = None if origin.line is None else str(origin.line)
    return {"file": origin.path, "line": line, "title": str(verdict.rule)}

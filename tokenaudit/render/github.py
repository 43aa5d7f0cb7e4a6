"""A gate's report for a GitHub Actions job: annotations, then the text for people."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tokenaudit.render.gate_table import render_gate_table
from tokenaudit.render.gate_text import details, improvement_line, statement
from tokenaudit.render.text import count_text, printable
from tokenaudit.rules import Level
from tokenaudit.verdicts import GateReport, Outcome, Verdict

MOST_ANNOTATIONS = 9
"""Annotations of one level. GitHub shows ten per step and drops the rest without a word; the tenth tells how many."""


def render_github(report: GateReport) -> str:
    """Annotations and the report as text, with a line feed at the end."""
    lines = map(_harmless, render_gate_table(report).splitlines())
    return "".join(f"{line}\n" for line in (*_annotations(report), *lines))


def _harmless(line: str) -> str:
    """A line of text in which names from files can't pass for commands to the job's runner."""
    line = line.replace("##[", "## [")
    return f"'{line}" if line.lstrip().startswith("::") else line


def _annotations(report: GateReport) -> Iterator[str]:
    shown = [verdict for verdict in report.verdicts if verdict.outcome is not Outcome.PASSED]
    for level in Level:
        yield from _of_level(level, [verdict for verdict in shown if verdict.rule.level is level])
    improved = improvement_line(report)
    if improved:
        yield f"::notice title=tokenaudit gate::{_data(improved)}"


def _of_level(level: Level, verdicts: Sequence[Verdict]) -> Iterator[str]:
    for verdict in verdicts[:MOST_ANNOTATIONS]:
        yield f"::{level} {_properties(verdict)}::{_data('. '.join((statement(verdict), *details(verdict))))}"
    more = len(verdicts) - MOST_ANNOTATIONS
    if more > 0:
        yield f"::{level} title=tokenaudit gate::{count_text(more, 'more rule')} in the log of this step"


def _properties(verdict: Verdict) -> str:
    origin = verdict.located.origin
    properties = {"file": origin.path, "line": None if origin.line is None else str(origin.line)}
    properties["title"] = str(verdict.rule)
    return ",".join(f"{name}={_property(value)}" for name, value in properties.items() if value is not None)


def _data(text: str) -> str:
    return printable(text).replace("%", "%25")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")

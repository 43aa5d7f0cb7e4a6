"""A gate's or an audit's report for GitHub Actions: annotations before the text, and Markdown for the job summary."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice

from tokenaudit.audit.report import AuditReport
from tokenaudit.audit.rule import Severity
from tokenaudit.contracts.errors import plural, printable, without_commands
from tokenaudit.gate import wording
from tokenaudit.gate.report import GateReport, Outcome, Verdict
from tokenaudit.gate.rule import Level
from tokenaudit.render import audit, gate
from tokenaudit.render.console import console_text

MOST_ANNOTATIONS = 9
"""Annotations of one level. GitHub shows ten per step and drops the rest silently; the tenth says how many."""
SUMMARY_BYTES = 2**20
"""What a job summary may hold."""
_CUT = "\n\n*cut here: a job summary holds 1 MiB*\n"
_LEVELS = {Severity.ERROR: "error", Severity.WARNING: "warning"}


def gate_github(report: GateReport, place: Callable[[str], str] = str, *, all_rules: bool = False) -> str:
    """Annotations and the report as text, with a line feed at the end.

    Args:
        report: the gate's report.
        place: makes paths such as GitHub looks for.
        all_rules: show every rule that passed.
    """
    text = console_text(gate.gate_blocks(report, all_rules=all_rules))
    return _job_text(_gate_annotations(report, place), text)


def audit_github(report: AuditReport, log_path: str, *, most: int) -> str:
    """Annotations for new errors and warnings, and the report as text, with a line feed at the end."""
    return _job_text(_audit_annotations(report, log_path), console_text(audit.audit_blocks(report, most=most)))


def _gate_annotations(report: GateReport, place: Callable[[str], str]) -> Iterator[str]:
    settings = wording.settings_line(report)
    if settings:
        yield _annotation("notice", settings, {"title": "tokenaudit gate"})
    shown = [verdict for verdict in report.verdicts if verdict.outcome is not Outcome.PASSED]
    for level in Level:
        verdicts = [verdict for verdict in shown if verdict.rule.level is level]
        annotations = (_verdict_annotation(verdict, place) for verdict in verdicts)
        yield from _limited(level, annotations, len(verdicts), "tokenaudit gate", "rule")
    improved = gate.improvement_line(report)
    if improved:
        yield _annotation("notice", improved, {"title": "tokenaudit gate"})


def _verdict_annotation(verdict: Verdict, place: Callable[[str], str]) -> str:
    origin = verdict.located.origin
    line = None if origin.line is None else str(origin.line)
    path = None if origin.path is None else place(origin.path)
    properties = {"file": path, "line": line, "title": str(verdict.rule)}
    return _annotation(verdict.rule.level, wording.message(verdict, ". "), properties)


def _audit_annotations(report: AuditReport, log_path: str) -> Iterator[str]:
    for severity, level in _LEVELS.items():
        annotations = (
            _annotation(level, audit.finding_text(one), {"file": log_path, "title": f"{one.code} {one.name}"})
            for one in report.findings
            if one.severity is severity and one.is_new
        )
        yield from _limited(level, annotations, report.count(severity, only_new=True), "tokenaudit audit", "finding")


def _limited(level: str, annotations: Iterable[str], total: int, title: str, noun: str) -> Iterator[str]:
    """The first annotations of a level, and one that says how many of the total have none of their own."""
    shown = list(islice(annotations, MOST_ANNOTATIONS))
    yield from shown
    more = total - len(shown)
    if more > 0:
        yield _annotation(level, f"{plural(more, f'more {noun}')} in the log of this step", {"title": title})


def _annotation(level: str, text: str, properties: Mapping[str, str | None]) -> str:
    """The command that makes an annotation; properties without a value are left out."""
    known = ",".join(f"{name}={_property(value)}" for name, value in properties.items() if value is not None)
    return f"::{level} {known}::{_data(text)}"


def _data(text: str) -> str:
    return without_commands(printable(text)).replace("%", "%25")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")


def _job_text(annotations: Iterable[str], text: str) -> str:
    """Annotations and a report as text, with a line feed at the end."""
    return "".join(f"{line}\n" for line in annotations) + without_commands(text)


def summary_part(text: str, room: int) -> str:
    """As many whole lines of `text` as fit into `room` bytes, and a line that says where it was cut."""
    if len(text.encode(errors="backslashreplace")) <= room:
        return text
    room -= len(_CUT)
    kept: list[str] = []
    for line in text.split("\n"):
        room -= len(line.encode(errors="backslashreplace")) + 1
        if room < 0:
            break
        kept.append(line)
    return "\n".join(kept) + _CUT if kept else ""

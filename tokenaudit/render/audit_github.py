"""An audit's report for a GitHub Actions job: annotations, then the text for people."""

from __future__ import annotations

from collections.abc import Iterator

from tokenaudit.audit.report import AuditReport
from tokenaudit.audit.rules import Severity
from tokenaudit.render.audit_table import render_audit
from tokenaudit.render.audit_text import finding_text
from tokenaudit.render.text import count_text, printable

MOST_ANNOTATIONS = 9
"""Annotations of one level. GitHub shows ten per step and drops the rest without a word; the tenth tells how many."""
_LEVELS = {Severity.ERROR: "error", Severity.WARNING: "warning"}


def audit_github(report: AuditReport, log_path: str, *, most: int) -> str:
    """Annotations for new errors and warnings, and the report as text, with a line feed at the end."""
    lines = map(_harmless, render_audit(report, most=most).splitlines())
    return "".join(f"{line}\n" for line in (*_annotations(report, log_path), *lines))


def _harmless(line: str) -> str:
    """A line of text in which names from files can't pass for commands to the job's runner."""
    line = line.replace("##[", "## [")
    return f"'{line}" if line.lstrip().startswith("::") else line


def _annotations(report: AuditReport, log_path: str) -> Iterator[str]:
    for severity, level in _LEVELS.items():
        shown = [finding for finding in report.findings if finding.severity is severity and finding.is_new]
        for finding in shown[:MOST_ANNOTATIONS]:
            properties = f"file={_property(log_path)},title={_property(f'{finding.code} {finding.name}')}"
            yield f"::{level} {properties}::{_data(finding_text(finding))}"
        more = report.count(severity, only_new=True) - min(len(shown), MOST_ANNOTATIONS)
        if more > 0:
            yield f"::{level} title=tokenaudit audit::{count_text(more, 'more finding')} in the log of this step"


def _data(text: str) -> str:
    return printable(text).replace("%", "%25")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")

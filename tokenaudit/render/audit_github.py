"""An audit's report for a GitHub Actions job: annotations, then the text for people."""

from __future__ import annotations

from collections.abc import Iterator

from tokenaudit.audit.report import AuditReport
from tokenaudit.audit.rule import Severity
from tokenaudit.render.annotations import MOST_ANNOTATIONS, annotation, job_text, more_annotation
from tokenaudit.render.audit_table import render_audit
from tokenaudit.render.audit_text import finding_text

_LEVELS = {Severity.ERROR: "error", Severity.WARNING: "warning"}


def audit_github(report: AuditReport, log_path: str, *, most: int) -> str:
    """Annotations for new errors and warnings, and the report as text, with a line feed at the end."""
    return job_text(_annotations(report, log_path), render_audit(report, most=most))


def _annotations(report: AuditReport, log_path: str) -> Iterator[str]:
    for severity, level in _LEVELS.items():
        shown = [finding for finding in report.findings if finding.severity is severity and finding.is_new]
        for finding in shown[:MOST_ANNOTATIONS]:
            properties = {"file": log_path, "title": f"{finding.code} {finding.name}"}
            yield annotation(level, finding_text(finding), properties)
        more = report.count(severity, only_new=True) - min(len(shown), MOST_ANNOTATIONS)
        if more > 0:
            yield more_annotation(level, "tokenaudit audit", more, "finding")

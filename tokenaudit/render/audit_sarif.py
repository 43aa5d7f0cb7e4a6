"""An audit's report as SARIF 2.1.0. Findings stand at the log: rows of a table have no lines."""

from __future__ import annotations

from typing import Any

from tokenaudit.audit.findings import Finding
from tokenaudit.audit.report import AuditReport
from tokenaudit.audit.rule import AuditRule, Severity
from tokenaudit.render.audit_text import finding_text
from tokenaudit.render.sarif_log import fingerprint, location, message, sarif_log

_LEVELS = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.INFO: "note"}


def audit_sarif(report: AuditReport, log_path: str, *, most: int) -> str:
    """The SARIF log, with a line feed at the end.

    Args:
        report: the report.
        log_path: the log as the user named it, where findings are placed.
        most: findings of one rule that are written; viewers refuse very long lists.
    """
    rules = [run.rule for run in report.runs]
    position = {rule.code: index for index, rule in enumerate(rules)}
    results = [
        _result(finding, position[finding.code], log_path)
        for run in report.runs
        if run.tally is not None
        for finding in [f for f in report.findings if f.code == run.rule.code][:most]
    ]
    notes = [
        {"level": "note", "message": message(f"{run.rule.code} not run: needs {' and '.join(run.missing)}")}
        for run in report.runs
        if not run.ran
    ]
    return sarif_log([_rule(rule) for rule in rules], results, notes, successful=report.has_judged)


def _rule(rule: AuditRule) -> dict[str, Any]:
    return {
        "id": rule.code,
        "name": rule.name,
        "shortDescription": {"text": rule.meaning},
        "help": {"text": rule.fix},
        "defaultConfiguration": {"level": _LEVELS[rule.severity]},
    }


def _result(finding: Finding, index: int, log_path: str) -> dict[str, Any]:
    return {
        "ruleId": finding.code,
        "ruleIndex": index,
        "level": _LEVELS[finding.severity],
        "baselineState": "new" if finding.is_new else "unchanged",
        "message": message(finding_text(finding)),
        "locations": [location(log_path)],
        "partialFingerprints": {"finding/v1": fingerprint(finding.identity)},
    }

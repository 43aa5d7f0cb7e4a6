"""An audit's report as SARIF 2.1.0. Findings stand at the log: rows of a table have no lines."""

from __future__ import annotations

import hashlib
import json
from typing import Any
from urllib.parse import quote

from tokenaudit import __version__
from tokenaudit.audit.findings import Finding
from tokenaudit.audit.report import AuditReport
from tokenaudit.audit.rules import Rule, Severity
from tokenaudit.render.audit_text import finding_text

_SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/os/schemas/sarif-schema-2.1.0.json"
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
        {"level": "note", "message": {"text": f"{run.rule.code} not run: needs {' and '.join(run.missing)}"}}
        for run in report.runs
        if not run.ran
    ]
    log = {
        "$schema": _SCHEMA,
        "version": "2.1.0",
        "runs": [
            {
                "tool": {
                    "driver": {"name": "tokenaudit", "version": __version__, "rules": [_rule(rule) for rule in rules]}
                },
                "invocations": [{"executionSuccessful": report.has_judged, "toolExecutionNotifications": notes}],
                "results": results,
            }
        ],
    }
    return json.dumps(log, indent=1, ensure_ascii=False) + "\n"


def _rule(rule: Rule) -> dict[str, Any]:
    return {
        "id": rule.code,
        "name": rule.name,
        "shortDescription": {"text": rule.meaning},
        "help": {"text": rule.fix},
        "defaultConfiguration": {"level": _LEVELS[rule.severity]},
    }


def _result(finding: Finding, index: int, log_path: str) -> dict[str, Any]:
    place = {"artifactLocation": {"uri": quote(log_path)}, "region": {"startLine": 1}}
    return {
        "ruleId": finding.code,
        "ruleIndex": index,
        "level": _LEVELS[finding.severity],
        "baselineState": "new" if finding.is_new else "unchanged",
        "message": {"text": finding_text(finding)},
        "locations": [{"physicalLocation": place}],
        "partialFingerprints": {"finding/v1": hashlib.sha256(finding.identity.encode()).hexdigest()},
    }

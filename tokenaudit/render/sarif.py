"""A gate's or an audit's report as SARIF 2.1.0.

Figures of a run and rows of a table have no line, so findings stand at the line of their rule, or at the log itself.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence
from typing import Any
from urllib.parse import quote

from tokenaudit import __version__
from tokenaudit.audit.findings import Finding
from tokenaudit.audit.report import AuditReport
from tokenaudit.audit.rule import AuditRule, Severity
from tokenaudit.contracts.errors import printable
from tokenaudit.contracts.files import json_text
from tokenaudit.gate import wording
from tokenaudit.gate.report import GateReport, Outcome, Verdict
from tokenaudit.gate.rule import Level
from tokenaudit.render import audit

_SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/os/schemas/sarif-schema-2.1.0.json"
_ROOT = "%SRCROOT%"
"""What CI systems call the root of the repository, which they know."""
_ESCAPES = str.maketrans({"\\": "\\\\", "[": "\\[", "]": "\\]", "{": "{{", "}": "}}"})
"""Brackets would make links of names, braces placeholders."""
_LEVELS = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.INFO: "note"}


def gate_sarif(report: GateReport, judged: str, place: Callable[[str], str] = str) -> str:
    """The SARIF log, with a line feed at the end.

    Args:
        report: the gate's report.
        judged: the file that was judged, where findings of rules without a file are placed.
        place: makes paths from the root of the repository; absolute ones where a file lies elsewhere.
    """
    # Verdicts that passed come last, so a finding has the index of its rule.
    shown = [verdict for verdict in report.verdicts if verdict.outcome is not Outcome.PASSED]
    settings = wording.settings_line(report)
    return _log(
        [_gate_rule(verdict) for verdict in report.verdicts],
        [
            _verdict_result(index, verdict, place(verdict.located.origin.path or judged))
            for index, verdict in enumerate(shown)
        ],
        [_notification(index, verdict) for index, verdict in enumerate(shown) if verdict.outcome is Outcome.NOT_JUDGED],
        [{"level": "note", "message": _message(settings)}] if settings else [],
        successful=not report.count(Outcome.NOT_JUDGED, Level.ERROR),
    )


def audit_sarif(report: AuditReport, log_path: str, *, most: int) -> str:
    """The SARIF log, with a line feed at the end.

    Args:
        report: the report.
        log_path: the log from the root of the repository, where findings are placed; absolute where it lies elsewhere.
        most: findings of one rule that are written; viewers refuse very long lists.
    """
    results = [
        _finding_result(finding, index, log_path)
        for index, run in enumerate(report.runs)
        if run.ran
        for finding in [f for f in report.findings if f.code == run.rule.code][:most]
    ]
    notes = [
        {"level": "note", "message": _message(f"{run.rule.code} not run: needs {' and '.join(run.missing)}")}
        for run in report.runs
        if not run.ran
    ]
    return _log([_audit_rule(run.rule) for run in report.runs], results, notes, successful=report.has_judged)


def _gate_rule(verdict: Verdict) -> dict[str, Any]:
    rule = verdict.rule
    return {
        "id": _id(verdict),
        "name": _name(rule.figure.name),
        # Without its scope, whose braces the standard would have doubled in texts.
        "shortDescription": _sentence(f"{rule.figure.name} {rule.operator} {' or '.join(map(str, rule.limits))}"),
        "fullDescription": _sentence(f"{rule.figure.name}: {rule.figure.help}"),
        "help": _sentence("`tokenaudit help gate` explains rules, `tokenaudit help metrics` what they judge"),
        "defaultConfiguration": {"level": str(rule.level)},
    }


def _verdict_result(index: int, verdict: Verdict, path: str) -> dict[str, Any]:
    is_judged = verdict.outcome is Outcome.FAILED
    return {
        "ruleId": _id(verdict),
        "ruleIndex": index,
        # "open" says that the evidence was not enough to decide; the standard allows it no other level.
        "kind": "fail" if is_judged else "open",
        "level": str(verdict.rule.level) if is_judged else "none",
        "message": _message(wording.message(verdict, ". ")),
        "locations": [_location(path, verdict.located.origin.line or 1)],
        "partialFingerprints": {"rule/v1": _fingerprint(str(verdict.rule))},
    }


def _notification(index: int, verdict: Verdict) -> dict[str, Any]:
    return {
        "level": str(verdict.rule.level),
        "message": _message(wording.message(verdict, ". ")),
        "associatedRule": {"id": _id(verdict), "index": index},
    }


def _id(verdict: Verdict) -> str:
    return printable(str(verdict.rule))


def _audit_rule(rule: AuditRule) -> dict[str, Any]:
    return {
        "id": rule.code,
        "name": _name(rule.name),
        "shortDescription": _sentence(rule.meaning),
        "fullDescription": _sentence(rule.meaning),
        "help": _sentence(rule.fix),
        "defaultConfiguration": {"level": _LEVELS[rule.severity]},
    }


def _finding_result(finding: Finding, index: int, log_path: str) -> dict[str, Any]:
    return {
        "ruleId": finding.code,
        "ruleIndex": index,
        "level": _LEVELS[finding.severity],
        "baselineState": "new" if finding.is_new else "unchanged",
        "message": _message(audit.finding_text(finding)),
        "locations": [_location(log_path)],
        "partialFingerprints": {"finding/v1": _fingerprint(finding.identity)},
    }


def _log(
    rules: Sequence[dict[str, Any]],
    results: Sequence[dict[str, Any]],
    notifications: Sequence[dict[str, Any]],
    configuration: Sequence[dict[str, Any]] = (),
    *,
    successful: bool,
) -> str:
    """The log of one run, with a line feed at the end.

    Args:
        rules: what was checked.
        results: what was found; each has the id and the index of its rule.
        notifications: what kept rules from being checked.
        configuration: how the run was configured otherwise than its baseline.
        successful: whether enough could be checked for a verdict.
    """
    driver = {"name": "tokenaudit", "version": __version__, "semanticVersion": __version__, "rules": list(rules)}
    invocation: dict[str, Any] = {"executionSuccessful": successful}
    if configuration:
        invocation["toolConfigurationNotifications"] = list(configuration)
    invocation["toolExecutionNotifications"] = list(notifications)
    run = {
        "tool": {"driver": driver},
        "invocations": [invocation],
        "originalUriBaseIds": {_ROOT: {"description": {"text": "The root of the repository."}}},
        "results": list(results),
    }
    return json_text({"$schema": _SCHEMA, "version": "2.1.0", "runs": [run]})


def _message(text: str) -> dict[str, str]:
    """A message that is shown as it is."""
    return _sentence(text.translate(_ESCAPES))


def _sentence(text: str) -> dict[str, str]:
    """A text as validators want it: it ends like a sentence."""
    return {"text": text if text.endswith((".", "!", "?")) else f"{text}."}


def _name(words: str) -> str:
    """The name of a rule, in the spelling that the standard has for identifiers of rules."""
    return "".join(word.capitalize() for word in words.replace("-", "_").split("_"))


def _location(path: str, line: int = 1) -> dict[str, Any]:
    uri = quote(os.fsencode(path))
    artifact = {"uri": f"file://{uri}"} if path.startswith("/") else {"uri": uri, "uriBaseId": _ROOT}
    return {"physicalLocation": {"artifactLocation": artifact, "region": {"startLine": line}}}


def _fingerprint(identity: str) -> str:
    """What is equal for the same finding in two runs, and different for others."""
    return hashlib.sha256(identity.encode(errors="surrogateescape")).hexdigest()

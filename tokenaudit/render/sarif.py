"""A gate's or an audit's report as SARIF 2.1.0.

Figures of a run and rows of a table have no line, so findings stand at the line of their rule, or at the log itself.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence
from importlib.metadata import PackageNotFoundError, metadata
from typing import Any
from urllib.parse import quote

from tokenaudit import __version__
from tokenaudit.audit.findings import Finding
from tokenaudit.audit.report import AuditReport
from tokenaudit.audit.rule import AuditRule, Severity
from tokenaudit.contracts.errors import printable
from tokenaudit.contracts.files import Repository, json_text
from tokenaudit.gate import wording
from tokenaudit.gate.report import GateReport, Outcome, Verdict
from tokenaudit.gate.rule import Level
from tokenaudit.render import audit

_SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/os/schemas/sarif-schema-2.1.0.json"
_ROOT = "%SRCROOT%"
"""What CI systems call the root of the repository, which they know."""
_ELSEWHERE = "FILESYSTEM"
"""The root of the file system, for files outside of the repository."""
_DISTRIBUTION = "rollout-tokenaudit"
_LONGEST_LINE = 1000
"""Characters of a line of a rules file that is shown."""
_ESCAPES = str.maketrans({"\\": "\\\\", "[": "\\[", "]": "\\]", "{": "{{", "}": "}}"})
"""Brackets would make links of names, braces placeholders."""
_ESCAPES_OF_LINKS = str.maketrans({"\\": "\\\\", "[": "\\[", "]": "\\]"})
_LEVELS = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.INFO: "note"}


def gate_sarif(
    report: GateReport, judged: str, place: Callable[[str], str] = str, repository: Repository | None = None
) -> str:
    """The SARIF log, with a line feed at the end.

    Args:
        report: the gate's report.
        judged: the file that was judged, where findings of rules without a file are placed.
        place: makes paths from the root of the repository; absolute ones where a file lies elsewhere.
        repository: the repository, as far as it is known.
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
        repository=repository,
    )


def audit_sarif(report: AuditReport, log_path: str, *, most: int, repository: Repository | None = None) -> str:
    """The SARIF log, with a line feed at the end.

    Args:
        report: the report.
        log_path: the log from the root of the repository, where findings are placed; absolute where it lies elsewhere.
        most: findings of one rule that are written; viewers refuse very long lists.
        repository: the repository, as far as it is known.
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
    rules = [_audit_rule(run.rule) for run in report.runs]
    return _log(rules, results, notes, successful=report.has_judged, repository=repository)


def _gate_rule(verdict: Verdict) -> dict[str, Any]:
    rule = verdict.rule
    return {
        "id": _id(verdict),
        "name": _name(rule.figure.name),
        # Without its scope, whose braces the standard would have doubled in texts.
        "shortDescription": _sentence(f"{rule.figure.name} {rule.operator} {' or '.join(map(str, rule.limits))}"),
        "fullDescription": _sentence(f"{rule.figure.name}: {rule.figure.help}"),
        "help": _sentence("`tokenaudit help gate` explains rules, `tokenaudit help metrics` what they judge"),
        "messageStrings": {"figure": {"text": "'{0}'."}, "details": {"text": "'{0}': '{1}'."}},
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
        "message": _message(wording.message(verdict, ". ")) | _arguments(verdict),
        "locations": [_rule_location(path, verdict)],
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
        "messageStrings": {"finding": {"text": "'{0}': '{1}'."}},
        "defaultConfiguration": {"level": _LEVELS[rule.severity]},
    }


def _finding_result(finding: Finding, index: int, log_path: str) -> dict[str, Any]:
    return {
        "ruleId": finding.code,
        "ruleIndex": index,
        "level": _LEVELS[finding.severity],
        "baselineState": "new" if finding.is_new else "unchanged",
        "message": _message(audit.finding_text(finding))
        | {"id": "finding", "arguments": [*map(_argument, (str(finding.subject), finding.message))]},
        "locations": [_location(log_path, str(finding.subject))],
        "partialFingerprints": {"finding/v1": _fingerprint(finding.identity)},
    }


def _log(
    rules: Sequence[dict[str, Any]],
    results: Sequence[dict[str, Any]],
    notifications: Sequence[dict[str, Any]],
    configuration: Sequence[dict[str, Any]] = (),
    *,
    successful: bool,
    repository: Repository | None,
) -> str:
    """The log of one run, with a line feed at the end.

    Args:
        rules: what was checked.
        results: what was found; each has the id and the index of its rule.
        notifications: what kept rules from being checked.
        configuration: how the run was configured otherwise than its baseline.
        successful: whether enough could be checked for a verdict.
        repository: the repository, as far as it is known.
    """
    pages = _pages()
    help_page = pages.get("documentation", pages.get("homepage"))
    driver: dict[str, Any] = {"name": "tokenaudit", "version": __version__, "semanticVersion": __version__}
    if "homepage" in pages:
        driver["informationUri"] = pages["homepage"]
    driver["rules"] = [rule | {"helpUri": help_page} for rule in rules] if help_page else list(rules)
    invocation: dict[str, Any] = {"executionSuccessful": successful}
    if configuration:
        invocation["toolConfigurationNotifications"] = list(configuration)
    invocation["toolExecutionNotifications"] = list(notifications)
    bases = {
        _ROOT: {"description": _sentence("The root of the repository")},
        _ELSEWHERE: {"uri": "file:///", "description": _sentence("The root of the file system")},
    }
    used = {place["physicalLocation"]["artifactLocation"]["uriBaseId"] for one in results for place in one["locations"]}
    run: dict[str, Any] = {"tool": {"driver": driver}, "invocations": [invocation]}
    if repository is not None:
        run["versionControlProvenance"] = [_provenance(repository)]
        used.add(_ROOT)
    run["originalUriBaseIds"] = {name: base for name, base in bases.items() if name in (used or {_ROOT})}
    run["results"] = list(results)
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


def _argument(text: str) -> str:
    """A value that is put into the text of a rule, shown as it is."""
    return printable(text).translate(_ESCAPES_OF_LINKS).removesuffix(".")


def _arguments(verdict: Verdict) -> dict[str, Any]:
    """What makes the message of a verdict, by the texts of its rule."""
    details = ". ".join(wording.details(verdict))
    parts = [wording.statement(verdict), *([details] if details else [])]
    return {"id": "details" if details else "figure", "arguments": [*map(_argument, parts)]}


def _pages() -> dict[str, str]:
    """Addresses that the installed package names, by label: its home page and its documentation."""
    try:
        listed = metadata(_DISTRIBUTION).get_all("Project-URL") or []
    except PackageNotFoundError:
        return {}
    pages = (entry.partition(",") for entry in listed)
    return {label.strip().lower(): url.strip() for label, _, url in pages if url.strip().startswith("https://")}


def _provenance(repository: Repository) -> dict[str, Any]:
    branch = {"branch": repository.branch} if repository.branch else {}
    about = {"repositoryUri": repository.url, "revisionId": repository.revision}
    return about | branch | {"mappedTo": {"uriBaseId": _ROOT}}


def _rule_location(path: str, verdict: Verdict) -> dict[str, Any]:
    """The line of the rule, and the step and task where its figure is worst."""
    origin, step, task = verdict.located.origin, verdict.worst_step, verdict.worst_task
    names = [f"step {step.train_step}"] if step is not None and step.train_step is not None else []
    names += [f"task {task.task}"] if task is not None and task.task is not None else []
    location = _location(path, ", ".join(names) or "the run", origin.line or 1)
    place = location["physicalLocation"]
    if origin.line is not None and origin.lines and max(map(len, origin.lines)) <= _LONGEST_LINE:
        first = max(1, origin.line - 1)
        place["region"]["snippet"] = {"text": origin.lines[origin.line - first]}
        if len(origin.lines) > 1:
            around = {"startLine": first, "endLine": first + len(origin.lines) - 1}
            place["contextRegion"] = around | {"snippet": {"text": "\n".join(origin.lines)}}
    return location


def _location(path: str, name: str, line: int = 1) -> dict[str, Any]:
    """Where something is: a line of a file, as CI systems want one, and what is meant in it."""
    uri = quote(os.fsencode(path))
    artifact = {"uri": uri.lstrip("/"), "uriBaseId": _ELSEWHERE if path.startswith("/") else _ROOT}
    return {
        "physicalLocation": {"artifactLocation": artifact, "region": {"startLine": line}},
        "logicalLocations": [{"fullyQualifiedName": printable(name)}],
    }


def _fingerprint(identity: str) -> str:
    """What is equal for the same finding in two runs, and different for others."""
    return hashlib.sha256(identity.encode(errors="surrogateescape")).hexdigest()

"""The report of an audit: what ran, what was found, and what that means for the exit code."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from tokenaudit import __version__
from tokenaudit.audit.findings import Extent, Finding, Findings
from tokenaudit.audit.offpolicy import AgeEvidence
from tokenaudit.audit.parity import Parity
from tokenaudit.audit.rule import AuditRule, Severity
from tokenaudit.contracts.errors import plural
from tokenaudit.contracts.files import json_text

KIND_AUDIT = "tokenaudit.audit"
AUDIT_SCHEMA_VERSION = 2
"""Version of the JSON that `audit` writes; since version 2, many rows of one cause are one finding."""

FINE, FOUND, COULD_NOT_JUDGE = 0, 1, 2
"""Exit codes."""


@dataclass(frozen=True, slots=True)
class RuleRun:
    """One rule in a report.

    Attributes:
        rule: the rule.
        findings: what it found; None where it did not run.
        missing: what it lacked; empty where it ran.
        new: findings that the baseline doesn't know, by severity, those not kept included.
    """

    rule: AuditRule
    findings: Findings | None
    missing: tuple[str, ...]
    new: Mapping[Severity, int]

    @property
    def ran(self) -> bool:
        """Whether it looked at anything at all."""
        return self.findings is not None

    def count(self, severity: Severity) -> int:
        """Its findings of a severity, those not kept included."""
        return self.findings.counts[severity] if self.findings else 0


@dataclass(frozen=True, slots=True)
class AuditReport:
    """An audit.

    Attributes:
        name: name of the log, without folders.
        files_named: files that the arguments named.
        files_audited: files that could be read.
        rows: rows audited.
        puts: put rows among them.
        tokens: tokens in their puts.
        config_source: where the config came from; None without one.
        why_no_replay: why the lifecycle was not replayed; empty where it was.
        left_out_groups: groups that the replay leaves out because of structural faults.
        runs: every selected rule.
        findings: findings kept, in the order of the rules.
        evidence: how off-policy each age is; empty without log-probabilities.
        has_baseline: whether known findings are marked.
        log_notes: what a person should know about the files: events lost while recording, what the source leaves out,
            clocks of ranks, columns not read, configs that differ between files.
        parity: the curves that the run logged beside what the log gives; None where no curves were given.
        unknown_curves: names of curves in their files that aren't known, the first few thousand.
    """

    name: str
    files_named: int
    files_audited: int
    rows: int
    puts: int
    tokens: int
    config_source: str | None
    why_no_replay: str
    left_out_groups: int
    runs: tuple[RuleRun, ...]
    findings: tuple[Finding, ...]
    evidence: tuple[AgeEvidence, ...]
    has_baseline: bool = False
    log_notes: tuple[str, ...] = ()
    parity: tuple[Parity, ...] | None = None
    unknown_curves: tuple[str, ...] = ()

    def __repr__(self) -> str:
        counts = ", ".join(f"{self.count(severity)} {severity}" for severity in Severity)
        codes = ", ".join(dict.fromkeys(finding.code for finding in self.findings))
        rules = plural(sum(run.ran for run in self.runs), "rule")
        return (
            f"AuditReport({self.name}: {plural(self.rows, 'row')}, {rules} run;"
            f" findings: {counts}{f' ({codes})' if codes else ''}; exit code {self.exit_code()})"
        )

    def count(self, severity: Severity, *, only_new: bool = False) -> int:
        """Findings of a severity, those not kept included."""
        if only_new:
            return sum(run.new.get(severity, 0) for run in self.runs)
        return sum(run.count(severity) for run in self.runs)

    @property
    def has_judged(self) -> bool:
        """Whether anything was audited."""
        return self.puts > 0 and any(run.findings and run.findings.checked for run in self.runs)

    def exit_code(self, *, exit_zero: bool = False) -> int:
        """0 no new error, 1 new errors, 2 nothing audited. `exit_zero` turns 1 into 0 and keeps 2."""
        if not self.has_judged:
            return COULD_NOT_JUDGE
        return FOUND if self.count(Severity.ERROR, only_new=True) and not exit_zero else FINE


def of_severity(report: AuditReport, least: Severity) -> AuditReport:
    """The report with findings of at least a severity; the others are neither listed nor counted."""
    kept = [severity for severity in Severity if severity.rank <= least.rank]
    runs: list[RuleRun] = []
    for run in report.runs:
        if run.findings is not None:
            counts = Counter({severity: run.findings.counts[severity] for severity in kept})
            listed = [finding for finding in run.findings.kept if finding.severity in kept]
            new = {severity: run.new.get(severity, 0) for severity in kept}
            run = replace(run, findings=replace(run.findings, counts=counts, kept=listed), new=new)
        runs.append(run)
    findings = tuple(finding for finding in report.findings if finding.severity in kept)
    return replace(report, runs=tuple(runs), findings=findings)


def report_json(report: AuditReport) -> str:
    """The saved form, with a line feed at the end; equal reports give equal bytes."""
    return json_text(report_data(report))


def report_data(report: AuditReport) -> dict[str, Any]:
    """The report as plain data."""
    return {
        "kind": KIND_AUDIT,
        "schema_version": AUDIT_SCHEMA_VERSION,
        "tool": f"tokenaudit {__version__}",
        "log": report.name,
        "files_named": report.files_named,
        "files_audited": report.files_audited,
        "rows": report.rows,
        "tokens": report.tokens,
        "config": report.config_source,
        "why_no_replay": report.why_no_replay,
        "left_out_groups": report.left_out_groups,
        **({"log_notes": list(report.log_notes)} if report.log_notes else {}),
        "exit_code": report.exit_code(),
        "counts": {str(severity): report.count(severity) for severity in Severity},
        "new_counts": {str(severity): report.count(severity, only_new=True) for severity in Severity},
        "rules": [_run_data(run) for run in report.runs],
        "findings": [_finding_data(finding) for finding in report.findings],
        "off_policy": [entry.data() for entry in report.evidence],
        **({} if report.parity is None else {"parity": [asdict(one) for one in report.parity]}),
        **({"unknown_curves": list(report.unknown_curves)} if report.unknown_curves else {}),
    }


def _run_data(run: RuleRun) -> dict[str, Any]:
    findings = run.findings
    counted = findings.identities.items() if findings else ()
    identities = {str(severity): asdict(entry) for severity, entry in counted if findings and findings.counts[severity]}
    return {
        "code": run.rule.code,
        "name": run.rule.name,
        "severity": str(run.rule.severity),
        "ran": run.ran,
        "missing": list(run.missing),
        "checked": findings.checked if findings else 0,
        "checked_unit": findings.unit if findings else "",
        "counts": {str(severity): findings.counts[severity] for severity in Severity} if findings else {},
        "kept": len(findings.kept) if findings else 0,
        **({"identities": identities} if identities else {}),
    }


def _finding_data(finding: Finding) -> dict[str, Any]:
    return {
        "code": finding.code,
        "name": finding.name,
        "severity": str(finding.severity),
        **asdict(finding.subject),
        "message": finding.message,
        "is_new": finding.is_new,
        "identity": finding.identity,
        **({"lost": dict(zip(("kind", "size"), finding.lost, strict=True))} if finding.lost else {}),
        **({"extent": _extent_data(finding.extent)} if finding.extent else {}),
        **({"stands_for": finding.stands_for} if finding.stands_for > 1 else {}),
    }


def _extent_data(extent: Extent) -> dict[str, Any]:
    """Without whether it lasts, which the text of its finding says."""
    return {name: value for name, value in asdict(extent).items() if name != "lasts"}

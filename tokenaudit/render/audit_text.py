"""What an audit says in words: shared by everything that shows its report."""

from __future__ import annotations

from tokenaudit.audit.findings import Finding
from tokenaudit.audit.report import AuditReport, RuleRun
from tokenaudit.audit.rule import Severity
from tokenaudit.render.text import count_text, printable


def title(report: AuditReport) -> str:
    """What was audited, and against which config."""
    config = f"config from {printable(report.config_source)}" if report.config_source else "no config"
    files = f"{report.files_audited} of {count_text(report.files_named, 'file')}"
    size = f"{count_text(report.rows, 'row')} · {count_text(report.tokens, 'token')}"
    return f"{printable(report.name)} · {files} · {size} · {config}"


def verdict(report: AuditReport) -> str:
    """Findings by severity, and how many rules stand behind them."""
    if not report.has_judged:
        return "nothing was audited"
    counts = [count_text(report.count(severity), severity) for severity in (Severity.ERROR, Severity.WARNING)]
    counts.append(f"{report.count(Severity.INFO):,} info")
    ran = sum(run.ran for run in report.runs)
    parts = [f"{count_text(ran, 'rule')} checked", ", ".join(counts)]
    if report.has_baseline:
        parts.append(f"{count_text(report.count(Severity.ERROR, only_new=True), 'new error')}")
    if ran < len(report.runs):
        parts.append(f"{count_text(len(report.runs) - ran, 'rule')} not run")
    return " · ".join(parts)


def finding_text(finding: Finding) -> str:
    """Who and what, in one line."""
    return f"{printable(str(finding.subject))}: {printable(finding.message)}"


def shown_findings(report: AuditReport, most: int) -> list[Finding]:
    """The findings to list: new ones first, then the worst, in the order of the rules."""
    ordered = sorted(report.findings, key=lambda finding: (not finding.is_new, finding.severity.rank))
    return ordered[:most]


def with_findings(report: AuditReport) -> list[RuleRun]:
    """Rules that found something, the worst first."""
    runs = [run for run in report.runs if run.tally is not None and run.tally.total]
    return sorted(runs, key=lambda run: worst(run).rank)


def worst(run: RuleRun) -> Severity:
    """The worst severity that a rule found; its own where it found nothing."""
    found = [severity for severity in Severity if run.tally is not None and run.tally.counts[severity]]
    return found[0] if found else run.rule.severity


def not_run_lines(report: AuditReport) -> list[str]:
    """Rules that could not run, by what they need."""
    by_need: dict[tuple[str, ...], list[str]] = {}
    for run in report.runs:
        if not run.ran:
            by_need.setdefault(run.missing, []).append(run.rule.code)
    return [f"{' '.join(codes)}: needs {' and '.join(needs)}" for needs, codes in by_need.items()]


def caveat_lines(report: AuditReport) -> list[str]:
    """What the findings do not stand on."""
    lines: list[str] = []
    if report.why_no_replay:
        lines.append(f"no replay: {printable(report.why_no_replay)}")
    if report.left_out_groups:
        groups = count_text(report.left_out_groups, "group")
        lines.append(f"the replay leaves out {groups} with structural faults, so rules about the lifecycle miss them")
    if report.files_audited < report.files_named:
        lost = count_text(report.files_named - report.files_audited, "file")
        lines.append(f"{lost} could not be read, so groups and batches may only seem incomplete")
    return lines

"""An audit's report: what it says in words, its blocks, and its findings as CSV."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from io import StringIO

from tokenaudit.audit.findings import Finding
from tokenaudit.audit.report import AgeEvidence, AuditReport, RuleRun, report_data
from tokenaudit.audit.rule import Severity
from tokenaudit.contracts.errors import printable
from tokenaudit.render.blocks import (
    Bar,
    Block,
    Form,
    Gap,
    Heading,
    Lines,
    Paragraph,
    Phrase,
    Table,
    TableColumn,
    TableRow,
    Tone,
    count_text,
    csv_cell,
    only,
)

CSV_COLUMNS = (
    "code", "name", "severity", "task", "group_id", "rollout_id", "put", "first_token", "tokens", "train_step", "file",
    "event_id", "is_new", "message",
)  # fmt: skip
"""The columns of the CSV, in order."""
_TONES = {Severity.ERROR: Tone.BAD, Severity.WARNING: Tone.WARNING, Severity.INFO: Tone.PLAIN}


def audit_blocks(report: AuditReport, *, most: int) -> Iterator[Block]:
    """Title, verdict, rules with findings, the findings, evidence, what did not run, and caveats.

    Args:
        report: the report.
        most: findings to list; the others are counted.
    """
    yield Heading("tokenaudit audit", title(report))
    summary = Paragraph(verdict(report), Tone.STRONG)
    yield from only(Form.DOCUMENT, summary)
    yield Gap()
    runs = with_findings(report)
    if runs:
        yield _rule_table(report, runs)
        yield Gap()
        yield from _findings(report, most)
        yield Gap()
        meanings = [f"{run.rule.code} {run.rule.name}: {run.rule.meaning} {run.rule.fix}" for run in runs]
        yield Lines(meanings, Tone.FAINT, form=Form.TERMINAL)
        yield Gap()
    if report.evidence:
        yield Paragraph("how off-policy each age is", form=Form.TERMINAL)
        yield _evidence_table(report.evidence)
        yield Gap()
    not_run, caveats = not_run_lines(report), [f"note: {line}" for line in caveat_lines(report)]
    if not_run:
        yield Paragraph("not run", form=Form.TERMINAL)
        yield Lines(not_run, Tone.FAINT, indent=2, form=Form.TERMINAL)
        yield from only(Form.TERMINAL, Gap())
        yield Lines([f"not run: {line}" for line in not_run], form=Form.DOCUMENT)
    if caveats:
        yield Lines(caveats, Tone.FAINT)
        yield Gap()
    yield from only(Form.TERMINAL, summary)


def _rule_table(report: AuditReport, runs: Sequence[RuleRun]) -> Table:
    columns = [
        TableColumn("code", "left", form=Form.TERMINAL),
        TableColumn("rule", "left", form=Form.TERMINAL),
        TableColumn("rule", "left", form=Form.DOCUMENT),
        TableColumn("severity", "left"),
        TableColumn("findings"),
        TableColumn("new", form=None if report.has_baseline else Form.DOCUMENT),
        TableColumn("checked", form=Form.TERMINAL),
    ]
    return Table(columns, [_rule_row(run) for run in runs])


def _rule_row(run: RuleRun) -> TableRow:
    assert run.findings is not None
    code, name, level = run.rule.code, run.rule.name, worst(run)
    found, new = f"{run.findings.total:,}", f"{sum(run.new.values()):,}"
    checked = f"{run.findings.checked:,} {run.findings.unit}"
    return TableRow((code, name, f"{code} {name}", level, found, new, checked), _TONES[level])


def _findings(report: AuditReport, most: int) -> Iterator[Block]:
    # new ones first, then the worst, in the order of the rules
    shown = sorted(report.findings, key=lambda finding: (not finding.is_new, finding.severity.rank))[:most]
    if shown:
        yield Lines([_finding_line(finding) for finding in shown], form=Form.TERMINAL)
        listed = [f"{finding.severity} {finding.code} {finding_text(finding)}" for finding in shown]
        yield Lines(listed, form=Form.DOCUMENT)
    hidden = sum(run.findings.total for run in report.runs if run.findings is not None) - len(shown)
    if hidden:
        hint = "--max-findings shows more, --format json all that were kept"
        text = f"… {count_text(hidden, 'more finding')} not listed: {hint}"
        yield Paragraph(text, Tone.FAINT, form=Form.TERMINAL)


def _finding_line(finding: Finding) -> Phrase:
    known = "" if finding.is_new else " (known)"
    return Phrase(f"{finding.code} {finding_text(finding)}{known}", _TONES[finding.severity])


def _evidence_table(evidence: Sequence[AgeEvidence]) -> Table:
    columns = [
        TableColumn("staleness"),
        TableColumn("tokens"),
        TableColumn("mean |d|", document_name="mean abs d"),
        TableColumn("p95 |d|", document_name="p95 abs d"),
        *map(TableColumn, ("mean ratio", "effective", "outside", "KL")),
        TableColumn("outside", "left", form=Form.TERMINAL),
    ]
    rows = [
        TableRow((
            str(entry.staleness),
            f"{entry.tokens:,}",
            f"{entry.mean_abs:.4f}",
            f"{entry.p95_abs:.3f}",
            f"{entry.mean_ratio:.4f}",
            f"{100 * entry.effective_share:.1f} %",
            f"{100 * entry.outside_share:.1f} %",
            f"{entry.kl:.5f}",
            Bar(entry.outside_share),
        ))
        for entry in evidence
    ]  # fmt: skip
    return Table(columns, rows)


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


def with_findings(report: AuditReport) -> list[RuleRun]:
    """Rules that found something, the worst first."""
    runs = [run for run in report.runs if run.findings is not None and run.findings.total]
    return sorted(runs, key=lambda run: worst(run).rank)


def worst(run: RuleRun) -> Severity:
    """The worst severity that a rule found; its own where it found nothing."""
    found = [severity for severity in Severity if run.findings is not None and run.findings.counts[severity]]
    return found[0] if found else run.rule.severity


def not_run_lines(report: AuditReport) -> list[str]:
    """Rules that could not run, by what they need."""
    by_need: dict[tuple[str, ...], list[str]] = {}
    for run in report.runs:
        if not run.ran:
            by_need.setdefault(run.missing, []).append(run.rule.code)
    return [f"{' '.join(codes)}: needs {' and '.join(needs)}" for needs, codes in by_need.items()]


def caveat_lines(report: AuditReport) -> list[str]:
    """What the findings do not stand on, and what to know about the files."""
    lines: list[str] = []
    if report.why_no_replay:
        lines.append(f"no replay: {printable(report.why_no_replay)}")
    if report.left_out_groups:
        groups = count_text(report.left_out_groups, "group")
        lines.append(f"the replay leaves out {groups} with structural faults, so rules about the lifecycle miss them")
    if report.files_audited < report.files_named:
        lost = count_text(report.files_named - report.files_audited, "file")
        lines.append(f"{lost} could not be read, so groups and batches may only seem incomplete")
    return lines + [printable(note) for note in report.log_notes]


def audit_csv(report: AuditReport) -> str:
    """All findings that were kept, with a header."""
    buffer = StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(CSV_COLUMNS)
    for finding in report_data(report)["findings"]:
        writer.writerow([_cell(finding[name]) for name in CSV_COLUMNS])
    return buffer.getvalue()


def _cell(value: object) -> object:
    return csv_cell(value) if isinstance(value, str) else value

"""An audit's report: what it says in words, its blocks, and its findings as CSV."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tokenaudit.audit.findings import Finding
from tokenaudit.audit.offpolicy import AgeEvidence
from tokenaudit.audit.parity import Parity, Verdict
from tokenaudit.audit.report import AuditReport, RuleRun, report_data
from tokenaudit.audit.rule import Fact, Severity
from tokenaudit.contracts.errors import plural, printable
from tokenaudit.render.blocks import (
    Bar,
    Block,
    Fit,
    Form,
    Gap,
    Heading,
    Lines,
    Paragraph,
    Table,
    TableColumn,
    TableRow,
    Tone,
    csv_lines,
    json_lines,
    only,
)

CSV_COLUMNS = (
    "code", "name", "severity", "task", "group_id", "rollout_id", "put", "first_token", "tokens", "train_step", "file",
    "event_id", "is_new", "message",
)  # fmt: skip
"""The columns of the CSV, in order."""
_PARITY_TONES = dict.fromkeys(Verdict, Tone.WARNING) | {
    Verdict.EQUAL: Tone.PLAIN, Verdict.SHIFTED: Tone.PLAIN, Verdict.DIFFERS: Tone.BAD,
    Verdict.NOT_COMPARABLE: Tone.FAINT,
}  # fmt: skip
_TONES = {Severity.ERROR: Tone.BAD, Severity.WARNING: Tone.WARNING, Severity.INFO: Tone.PLAIN}


def audit_blocks(report: AuditReport, *, most: int, verbose: bool = False) -> Iterator[Block]:
    """Title, verdict, the findings of each rule with what to do about them, evidence, what did not run, and caveats.

    Args:
        report: the report.
        most: findings to list; the others are counted.
        verbose: list all rules that ran, and those that did not with what they need.
    """
    yield Heading("tokenaudit audit", title(report))
    summary = Paragraph(verdict(report), Tone.STRONG)
    yield from only(Form.DOCUMENT, summary)
    yield Gap()
    for run, listed in _listed(report, most):
        yield from _rule_blocks(run, listed, report)
        yield Gap()
    if report.evidence:
        yield Paragraph("how off-policy each age is")
        about = "d: log-probability of the trainer less the engine's; ratio: exp(d); outside: beyond 1 ± --clip-epsilon"
        yield Paragraph(about, Tone.FAINT)
        yield _evidence_table(report.evidence)
        yield Gap()
    if report.parity:
        yield from _parity_blocks(report.parity)
        yield Gap()
    if verbose:
        yield _rule_table(report)
        yield Gap()
    lines = [f"not run: {line}" for line in _not_run_lines(report, verbose=verbose)]
    if report.unknown_curves:
        count = plural(len(report.unknown_curves), "curve")
        lines.append(f"not compared: {count} of names that aren't known; --map THEIRS=OURS says what one is")
    lines += [f"note: {line}" for line in caveat_lines(report)]
    if any(finding.extent is not None for finding in report.findings):
        lines.append("which rows: `extent` of a finding in -o FILE.json has event ids of its puts, and its rollouts")
    if lines:
        yield Lines(lines, Tone.FAINT)
        yield Gap()
    yield from only(Form.TERMINAL, summary)


def _rule_blocks(run: RuleRun, listed: Sequence[Finding], report: AuditReport) -> Iterator[Block]:
    """A rule, what it found, and what to do about it."""
    assert run.findings is not None
    rule, findings = run.rule, run.findings
    new = f", {sum(run.new.values()):,} new" if report.has_baseline else ""
    counted = f"{plural(findings.total, 'finding')}{new} · {findings.unit} checked: {findings.checked:,}"
    yield Paragraph(f"{worst(run)} {rule.code} {rule.name} · {counted}", _TONES[worst(run)])
    lines = [finding_text(finding) + ("" if finding.is_new else " (known)") for finding in listed]
    hidden = findings.total - len(listed)
    if hidden:
        hint = "--max-findings shows more, --format json all that were kept"
        lines.append(f"… {plural(hidden, 'more finding')} not listed: {hint}")
    yield Lines(lines, indent=2)
    yield Lines([f"{rule.meaning} {rule.fix}"], Tone.FAINT, indent=2)


def _listed(report: AuditReport, most: int) -> Iterator[tuple[RuleRun, Sequence[Finding]]]:
    """Every rule with the findings of it that are listed: an equal share of `most`, and what others leave of it."""
    runs = with_findings(report)
    kept: dict[str, list[Finding]] = {run.rule.code: [] for run in runs}
    for finding in sorted(report.findings, key=lambda finding: (not finding.is_new, finding.severity.rank)):
        kept[finding.code].append(finding)
    share = most // max(1, len(runs))
    left = most - sum(min(share, len(findings)) for findings in kept.values())
    for run in runs:
        findings = kept[run.rule.code]
        more = min(left, max(0, len(findings) - share))
        left -= more
        yield run, findings[: share + more]


def _rule_table(report: AuditReport) -> Table:
    """All rules that ran, and what they looked at."""
    texts = ("rule", "severity", "looks at")
    columns = [TableColumn(name, "left", is_label=name == "rule") for name in texts]
    columns += map(TableColumn, ("checked", "findings"))
    rows = [
        TableRow((
            f"{run.rule.code} {run.rule.name}",
            worst(run),
            run.findings.unit,
            f"{run.findings.checked:,}",
            f"{run.findings.total:,}",
        ))
        for run in report.runs
        if run.findings is not None
    ]  # fmt: skip
    fit = Fit(("findings", "checked", "severity", "looks at"), columns_hint="in a wider terminal or a pipe")
    return Table(columns, rows, "rules that ran", fit=fit)


def _evidence_table(evidence: Sequence[AgeEvidence]) -> Table:
    columns = [
        TableColumn("staleness"),
        TableColumn("tokens"),
        TableColumn("mean |d|", document_name="mean abs d"),
        TableColumn("p95 |d|", document_name="p95 abs d"),
        *map(TableColumn, ("mean ratio", "effective", "outside", "KL")),
        TableColumn("", "left", form=Form.TERMINAL),
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


def _parity_blocks(parity: Sequence[Parity]) -> Iterator[Block]:
    """Each curve that the run logged, the log's series that it was compared with, and how they compare."""
    yield Paragraph("curves of the run, compared with what the log gives")
    texts = ("curve", "the log's", "unit")
    columns = [TableColumn(name, "left", is_label=name == "curve", free_text=name == "curve") for name in texts]
    columns += [TableColumn("steps"), TableColumn("parity", "left", is_label=True)]
    rows = [
        TableRow(
            (printable(one.curve), one.ours, one.unit, f"{one.steps:,}", str(one.verdict)), _PARITY_TONES[one.verdict]
        )
        for one in parity
    ]
    yield Table(columns, rows, fit=Fit(("steps", "the log's", "unit")))
    details = [f"{printable(one.curve)}: {printable(one.detail)}" for one in parity if one.detail]
    if details:
        yield Lines(details, indent=2)


def title(report: AuditReport) -> str:
    """What was audited, and against which config."""
    config = f"config from {printable(report.config_source)}" if report.config_source else "no config"
    files = f"{report.files_audited} of {plural(report.files_named, 'file')}"
    size = f"{plural(report.rows, 'row')} · {plural(report.tokens, 'token')}"
    return f"{printable(report.name)} · {files} · {size} · {config}"


def verdict(report: AuditReport) -> str:
    """Findings by severity, and how many rules stand behind them."""
    if not report.has_judged:
        return "nothing was audited"
    counts = [plural(report.count(severity), severity) for severity in (Severity.ERROR, Severity.WARNING)]
    counts.append(f"{report.count(Severity.INFO):,} info")
    ran = sum(run.ran for run in report.runs)
    parts = [f"{plural(ran, 'rule')} checked", ", ".join(counts)]
    if report.has_baseline:
        parts.append(f"{plural(report.count(Severity.ERROR, only_new=True), 'new error')}")
    if ran < len(report.runs):
        parts.append(f"{plural(len(report.runs) - ran, 'rule')} not run")
    return " · ".join(parts)


def finding_text(finding: Finding) -> str:
    """Who and what, in one line."""
    return f"{printable(str(finding.subject))}: {printable(finding.message)}"


def with_findings(report: AuditReport) -> list[RuleRun]:
    """Rules that found something: those with new findings first, then the worst, then the most costly."""
    runs = [run for run in report.runs if run.findings is not None and run.findings.total]
    return sorted(runs, key=lambda run: (not any(run.new.values()), worst(run).rank, -_cost(run)))


def _cost(run: RuleRun) -> int:
    """Tokens that are wrong or lost, as far as the rule knows."""
    return 0 if run.findings is None else run.findings.cost_tokens


def worst(run: RuleRun) -> Severity:
    """The worst severity that a rule found; its own where it found nothing."""
    found = [severity for severity in Severity if run.findings is not None and run.findings.counts[severity]]
    return found[0] if found else run.rule.severity


def _not_run_lines(report: AuditReport, *, verbose: bool) -> list[str]:
    """Rules that could not run: how many; or which, by what they need."""
    by_need: dict[tuple[str, ...], list[str]] = {}
    for run in report.runs:
        if not run.ran:
            by_need.setdefault(run.missing, []).append(run.rule.code)
    if verbose:
        return [f"{' '.join(codes)}: needs {' and '.join(needs)}" for needs, codes in by_need.items()]
    count, needs = sum(map(len, by_need.values())), len(by_need)
    lines: list[str] = []
    for_config = by_need.get((Fact.CONFIG,), [])
    if for_config:
        hint = "give one with -c FILE; `tokenaudit init LOG` writes one"
        lines.append(f"{plural(len(for_config), 'rule')} for want of a config: {hint}")
        count, needs = count - len(for_config), needs - 1
    if count:
        wanted = "a column, an event or a setting" if needs == 1 else "columns, events or settings"
        lines.append(f"{plural(count, 'rule')} for want of {wanted}; -v lists them")
    return lines


def caveat_lines(report: AuditReport) -> list[str]:
    """What the findings do not stand on, and what to know about the files."""
    lines: list[str] = []
    if report.why_no_replay and not any(run.missing[:1] == (Fact.CONFIG,) for run in report.runs):
        lines.append(f"no replay: {printable(report.why_no_replay)}")
    if report.left_out_groups:
        groups = plural(report.left_out_groups, "group")
        lines.append(f"the replay leaves out {groups} with structural faults, so rules about the lifecycle miss them")
    if report.files_audited < report.files_named:
        lost = plural(report.files_named - report.files_audited, "file")
        lines.append(f"{lost} could not be read, so groups and batches may only seem incomplete")
    return lines + [printable(note) for note in report.log_notes]


def audit_csv(report: AuditReport) -> str:
    """All findings that were kept, with a header."""
    return csv_lines(CSV_COLUMNS, report_data(report)["findings"])


def audit_jsonl(report: AuditReport) -> str:
    """The same as JSON Lines."""
    return json_lines({name: finding[name] for name in CSV_COLUMNS} for finding in report_data(report)["findings"])

"""An audit's report as Markdown, for pull requests and job summaries."""

from __future__ import annotations

from collections.abc import Iterator

from tokenaudit.audit.report import AuditReport
from tokenaudit.render.audit_text import (
    caveat_lines,
    finding_text,
    not_run_lines,
    shown_findings,
    title,
    verdict,
    with_findings,
    worst,
)
from tokenaudit.render.markdown import inline, markdown_table


def audit_markdown(report: AuditReport, *, most: int) -> str:
    """Title, verdict, rules with findings, the first findings, evidence, and what did not run."""
    return "\n".join(_blocks(report, most)).rstrip("\n") + "\n"


def _blocks(report: AuditReport, most: int) -> Iterator[str]:
    yield f"## tokenaudit audit: {inline(title(report))}\n"
    yield f"**{inline(verdict(report))}**\n"
    runs = with_findings(report)
    if runs:
        rows = [
            (f"{run.rule.code} {run.rule.name}", worst(run), f"{run.tally.total:,}", f"{sum(run.new.values()):,}")
            for run in runs
            if run.tally is not None
        ]
        yield markdown_table(("rule", "severity", "findings", "new"), rows, texts=2) + "\n"
    shown = shown_findings(report, most)
    yield from (f"- {finding.severity} {finding.code} {inline(finding_text(finding))}" for finding in shown)
    if shown:
        yield ""
    if report.evidence:
        header = ("staleness", "tokens", "mean abs d", "p95 abs d", "mean ratio", "effective", "outside", "KL")
        figures = [
            (
                str(entry.staleness),
                f"{entry.tokens:,}",
                f"{entry.mean_abs:.4f}",
                f"{entry.p95_abs:.3f}",
                f"{entry.mean_ratio:.4f}",
                f"{100 * entry.effective_share:.1f} %",
                f"{100 * entry.outside_share:.1f} %",
                f"{entry.kl:.5f}",
            )
            for entry in report.evidence
        ]
        yield markdown_table(header, figures) + "\n"
    yield from (f"- not run: {inline(line)}" for line in not_run_lines(report))
    yield from (f"- note: {inline(line)}" for line in caveat_lines(report))

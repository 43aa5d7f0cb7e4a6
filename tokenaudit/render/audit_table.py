"""An audit's report as text for people: rules with findings, findings, evidence, and the verdict."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich import box
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from tokenaudit.audit.report import AgeEvidence, AuditReport
from tokenaudit.audit.rule import Severity
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
from tokenaudit.render.console import drawn
from tokenaudit.render.text import count_text

_BAR = 24
_STYLES = {Severity.ERROR: "red", Severity.WARNING: "yellow", Severity.INFO: ""}


def render_audit(
    report: AuditReport, *, most: int, width: int | None = None, color: bool = False, unicode: bool = True
) -> str:
    """Draw a report; ends with a line feed.

    Args:
        report: the report.
        most: findings to list; the others are counted.
        width: columns of the terminal; None: not a terminal.
        color: use colour.
        unicode: use characters beyond ASCII.
    """
    return drawn(_parts(report, most, unicode), width=width, color=color, unicode=unicode)


def _parts(report: AuditReport, most: int, unicode: bool) -> Iterator[RenderableType]:
    yield Text(title(report), style="bold")
    yield Text()
    runs = with_findings(report)
    if runs:
        yield _rule_table(report, unicode)
        yield Text()
        yield from _finding_lines(report, most)
        yield Text()
        for run in runs:
            yield Text(f"{run.rule.code} {run.rule.name}: {run.rule.meaning} {run.rule.fix}", style="dim")
        yield Text()
    if report.evidence:
        yield Text("how off-policy each age is")
        yield _evidence_table(report.evidence, unicode)
        yield Text()
    lines = not_run_lines(report)
    if lines:
        yield Text("not run")
        yield from (Text(f"  {line}", style="dim") for line in lines)
        yield Text()
    caveats = caveat_lines(report)
    if caveats:
        yield from (Text(f"note: {line}", style="dim") for line in caveats)
        yield Text()
    yield Text(verdict(report), style="bold")


def _rule_table(report: AuditReport, unicode: bool) -> Table:
    table = _table(unicode)
    for name in ("code", "rule", "severity"):
        table.add_column(name, no_wrap=True)
    for name in ("findings", *(["new"] if report.has_baseline else []), "checked"):
        table.add_column(name, justify="right", no_wrap=True)
    for run in with_findings(report):
        assert run.tally is not None
        level = worst(run)
        new = [f"{sum(run.new.values()):,}"] if report.has_baseline else []
        checked = f"{run.tally.checked:,} {run.tally.unit}"
        row = (run.rule.code, run.rule.name, level, f"{run.tally.total:,}", *new, checked)
        table.add_row(*row, style=_STYLES[level])
    return table


def _finding_lines(report: AuditReport, most: int) -> Iterator[Text]:
    shown = shown_findings(report, most)
    for finding in shown:
        known = "" if finding.is_new else " (known)"
        line = Text(f"{finding.code} ", style=_STYLES[finding.severity])
        yield line.append(f"{finding_text(finding)}{known}", style="")
    hidden = sum(run.tally.total for run in report.runs if run.tally is not None) - len(shown)
    if hidden:
        hint = "--max-findings shows more, --format json all that were kept"
        yield Text(f"… {count_text(hidden, 'more finding')} not listed: {hint}", style="dim")


def _evidence_table(evidence: Sequence[AgeEvidence], unicode: bool) -> Table:
    table = _table(unicode)
    for name in ("staleness", "tokens", "mean |d|", "p95 |d|", "mean ratio", "effective", "outside", "KL"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("outside", no_wrap=True)
    for entry in evidence:
        bar = ("█" if unicode else "#") * round(_BAR * entry.outside_share)
        table.add_row(
            str(entry.staleness),
            f"{entry.tokens:,}",
            f"{entry.mean_abs:.4f}",
            f"{entry.p95_abs:.3f}",
            f"{entry.mean_ratio:.4f}",
            f"{100 * entry.effective_share:.1f} %",
            f"{100 * entry.outside_share:.1f} %",
            f"{entry.kl:.5f}",
            bar,
        )
    return table


def _table(unicode: bool) -> Table:
    return Table(box=box.SIMPLE_HEAD if unicode else box.ASCII, show_edge=False, pad_edge=False, header_style="bold")

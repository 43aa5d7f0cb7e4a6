"""A gate's report as text for people: a line per rule, the worst first, and the verdict last."""

from __future__ import annotations

from collections.abc import Iterator

from rich.text import Text

from tokenaudit.gate.report import BY_DEFAULT, GateReport, Verdict
from tokenaudit.render.console import drawn
from tokenaudit.render.gate_text import details, improvement_line, label, statement, summary, title
from tokenaudit.render.text import printable

_STYLES = {"failed": "bold red", "not judged": "bold yellow", "warning": "yellow", "passed": "green"}


def render_gate_table(report: GateReport, *, color: bool = False, unicode: bool = True) -> str:
    """Draw a report; ends with a line feed."""
    return drawn(_lines(report), color=color, unicode=unicode)


def _lines(report: GateReport) -> Iterator[Text]:
    yield Text(title(report), style="bold")
    yield Text()
    for verdict in report.verdicts:
        yield from _verdict_lines(verdict)
    if report.verdicts:
        yield Text()
    improved = improvement_line(report)
    if improved:
        yield Text(improved, style="green")
    yield Text(summary(report), style="bold")


def _verdict_lines(verdict: Verdict) -> Iterator[Text]:
    word = label(verdict)
    origin = verdict.located.origin
    rule = printable(str(verdict.rule))
    place = "" if origin is BY_DEFAULT else f"  [{printable(origin.place)}]"
    yield Text.assemble((f"{word:<10}", _STYLES[word]), f"  {rule}", (place, "dim"))
    for line in (statement(verdict), *details(verdict)):
        yield Text(f"{'':<12}{line}")

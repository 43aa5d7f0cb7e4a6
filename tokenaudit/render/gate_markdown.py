"""A gate's report as Markdown, for job summaries and pull requests."""

from __future__ import annotations

from collections.abc import Iterator

from tokenaudit.gate.report import GateReport
from tokenaudit.render.gate_text import details, improvement_line, label, statement, summary, title
from tokenaudit.render.markdown import inline, markdown_table

SUMMARY_BYTES = 2**20
"""What a job summary may hold."""

_CUT = "\n\n*cut here: a job summary holds 1 MiB*\n"


def render_gate_markdown(report: GateReport) -> str:
    """Title, verdict, warnings and a row per rule, the worst first."""
    return "\n".join(_blocks(report)).rstrip("\n") + "\n"


def _blocks(report: GateReport) -> Iterator[str]:
    yield f"## tokenaudit gate: {inline(title(report))}\n"
    yield f"**{summary(report)}**\n"
    improved = improvement_line(report)
    if improved:
        yield f"{inline(improved)}\n"
    for notice in report.notices:
        yield f"- warning: {inline(notice.message)}" + (f" ({inline(notice.cost)})" if notice.cost else "")
    if report.notices:
        yield ""
    rows = [
        (label(verdict), str(verdict.rule), "; ".join((statement(verdict), *details(verdict))))
        for verdict in report.verdicts
    ]
    if rows:
        yield markdown_table(("outcome", "rule", "figure"), rows, texts=3, cell=inline)


def fitting(text: str, room: int) -> str:
    """As many whole lines of `text` as fit into `room` bytes, and a line that says where it was cut."""
    if len(text.encode(errors="backslashreplace")) <= room:
        return text
    room -= len(_CUT)
    kept: list[str] = []
    for line in text.split("\n"):
        room -= len(line.encode(errors="backslashreplace")) + 1
        if room < 0:
            break
        kept.append(line)
    return "\n".join(kept) + _CUT if kept else ""

"""A gate's report: its blocks, and its data."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from tokenaudit import __version__
from tokenaudit.compare.compare import setting_cells
from tokenaudit.compare.exact import distinct_texts, number_text, plain_number
from tokenaudit.compare.metric_values import total_value
from tokenaudit.contracts.errors import plural, printable
from tokenaudit.contracts.files import json_text
from tokenaudit.contracts.metrics import OUTCOMES
from tokenaudit.gate.report import (
    BY_DEFAULT,
    GATE_SCHEMA_VERSION,
    KIND_GATE,
    GateReport,
    Observation,
    Outcome,
    Verdict,
)
from tokenaudit.gate.rule import Level
from tokenaudit.gate.wording import details, label, message, statement, summary, title
from tokenaudit.render.blocks import (
    Block,
    Form,
    Gap,
    Heading,
    Line,
    Lines,
    Paragraph,
    Phrase,
    Table,
    TableColumn,
    TableRow,
    Tone,
    notice_lines,
    only,
)
from tokenaudit.replay.result import Result

_TONES = {"failed": Tone.FAILED, "not judged": Tone.UNDECIDED, "warning": Tone.WARNING, "passed": Tone.GOOD}


def gate_blocks(report: GateReport, *, all_rules: bool = False) -> Iterator[Block]:
    """Title, settings that changed, verdict, and what became of the rules, the worst first.

    Args:
        report: what to show.
        all_rules: a terminal shows the rules that passed, too; a document always does.
    """
    yield Heading("tokenaudit gate", title(report))
    yield from _settings_blocks(report)
    improved = improvement_line(report)
    improvement = [Paragraph(improved, Tone.GOOD)] if improved else []
    verdict = Paragraph(summary(report), Tone.STRONG)
    yield from only(Form.DOCUMENT, verdict, *improvement)
    if report.notices:
        yield Lines(notice_lines(report.notices), form=Form.DOCUMENT)
    yield Gap()
    # what passed for want of data is no pass to be silent about
    shown = [one for one in report.verdicts if all_rules or one.outcome is not Outcome.PASSED or one.value is None]
    if shown:
        yield Lines([line for verdict in shown for line in _verdict_lines(verdict)], form=Form.TERMINAL)
        yield Gap()
    if report.verdicts:
        columns = [TableColumn(name, "left") for name in ("outcome", "rule", "figure")]
        rows = [TableRow((label(verdict), str(verdict.rule), message(verdict, "; "))) for verdict in report.verdicts]
        yield Table(columns, rows, free_text=True, form=Form.DOCUMENT)
    more = "" if len(shown) == len(report.verdicts) else "; -v lists what passed"
    yield from only(Form.TERMINAL, *improvement, Paragraph(summary(report) + more, Tone.STRONG))


def _settings_blocks(report: GateReport) -> Iterator[Block]:
    """What this run was configured otherwise than the baseline."""
    if report.baseline is None:
        return
    yield Gap()
    if report.settings:
        columns = [TableColumn(name, "left") for name in ("changed setting", "baseline", "this run")]
        yield Table(columns, [TableRow(setting_cells(change)[:3]) for change in report.settings], free_text=True)
    else:
        yield Paragraph("no setting changed since the baseline", literal=True)


def _verdict_lines(verdict: Verdict) -> Iterator[Line]:
    word = label(verdict)
    origin = verdict.located.origin
    place = "" if origin is BY_DEFAULT else f"  [{printable(origin.place)}]"
    yield Phrase(f"{word:<10}", _TONES[word]), f"  {printable(str(verdict.rule))}", Phrase(place, Tone.FAINT)
    yield from (f"{'':<12}{line}" for line in (statement(verdict), *details(verdict)))


def improvement_line(report: GateReport) -> str:
    """What got better, in one line; empty where nothing did."""
    better = [verdict for verdict in report.verdicts if verdict.has_improved]
    if not better:
        return ""
    return f"better than the baseline, which can be tightened: {'; '.join(map(_improvement, better))}"


def _improvement(verdict: Verdict) -> str:
    figure = verdict.rule.figure
    known = [number for number in (verdict.baseline, verdict.value) if number is not None]
    return f"{figure.name}{printable(str(verdict.rule.scope))} {' → '.join(distinct_texts(known, figure))}"


def baseline_line(result: Result) -> str:
    """What a run holds that becomes a baseline: its log, steps and tasks, and its outcomes."""
    values = ((figure, total_value(result, figure)) for figure in OUTCOMES)
    outcomes = [f"{figure.name} {number_text(value, figure)}" for figure, value in values if value is not None]
    names = ", ".join(printable(entry.name) for entry in result.inputs)
    covered = f"{plural(len(result.steps), 'step')}, {plural(len(result.tasks), 'task')}"
    return f"{names}, {covered}, config {printable(result.config_source)}; {', '.join(outcomes)}"


def gate_json(report: GateReport) -> str:
    """The report as JSON, with a line feed at the end; equal reports give equal bytes."""
    return json_text(gate_data(report))


def gate_data(report: GateReport) -> dict[str, Any]:
    """The report as plain data. Values that aren't whole are floats; the verdicts were reached without them."""
    return {
        "kind": KIND_GATE,
        "schema_version": GATE_SCHEMA_VERSION,
        "tool": f"tokenaudit {__version__}",
        "inputs": [asdict(entry) for entry in report.inputs],
        "baseline": None if report.baseline is None else [asdict(entry) for entry in report.baseline],
        "settings": [{"key": change.key, "baseline": change.a, "run": change.b} for change in report.settings],
        "exit_code": report.exit_code(),
        "rules": len(report.verdicts),
        "failed": report.count(Outcome.FAILED, Level.ERROR),
        "warned": report.count(Outcome.FAILED, Level.WARNING),
        "not_judged": report.count(Outcome.NOT_JUDGED),
        "passed": report.count(Outcome.PASSED),
        "steps": report.steps,
        "tasks": list(report.tasks),
        "verdicts": [_verdict_data(verdict) for verdict in report.verdicts],
        "warnings": [asdict(notice) for notice in report.notices],
    }


def _verdict_data(verdict: Verdict) -> dict[str, Any]:
    origin = verdict.located.origin
    counts = verdict.counts
    return {
        "rule": str(verdict.rule),
        "metric": verdict.rule.figure.name,
        "outcome": label(verdict).replace(" ", "_"),
        "level": str(verdict.rule.level),
        "source": origin.name,
        "line": origin.line,
        "value": plain_number(verdict.value),
        "numerator": plain_number(counts[0]) if counts else None,
        "denominator": plain_number(counts[1]) if counts else None,
        "limit": plain_number(verdict.limit),
        "beyond_limit": plain_number(verdict.beyond_limit),
        "baseline": plain_number(verdict.baseline),
        "improved": verdict.has_improved,
        "worst_step": _observation_data(verdict.worst_step),
        "worst_task": _observation_data(verdict.worst_task),
        "judged": verdict.judged,
        "beyond": verdict.failed,
        "message": message(verdict, "; "),
    }


def _observation_data(observed: Observation | None) -> dict[str, Any] | None:
    if observed is None:
        return None
    return {
        "train_step": observed.train_step,
        "task": observed.task,
        "value": plain_number(observed.value),
        "baseline": plain_number(observed.baseline),
    }

"""A gate's report as plain data, and as the JSON of it."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from tokenaudit import __version__
from tokenaudit.compare.metric_values import Number
from tokenaudit.gate.report import GATE_SCHEMA_VERSION, KIND_GATE, GateReport, Outcome, Spot, Verdict
from tokenaudit.gate.rule import Level
from tokenaudit.render.gate_text import details, label, statement


def gate_json(report: GateReport) -> str:
    """The report as JSON, with a line feed at the end; equal reports give equal bytes."""
    return json.dumps(gate_data(report), indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def gate_data(report: GateReport) -> dict[str, Any]:
    """The report as plain data. Values that aren't whole are floats; the verdicts were reached without them."""
    return {
        "kind": KIND_GATE,
        "schema_version": GATE_SCHEMA_VERSION,
        "tool": f"tokenaudit {__version__}",
        "inputs": [asdict(entry) for entry in report.inputs],
        "baseline": None if report.baseline is None else [asdict(entry) for entry in report.baseline],
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


def plain_number(value: Number | None) -> int | float | str | None:
    """A number as JSON holds it: whole ones exactly, others as the nearest float, as text where there is none."""
    if value is None or value == int(value):
        return None if value is None else int(value)
    try:
        return float(value)
    except OverflowError:
        return str(value)


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
        "beyond_limit": plain_number(verdict.excess),
        "baseline": plain_number(verdict.baseline),
        "improved": verdict.has_improved,
        "worst_step": _spot_data(verdict.worst_step),
        "worst_task": _spot_data(verdict.worst_task),
        "judged": verdict.judged,
        "beyond": verdict.failed,
        "message": "; ".join((statement(verdict), *details(verdict))),
    }


def _spot_data(spot: Spot | None) -> dict[str, Any] | None:
    if spot is None:
        return None
    return {
        "train_step": spot.train_step,
        "task": spot.task,
        "value": plain_number(spot.value),
        "baseline": plain_number(spot.baseline),
    }

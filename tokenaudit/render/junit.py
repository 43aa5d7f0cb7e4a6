"""A gate's report as JUnit XML: a rule is a test case; a regression fails it, a rule without a verdict is an error."""

from __future__ import annotations

from xml.etree import ElementTree as ET

from tokenaudit.gate.report import GateReport, Outcome, Verdict
from tokenaudit.gate.rule import Level
from tokenaudit.render.gate_text import details, label, statement, title
from tokenaudit.render.junit_suites import junit_text
from tokenaudit.render.text import printable

_CLASS = "tokenaudit.gate"


def render_junit(report: GateReport) -> str:
    """The XML, with a line feed at the end. Warnings don't fail a test case; their text is its output."""
    counts = {
        "tests": len(report.verdicts),
        "failures": report.count(Outcome.FAILED, Level.ERROR),
        "errors": report.count(Outcome.NOT_JUDGED, Level.ERROR),
    }
    skipped = report.count(Outcome.NOT_JUDGED, Level.WARNING)
    return junit_text("tokenaudit gate", title(report), counts, skipped, map(_case, report.verdicts))


def _case(verdict: Verdict) -> ET.Element:
    case = ET.Element("testcase", {"classname": _CLASS, "name": printable(str(verdict.rule))})
    message = statement(verdict)
    text = "\n".join((message, *details(verdict), f"rule from {printable(verdict.located.origin.place)}"))
    is_error = verdict.rule.level is Level.ERROR
    if verdict.outcome is Outcome.PASSED or (verdict.outcome is Outcome.FAILED and not is_error):
        output = ET.SubElement(case, "system-out")
        output.text = text if verdict.outcome is Outcome.PASSED else f"warning: {text}"
        return case
    tag = "failure" if verdict.outcome is Outcome.FAILED else "error" if is_error else "skipped"
    part = ET.SubElement(case, tag, {"type": label(verdict).replace(" ", "-"), "message": message})
    part.text = text
    return case

"""A gate's report as JUnit XML: a rule is a test case; a regression fails it, a rule without a verdict is an error."""

from __future__ import annotations

from xml.etree import ElementTree as ET

from tokenaudit.render.gate_text import details, label, statement, title
from tokenaudit.render.text import printable
from tokenaudit.rules import Level
from tokenaudit.verdicts import GateReport, Outcome, Verdict

_CLASS = "tokenaudit.gate"


def render_junit(report: GateReport) -> str:
    """The XML, with a line feed at the end. Warnings don't fail a test case; their text is its output."""
    counts = {
        "tests": len(report.verdicts),
        "failures": report.count(Outcome.FAILED, Level.ERROR),
        "errors": report.count(Outcome.NOT_JUDGED, Level.ERROR),
    }
    root = ET.Element("testsuites", {"name": "tokenaudit gate"} | _texts(counts))
    skipped = {"skipped": report.count(Outcome.NOT_JUDGED, Level.WARNING)}
    suite = ET.SubElement(root, "testsuite", {"name": title(report)} | _texts(counts | skipped))
    for verdict in report.verdicts:
        _add_case(suite, verdict)
    ET.indent(root, " ")
    # printable() has taken out every character that XML can't hold.
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ET.tostring(root, encoding="unicode") + "\n"


def _add_case(suite: ET.Element, verdict: Verdict) -> None:
    case = ET.SubElement(suite, "testcase", {"classname": _CLASS, "name": printable(str(verdict.rule))})
    message = statement(verdict)
    text = "\n".join((message, *details(verdict), f"rule from {printable(verdict.located.origin.place)}"))
    is_error = verdict.rule.level is Level.ERROR
    if verdict.outcome is Outcome.PASSED or (verdict.outcome is Outcome.FAILED and not is_error):
        output = ET.SubElement(case, "system-out")
        output.text = text if verdict.outcome is Outcome.PASSED else f"warning: {text}"
        return
    tag = "failure" if verdict.outcome is Outcome.FAILED else "error" if is_error else "skipped"
    part = ET.SubElement(case, tag, {"type": label(verdict).replace(" ", "-"), "message": message})
    part.text = text


def _texts(counts: dict[str, int]) -> dict[str, str]:
    return {name: str(count) for name, count in counts.items()}

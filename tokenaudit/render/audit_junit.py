"""An audit's report as JUnit XML: a rule is a test case; errors fail it, a rule that did not run is skipped."""

from __future__ import annotations

from xml.etree import ElementTree as ET

from tokenaudit.audit.report import AuditReport, RuleRun
from tokenaudit.audit.rule import Severity
from tokenaudit.render.audit_text import finding_text, title
from tokenaudit.render.junit_suites import junit_text
from tokenaudit.render.text import count_text, printable

_CLASS = "tokenaudit.audit"


def audit_junit(report: AuditReport, *, most: int) -> str:
    """The XML, with a line feed at the end. Only new findings of level error fail a test case."""
    failures = sum(bool(run.new.get(Severity.ERROR)) for run in report.runs)
    counts = {"tests": len(report.runs), "failures": failures, "errors": 0}
    skipped = sum(not run.ran for run in report.runs)
    cases = (_case(run, report, most) for run in report.runs)
    return junit_text("tokenaudit audit", title(report), counts, skipped, cases)


def _case(run: RuleRun, report: AuditReport, most: int) -> ET.Element:
    case = ET.Element("testcase", {"classname": _CLASS, "name": f"{run.rule.code} {run.rule.name}"})
    if run.tally is None:
        ET.SubElement(case, "skipped", {"message": f"not run: needs {printable(' and '.join(run.missing))}"})
        return case
    own = [finding for finding in report.findings if finding.code == run.rule.code and finding.is_new]
    if not own:
        return case
    text = "\n".join((*(f"{f.severity}: {finding_text(f)}" for f in own[:most]), run.rule.fix))
    errors = run.new.get(Severity.ERROR, 0)
    if errors:
        message = f"{count_text(errors, 'finding')}: {run.rule.meaning}"
        part = ET.SubElement(case, "failure", {"type": run.rule.name, "message": message})
    else:
        part = ET.SubElement(case, "system-out")
    part.text = text
    return case

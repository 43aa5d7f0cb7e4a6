"""A gate's or an audit's report as JUnit XML: a rule is a test case."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from xml.etree import ElementTree as ET

from tokenaudit.audit.report import AuditReport, RuleRun
from tokenaudit.audit.rule import Severity
from tokenaudit.compare.compare import setting_cells
from tokenaudit.contracts.errors import plural, printable
from tokenaudit.gate import wording
from tokenaudit.gate.report import BY_DEFAULT, GateReport, Outcome, Verdict
from tokenaudit.gate.rule import Level
from tokenaudit.render import audit


def gate_junit(report: GateReport) -> str:
    """The XML, with a line feed at the end: a broken rule fails its test case, one that isn't judged is an error.

    Warnings don't fail a test case; their text is its output. Settings that changed are properties of the suite.
    """
    counts = {
        "tests": len(report.verdicts),
        "failures": report.count(Outcome.FAILED, Level.ERROR),
        "errors": report.count(Outcome.NOT_JUDGED, Level.ERROR),
    }
    skipped = report.count(Outcome.NOT_JUDGED, Level.WARNING)
    cases = map(_verdict_case, report.verdicts)
    settings = {key: f"{before} → {after}" for key, before, after, _ in map(setting_cells, report.settings)}
    return _suites("tokenaudit gate", wording.title(report), counts, skipped, cases, settings)


def audit_junit(report: AuditReport, *, most: int) -> str:
    """The XML, with a line feed at the end: new errors fail the test case of their rule; what did not run is skipped.

    Args:
        report: the report.
        most: findings of one rule that are listed.
    """
    failures = sum(bool(run.new.get(Severity.ERROR)) for run in report.runs)
    counts = {"tests": len(report.runs), "failures": failures, "errors": 0}
    skipped = sum(not run.ran for run in report.runs)
    cases = (_rule_case(run, report, most) for run in report.runs)
    return _suites("tokenaudit audit", audit.title(report), counts, skipped, cases)


def _verdict_case(verdict: Verdict) -> ET.Element:
    case = ET.Element("testcase", {"classname": "tokenaudit.gate", "name": printable(str(verdict.rule))})
    origin = verdict.located.origin
    source = "rule by default, as none was given" if origin is BY_DEFAULT else f"rule from {printable(origin.place)}"
    text = "\n".join((wording.message(verdict, "\n"), source))
    is_error = verdict.rule.level is Level.ERROR
    if verdict.outcome is Outcome.PASSED or (verdict.outcome is Outcome.FAILED and not is_error):
        output = ET.SubElement(case, "system-out")
        output.text = text if verdict.outcome is Outcome.PASSED else f"warning: {text}"
        return case
    tag = "failure" if verdict.outcome is Outcome.FAILED else "error" if is_error else "skipped"
    kind = wording.label(verdict).replace(" ", "-")
    part = ET.SubElement(case, tag, {"type": kind, "message": wording.statement(verdict)})
    part.text = text
    return case


def _rule_case(run: RuleRun, report: AuditReport, most: int) -> ET.Element:
    case = ET.Element("testcase", {"classname": "tokenaudit.audit", "name": f"{run.rule.code} {run.rule.name}"})
    if run.findings is None:
        ET.SubElement(case, "skipped", {"message": f"not run: needs {printable(' and '.join(run.missing))}"})
        return case
    new = [finding for finding in report.findings if finding.code == run.rule.code and finding.is_new]
    if not new:
        return case
    errors = run.new.get(Severity.ERROR, 0)
    if errors:
        message = f"{plural(errors, 'finding')}: {run.rule.meaning}"
        part = ET.SubElement(case, "failure", {"type": run.rule.name, "message": message})
    else:
        part = ET.SubElement(case, "system-out")
    lines = (f"{finding.severity}: {audit.finding_text(finding)}" for finding in new[:most])
    part.text = "\n".join((*lines, run.rule.fix))
    return case


def _suites(
    name: str,
    title: str,
    counts: Mapping[str, int],
    skipped: int,
    cases: Iterable[ET.Element],
    properties: Mapping[str, str] | None = None,
) -> str:
    """The frame of every report: one suite of test cases; only the suite itself counts the skipped ones."""
    numbers = {key: str(count) for key, count in counts.items()}
    root = ET.Element("testsuites", {"name": name} | numbers)
    suite = ET.SubElement(root, "testsuite", {"name": title} | numbers | {"skipped": str(skipped)})
    if properties:
        listed = ET.SubElement(suite, "properties")
        listed.extend(ET.Element("property", {"name": key, "value": value}) for key, value in properties.items())
    suite.extend(cases)
    ET.indent(root, " ")
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ET.tostring(root, encoding="unicode") + "\n"

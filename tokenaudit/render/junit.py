"""A gate's or an audit's report as JUnit XML: a rule is a test case."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple
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

    Rules that passed and warnings don't fail a test case; their text is output of the suite. Settings that changed are
    its properties.
    """
    counts = {
        "tests": len(report.verdicts),
        "failures": report.count(Outcome.FAILED, Level.ERROR),
        "errors": report.count(Outcome.NOT_JUDGED, Level.ERROR),
        "skipped": report.count(Outcome.NOT_JUDGED, Level.WARNING),
    }
    cases = map(_verdict_case, report.verdicts)
    settings = {key: f"{before} → {after}" for key, before, after, _ in map(setting_cells, report.settings)}
    return _suites("gate", wording.title(report), counts, cases, settings)


def audit_junit(report: AuditReport, *, most: int) -> str:
    """The XML, with a line feed at the end: new errors fail the test case of their rule; what did not run is skipped.

    Args:
        report: the report.
        most: findings of one rule that are listed.
    """
    counts = {
        "tests": len(report.runs),
        "failures": sum(bool(run.new.get(Severity.ERROR)) for run in report.runs),
        "errors": 0,
        "skipped": sum(not run.ran for run in report.runs),
    }
    cases = (_rule_case(run, report, most) for run in report.runs)
    return _suites("audit", audit.title(report), counts, cases, {})


class _Case(NamedTuple):
    """A test case of a suite."""

    name: str
    outcome: ET.Element | None = None
    """What kept it from passing."""
    output: str = ""
    """What stands in the output of the suite, as the schema of Ant's reports wants it."""


def _verdict_case(verdict: Verdict) -> _Case:
    name = printable(str(verdict.rule))
    origin = verdict.located.origin
    source = "rule by default, as none was given" if origin is BY_DEFAULT else f"rule from {printable(origin.place)}"
    text = "\n".join((wording.message(verdict, "\n"), source))
    is_error = verdict.rule.level is Level.ERROR
    if verdict.outcome is Outcome.PASSED or (verdict.outcome is Outcome.FAILED and not is_error):
        return _Case(name, output=text if verdict.outcome is Outcome.PASSED else f"warning: {text}")
    part = ET.Element("skipped", {"message": wording.statement(verdict)})
    if is_error:
        part.tag = "failure" if verdict.outcome is Outcome.FAILED else "error"
        part.set("type", wording.label(verdict).replace(" ", "-"))
    part.text = text
    return _Case(name, part)


def _rule_case(run: RuleRun, report: AuditReport, most: int) -> _Case:
    name = f"{run.rule.code} {run.rule.name}"
    if run.findings is None:
        message = f"not run: needs {printable(' and '.join(run.missing))}"
        return _Case(name, ET.Element("skipped", {"message": message}))
    new = [finding for finding in report.findings if finding.code == run.rule.code and finding.is_new]
    if not new:
        return _Case(name)
    lines = (f"{finding.severity}: {audit.finding_text(finding)}" for finding in new[:most])
    text = "\n".join((*lines, run.rule.fix))
    errors = run.new.get(Severity.ERROR, 0)
    if not errors:
        return _Case(name, output=text)
    message = f"{plural(errors, 'finding')}: {run.rule.meaning}"
    part = ET.Element("failure", {"message": message, "type": run.rule.name})
    part.text = text
    return _Case(name, part)


def _suites(
    command: str, title: str, counts: Mapping[str, int], cases: Iterable[_Case], properties: Mapping[str, str]
) -> str:
    """The frame of every report: one suite of test cases, as the schemas of Jenkins and of Ant's reports both want it.

    The latter wants times; they are zero, so that equal reports are equal files.
    """
    root = ET.Element("testsuites")
    about = {"name": title, "package": f"tokenaudit.{command}", "id": "0", "hostname": "localhost"}
    times = {"time": "0", "timestamp": "1970-01-01T00:00:00"}
    suite = ET.SubElement(root, "testsuite", about | times | {key: str(count) for key, count in counts.items()})
    listed = ET.SubElement(suite, "properties")
    listed.extend(ET.Element("property", {"name": key, "value": value}) for key, value in properties.items())
    output: list[str] = []
    for case in cases:
        names = {"classname": f"tokenaudit.{command}", "name": case.name, "time": "0"}
        element = ET.SubElement(suite, "testcase", names)
        if case.outcome is not None:
            element.append(case.outcome)
        if case.output:
            output.append(f"{case.name}\n{case.output}\n")
    ET.SubElement(suite, "system-out").text = "\n".join(output)
    ET.SubElement(suite, "system-err")
    ET.indent(root, " ")
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ET.tostring(root, encoding="unicode") + "\n"

"""What a baseline, a report saved as JSON, knows of the findings of another."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tokenaudit.audit.findings import Finding, Lost, Subject
from tokenaudit.audit.identities import BUCKETS, Identities
from tokenaudit.audit.report import AUDIT_SCHEMA_VERSION, KIND_AUDIT, AuditReport, RuleRun
from tokenaudit.audit.rule import Severity
from tokenaudit.contracts.errors import Problem, ResultError

_Key = tuple[str, Severity]
"""Name of a rule and severity of its findings."""


@dataclass(slots=True)
class _Known:
    """What a baseline knows.

    Attributes:
        listed: the findings it lists, by identity, and what they lost.
        counted: all identities, where it lists only some.
        summed: identities and severities of findings that stand for many: fewer, which are listed one by one, aren't
            new.
    """

    listed: defaultdict[_Key, list[tuple[str, Lost | None]]] = field(default_factory=lambda: defaultdict(list))
    counted: dict[_Key, Identities] = field(default_factory=dict)
    summed: set[_Key] = field(default_factory=set)

    def identities_of(self, rule: str, severity: Severity) -> Identities:
        """Those of all its findings."""
        key = (rule, severity)
        return self.counted.get(key) or Identities.of(identity for identity, _ in self.listed[key])


def compared(report: AuditReport, baseline: Mapping[str, Any], source: str) -> AuditReport:
    """The report with the findings marked as known that a baseline, a report saved as JSON at `source`, knows.

    Raises:
        ResultError: the baseline is no saved audit.
    """
    known = _known(baseline, source)
    findings = _marked_new(report.findings, known)
    runs: list[RuleRun] = []
    settled = set[tuple[str, Severity]]()
    for run in report.runs:
        new: dict[Severity, int] = {}
        for severity in Severity if run.findings else ():
            kept = [f for f in findings if f.code == run.rule.code and f.severity is severity]
            if run.findings and run.findings.identities:
                before = known.identities_of(run.rule.name, severity)
                new[severity] = run.findings.identities[severity].new_since(before)
            elif (run.rule.name, severity) in known.counted:
                before = known.counted[run.rule.name, severity]
                new[severity] = Identities.of(finding.identity for finding in kept).new_since(before)
            else:
                new[severity] = sum(finding.is_new for finding in kept)
            if not new[severity]:
                # Known, though not listed there.
                settled.add((run.rule.code, severity))
        runs.append(replace(run, new=new))
    findings = [replace(f, is_new=False) if (f.code, f.severity) in settled else f for f in findings]
    return replace(report, runs=tuple(runs), findings=tuple(findings), has_baseline=True)


def _marked_new(findings: Sequence[Finding], known: _Known) -> list[Finding]:
    """The findings, marked as known as often as a baseline knows their identity, the rest as new.

    A loss is known where the baseline has one of its kind and at least its size.
    """
    left: defaultdict[str, list[Lost | None]] = defaultdict(list)
    for identity, lost in (one for listed in known.listed.values() for one in listed):
        left[identity].append(lost)
    marked: list[Finding] = []
    for finding in findings:
        entries = left[finding.identity]
        found = _closest(finding.lost, entries)
        if found is not None:
            del entries[found]
        whole = replace(finding, subject=Subject(finding.subject.task))
        marked.append(replace(finding, is_new=found is None and (whole.identity, finding.severity) not in known.summed))
    return marked


def _closest(lost: Lost | None, known: Sequence[Lost | None]) -> int | None:
    """Place of the entry that knows a finding: of losses the smallest that will do, which leaves larger ones theirs."""
    if lost is None:
        return len(known) - 1 if known else None
    kind, size = lost
    sized = [(one[1], at) for at, one in enumerate(known) if one is not None and one[0] == kind and one[1] >= size]
    return min(sized)[1] if sized else None


def _known(baseline: Mapping[str, Any], source: str) -> _Known:
    hint = "give a file saved with `tokenaudit audit LOG -o findings.json`"
    if baseline.get("kind") != KIND_AUDIT:
        raise ResultError(Problem("the baseline is no saved audit", source, hint))
    if baseline.get("schema_version") != AUDIT_SCHEMA_VERSION:
        what = f"baseline schema version {baseline.get('schema_version')!r}, which knows findings by other identities"
        anew = "write it anew with `tokenaudit audit LOG -o FILE.json`, LOG being what it was written of"
        raise ResultError(Problem(what, source, f"this release reads version {AUDIT_SCHEMA_VERSION}: {anew}"))
    known = _Known()
    try:
        for entry in baseline["findings"]:
            lost = entry.get("lost")
            known.listed[str(entry["name"]), Severity(entry["severity"])].append(
                (str(entry["identity"]), None if lost is None else (str(lost["kind"]), int(lost["size"])))
            )
            if "extent" in entry or "stands_for" in entry:
                known.summed.add((str(entry["identity"]), Severity(entry["severity"])))
        for rule in baseline["rules"]:
            name = str(rule["name"])
            for severity, entry in rule.get("identities", {}).items():
                known.counted[name, Severity(severity)] = _identities(entry)
            for severity, count in rule["counts"].items():
                key = (name, Severity(severity))
                if key not in known.counted and int(count) > len(known.listed[key]):
                    raise ValueError(f"{count} findings of {name}, of which it identifies {len(known.listed[key])}")
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        what = f"damaged baseline: {type(error).__name__}: {error}"
        raise ResultError(Problem(what, source, hint)) from error
    return known


def _identities(data: Mapping[str, Any]) -> Identities:
    """Read what `asdict` wrote. Raises a ValueError where it isn't that."""
    counts, sums = data["counts"], data["sums"]
    for numbers in (counts, sums):
        if not isinstance(numbers, list) or len(numbers) != BUCKETS or any(type(one) is not int for one in numbers):
            raise ValueError(f"identities are no {BUCKETS} whole numbers")
    return Identities(counts, sums)

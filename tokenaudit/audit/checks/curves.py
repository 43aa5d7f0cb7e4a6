"""Checks of the curves that the run logged itself: does the log give them?"""

from __future__ import annotations

from tokenaudit.audit.case import Case
from tokenaudit.audit.findings import Findings, Subject
from tokenaudit.audit.parity import Parity, Verdict
from tokenaudit.audit.rule import Fact, Severity, rule

_OTHERWISE = (Verdict.OFFSET, Verdict.FACTOR, Verdict.OTHER)


@rule("C001", "curve-differs", Severity.ERROR,
      "A curve that the run logged is not what the log gives, under no definition that is known.",
      "Find out which of both is wrong from that step on: rows that are lost, doubled or late, or another config.",
      Fact.CURVES)  # fmt: skip
def _curve_differs(case: Case, findings: Findings) -> None:
    for parity in _compared(case, findings):
        if parity.verdict is Verdict.DIFFERS:
            findings.add(Subject(train_step=parity.first_step), _text(parity), cause=parity.curve)


@rule("C002", "curve-defined-otherwise", Severity.WARNING,
      "A curve that the run logged is the log's under another definition, or with an offset or factor.",
      "Read figures of the log by its own definitions; an offset of staleness may be versions that count otherwise.",
      Fact.CURVES)  # fmt: skip
def _curve_defined_otherwise(case: Case, findings: Findings) -> None:
    for parity in _compared(case, findings):
        if parity.verdict in _OTHERWISE:
            findings.add(Subject(), _text(parity), cause=parity.curve)


def _compared(case: Case, findings: Findings) -> list[Parity]:
    """The curves that are checked: what can't be compared isn't."""
    compared = [parity for parity in case.compared_curves if parity.verdict is not Verdict.NOT_COMPARABLE]
    findings.add_checked(len(compared), "curves")
    return compared


def _text(parity: Parity) -> str:
    return f"{parity.curve} in {parity.file}, compared with {parity.ours}: {parity.detail}"

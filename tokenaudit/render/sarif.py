"""A gate's report as SARIF 2.1.0. A finding stands at the line of its rule: figures of a run have no other place."""

from __future__ import annotations

from typing import Any

from tokenaudit.gate.report import GateReport, Outcome, Verdict
from tokenaudit.gate.rule import Level
from tokenaudit.render.gate_text import details, statement
from tokenaudit.render.sarif_log import fingerprint, location, message, sarif_log
from tokenaudit.render.text import printable


def render_sarif(report: GateReport, judged: str) -> str:
    """The SARIF log, with a line feed at the end.

    Args:
        report: the gate's report.
        judged: the file that was judged, where findings of rules without a file are placed.
    """
    shown = [verdict for verdict in report.verdicts if verdict.outcome is not Outcome.PASSED]
    not_judged = [verdict for verdict in shown if verdict.outcome is Outcome.NOT_JUDGED]
    return sarif_log(
        [_rule(verdict) for verdict in report.verdicts],
        [_result(index, verdict, judged) for index, verdict in enumerate(shown)],
        [_notification(index, verdict) for index, verdict in enumerate(shown) if verdict.outcome is Outcome.NOT_JUDGED],
        successful=not any(verdict.rule.level is Level.ERROR for verdict in not_judged),
    )


def _rule(verdict: Verdict) -> dict[str, Any]:
    rule = verdict.rule
    return {
        "id": _id(verdict),
        # Without its scope, whose braces the standard would have doubled in texts.
        "shortDescription": {"text": f"{rule.figure.name} {rule.operator} {' or '.join(map(str, rule.limits))}"},
        "fullDescription": {"text": f"{rule.figure.name}: {rule.figure.help}"},
        "defaultConfiguration": {"level": str(verdict.rule.level)},
    }


def _result(index: int, verdict: Verdict, judged: str) -> dict[str, Any]:
    """A finding. Verdicts that passed come last, so a finding has the index of its rule."""
    is_judged = verdict.outcome is Outcome.FAILED
    origin = verdict.located.origin
    return {
        "ruleId": _id(verdict),
        "ruleIndex": index,
        # "open" says that the evidence was not enough to decide; the standard allows it no other level.
        "kind": "fail" if is_judged else "open",
        "level": str(verdict.rule.level) if is_judged else "none",
        "message": _message(verdict),
        "locations": [location(origin.path or judged, origin.line or 1)],
        "partialFingerprints": {"rule/v1": fingerprint(str(verdict.rule))},
    }


def _notification(index: int, verdict: Verdict) -> dict[str, Any]:
    return {
        "level": str(verdict.rule.level),
        "message": _message(verdict),
        "associatedRule": {"id": _id(verdict), "index": index},
    }


def _id(verdict: Verdict) -> str:
    return printable(str(verdict.rule))


def _message(verdict: Verdict) -> dict[str, str]:
    return message(". ".join((statement(verdict), *details(verdict))))

"""A gate's report as SARIF 2.1.0. A finding stands at the line of its rule: figures of a run have no other place."""

from __future__ import annotations

import hashlib
import json
from typing import Any
from urllib.parse import quote

from tokenaudit import __version__
from tokenaudit.render.gate_text import details, statement
from tokenaudit.render.text import printable
from tokenaudit.rules import Level
from tokenaudit.verdicts import GateReport, Outcome, Verdict

_SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/os/schemas/sarif-schema-2.1.0.json"


def render_sarif(report: GateReport, judged: str) -> str:
    """The SARIF log, with a line feed at the end.

    Args:
        report: the gate's report.
        judged: the file that was judged, where findings of rules without a file are placed.
    """
    shown = [verdict for verdict in report.verdicts if verdict.outcome is not Outcome.PASSED]
    not_judged = [verdict for verdict in shown if verdict.outcome is Outcome.NOT_JUDGED]
    log = {
        "$schema": _SCHEMA,
        "version": "2.1.0",
        "runs": [
            {
                "tool": {
                    "driver": {
                        "name": "tokenaudit",
                        "version": __version__,
                        "rules": [_rule(verdict) for verdict in report.verdicts],
                    }
                },
                "invocations": [
                    {
                        "executionSuccessful": not any(verdict.rule.level is Level.ERROR for verdict in not_judged),
                        "toolExecutionNotifications": [
                            _notification(index, verdict)
                            for index, verdict in enumerate(shown)
                            if verdict.outcome is Outcome.NOT_JUDGED
                        ],
                    }
                ],
                "results": [_result(index, verdict, judged) for index, verdict in enumerate(shown)],
            }
        ],
    }
    return json.dumps(log, indent=1, ensure_ascii=False) + "\n"


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
    place = {
        "artifactLocation": {"uri": quote(origin.path or judged)},
        "region": {"startLine": origin.line or 1},
    }
    return {
        "ruleId": _id(verdict),
        "ruleIndex": index,
        # "open" says that the evidence was not enough to decide; the standard allows it no other level.
        "kind": "fail" if is_judged else "open",
        "level": str(verdict.rule.level) if is_judged else "none",
        "message": {"text": _text(verdict)},
        "locations": [{"physicalLocation": place}],
        "partialFingerprints": {"rule/v1": hashlib.sha256(str(verdict.rule).encode()).hexdigest()},
    }


def _notification(index: int, verdict: Verdict) -> dict[str, Any]:
    return {
        "level": str(verdict.rule.level),
        "message": {"text": _text(verdict)},
        "associatedRule": {"id": _id(verdict), "index": index},
    }


def _id(verdict: Verdict) -> str:
    return printable(str(verdict.rule))


_ESCAPES = str.maketrans({"\\": "\\\\", "[": "\\[", "]": "\\]", "{": "{{", "}": "}}"})
"""Brackets would make links of names, braces placeholders."""


def _text(verdict: Verdict) -> str:
    return ". ".join((statement(verdict), *details(verdict))).translate(_ESCAPES)

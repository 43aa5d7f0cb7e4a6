"""The parts of a SARIF 2.1.0 log that every report shares."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

from tokenaudit import __version__

_SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/os/schemas/sarif-schema-2.1.0.json"
_ESCAPES = str.maketrans({"\\": "\\\\", "[": "\\[", "]": "\\]", "{": "{{", "}": "}}"})
"""Brackets would make links of names, braces placeholders."""


def sarif_log(
    rules: Sequence[dict[str, Any]],
    results: Sequence[dict[str, Any]],
    notifications: Sequence[dict[str, Any]],
    *,
    successful: bool,
) -> str:
    """The log of one run, with a line feed at the end.

    Args:
        rules: what was checked.
        results: what was found; each has the id and the index of its rule.
        notifications: what kept rules from being checked.
        successful: whether enough could be checked for a verdict.
    """
    driver = {"name": "tokenaudit", "version": __version__, "rules": list(rules)}
    invocation = {"executionSuccessful": successful, "toolExecutionNotifications": list(notifications)}
    run = {"tool": {"driver": driver}, "invocations": [invocation], "results": list(results)}
    return json.dumps({"$schema": _SCHEMA, "version": "2.1.0", "runs": [run]}, indent=1, ensure_ascii=False) + "\n"


def message(text: str) -> dict[str, str]:
    """A message that is shown as it is."""
    return {"text": text.translate(_ESCAPES)}


def location(path: str, line: int = 1) -> dict[str, Any]:
    """A line of a file; rows of a table have none, so they stand at the first."""
    return {"physicalLocation": {"artifactLocation": {"uri": quote(path)}, "region": {"startLine": line}}}


def fingerprint(identity: str) -> str:
    """What tells the same result of two runs from others."""
    return hashlib.sha256(identity.encode()).hexdigest()

"""An audit's findings as CSV, one a line."""

from __future__ import annotations

import csv
from io import StringIO

from tokenaudit.audit.report import AuditReport, report_data
from tokenaudit.render.text import printable

COLUMNS = (
    "code", "name", "severity", "task", "group_id", "rollout_id", "put", "first_token", "tokens", "train_step", "file",
    "event_id", "is_new", "message",
)  # fmt: skip
"""The columns, in order."""


def audit_csv(report: AuditReport) -> str:
    """All findings that were kept, with a header."""
    buffer = StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(COLUMNS)
    for finding in report_data(report)["findings"]:
        writer.writerow([_cell(finding[name]) for name in COLUMNS])
    return buffer.getvalue()


def _cell(value: object) -> object:
    return printable(value) if isinstance(value, str) else value

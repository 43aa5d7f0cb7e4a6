"""Checks of the files: what was noted while they were opened and read."""

from __future__ import annotations

from tokenaudit.audit.case import Case, plural
from tokenaudit.audit.findings import Findings, Subject
from tokenaudit.audit.rule import Severity, rule


@rule("S001", "nothing-audited", Severity.ERROR,
      "No row could be checked, so there is no verdict.",
      "Name the file or folder that the run wrote, and record at least one put.")  # fmt: skip
def _nothing_audited(case: Case, findings: Findings) -> None:
    findings.add_checked(case.table.rows)
    if not case.table.is_put.any():
        findings.add(Subject(), f"{plural(case.table.rows, 'row')} and no put among them")


@rule("S002", "input-truncated-file", Severity.ERROR,
      "A file of the log can't be read; the others were audited without it.",
      "Copy or write the file again; a file still being written has no footer yet.")  # fmt: skip
@rule("S003", "input-unreadable-column", Severity.WARNING,
      "An optional column of a file can't be decoded and was passed over.",
      "Write the file again, or leave the column out.")  # fmt: skip
@rule("S004", "input-schema-drift", Severity.WARNING,
      "Files of one log differ in columns or types, or a column has a type that can't be used.",
      "Record every file with the same columns and types; integers of any width are unified.")  # fmt: skip
@rule("S005", "input-large-lists", Severity.INFO,
      "A row group holds more list elements than 32-bit offsets can count, which many readers refuse.",
      "Write smaller row groups, or large_list columns.")  # fmt: skip
@rule("S006", "input-row-group-large", Severity.INFO,
      "A row group is so large that other readers need much memory for it.",
      "Write row groups of at most a few million tokens.")  # fmt: skip
@rule("V004", "version-not-integer", Severity.ERROR,
      "The column of versions doesn't hold integers.",
      "Record the number of train steps in the weights, not a label.")  # fmt: skip
def _noted_of_files(case: Case, findings: Findings) -> None:
    """What was noted about the files while they were opened and read."""
    for note in case.files.notes:
        if note.rule == findings.rule.name:
            findings.add(Subject(file=note.file), note.message, note.severity)
    findings.add_checked(case.files.named, "files")

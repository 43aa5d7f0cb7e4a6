"""The summary of a GitHub Actions job: a file that steps append Markdown to."""

from __future__ import annotations

import os
from pathlib import Path

from tokenaudit.contracts.errors import Problem, UsageError
from tokenaudit.gate.report import GateReport
from tokenaudit.render.gate import gate_blocks
from tokenaudit.render.github import SUMMARY_BYTES, summary_part
from tokenaudit.render.markdown import markdown_text

VARIABLE = "GITHUB_STEP_SUMMARY"
"""Names the file."""


def summary_file() -> Path:
    """The file to append to.

    Raises:
        UsageError: the variable isn't set, or names something that can't be appended to.
    """
    name = os.environ.get(VARIABLE)
    if not name:
        raise UsageError(Problem(f"--summary needs the variable {VARIABLE}", None, "GitHub Actions sets it in a job"))
    path = Path(name)
    if path.exists() and not path.is_file():
        raise UsageError(Problem("can't write the job summary: not a regular file", str(path), f"see {VARIABLE}"))
    return path


def append_summary(path: Path, report: GateReport) -> None:
    """Append a report, cut where the file would grow beyond what a summary may hold.

    Raises:
        UsageError: the file can't be written.
    """
    try:
        room = SUMMARY_BYTES - (path.stat().st_size if path.exists() else 0)
        with path.open("a", encoding="utf-8", errors="backslashreplace", newline="") as file:
            file.write(summary_part(markdown_text(gate_blocks(report)), room))
    except OSError as error:
        what = f"can't write the job summary: {error.strerror or error}"
        raise UsageError(Problem(what, str(path), f"see {VARIABLE}")) from error

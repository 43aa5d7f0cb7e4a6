"""What the checks look at, and how they report rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from tokenaudit.audit.files import FileFacts
from tokenaudit.audit.findings import MOST_KEPT, Findings, Subject
from tokenaudit.audit.life import Life
from tokenaudit.audit.puts import PutRuns
from tokenaudit.audit.rule import Rule, Severity
from tokenaudit.audit.table import LogTable
from tokenaudit.audit.trained import TrainedMasks
from tokenaudit.config.sections import Config
from tokenaudit.log.columns import Bools


@dataclass(frozen=True, slots=True)
class Case:
    """Everything known about the audited log.

    Attributes:
        name: name of the log, without folders.
        table: its rows.
        files: its files.
        config: the config it is held against; None where neither the user nor the log names one.
        recorded_interval: the sync interval in the log's own config; None if it doesn't tell.
        puts: the version runs of its puts; None where replay can't read the log.
        life: the replay of that config; None where there is none.
        why_no_life: why there is none; empty where there is one.
        trained: what the trainer's masks add up to; None where none is recorded, or nothing tells the step.
    """

    name: str
    table: LogTable
    files: FileFacts
    config: Config | None
    recorded_interval: int | None
    puts: PutRuns | None
    life: Life | None
    why_no_life: str
    trained: TrainedMasks | None

    @property
    def readable(self) -> PutRuns:
        """The version runs, for checks that run only where there are some."""
        assert self.puts is not None
        return self.puts

    @property
    def replayed(self) -> Life:
        """The replay, for checks that run only where there is one."""
        assert self.life is not None
        return self.life

    @property
    def known_config(self) -> Config:
        """The config, for checks that run only where there is one."""
        assert self.config is not None
        return self.config


Check = Callable[[Case, Rule, Findings], None]
"""Looks at a case and adds what it finds."""


def add_rows(
    case: Case,
    rule: Rule,
    findings: Findings,
    where: Bools,
    message: Callable[[int], str],
    *,
    severity: Severity | None = None,
    subject: Callable[[int], Subject] | None = None,
) -> None:
    """Add a finding for every row in `where`, a bool array of shape [rows].

    Args:
        case: the audited log.
        rule: the rule that found them.
        findings: where they go.
        where: the rows.
        message: says what is the case with a row.
        severity: how bad it is; None: as bad as the rule says.
        subject: who a row is about; None: the row's own response.
    """
    rows = np.flatnonzero(where)
    room = max(0, MOST_KEPT - len(findings.tally(rule).kept))
    about = subject or case.table.subject
    for row in rows[:room].tolist():
        findings.add(rule, about(row), message(row), severity)
    findings.add_uncounted(rule, len(rows) - min(room, len(rows)), severity)


def add_checked(rule: Rule, findings: Findings, count: int, unit: str = "rows") -> None:
    """Note how much a rule looked at."""
    tally = findings.tally(rule)
    tally.checked += count
    tally.unit = unit


def plural(count: int, noun: str) -> str:
    """A number with its noun, in the plural unless it is one."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"

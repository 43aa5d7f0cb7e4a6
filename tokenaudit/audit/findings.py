"""Findings: what a rule found, about whom, and under which identity it is known again in the next report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from tokenaudit.audit.rule import Rule, Severity

MOST_KEPT = 10_000
"""Findings of one rule that are kept one by one; the others are only counted, so memory stays bounded."""


@dataclass(frozen=True, slots=True)
class Subject:
    """What a finding is about; None where a part doesn't apply.

    Attributes:
        task: task name.
        group_id: group inside the task.
        rollout_id: response inside the task.
        put: number of the put of that rollout, from 1; for groups, of the group.
        first_token: first token of a range, from 0.
        tokens: length of the range.
        train_step: step, for findings about a step.
        file: name of a file without folders, for findings about files.
        event_id: event, for rows that tell nothing better.
    """

    task: str | None = None
    group_id: int | None = None
    rollout_id: int | None = None
    put: int | None = None
    first_token: int | None = None
    tokens: int | None = None
    train_step: int | None = None
    file: str | None = None
    event_id: int | None = None

    @property
    def identity(self) -> str:
        """The parts in a fixed order; independent of files, rows and batches."""
        parts = (
            self.task, self.group_id, self.rollout_id, self.put, self.first_token, self.tokens, self.train_step,
            self.file, self.event_id,
        )  # fmt: skip
        return "|".join("" if part is None else str(part).replace("|", "\\|") for part in parts)

    def __str__(self) -> str:
        words: list[str] = []
        if self.file is not None:
            words.append(self.file)
        if self.task is not None:
            words.append(f"task {self.task}")
        for name, value in (("step", self.train_step), ("group", self.group_id), ("rollout", self.rollout_id)):
            if value is not None:
                words.append(f"{name} {value}")
        if self.put is not None:
            words.append(f"put {self.put}")
        if self.first_token is not None and self.tokens is not None:
            words.append(f"tokens {self.first_token} to {self.first_token + self.tokens - 1}")
        if self.event_id is not None:
            words.append(f"event {self.event_id}")
        return ", ".join(words) or "the run"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing a rule found.

    Attributes:
        code: the rule's code.
        name: the rule's name.
        severity: how bad it is.
        subject: what it is about.
        message: what is the case, with numbers.
        is_new: whether a baseline doesn't know it; True without a baseline.
    """

    code: str
    name: str
    severity: Severity
    subject: Subject
    message: str
    is_new: bool = True

    @property
    def identity(self) -> str:
        """Rule and subject: what a baseline knows a finding by."""
        return f"{self.name}|{self.subject.identity}"


@dataclass(slots=True)
class Tally:
    """What one rule found.

    Attributes:
        counts: findings by severity, those not kept included.
        kept: the first of them, at most `MOST_KEPT`.
        checked: what the rule looked at.
        unit: what `checked` counts.
    """

    counts: Counter[Severity] = field(default_factory=Counter)
    kept: list[Finding] = field(default_factory=list)
    checked: int = 0
    unit: str = "rows"

    @property
    def total(self) -> int:
        """All findings of the rule."""
        return self.counts.total()


class Findings:
    """Collects what the rules find."""

    def __init__(self) -> None:
        self.tallies: dict[str, Tally] = {}

    def tally(self, rule: Rule) -> Tally:
        """What a rule has found so far."""
        return self.tallies.setdefault(rule.code, Tally())

    def add(self, rule: Rule, subject: Subject, message: str, severity: Severity | None = None) -> None:
        """Add one finding."""
        level = severity or rule.severity
        tally = self.tally(rule)
        tally.counts[level] += 1
        if len(tally.kept) < MOST_KEPT:
            tally.kept.append(Finding(rule.code, rule.name, level, subject, message))

    def add_uncounted(self, rule: Rule, count: int, severity: Severity | None = None) -> None:
        """Count findings that are beyond what is kept."""
        if count:
            self.tally(rule).counts[severity or rule.severity] += count


def marked_new(findings: Iterable[Finding], known: Mapping[str, int]) -> list[Finding]:
    """The findings, marked as known as often as a baseline knows their identity, the rest as new."""
    left = dict(known)
    marked: list[Finding] = []
    for finding in findings:
        identity = finding.identity
        is_new = left.get(identity, 0) <= 0
        if not is_new:
            left[identity] -= 1
        marked.append(Finding(finding.code, finding.name, finding.severity, finding.subject, finding.message, is_new))
    return marked

"""Findings: what a rule found, about whom, and under which identity it is known again in the next report."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np

from tokenaudit.audit.identities import Identities
from tokenaudit.audit.rule import AuditRule, Severity
from tokenaudit.contracts.errors import plural
from tokenaudit.log.columns import Bools, Int64s

MOST_KEPT = 10_000
"""Findings of one rule that are kept one by one; the others are only counted, so memory stays bounded."""
MOST_SINGLE = 20
"""Rows of one task that a rule lists one by one; more are one finding with its extent."""
MOST_MEMBERS = 10_000
"""Responses that an extent names; all are counted."""

Lost = tuple[str, int]
"""Kind and size of what a log lacks."""


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
        event_id: event, for rows that nothing else names.
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
        parts = (getattr(self, name) for name in self.__slots__)
        return "|".join("" if part is None else str(part).replace("|", "\\|") for part in parts)

    def __str__(self) -> str:
        span = None
        if self.first_token is not None and self.tokens is not None:
            span = f"{self.first_token} to {self.first_token + self.tokens - 1}"
        parts = (
            ("", self.file), ("task ", self.task), ("step ", self.train_step), ("group ", self.group_id),
            ("rollout ", self.rollout_id), ("put ", self.put), ("tokens ", span), ("event ", self.event_id),
        )  # fmt: skip
        return ", ".join(f"{word}{value}" for word, value in parts if value is not None) or "the run"


@dataclass(frozen=True, slots=True)
class Extent:
    """How far one cause reaches: the puts between which its rows lie, and the responses concerned.

    Attributes:
        first_put: number of the first put concerned among all puts of the log, from 1.
        last_put: that of the last one.
        first_event_id: event id of the first put concerned.
        last_event_id: that of the last one.
        lasts: whether it reaches to the end: behind the last put concerned are no more puts than between two of them.
        count: responses concerned, each counted once however often it was put.
        members: (task, rollout_id) of them in log order, at most `MOST_MEMBERS`.
    """

    first_put: int
    last_put: int
    first_event_id: int
    last_event_id: int
    lasts: bool
    count: int
    members: tuple[tuple[str, int], ...]

    def text(self, what: str) -> str:
        """What holds for the extent, with where and for how many."""
        if self.first_put == self.last_put:
            where = f"at put {self.first_put:,}"
        else:
            where = f"from put {self.first_put:,} {'on' if self.lasts else f'to put {self.last_put:,}'}"
        return f"{where}, {what}; {plural(self.count, 'response')}"


class PutTable(Protocol):
    """What a table of rows offers, so that findings about many of them can be one: see `audit.table.LogTable`."""

    is_put: Bools

    def puts_by_task(self, rows: Int64s) -> list[tuple[str, Int64s]]:
        """Those of the rows, ascending, that belong to puts, apart by task."""
        ...

    def of_same_puts(self, rows: Int64s) -> Int64s:
        """All rows of the puts that put rows belong to."""
        ...

    def extent(self, rows: Int64s) -> Extent:
        """How far put rows, ascending and at least one, reach."""
        ...


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that the rule of this code and name found; `is_new` unless a baseline knows it.

    Attributes:
        lost: kind and size of a loss, which a baseline knows up to the size that it had; None for other findings.
        extent: how far its cause reaches, for findings about many rows.
        cause: what tells it from others of its rule about the same subject, for findings with an extent.
        stands_for: findings of one cause that it stands for, where these have no puts and so no extent.
    """

    code: str
    name: str
    severity: Severity
    subject: Subject
    message: str
    is_new: bool = True
    lost: Lost | None = None
    extent: Extent | None = None
    cause: str = ""
    stands_for: int = 1

    @property
    def identity(self) -> str:
        """Rule and subject, and the cause: what a baseline knows a finding by, whatever rows an extent has."""
        return f"{self.name}|{self.subject.identity}{f'|{self.cause}' if self.cause else ''}"


@dataclass(slots=True)
class Findings:
    """What the check of one rule finds.

    Attributes:
        rule: the rule.
        table: the rows that the check looks at; without them, every row is a finding of its own.
        counts: findings by severity, those not kept included.
        kept: the first of them, at most `MOST_KEPT`.
        checked: what the rule looked at.
        unit: what `checked` counts.
        identities: those of all findings by severity, once there are more than are kept.
        rows: put rows that findings kept are about, by their place in `kept`.
        cost_tokens: tokens that are wrong or lost because of them, as far as the check knows; it orders reports.
    """

    rule: AuditRule
    table: PutTable | None = None
    counts: Counter[Severity] = field(default_factory=Counter)
    kept: list[Finding] = field(default_factory=list)
    checked: int = 0
    unit: str = "rows"
    identities: dict[Severity, Identities] = field(default_factory=dict)
    rows: dict[int, Int64s] = field(default_factory=dict)
    cost_tokens: int = 0

    @property
    def total(self) -> int:
        """All findings of the rule."""
        return self.counts.total()

    def add(
        self,
        subject: Subject,
        message: str,
        severity: Severity | None = None,
        *,
        lost: Lost | None = None,
        extent: Extent | None = None,
        cause: str = "",
        stands_for: int = 1,
        rows: Int64s | None = None,
    ) -> None:
        """Add one finding, as bad as the rule says unless a severity is given; `rows` are the put rows it is about."""
        level = severity or self.rule.severity
        self.counts[level] += 1
        self.cost_tokens += subject.tokens or 0
        if len(self.kept) < MOST_KEPT:
            if rows is not None:
                self.rows[len(self.kept)] = rows
            self.kept.append(
                Finding(self.rule.code, self.rule.name, level, subject, message, True, lost, extent, cause, stands_for)
            )
        else:
            self._add_unlisted(subject, level)

    def add_extent(
        self,
        where: Bools | Int64s,
        message: str | Callable[[Int64s], str],
        severity: Severity | None = None,
        *,
        cause: str = "",
    ) -> None:
        """Add one finding for each task that put rows in `where` belong to, with their extent.

        Args:
            where: the rows, as a bool array of shape [rows] or as their numbers, ascending.
            message: what holds for them, which goes between "from put 6401 on" and "1,088 responses"; or what makes it
                from the rows of a task.
            severity: how bad it is; None: as the rule says.
            cause: tells findings of one rule and task apart, where there may be several.
        """
        assert self.table is not None
        for task, rows in self.table.puts_by_task(_numbers(where)):
            extent = self.table.extent(rows)
            what = message if isinstance(message, str) else message(rows)
            self.add(Subject(task), extent.text(what), severity, extent=extent, cause=cause, rows=rows)

    def add_rows(
        self,
        subject: Callable[[int], Subject],
        where: Bools | Int64s,
        message: Callable[[int], str],
        severity: Severity | None = None,
        *,
        cause: str = "",
        most: int = MOST_SINGLE,
    ) -> None:
        """Add a finding for every row in `where`; of a task with more put rows than `most`, one with their extent.

        So are more rows that belong to no put one finding, of all tasks.

        Args:
            subject: whom a row is about; where that is no response, an extent holds all rows of its put.
            where: the rows, as for `add_extent`.
            message: what is wrong with a row.
            severity: as for `add`.
            cause: as for `add_extent`.
            most: rows of one task that are listed one by one.
        """
        rows = _numbers(where)
        if self.table is not None and len(rows) > most:
            for task, own in self.table.puts_by_task(rows):
                if len(own) > most:
                    self._add_sum(task, own, subject, message, severity, cause)
                    rows = rows[~np.isin(rows, own, assume_unique=True)]
            others = rows[~self.table.is_put[rows]]
            if len(others) > most:
                first = int(others[0])
                text = f"the first of {len(others):,}, {replace(subject(first), task=None)}: {message(first)}"
                self.add(Subject(), text, severity, cause=cause, stands_for=len(others))
                rows = rows[self.table.is_put[rows]]
        room = max(0, MOST_KEPT - len(self.kept))
        for row in rows[:room].tolist():
            own = np.array([row]) if self.table is not None and self.table.is_put[row] else None
            self.add(subject(row), message(row), severity, rows=own)
        level = severity or self.rule.severity
        for row in rows[room:].tolist():
            self.counts[level] += 1
            self._add_unlisted(subject(row), level)

    def add_texts(
        self,
        subject: Callable[[int], Subject],
        texts: Mapping[int, str],
        severity: Severity | None = None,
        *,
        cause: str = "",
    ) -> None:
        """Add what is wrong with rows, given by row, as `add_rows` does."""
        self.add_rows(subject, np.array(sorted(texts), dtype=np.int64), texts.__getitem__, severity, cause=cause)

    def add_listed(
        self,
        found: Sequence[tuple[Subject, str]],
        what: str,
        severity: Severity | None = None,
        *,
        rows: Int64s | None = None,
    ) -> None:
        """Add what is wrong with steps, files or the like; of a task with more than `MOST_SINGLE`, one finding.

        Args:
            found: who, and what is wrong.
            what: what one of them is, for the text of the one finding.
            severity: as for `add`.
            rows: put rows concerned, ascending, which give the one finding its extent.
        """
        by_task: defaultdict[str | None, list[tuple[Subject, str]]] = defaultdict(list)
        for subject, text in found:
            by_task[subject.task].append((subject, text))
        extents = self.table.puts_by_task(rows) if self.table is not None and rows is not None else []
        for task, own in by_task.items():
            (first, text), of_task = own[0], [one for one in extents if task in (None, one[0])]
            text = f"the first of {len(own):,} {what}s, {replace(first, task=None)}: {text}"
            if len(own) <= MOST_SINGLE:
                for subject, one in own:
                    self.add(subject, one, severity)
            elif of_task:
                for _, own_rows in of_task:
                    self.add_extent(own_rows, text, severity)
            else:
                self.add(Subject(task), text, severity, stands_for=len(own))

    def _add_sum(
        self,
        task: str,
        rows: Int64s,
        subject: Callable[[int], Subject],
        message: Callable[[int], str],
        severity: Severity | None,
        cause: str,
    ) -> None:
        assert self.table is not None
        first = int(rows[0])
        who = subject(first)
        of_groups = who.rollout_id is None
        extent = self.table.extent(self.table.of_same_puts(rows) if of_groups else rows)
        if who.rollout_id is not None:
            who = Subject(rollout_id=who.rollout_id)
        elif who.group_id is not None:
            who = Subject(group_id=who.group_id)
        text = extent.text(f"the first, {replace(who, task=None)}: {message(first)}")
        text = f"{text} in {plural(len(rows), 'put')}"
        self.add(Subject(task), text, severity, extent=extent, cause=cause, rows=rows)

    def _add_unlisted(self, subject: Subject, level: Severity) -> None:
        if not self.identities:
            for severity in Severity:
                self.identities[severity] = Identities.of(f.identity for f in self.kept if f.severity is severity)
        self.identities[level].add(f"{self.rule.name}|{subject.identity}")

    def add_checked(self, count: int, unit: str = "rows") -> None:
        """Note how much the check looked at."""
        self.checked += count
        self.unit = unit


def _numbers(where: Bools | Int64s) -> Int64s:
    return np.flatnonzero(where) if where.dtype == np.bool_ else where.astype(np.int64)

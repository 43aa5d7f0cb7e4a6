"""What an audit rule is, how a check becomes one, and how a command line selects rules.

Names and codes are API: baselines, `--select` and reports use them. Standard library only: `audit --help` names
severities and must load nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from enum import StrEnum
from itertools import groupby
from typing import Any

from tokenaudit.contracts.errors import Problem, UsageError, shown


class Severity(StrEnum):
    """How bad a finding is."""

    ERROR = "error"
    """Training data or the log is wrong."""
    WARNING = "warning"
    """Probably wrong, or wasteful."""
    INFO = "info"
    """Worth a line in the report."""

    @property
    def rank(self) -> int:
        """0 for the worst."""
        return list(Severity).index(self)


class Fact(StrEnum):
    """What a rule may need beyond columns; the value says it in a report."""

    READABLE = "a log that replay can read"
    REPLAY = "a config, and a log that replay can read"
    TAKES = "take events, or a config with train_batch_size"
    TIMELINE = "a recorded timeline"
    RECORDED_TAKES = "take rows with rollout_id"
    SYNCS = "sync events with model_step"
    SAMPLES = "sample events"
    GROUP_SIZE = "tasks.NAME.group_size in the config"
    STEPS = "timeline.steps and timeline.train_batch_size in the config"
    TOKEN_RULE = "max_token_staleness in the config"
    RETRY = "a task with tail_batch_trigger_size 0 or more"
    NO_RETRY = "a task with tail_batch_trigger_size -1"
    CURVES = "curves of the run: --curves FILE"
    CONFIG = "a config: -c, or the run's own in the log's metadata"


@dataclass(frozen=True, slots=True)
class AuditRule:
    """One rule.

    Attributes:
        code: letter and number: S schema and files, V versions, M masks, G groups, L lifecycle, T step totals,
            P probabilities, E ends and contents, R rewards, C curves.
        name: name in words.
        severity: of its findings, unless a finding says otherwise.
        meaning: what a finding says, in one sentence.
        fix: what to do about it.
        needs: columns and facts without which it can't run; alternatives are joined by "|".
        check: looks at a case and adds what it finds.
    """

    code: str
    name: str
    severity: Severity
    meaning: str
    fix: str
    needs: tuple[str, ...]
    check: Check

    def missing(self, facts: Collection[str]) -> tuple[str, ...]:
        """What it needs that isn't among the facts; alternatives are joined by " or "."""
        return tuple(
            need.replace("|", " or ")
            for need in map(str, self.needs)
            if not any(one in facts for one in need.split("|"))
        )


Check = Callable[[Any, Any], None]
"""Takes a `tokenaudit.audit.case.Case` and the rule's own `tokenaudit.audit.findings.Findings`."""

REGISTERED: list[AuditRule] = []
"""The rules of all check modules that are loaded; `tokenaudit.audit.checks` loads them all and puts them in order."""


def rule(code: str, name: str, severity: Severity, meaning: str, fix: str, *needs: str) -> Callable[[Check], Check]:
    """Make a check a rule; the arguments are the attributes of `AuditRule`. A check may serve several rules."""

    def register(check: Check) -> Check:
        REGISTERED.append(AuditRule(code, name, severity, meaning, fix, needs, check))
        return check

    return register


def select_rules(select: Sequence[str], ignore: Sequence[str], rules: Iterable[AuditRule]) -> tuple[AuditRule, ...]:
    """The rules that `select` names, all if it is empty, without those that `ignore` does: codes, beginnings or names.

    Raises:
        UsageError: an entry that names no rule, or no rule is left.
    """
    known = tuple(rules)
    problems = [_unknown(entry, known) for entry in (*select, *ignore) if not any(_names(entry, r) for r in known)]
    if problems:
        raise UsageError(problems)
    chosen = tuple(
        rule
        for rule in known
        if (not select or any(_names(entry, rule) for entry in select))
        and not any(_names(entry, rule) for entry in ignore)
    )
    if not chosen:
        raise UsageError(Problem("no rule is left to run", None, "ignore less, or select more"))
    return chosen


def _names(entry: str, rule: AuditRule) -> bool:
    return bool(entry) and (rule.code.startswith(entry.upper()) or rule.name == entry.lower())


def _unknown(entry: str, rules: Sequence[AuditRule]) -> Problem:
    known = [rule.name for rule in rules] if "-" in entry else [rule.code for rule in rules]
    written = entry.lower() if "-" in entry else entry.upper()
    close = get_close_matches(written[:100], known)
    hint = f"did you mean {' or '.join(map(repr, close))}? " if close else ""
    families = (list(family) for _, family in groupby(sorted(rule.code for rule in rules), key=lambda code: code[0]))
    codes = ", ".join(f"{family[0]} to {family[-1]}" for family in families)
    return Problem(f"no audit rule is called {shown(entry)}", None, f"{hint}codes: {codes}")

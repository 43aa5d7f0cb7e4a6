"""Checks of sums over a step or the run, and of the files."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import numpy as np

from tokenaudit.audit.case import Case, Check, add_checked, add_rows, plural
from tokenaudit.audit.checks.versions import syncs, updates_per_step
from tokenaudit.audit.findings import Findings, Subject
from tokenaudit.audit.rule import Rule
from tokenaudit.contracts import metrics as m
from tokenaudit.contracts.schema import EventKind
from tokenaudit.lifecycle.events import GroupTaken
from tokenaudit.lifecycle.staleness import staleness
from tokenaudit.log.digest import KIND_CODE
from tokenaudit.replay.ledger import Account, combined

_TAKE = KIND_CODE[EventKind.TAKE]


def _of(account: Account, metric: m.Metric) -> int:
    return account.counts.get(metric, 0)


def _step_without_tokens(case: Case, rule: Rule, findings: Findings) -> None:
    rows = case.replayed.ledger.rows
    add_checked(rule, findings, len(rows), "steps")
    for row in rows:
        account = combined(row.accounts.values())
        taken, trained = _of(account, m.TAKEN_TOKENS), _of(account, m.TRAINED_TOKENS)
        if taken and not trained:
            stale = _of(account, m.MASKED_STALE_TOKENS)
            text = f"0 of {plural(taken, 'token')} trainable ({stale} of them stale)"
            findings.add(rule, Subject(train_step=row.train_step), text)


def _untrained_response(case: Case, rule: Rule, findings: Findings) -> None:
    members, untrained, stale = Counter[int](), Counter[int](), Counter[int]()
    for entry in case.replayed.taken:
        step = entry.event.train_step
        members[step] += entry.event.responses.measures.samples
        for *_, newest_trainable in entry.event.responses.facts:
            if not _is_fresh(newest_trainable, entry.event):
                untrained[step] += 1
                stale[step] += newest_trainable is not None
    add_checked(rule, findings, members.total(), "taken responses")
    for step, count in untrained.items():
        # A step in which nothing at all is trained is told by step-without-trainable-tokens.
        if count < members[step]:
            text = f"{count} of {plural(members[step], 'response')} taken have no token to train ({stale[step]} of them"
            findings.add(
                rule, Subject(train_step=step), f"{text} too old): the batch is in effect {members[step] - count}"
            )


def _is_fresh(newest_trainable: int | None, group: GroupTaken) -> bool:
    """Whether a response with this newest trainable version has a token to train."""
    limit = group.token_stale_threshold
    return newest_trainable is not None and (limit is None or staleness(newest_trainable, group.train_step) < limit)


def _without_take(case: Case, rule: Rule, findings: Findings) -> None:
    steps = sorted({step.train_step for step in case.replayed.steps})
    add_checked(rule, findings, len(steps), "steps")
    for before, after in pairwise(steps):
        if after > before + 1:
            span = f"step {before + 1}" if after == before + 2 else f"steps {before + 1} to {after - 1}"
            findings.add(rule, Subject(train_step=before + 1), f"no take of {span}")


def _denominator(case: Case, rule: Rule, findings: Findings) -> None:
    table = case.table
    rows = np.flatnonzero((table["kind"] == _TAKE) & table.present("loss_tokens"))
    recorded = {
        (table.tasks[int(table["task"][row])], int(table["train_step"][row])): int(table["loss_tokens"][row])
        for row in rows.tolist()
    }
    for row in case.replayed.ledger.rows:
        for task, account in row.accounts.items():
            told = recorded.get((task, row.train_step or 0))
            if told is None:
                continue
            add_checked(rule, findings, 1, "steps")
            trained = _of(account, m.TRAINED_TOKENS)
            if told != trained:
                scale = f": loss scaled by {trained / told:.2f}" if told else ""
                text = f"divided by {told}, trainable tokens {trained}{scale}"
                findings.add(rule, Subject(task, train_step=row.train_step), text)


def _double_count(case: Case, rule: Rule, findings: Findings) -> None:
    """Tokens older than this put's version, at the place where the put before had the same ones."""
    table = case.table
    prior, tokens = table["prior_len"], table["tokens"]
    told = (table.previous >= 0) & table.known & table.present("prior_len") & table.present("model_step")
    counted_twice = np.zeros(table.rows, dtype=np.int64)
    # Only tokens that the put before had, beyond those that prior_len names, can be counted twice.
    candidates = told & (prior < tokens[np.maximum(table.previous, 0)])
    for row in np.flatnonzero(candidates).tolist():
        before = int(table.previous[row])
        runs_before, runs_now = case.readable.runs(before), case.readable.runs(row)
        shared = _shared(runs_before, runs_now)
        # What an older version made can't have been made in this round.
        old = 0
        for version, length in runs_now:
            if version >= table["model_step"][row]:
                break
            old += length
        if shared == tokens[before]:
            counted_twice[row] = max(0, min(shared, old) - int(prior[row]))
    add_rows(
        case, rule, findings, counted_twice > 0,
        lambda row: f"prior_len is {prior[row]}, but {counted_twice[row]} more leading tokens were made by older "
        f"versions at put {table.put_number[table.previous[row]]}",
    )  # fmt: skip
    add_checked(rule, findings, int(told.sum()), "puts of a response seen before")


def _shared(earlier: list[tuple[int, int]], later: list[tuple[int, int]]) -> int:
    """Leading tokens with the same versions."""
    shared = 0
    for (old, old_tokens), (new, new_tokens) in zip(earlier, later, strict=False):
        if old != new:
            break
        shared += min(old_tokens, new_tokens)
        if old_tokens != new_tokens:
            break
    return shared


def _multi_update(case: Case, rule: Rule, findings: Findings) -> None:
    add_checked(rule, findings, int(syncs(case.table).sum()), "syncs")
    updates = updates_per_step(case.table)
    if updates is not None:
        text = f"a step makes {updates} updates: versions count updates, and ages in steps are too small by that"
        findings.add(rule, Subject(), text)


def file_check(case: Case, rule: Rule, findings: Findings) -> None:
    """What was noted about the files while they were opened and read."""
    for note in case.files.notes:
        if note.rule == rule.name:
            findings.add(rule, Subject(file=note.file), note.message, note.severity)
    add_checked(rule, findings, case.files.named, "files")


def _nothing_audited(case: Case, rule: Rule, findings: Findings) -> None:
    add_checked(rule, findings, case.table.rows)
    if not case.table.is_put.any():
        findings.add(rule, Subject(), f"{plural(case.table.rows, 'row')} and no put among them")


CHECKS: dict[str, Check] = {
    "step-without-trainable-tokens": _step_without_tokens,
    "denominator-mismatch": _denominator,
    "produced-token-double-count": _double_count,
    "multi-update-batch": _multi_update,
    "untrained-response-taken": _untrained_response,
    "step-without-take": _without_take,
    "nothing-audited": _nothing_audited,
    "input-truncated-file": file_check,
    "input-unreadable-column": file_check,
    "input-schema-drift": file_check,
    "input-large-lists": file_check,
    "input-row-group-large": file_check,
    "version-not-integer": file_check,
}

"""Checks of sums over a step or the run."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import numpy as np

from tokenaudit.audit.case import Case
from tokenaudit.audit.checks.versions import syncs, updates_per_step
from tokenaudit.audit.findings import Findings, Subject
from tokenaudit.audit.rule import Fact, Severity, rule
from tokenaudit.contracts import metrics as m
from tokenaudit.contracts.errors import plural
from tokenaudit.contracts.schema import EventKind
from tokenaudit.lifecycle.staleness import has_fresh_token, oldest_fresh_version
from tokenaudit.log.digest import KIND_CODE
from tokenaudit.replay.ledger import combined

_TAKE = KIND_CODE[EventKind.TAKE]


@rule("T001", "step-without-trainable-tokens", Severity.ERROR,
      "A step took tokens and can train none of them.",
      "Guard the loss against a count of 0, and find out who masked the batch.",
      Fact.TAKES)  # fmt: skip
def _step_without_trainable_tokens(case: Case, findings: Findings) -> None:
    rows = case.replayed.ledger.rows
    findings.add_checked(len(rows), "steps")
    for row in rows:
        account = combined(row.accounts.values())
        taken, trained = account.count(m.TAKEN_TOKENS), account.count(m.TRAINED_TOKENS)
        if taken and not trained:
            stale = account.count(m.MASKED_STALE_TOKENS)
            text = f"0 of {plural(taken, 'token')} trainable ({stale} of them stale)"
            findings.add(Subject(train_step=row.train_step), text)


@rule("T005", "untrained-response-taken", Severity.WARNING,
      "Responses were taken that have no token to train, so the batch is smaller than it seems.",
      "Refresh staleness right before every take, and drop responses whose mask is all 0.",
      Fact.TAKES)  # fmt: skip
def _untrained_response_taken(case: Case, findings: Findings) -> None:
    members, untrained, stale = Counter[int](), Counter[int](), Counter[int]()
    for entry in case.replayed.taken:
        step = entry.event.train_step
        members[step] += entry.event.responses.measures.samples
        oldest = oldest_fresh_version(step, entry.event.token_stale_threshold)
        for *_, newest_trainable in entry.event.responses.facts:
            if not has_fresh_token(newest_trainable, oldest):
                untrained[step] += 1
                stale[step] += newest_trainable is not None
    findings.add_checked(members.total(), "taken responses")
    for step, count in untrained.items():
        # A step in which nothing at all is trained is reported by step-without-trainable-tokens.
        if count < members[step]:
            text = f"{count} of {plural(members[step], 'response')} taken have no token to train ({stale[step]} of them"
            findings.add(Subject(train_step=step), f"{text} too old): the batch is in effect {members[step] - count}")


@rule("T006", "step-without-take", Severity.WARNING,
      "Steps between the first and the last take have no take.",
      "Look for files or rows that were lost; record every take.",
      Fact.TIMELINE)  # fmt: skip
def _step_without_take(case: Case, findings: Findings) -> None:
    steps = sorted({step.train_step for step in case.replayed.steps})
    findings.add_checked(len(steps), "steps")
    for before, after in pairwise(steps):
        if after > before + 1:
            span = f"step {before + 1}" if after == before + 2 else f"steps {before + 1} to {after - 1}"
            findings.add(Subject(train_step=before + 1), f"no take of {span}")


@rule("T002", "denominator-mismatch", Severity.WARNING,
      "The trainer divided the loss by another number than trainable tokens.",
      "Count after all masks are applied.",
      "loss_tokens", Fact.TAKES)  # fmt: skip
def _denominator_mismatch(case: Case, findings: Findings) -> None:
    table = case.table
    rows = np.flatnonzero((table["kind"] == _TAKE) & table.present("loss_tokens"))
    recorded = {
        (table.tasks[int(table["task"][row])], int(table["train_step"][row])): int(table["loss_tokens"][row])
        for row in rows.tolist()
    }
    for row in case.replayed.ledger.rows:
        for task, account in row.accounts.items():
            divisor = recorded.get((task, row.train_step or 0))
            if divisor is None:
                continue
            findings.add_checked(1, "steps")
            trained = account.count(m.TRAINED_TOKENS)
            if divisor != trained:
                scale = f": loss scaled by {trained / divisor:.2f}" if divisor else ""
                text = f"divided by {divisor}, trainable tokens {trained}{scale}"
                findings.add(Subject(task, train_step=row.train_step), text)


@rule("T004", "multi-update-batch", Severity.INFO,
      "Versions count several updates per step.",
      "Count train steps, or read every staleness as updates.",
      Fact.TIMELINE)  # fmt: skip
def _multi_update_batch(case: Case, findings: Findings) -> None:
    findings.add_checked(int(syncs(case.table).sum()), "syncs")
    updates = updates_per_step(case.table)
    if updates is not None:
        text = f"a step makes {updates} updates: versions count updates, and ages in steps are too small by that"
        findings.add(Subject(), text)

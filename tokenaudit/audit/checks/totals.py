"""Checks of sums over a step or the run."""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import numpy as np

from tokenaudit.audit.case import Case
from tokenaudit.audit.checks.versions import syncs, updates_per_step
from tokenaudit.audit.findings import Findings, Subject
from tokenaudit.audit.rule import Fact, Severity, rule
from tokenaudit.contracts import metrics as m
from tokenaudit.contracts.errors import plural
from tokenaudit.contracts.schema import EventKind
from tokenaudit.log.columns import Bools, Int64s
from tokenaudit.log.digest import KIND_CODE

_TAKE = KIND_CODE[EventKind.TAKE]


class _TakenTokens(NamedTuple):
    """What the R responses that takes name bring to their steps; every array has the shape [R].

    Attributes:
        task: code of the task.
        step: step of the take.
        tokens: their tokens.
        trainable: those that the semantic mask trains.
        trained: those of them that the token rule leaves.
    """

    task: Int64s
    step: Int64s
    tokens: Int64s
    trainable: Int64s
    trained: Int64s


def _taken_tokens(case: Case) -> _TakenTokens:
    """What the trainer got, without groups that the digest leaves out."""
    table, taken, puts = case.table, case.taken, case.readable
    known = puts.is_kept(taken.rows)
    rows, step = taken.rows[known], taken.train_step[taken.owner][known]
    trainable, trained = (
        puts.fresh_trainable(rows, step, spared) for spared in (np.ones(len(rows), dtype=np.bool_), table.spared[rows])
    )
    return _TakenTokens(table["task"][rows], step, table["tokens"][rows], trainable, trained)


def _sums(of: Int64s, values: Int64s | Bools) -> Int64s:
    return np.bincount(of, values).astype(np.int64)


@rule("T001", "step-without-trainable-tokens", Severity.ERROR,
      "A step took tokens and can train none of them.",
      "Guard the loss against a count of 0, and find out who masked the batch.",
      Fact.REPLAY, Fact.RECORDED_TAKES)  # fmt: skip
def _step_without_trainable_tokens(case: Case, findings: Findings) -> None:
    got = _taken_tokens(case)
    steps, of_step = np.unique(got.step, return_inverse=True)
    tokens, trainable, trained = (_sums(of_step, values) for values in (got.tokens, got.trainable, got.trained))
    findings.add_checked(len(steps), "steps")
    for at in np.flatnonzero((tokens > 0) & (trained == 0)).tolist():
        text = f"0 of {plural(int(tokens[at]), 'token')} trainable ({int(trainable[at])} of them stale)"
        findings.add(Subject(train_step=int(steps[at])), text)


@rule("T005", "untrained-response-taken", Severity.WARNING,
      "Responses were taken that have no token to train, so the batch is smaller than it seems.",
      "Refresh staleness right before every take, and drop responses whose mask is all 0.",
      Fact.REPLAY, Fact.RECORDED_TAKES)  # fmt: skip
def _untrained_response_taken(case: Case, findings: Findings) -> None:
    got = _taken_tokens(case)
    steps, of_step = np.unique(got.step, return_inverse=True)
    is_untrained = got.trained == 0
    untrained, stale = _sums(of_step, is_untrained), _sums(of_step, is_untrained & (got.trainable > 0))
    members = np.bincount(of_step)
    findings.add_checked(len(of_step), "taken responses")
    # A step in which nothing at all is trained is reported by step-without-trainable-tokens.
    for at in np.flatnonzero((untrained > 0) & (untrained < members)).tolist():
        text = f"{untrained[at]} of {plural(int(members[at]), 'response')} taken have no token to train ({stale[at]} of"
        left = int(members[at] - untrained[at])
        findings.add(Subject(train_step=int(steps[at])), f"{text} them too old): the batch is in effect {left}")


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
    for (task, step), trained in _trained_by_step(case).items():
        divisor = recorded.get((task, step))
        if divisor is None:
            continue
        findings.add_checked(1, "steps")
        if divisor != trained:
            scale = f": loss scaled by {trained / divisor:.2f}" if divisor else ""
            text = f"divided by {divisor}, trainable tokens {trained}{scale}"
            findings.add(Subject(task, train_step=step), text)


def _trained_by_step(case: Case) -> dict[tuple[str, int], int]:
    """Trained tokens by task and step: of the responses that takes name, else of those that the replay takes."""
    if len(case.taken):
        got = _taken_tokens(case)
        pairs, of_pair = np.unique(np.stack([got.task, got.step]), axis=1, return_inverse=True)
        names = [(case.table.tasks[code], step) for code, step in pairs.T.tolist()]
        return dict(zip(names, _sums(of_pair.reshape(-1), got.trained).tolist(), strict=True))
    rows = ((row.train_step or 0, row.accounts) for row in case.replayed.ledger.rows)
    return {(task, step): own.count(m.TRAINED_TOKENS) for step, tasks in rows for task, own in tasks.items()}


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

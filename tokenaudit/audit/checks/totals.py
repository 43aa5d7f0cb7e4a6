"""Checks of sums over a step or the run."""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import numpy as np

from tokenaudit.audit.case import Case
from tokenaudit.audit.checks.masks import masked_for_length
from tokenaudit.audit.checks.versions import syncs, updates_per_step
from tokenaudit.audit.findings import Findings, Subject
from tokenaudit.audit.replayed_run import NEVER
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
        row: their put row.
        task: code of the task.
        step: step of the take.
        tokens: their tokens.
        trainable: those that the semantic mask trains.
        trained: those of them that the token rule leaves.
    """

    row: Int64s
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
    return _TakenTokens(rows, table["task"][rows], step, table["tokens"][rows], trainable, trained)


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
    is_lost = (tokens > 0) & (trained == 0)
    found = [
        (
            Subject(train_step=int(steps[at])),
            f"0 of {plural(int(tokens[at]), 'token')} trainable ({int(trainable[at])} of them stale)",
        )
        for at in np.flatnonzero(is_lost).tolist()
    ]
    findings.add_listed(found, "step", rows=np.unique(got.row[is_lost[of_step]]))


@rule("T005", "untrained-response-taken", Severity.WARNING,
      "Responses were taken that have no token to train, so the batch is smaller than it seems.",
      "Refresh staleness right before every take, and drop responses whose mask is all 0.",
      Fact.REPLAY, Fact.RECORDED_TAKES)  # fmt: skip
def _untrained_response_taken(case: Case, findings: Findings) -> None:
    """Steps in which nothing at all is trained are told by step-without-trainable-tokens.

    So are masks of what was cut at its length by fully-masked-row, where they are meant.
    """
    got = _taken_tokens(case)
    findings.add_checked(len(got.row), "taken responses")
    steps, of_step = np.unique(got.step, return_inverse=True)
    trains = _sums(of_step, got.trained > 0) > 0
    untrained = (got.trained == 0) & trains[of_step] & ~masked_for_length(case)[got.row]
    for task, rows in case.table.puts_by_task(np.unique(got.row[untrained])):
        of_task = got.task == case.table.tasks.index(task)
        own, size = (_sums(of_step[where], of_task[where]) for where in (of_task & untrained, of_task))
        at = np.flatnonzero(own)
        worst = int(at[np.argmax(own[at] / size[at])])
        stale = int((of_task & untrained & (got.trainable > 0)).sum())
        text = f"taken at {plural(len(at), 'step')} with no token to train ({stale:,} of {own.sum():,} too old); at"
        text += f" step {steps[worst]} the batch is in effect {size[worst] - own[worst]} of {size[worst]} responses"
        findings.add_extent(rows, text)


@rule("T006", "step-without-take", Severity.WARNING,
      "Steps between the first and the last take have no take.",
      "Look for files or rows that were lost; record every take.",
      Fact.TIMELINE)  # fmt: skip
def _step_without_take(case: Case, findings: Findings) -> None:
    steps = sorted({step.train_step for step in case.replayed.steps})
    findings.add_checked(len(steps), "steps")
    found: list[tuple[Subject, str]] = []
    for before, after in pairwise(steps):
        if after > before + 1:
            span = f"step {before + 1}" if after == before + 2 else f"steps {before + 1} to {after - 1}"
            found.append((Subject(train_step=before + 1), f"no take of {span}"))
    findings.add_listed(found, "gap")


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
    found: list[tuple[Subject, str]] = []
    for (task, step), trained in _trained_by_step(case).items():
        divisor = recorded.get((task, step))
        if divisor is None:
            continue
        findings.add_checked(1, "steps")
        if divisor != trained:
            scale = f": loss scaled by {trained / divisor:.2f}" if divisor else ""
            text = f"divided by {divisor}, trainable tokens {trained}{scale}"
            found.append((Subject(task, train_step=step), text))
    step = _taken_at(case)
    for code, task in enumerate(table.tasks):
        own = [one for one in found if one[0].task == task]
        rows = (table["task"] == code) & np.isin(
            step, [subject.train_step for subject, _ in own if subject.train_step is not None]
        )
        findings.add_listed(own, "step", rows=np.flatnonzero(rows))


def _taken_at(case: Case) -> Int64s:
    """Step at which each row of the log was taken: as takes name it, else as replayed; `NEVER` where it wasn't."""
    step = np.full(case.table.rows, NEVER, dtype=np.int64)
    if len(case.taken):
        step[case.taken.rows] = case.taken.train_step[case.taken.owner]
    else:
        step[case.replayed.puts.rows] = case.replayed.taken_step
    return step


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

"""Checks of the lifecycle: samples, takes, restarts and statuses, against the replay of the run's own config."""

from __future__ import annotations

from bisect import bisect

import numpy as np

from tokenaudit.audit.case import Case
from tokenaudit.audit.findings import Findings, Subject
from tokenaudit.audit.replayed_run import NEVER
from tokenaudit.audit.rule import Fact, Severity, rule
from tokenaudit.config.warnings import config_warnings
from tokenaudit.contracts.schema import EventKind
from tokenaudit.lifecycle.types import Status
from tokenaudit.log.columns import Bools
from tokenaudit.log.digest import KIND_CODE, STATUS_CODE
from tokenaudit.log.row_checks import ABSENT

_COMPLETED, _INIT = STATUS_CODE[Status.COMPLETED], STATUS_CODE[Status.INIT]
_SAMPLE, _SYNC = KIND_CODE[EventKind.SAMPLE], KIND_CODE[EventKind.SYNC]


@rule("L017", "id-reused", Severity.WARNING,
      "A group was put again after it had been taken, or while it waited as completed.",
      "Add a part to ids that is new for every run, and don't feed prompts again unnoticed.",
      Fact.TAKES)  # fmt: skip
def _id_reused(case: Case, findings: Findings) -> None:
    replayed = case.replayed
    findings.add_checked(len(replayed.digest.events.kind), "events")
    for again in replayed.put_again:
        row = int(replayed.put_rows(again.log_event)[0])
        if again.held is Status.COMPLETED:
            findings.add(case.table.group_subject(row), "put again while it waits as completed")
        elif again.taken_at != NEVER:
            findings.add(case.table.group_subject(row), f"put again after the take of step {again.taken_at}")


@rule("L022", "sample-mismatch", Severity.WARNING,
      "The run sampled a group that the replay doesn't hold in that pool.",
      "Record every put, sample and take in the order in which the buffer saw them.",
      Fact.TIMELINE)  # fmt: skip
def _sample_mismatch(case: Case, findings: Findings) -> None:
    """Samples that the rules about expiry don't report; groups put before the log begins are left out."""
    findings.add_checked(len(case.replayed.samples), "samples")
    for sample in case.replayed.samples:
        if sample.replayed is None:
            is_mismatch, where = sample.was_put and not sample.was_discarded, "isn't held"
        else:
            is_of_expiry = sample.expired_too_early or sample.expired_too_late
            is_mismatch = sample.recorded is not sample.replayed and not is_of_expiry
            where = f"waits as {sample.replayed}"
        if is_mismatch:
            text = f"sampled from the {sample.recorded} pool, while it {where}"
            findings.add(Subject(sample.task, sample.group_id), text)


@rule("L023", "put-without-sample", Severity.WARNING,
      "A group that waits was put again, though no sample event took it out.",
      "Record a sample event for every group that is generated again.",
      Fact.TIMELINE, Fact.SAMPLES)  # fmt: skip
def _put_without_sample(case: Case, findings: Findings) -> None:
    replayed = case.replayed
    findings.add_checked(len(replayed.put_again), "puts of groups that wait or were taken")
    for again in replayed.put_again:
        if again.held in (Status.ABORTED, Status.EXPIRED):
            row = int(replayed.put_rows(again.log_event)[0])
            findings.add(case.table.group_subject(row), f"put again while it waits as {again.held}")


@rule("L016", "duplicate-consumption", Severity.ERROR,
      "A response was taken twice.",
      "Restore the data position together with the checkpoint.",
      Fact.RECORDED_TAKES)  # fmt: skip
def _duplicate_consumption(case: Case, findings: Findings) -> None:
    table = case.table
    taken_at: dict[tuple[int, int, int], int] = {}
    for take in case.takes:
        findings.add_checked(1, "recorded takes")
        # The same id in another group is another response.
        group_id = int(table["group_id"][take.put_rows[0]]) if take.put_rows else ABSENT
        key = (int(table["task"][take.row]), int(table["rollout_id"][take.row]), group_id)
        before = taken_at.get(key, NEVER)
        is_segment = before == take.train_step and len(take.put_rows) > 1
        if before != NEVER and not is_segment:
            text = f"trained at steps {before} and {take.train_step}"
            subject = table.subject(take.put_rows[0]) if take.put_rows else Subject(table.tasks[key[0]], None, key[1])
            findings.add(subject, text)
        taken_at[key] = take.train_step


@rule("L018", "run-restart", Severity.INFO,
      "train_step falls: the run seems to have been restarted.",
      "Write a log per run, or expect what was in flight to be lost.")  # fmt: skip
def _run_restart(case: Case, findings: Findings) -> None:
    table = case.table
    # A sync names the step just trained, after the buffer has moved on.
    rows = np.flatnonzero(~np.isin(table["kind"], (_SAMPLE, _SYNC)) & table.present("train_step"))
    findings.add_checked(len(rows))
    now = table["train_step"]
    fell = np.zeros(table.rows, dtype=np.bool_)
    before = np.zeros(table.rows, dtype=np.int64)
    for own in table.by_rank(rows):
        before[own[1:]] = now[own[:-1]]
        fell[own[1:]] = now[own[1:]] < now[own[:-1]]
    findings.add_rows(
        lambda row: Subject(train_step=int(now[row])), fell,
        lambda row: f"train_step falls from {before[row]} to {now[row]}{table.on_rank(row)}",
    )  # fmt: skip


@rule("L019", "status-transition", Severity.ERROR,
      "A completed response went back to init without being generated again.",
      "Keep the status when other fields are reset.")  # fmt: skip
def _status_transition(case: Case, findings: Findings) -> None:
    table = case.table
    status = table["status"]
    rows = np.flatnonzero((table.previous >= 0) & (status == _INIT) & (table["tokens"] == 0))
    back = np.zeros(table.rows, dtype=np.bool_)
    back[rows] = status[table.previous[rows]] == _COMPLETED
    back &= ~sampled_between(case, back)
    findings.add_rows(table.subject, back, lambda _: "completed at the put before, init and empty now")
    findings.add_checked(int((table.previous >= 0).sum()), "puts of a response seen before")


def sampled_between(case: Case, rows: Bools, pool: Status | None = None) -> Bools:
    """For the put rows in `rows`: whether their group was sampled since the response's put before, from one pool."""
    table = case.table
    between = np.zeros(table.rows, dtype=np.bool_)
    task, group_id = table["task"], table["group_id"]
    samples: dict[tuple[int, int], list[int]] = {}
    is_sample = table["kind"] == _SAMPLE
    is_sample &= True if pool is None else table["status"] == STATUS_CODE[pool]
    for row in np.flatnonzero(is_sample).tolist():
        samples.setdefault((int(task[row]), int(group_id[row])), []).append(row)
    for row in np.flatnonzero(rows).tolist():
        own = samples.get((int(task[row]), int(group_id[row])), [])
        between[row] = bisect(own, row) > bisect(own, table.previous[row])
    return between


@rule("L021", "setting-suspect", Severity.WARNING,
      "A setting of the config costs something that isn't obvious from it.",
      "See `tokenaudit lint`.",
      Fact.CONFIG)  # fmt: skip
def _setting_suspect(case: Case, findings: Findings) -> None:
    for warning in config_warnings(case.known_config, case.recorded_interval, case.table.used_tasks):
        task = warning.tasks[0] if len(warning.tasks) == 1 else None
        findings.add(Subject(task), f"{warning.code}: {warning.message.removeprefix(f'task {task}: ')}")
    findings.add_checked(len(case.table.used_tasks), "tasks")

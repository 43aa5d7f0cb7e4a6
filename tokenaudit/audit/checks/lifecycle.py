"""Checks of the lifecycle: samples, takes, restarts and statuses, against the replay of the run's own config."""

from __future__ import annotations

from bisect import bisect
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from tokenaudit.audit.case import Case
from tokenaudit.audit.epochs import begun_anew
from tokenaudit.audit.findings import Findings, Subject
from tokenaudit.audit.replayed_run import NEVER, Sampled
from tokenaudit.audit.rule import Fact, Severity, rule
from tokenaudit.audit.table import LogTable
from tokenaudit.config.warnings import config_warnings
from tokenaudit.contracts.errors import plural
from tokenaudit.contracts.schema import EventKind
from tokenaudit.lifecycle.types import Status
from tokenaudit.log.columns import Bools, Int64s
from tokenaudit.log.digest import KIND_CODE, STATUS_CODE
from tokenaudit.log.row_checks import ABSENT

STEPS_AFTER = 4
"""Steps for which the run must go on behind a group that never comes again."""
LOST_GROUPS = 3
"""Groups of one step that must be lost, where nothing else says that the run was restarted."""

_COMPLETED, _INIT, _ABORTED = (STATUS_CODE[status] for status in (Status.COMPLETED, Status.INIT, Status.ABORTED))
_PUT, _SAMPLE, _SYNC = (KIND_CODE[kind] for kind in (EventKind.PUT, EventKind.SAMPLE, EventKind.SYNC))


@rule("L017", "id-reused", Severity.WARNING,
      "A group was put again after it had been taken, or while it waited as completed.",
      "Add a part to ids that is new for every run, and don't feed prompts again unnoticed.",
      Fact.TAKES)  # fmt: skip
def _id_reused(case: Case, findings: Findings) -> None:
    replayed = case.replayed
    findings.add_checked(len(replayed.digest.events.kind), "events")
    # Prompts of another epoch are for G010, which says so once.
    table, anew = case.table, begun_anew(case.table)
    of_epochs = {*zip(table["task"][anew].tolist(), table["group_id"][anew].tolist(), strict=True)}
    waits: dict[int, str] = {}
    taken: dict[int, str] = {}
    for again in replayed.put_again:
        row = int(replayed.put_rows(again.log_event)[0])
        if (int(table["task"][row]), again.group_id) in of_epochs:
            continue
        if again.held is Status.COMPLETED:
            waits[row] = "put again while it waits as completed"
        elif again.taken_at != NEVER:
            taken[row] = f"put again after the take of step {again.taken_at}"
    findings.add_texts(table.group_subject, waits, cause="waits")
    findings.add_texts(table.group_subject, taken, cause="taken")


@rule("L022", "sample-mismatch", Severity.WARNING,
      "The run sampled a group that the replay doesn't hold in that pool.",
      "Record every put, sample and take in the order in which the buffer saw them.",
      Fact.TIMELINE)  # fmt: skip
def _sample_mismatch(case: Case, findings: Findings) -> None:
    """Samples that the rules about expiry don't report; groups put before the log begins are left out."""
    findings.add_checked(len(case.replayed.samples), "samples")
    texts: dict[Sampled, str] = {}
    for sample in case.replayed.samples:
        if sample.replayed is None:
            is_mismatch, where = sample.put != NEVER and not sample.was_discarded, "isn't held"
        else:
            is_of_expiry = sample.expired_too_early or sample.expired_too_late
            is_mismatch = sample.recorded is not sample.replayed and not is_of_expiry
            where = f"waits as {sample.replayed}"
        if is_mismatch:
            texts[sample] = f"sampled from the {sample.recorded} pool, while it {where}"
    add_samples(case, findings, texts)


def add_samples(case: Case, findings: Findings, texts: Mapping[Sampled, str]) -> None:
    """Add what is wrong with sample events; of a task with many, one finding with the puts of these groups before."""
    texts_of = {int(case.replayed.put_rows(sample.put)[0]): text for sample, text in texts.items()}
    findings.add_texts(lambda row: replace(case.table.group_subject(row), put=None), texts_of, cause="samples")


@rule("L023", "put-without-sample", Severity.WARNING,
      "A group that waits was put again, though no sample event took it out.",
      "Record a sample event for every group that is generated again.",
      Fact.TIMELINE, Fact.SAMPLES)  # fmt: skip
def _put_without_sample(case: Case, findings: Findings) -> None:
    replayed = case.replayed
    findings.add_checked(len(replayed.put_again), "puts of groups that wait or were taken")
    texts = {
        int(replayed.put_rows(again.log_event)[0]): f"put again while it waits as {again.held}"
        for again in replayed.put_again
        if again.held in (Status.ABORTED, Status.EXPIRED)
    }
    findings.add_texts(case.table.group_subject, texts)


@rule("L016", "duplicate-consumption", Severity.ERROR,
      "A response was taken twice.",
      "Restore the data position together with the checkpoint.",
      Fact.RECORDED_TAKES)  # fmt: skip
def _duplicate_consumption(case: Case, findings: Findings) -> None:
    table = case.table
    taken_at: dict[tuple[int, int, int], int] = {}
    texts: dict[int, str] = {}
    unknown: list[tuple[Subject, str]] = []
    findings.add_checked(len(case.takes), "recorded takes")
    # The same id in another group is another response.
    first = np.array([take.put_rows[0] if take.put_rows else -1 for take in case.takes], dtype=np.int64)
    group_ids = np.where(first >= 0, table["group_id"][first], ABSENT).tolist()
    at = np.array([take.row for take in case.takes], dtype=np.int64)
    keys = zip(table["task"][at].tolist(), table["rollout_id"][at].tolist(), group_ids, strict=True)
    for take, key in zip(case.takes, keys, strict=True):
        before = taken_at.get(key, NEVER)
        is_segment = before == take.train_step and len(take.put_rows) > 1
        if before != NEVER and not is_segment:
            text = f"trained at steps {before} and {take.train_step}"
            if take.put_rows:
                texts[take.put_rows[0]] = text
            else:
                unknown.append((Subject(table.tasks[key[0]], None, key[1]), text))
        taken_at[key] = take.train_step
    findings.add_texts(table.subject, texts)
    findings.add_listed(unknown, "response")


@rule("L018", "run-restart", Severity.INFO,
      "train_step falls: the run seems to have been restarted.",
      "Write a log per run, or expect what was in flight to be lost.")  # fmt: skip
def _run_restart(case: Case, findings: Findings) -> None:
    table = case.table
    now, before = table["train_step"], _step_before_fall(table)
    findings.add_checked(int(_with_step(table).sum()))
    findings.add_rows(
        lambda row: Subject(train_step=int(now[row])), before != ABSENT,
        lambda row: f"train_step falls from {before[row]} to {now[row]}{table.on_rank(row)}",
    )  # fmt: skip


def _with_step(table: LogTable) -> Bools:
    # A sync names the step just trained, after the buffer has moved on.
    return ~np.isin(table["kind"], (_SAMPLE, _SYNC)) & table.present("train_step")


def _step_before_fall(table: LogTable) -> Int64s:
    """The step from which train_step falls to that of each row; `ABSENT` where it doesn't fall."""
    step = table["train_step"]
    before = np.full(table.rows, ABSENT)
    for own in table.by_rank(np.flatnonzero(_with_step(table))):
        fell = own[1:][step[own[1:]] < step[own[:-1]]]
        before[fell] = step[own[:-1]][step[own[1:]] < step[own[:-1]]]
    return before


@rule("G021", "group-abandoned", Severity.WARNING,
      "Groups were cut off and never come again, though the run goes on: a restart, or the buffer, lost them.",
      "Save what is in flight and in the buffer with the checkpoint; what is lost is mostly long, so short ones win.",
      Fact.REPLAY)  # fmt: skip
def _group_abandoned(case: Case, findings: Findings) -> None:
    """Groups that were put as aborted last, while as many others were begun since.

    The last steps may have left them to the next ones. Without a fall of train_step, most of the groups cut off at a
    step must be lost: some may wait for long. What expires in the replay is lost if it waited there twice as long as
    any group that came again.
    """
    table, replayed = case.table, case.replayed
    step, put, status = table["train_step"], table.put_event, table["status"]
    kept = replayed.puts.rows
    open_puts = np.zeros(table.rows, dtype=np.bool_)
    open_puts[table.of_same_puts(kept[status[kept] == _ABORTED])] = True
    again, first_of_group = _comes_again(table)
    lost = open_puts & ~again
    waits = _waits(table, open_puts & again)
    for one in replayed.expired:
        rows = replayed.put_rows(one.put)
        # What expires sooner may have been discarded for it; what waits longer than all others isn't held any more.
        lost[rows] &= one.waited > 2 * waits.get(int(table["task"][rows[0]]), one.waited)
    fell = _step_before_fall(table) != ABSENT
    start = np.cumsum(fell)
    findings.add_checked(len(np.unique(put[open_puts])), "puts of groups cut off")
    for code in range(len(table.tasks)):
        own = np.flatnonzero(open_puts & (table["task"] == code))
        gone = np.zeros(table.rows, dtype=np.bool_)
        at_restart = False
        left = own[lost[own]]
        for number, at in np.unique(np.stack([start[left], step[left]]), axis=1).T.tolist():
            rows = own[(step[own] == at) & (start[own] == number)]
            groups, missing = (len(np.unique(put[one])) for one in (rows, rows[lost[rows]]))
            is_before = number < start[-1] and at >= step[np.searchsorted(start, number + 1)] - 1
            goes_on = int(step[kept].max()) - at >= STEPS_AFTER
            begun = int((first_of_group[table["task"][first_of_group] == code] > rows[-1]).sum())
            if begun >= missing and (is_before or (goes_on and missing >= LOST_GROUPS and 2 * missing > groups)):
                gone[rows[lost[rows]]] = True
                at_restart |= is_before
        if gone.any():
            findings.add_extent(gone, _lost_text(case, np.flatnonzero(gone), "before a restart " if at_restart else ""))


def _comes_again(table: LogTable) -> tuple[Bools, Int64s]:
    """Which put rows have a group that is put or sampled again later, and the first row of every group."""
    rows = np.flatnonzero(np.isin(table["kind"], (_PUT, _SAMPLE)) & table.present("group_id"))
    pairs = np.stack([table["task"][rows], table["group_id"][rows]])
    _, first, group = np.unique(pairs, axis=1, return_index=True, return_inverse=True)
    group = group.reshape(-1)
    last = np.zeros(int(group.max(initial=-1)) + 1, dtype=np.int64)
    np.maximum.at(last, group, rows)
    again = np.zeros(table.rows, dtype=np.bool_)
    last_put = table.put_event[last[group]]
    again[rows] = (table.put_event[rows] != last_put) & table.is_put[rows]
    return again, rows[first]


def _waits(table: LogTable, again: Bools) -> dict[int, int]:
    """The most steps, at least 1, that groups of each task, by its code, waited from a put to their next one.

    Args:
        table: the rows.
        again: put rows of groups that are put or sampled later.
    """
    rows = np.flatnonzero(table.is_put)
    order = rows[np.lexsort((rows, table["group_id"][rows], table["task"][rows]))]
    starts = order[np.flatnonzero(np.diff(table.put_event[order], prepend=-1))]
    now, then = starts[:-1], starts[1:]
    same = (table["task"][now] == table["task"][then]) & (table["group_id"][now] == table["group_id"][then])
    same &= again[now]
    most: dict[int, int] = {}
    for task in np.unique(table["task"][now[same]]).tolist():
        own = same & (table["task"][now] == task)
        most[task] = max(1, int((table["train_step"][then[own]] - table["train_step"][now[own]]).max()))
    return most


def _lost_text(case: Case, rows: Int64s, when: str) -> str:
    table = case.table
    groups = len(np.unique(table.put_event[rows]))
    steps = np.unique(table["train_step"][rows])
    text = f"{plural(groups, 'group')} put as aborted {when}at step {steps[0]}"
    text += f" to {steps[-1]} " if len(steps) > 1 else " "
    text += "and never again, though the run goes on"
    done = table.known & (table["status"] == _COMPLETED) & (table["task"] == table["task"][rows[0]])
    if done.any():
        own, others = float(np.mean(table["tokens"][rows])), float(np.mean(table["tokens"][done]))
        text += f"; their responses had {own:,.0f} tokens on average so far, {own / max(others, 1):.1f} times the"
        text += f" {others:,.0f} of completed ones"
    return text


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

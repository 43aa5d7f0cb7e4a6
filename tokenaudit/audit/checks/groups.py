"""Checks of groups: members, segments, rewards, and what was taken of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from tokenaudit.audit.case import Case
from tokenaudit.audit.epochs import begun_anew
from tokenaudit.audit.findings import Findings, Subject
from tokenaudit.audit.rule import Fact, Severity, rule
from tokenaudit.audit.table import LogTable
from tokenaudit.audit.taken_groups import split_groups
from tokenaudit.contracts.errors import plural
from tokenaudit.lifecycle.types import Status
from tokenaudit.log.columns import Int64s
from tokenaudit.log.digest import STATUS_CODE, STATUSES

_COMPLETED, _FILTERED = STATUS_CODE[Status.COMPLETED], STATUS_CODE[Status.FILTERED]


def _put_spans(table: LogTable) -> Iterator[Int64s]:
    """Rows of every put."""
    rows = np.flatnonzero(table.is_put)
    if len(rows):
        cuts = np.flatnonzero(np.diff(table.put_event[rows])) + 1
        yield from np.split(rows, cuts)


@rule("G001", "group-incomplete", Severity.ERROR,
      "A take has fewer or more members of a group than group_size, or than were put where the config has none.",
      "Hold a group back until all members are there, or drop it whole; give every group its own id.",
      Fact.RECORDED_TAKES)  # fmt: skip
def _group_incomplete(case: Case, findings: Findings) -> None:
    """Groups of which several takes have parts are told by group-split."""
    table, taken = case.table, case.taken
    first = taken.first_row
    put = np.flatnonzero(table.is_put)
    members = np.unique(np.stack([table.put_event[put], table["rollout_id"][put]]), axis=1)[0]
    wanted = np.bincount(members)[table.put_event[first]]
    has_size = np.zeros(len(taken), dtype=np.bool_)
    for code, task in enumerate(table.tasks) if case.config else ():
        size = case.known_config.task_policy(task).group_size
        if size is not None:
            has_size[taken.task == code] = True
            wanted[taken.task == code] = size
    wrong = (taken.members != wanted) & ~split_groups(table, taken)
    last_put = _last_rows(table) if wrong.any() else {}
    texts: dict[int, str] = {}
    for group in np.flatnonzero(wrong).tolist():
        row, size, count = int(first[group]), int(wanted[group]), int(taken.members[group])
        rollouts = set(table["rollout_id"][taken.rows[taken.owner == group]].tolist())
        missing = [
            f"rollout {rollout} last seen {STATUSES[int(table['status'][last])]} at put {table.put_number[last]}"
            for rollout, last in last_put[int(table["task"][row]), int(table["group_id"][row])].items()
            if rollout not in rollouts
        ]
        text = f"{count} of {plural(size, 'member')}"
        if count > size:
            text = f"{plural(count, 'member')}, {'group_size is' if has_size[group] else 'of which were put'} {size}"
        texts[row] = "; ".join([f"taken at step {taken.train_step[group]} with {text}", *missing[:3]])
    for known, level in ((has_size, Severity.ERROR), (~has_size, Severity.WARNING)):
        findings.add_rows(table.group_subject, first[wrong & known], texts.__getitem__, level, most=1)
    findings.add_checked(len(taken), "taken groups")


def _last_rows(table: LogTable) -> dict[tuple[int, int], dict[int, int]]:
    """The last put row of every rollout, by code of the task and group."""
    last: dict[tuple[int, int], dict[int, int]] = {}
    rows = np.flatnonzero(table.is_put)
    columns = (rows, table["task"][rows], table["group_id"][rows], table["rollout_id"][rows])
    for row, task, group_id, rollout_id in zip(*(column.tolist() for column in columns), strict=True):
        last.setdefault((task, group_id), {})[rollout_id] = row
    return last


@rule("G002", "group-singleton", Severity.WARNING,
      "A group has one member, so a baseline inside the group is undefined.",
      "Sample at least two responses per prompt, or use a baseline of another kind.")  # fmt: skip
def _group_singleton(case: Case, findings: Findings) -> None:
    table = case.table
    single = np.zeros(table.rows, dtype=np.bool_)
    rows = np.flatnonzero(table.is_put)
    starts = np.flatnonzero(np.diff(table.put_event[rows], prepend=-1))
    if len(rows):
        first, rollouts = rows[starts], table["rollout_id"][rows]
        is_one = np.minimum.reduceat(rollouts, starts) == np.maximum.reduceat(rollouts, starts)
        single[first] = is_one & (table["status"][first] == _COMPLETED)
    if case.config is not None:
        for code, task in enumerate(table.tasks):
            if case.config.task_policy(task).group_size == 1:
                single &= table["task"] != code
    findings.add_rows(
        table.group_subject, single,
        lambda _: "1 member: no baseline, and the spread of rewards is undefined",
    )  # fmt: skip
    findings.add_checked(len(starts), "puts")


def _fan_out(table: LogTable) -> Iterator[tuple[Int64s, dict[int, Int64s]]]:
    """(rows, rows by rollout) of every put in which a rollout has several rows."""
    if not table.segment.any():
        return
    for rows in _put_spans(table):
        if table.segment[rows].any():
            rollouts = table["rollout_id"][rows]
            yield rows, {rollout: rows[rollouts == rollout] for rollout in dict.fromkeys(rollouts.tolist())}


@rule("G003", "fan-out-overweight", Severity.WARNING,
      "Rollouts of a group have different numbers of rows, so a mean over rows weighs them differently.",
      "Take the baseline over rollouts.",
      "reward")  # fmt: skip
def _fan_out_overweight(case: Case, findings: Findings) -> None:
    table = case.table
    texts: dict[int, str] = {}
    for rows, by_rollout in _fan_out(table):
        findings.add_checked(1, "puts with split rollouts")
        rewards = table["reward"]
        if len({len(own) for own in by_rollout.values()}) == 1 or not np.isfinite(rewards[rows]).all():
            continue
        per_row = float(np.mean(rewards[rows]))
        per_rollout = float(np.mean([float(np.mean(rewards[own])) for own in by_rollout.values()]))
        if per_row != per_rollout:
            text = f"{len(rows)} rows from {plural(len(by_rollout), 'rollout')}: baseline per row {per_row:.2f}, per"
            texts[int(rows[0])] = f"{text} rollout {per_rollout:.2f}"
    findings.add_texts(table.group_subject, texts)


@rule("G004", "fan-out-reward-conflict", Severity.ERROR,
      "Rows of one rollout in one put have different rewards.",
      "Give every row of a rollout the reward of the rollout.",
      "reward")  # fmt: skip
def _fan_out_reward_conflict(case: Case, findings: Findings) -> None:
    table = case.table
    texts: dict[int, str] = {}
    for _, by_rollout in _fan_out(table):
        for own in by_rollout.values():
            findings.add_checked(1, "rollouts in a put with split ones")
            rewards = table["reward"][own]
            known = np.unique(rewards[~np.isnan(rewards)])
            if len(known) > 1:
                listed = ", ".join(f"{value:g}" for value in known[:4])
                texts[int(own[0])] = f"{len(own)} rows with the rewards {listed}"
    findings.add_texts(table.subject, texts)


@rule("G005", "group-filter-split", Severity.WARNING,
      "Some members of a group are filtered and others completed; an error where the group was taken.",
      "Decide on a filter for the whole group.")  # fmt: skip
def _group_filter_split(case: Case, findings: Findings) -> None:
    table = case.table
    taken_rows = {row for take in case.takes for row in take.put_rows}
    is_filtered = table["status"] == _FILTERED
    texts: dict[Severity, dict[int, str]] = {Severity.ERROR: {}, Severity.WARNING: {}}
    for rows in _put_spans(table) if (table.is_put & is_filtered).any() else ():
        filtered = is_filtered[rows]
        if not filtered.any() or filtered.all():
            continue
        kept = rows[~filtered]
        spread = np.unique(table["reward"][kept][~np.isnan(table["reward"][kept])])
        text = f"{int(filtered.sum())} of {plural(len(rows), 'member')} filtered"
        text += "; the rest has zero spread" if len(spread) == 1 and len(kept) > 1 else ""
        is_taken = not taken_rows.isdisjoint(rows.tolist())
        text += "; the group was taken" if is_taken else "; the group is discarded whole"
        texts[Severity.ERROR if is_taken else Severity.WARNING][int(rows[0])] = text
    for level, own in texts.items():
        findings.add_texts(table.group_subject, own, level)
    findings.add_checked(int(table.is_put.sum()))


@rule("G006", "group-zero-variance", Severity.INFO,
      "Groups were taken whose members all have the same reward.",
      "They teach nothing under a group baseline; filter them, or choose other prompts.",
      "reward", Fact.RECORDED_TAKES)  # fmt: skip
def _group_zero_variance(case: Case, findings: Findings) -> None:
    table, taken = case.table, case.taken
    reward, tokens = table["reward"], taken.sums(np.where(table.known, table["tokens"], 0))
    first = np.nan_to_num(reward[taken.first_row])[taken.owner]
    spread = np.bincount(taken.owner, np.nan_to_num(reward[taken.rows]) != first, minlength=len(taken)) > 0
    rewarded = (taken.members > 1) & (taken.sums(np.isnan(reward)) == 0)
    findings.add_checked(int(rewarded.sum()), "taken groups")
    for code, task in enumerate(table.tasks):
        own = rewarded & (taken.task == code)
        flat = own & ~spread
        if flat.any():
            share = 100 * tokens[flat].sum() / max(tokens[own].sum(), 1)
            text = f"{flat.sum()} of {plural(int(own.sum()), 'taken group')} with rewards have no spread"
            findings.add(Subject(task), f"{text} ({share:.1f} % of their tokens)")


@rule("G007", "unfinished-row-trained", Severity.ERROR,
      "A response was taken that was never put, or whose last put isn't completed.",
      "Take completed groups only.",
      Fact.RECORDED_TAKES)  # fmt: skip
def _unfinished_row_trained(case: Case, findings: Findings) -> None:
    table = case.table
    texts: dict[int, str] = {}
    unknown: list[tuple[Subject, str]] = []
    for take in case.takes:
        if not take.put_rows:
            task, rollout_id = int(table["task"][take.row]), int(table["rollout_id"][take.row])
            text = f"taken at step {take.train_step}, but never put before"
            unknown.append((Subject(table.tasks[task], None, rollout_id), text))
        for row in take.put_rows:
            status = int(table["status"][row])
            if status >= 0 and status != _COMPLETED:
                texts[row] = f"{STATUSES[status]} response taken at step {take.train_step}"
    findings.add_texts(table.subject, texts)
    findings.add_listed(unknown, "response")
    findings.add_checked(len(case.takes), "recorded takes")


@rule("G009", "rollout-in-two-groups", Severity.WARNING,
      "A rollout_id was put in one group and then in another, so it doesn't distinguish responses.",
      "Number rollouts once per task, and add a part that is new for every run.")  # fmt: skip
def _rollout_in_two_groups(case: Case, findings: Findings) -> None:
    table = case.table
    moved = table.moved_from
    findings.add_rows(
        table.subject, moved >= 0,
        lambda row: f"put {table.put_number[moved[row]]} of this rollout was in group {table['group_id'][moved[row]]}",
    )  # fmt: skip
    findings.add_checked(int(table.is_put.sum()))


@rule("G010", "group-members-changed", Severity.WARNING,
      "A group was put again with other rollouts than before; one finding where ids are those of prompts, over epochs.",
      "Put all members of a group every time, finished ones too, under their ids; number epochs too.")  # fmt: skip
def _group_members_changed(case: Case, findings: Findings) -> None:
    table = case.table
    rows = np.flatnonzero(table.is_put)
    starts = np.flatnonzero(np.diff(table.put_event[rows], prepend=-1))
    if len(rows) == 0:
        return
    rollout = table["rollout_id"][rows]
    # Sums of well mixed ids differ where sets differ, without a set held for every group.
    members = np.add.reduceat(np.where(table.segment[rows] == 0, _mixed(rollout), 0), starts)
    task, group_id = table["task"][rows[starts]], table["group_id"][rows[starts]]
    order = np.lexsort((group_id, task))
    before, now = order[:-1], order[1:]
    same_group = (task[before] == task[now]) & (group_id[before] == group_id[now])
    findings.add_checked(int(same_group.sum()), "groups put again")
    anew = begun_anew(table)
    findings.add_extent(anew, _epochs_text(table), cause="epochs")
    changed = np.flatnonzero(same_group & (members[before] != members[now]) & ~anew[rows[starts[now]]])
    ends = np.append(starts[1:], len(rows))
    texts: dict[int, str] = {}
    for index in changed[np.argsort(now[changed])].tolist():
        earlier, later = (
            set(rollout[starts[put] : ends[put]].tolist()) for put in (int(before[index]), int(now[index]))
        )
        parts = [
            f"{plural(len(ids), 'rollout')} {what} ({', '.join(map(str, ids[:3]))}{', …' if len(ids) > 3 else ''})"
            for what, ids in (("missing", sorted(earlier - later)), ("new", sorted(later - earlier)))
            if ids
        ]
        texts[int(rows[starts[now[index]]])] = " and ".join(parts)
    findings.add_texts(table.group_subject, texts)


def _epochs_text(table: LogTable) -> Callable[[Int64s], str]:
    """What a finding about groups of another epoch says of the rows of a task."""

    def message(rows: Int64s) -> str:
        puts = np.unique(table.put_event[rows], return_index=True)[1]
        groups, again = np.unique(table["group_id"][rows[puts]], return_counts=True)
        return (
            f"{plural(len(groups), 'group')} that had been finished come again with other rollouts, up to "
            f"{plural(int(again.max()), 'time')}: group ids seem to be those of prompts, over several epochs"
        )

    return message


def _mixed(ids: Int64s) -> np.ndarray[Any, np.dtype[np.uint64]]:
    """Numbers that look random, the same for the same id (the finalizer of splitmix64)."""
    mixed = ids.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))


@rule("G008", "reward-missing", Severity.ERROR,
      "A completed response of a taken group has no reward, though others have one.",
      "Score before the group is taken; don't stand in a 0.",
      "reward", Fact.RECORDED_TAKES)  # fmt: skip
def _reward_missing(case: Case, findings: Findings) -> None:
    table, taken = case.table, case.taken
    is_unscored = np.isnan(table["reward"])
    unscored, rows = taken.sums(is_unscored), np.bincount(taken.owner, minlength=len(taken))
    step = dict(zip(taken.rows.tolist(), taken.train_step[taken.owner].tolist(), strict=True))
    findings.add_checked(len(taken.rows))
    own = taken.rows_of((unscored > 0) & (unscored < rows))
    findings.add_rows(
        table.subject, own[is_unscored[own]],
        lambda row: f"no reward at the take of step {step[row]}, while other members of its group have one",
    )  # fmt: skip
    if not is_unscored[table.is_put].all():
        findings.add_rows(
            table.group_subject, np.unique(taken.first_row[unscored == rows]),
            lambda row: f"no member had a reward at the take of step {step[row]}", Severity.WARNING,
        )  # fmt: skip

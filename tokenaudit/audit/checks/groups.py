"""Checks of groups: members, segments, rewards, and what was taken of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np

from tokenaudit.audit.case import Case, Check, add_checked, add_rows, plural
from tokenaudit.audit.findings import Findings, Subject
from tokenaudit.audit.life import Taken
from tokenaudit.audit.rule import Rule, Severity
from tokenaudit.audit.table import LogTable
from tokenaudit.audit.takes import has_recorded_takes, recorded_takes
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


def _incomplete(case: Case, rule: Rule, findings: Findings) -> None:
    life = case.replayed
    last_put = {}
    sizes = {task: life.config.task_policy(task).group_size for task in life.digest.tasks}
    for taken in life.taken:
        size = sizes[taken.event.task_name]
        if size is None:
            continue
        add_checked(rule, findings, 1, "taken groups")
        rollouts = _rollouts(taken)
        if len(rollouts) == size:
            continue
        last_put = last_put or _last_rows(case.table)
        status, put_number = case.table["status"], case.table.put_number
        missing = [
            f"rollout {rollout} last seen {STATUSES[int(status[row])]} at put {put_number[row]}"
            for rollout, row in last_put.get((taken.event.task_name, taken.event.group_id), {}).items()
            if rollout not in rollouts
        ]
        text = f"taken at step {taken.event.train_step} with {len(rollouts)} of {plural(size, 'member')}"
        if len(rollouts) > size:
            text = (
                f"taken at step {taken.event.train_step} with {plural(len(rollouts), 'member')}, group_size is {size}"
            )
        row = int(life.put_rows(taken.put)[0])
        findings.add(rule, case.table.group_subject(row), "; ".join([text, *missing[:3]]))


def _rollouts(taken: Taken) -> set[int]:
    return {rollout_id for rollout_id, _ in taken.event.responses.tokens_by_key()}


def _last_rows(table: LogTable) -> dict[tuple[str, int], dict[int, int]]:
    """The last put row of every rollout, by group."""
    last: dict[tuple[str, int], dict[int, int]] = {}
    rows = np.flatnonzero(table.is_put)
    columns = (rows, table["task"][rows], table["group_id"][rows], table["rollout_id"][rows])
    for row, task, group_id, rollout_id in zip(*(column.tolist() for column in columns), strict=True):
        last.setdefault((table.tasks[task], group_id), {})[rollout_id] = row
    return last


def _singleton(case: Case, rule: Rule, findings: Findings) -> None:
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
    add_rows(
        case, rule, findings, single,
        lambda _: "1 member: no baseline, and the spread of rewards is undefined", subject=table.group_subject,
    )  # fmt: skip
    add_checked(rule, findings, len(starts), "puts")


def _fan_out(table: LogTable) -> Iterator[tuple[Int64s, dict[int, Int64s]]]:
    """(rows, rows by rollout) of every put in which a rollout has several rows."""
    if not table.segment.any():
        return
    for rows in _put_spans(table):
        if table.segment[rows].any():
            rollouts = table["rollout_id"][rows]
            yield rows, {rollout: rows[rollouts == rollout] for rollout in dict.fromkeys(rollouts.tolist())}


def _overweight(case: Case, rule: Rule, findings: Findings) -> None:
    table = case.table
    for rows, by_rollout in _fan_out(table):
        add_checked(rule, findings, 1, "puts with split rollouts")
        rewards = table["reward"]
        if len({len(own) for own in by_rollout.values()}) == 1 or not np.isfinite(rewards[rows]).all():
            continue
        per_row = float(np.mean(rewards[rows]))
        per_rollout = float(np.mean([np.mean(rewards[own]) for own in by_rollout.values()]))
        if per_row != per_rollout:
            text = f"{len(rows)} rows from {plural(len(by_rollout), 'rollout')}: baseline per row {per_row:.2f}, per"
            findings.add(rule, table.group_subject(int(rows[0])), f"{text} rollout {per_rollout:.2f}")


def _reward_conflict(case: Case, rule: Rule, findings: Findings) -> None:
    table = case.table
    for _, by_rollout in _fan_out(table):
        for own in by_rollout.values():
            add_checked(rule, findings, 1, "rollouts in a put with split ones")
            rewards = table["reward"][own]
            known = np.unique(rewards[~np.isnan(rewards)])
            if len(known) > 1:
                listed = ", ".join(f"{value:g}" for value in known[:4])
                findings.add(rule, table.subject(int(own[0])), f"{len(own)} rows with the rewards {listed}")


def _filter_split(case: Case, rule: Rule, findings: Findings) -> None:
    table = case.table
    taken_rows = {row for take in recorded_takes(table) for row in take.put_rows}
    is_filtered = table["status"] == _FILTERED
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
        level = Severity.ERROR if is_taken else None
        findings.add(rule, table.group_subject(int(rows[0])), text, level)
    add_checked(rule, findings, int(table.is_put.sum()))


def _zero_variance(case: Case, rule: Rule, findings: Findings) -> None:
    flat, flat_tokens, groups, tokens = Counter(), Counter(), Counter(), Counter()
    for taken in case.replayed.taken:
        rewards, measures = list(taken.event.responses.rewards()), taken.event.responses.measures
        if len(rewards) < measures.samples or len(_rollouts(taken)) < 2:
            continue
        task, size = taken.event.task_name, measures.tokens
        groups[task] += 1
        tokens[task] += size
        if len(set(rewards)) == 1:
            flat[task] += 1
            flat_tokens[task] += size
    add_checked(rule, findings, sum(groups.values()), "taken groups")
    for task, count in flat.items():
        share = 100 * flat_tokens[task] / max(tokens[task], 1)
        text = f"{count} of {plural(groups[task], 'taken group')} with rewards have no spread"
        findings.add(rule, Subject(task), f"{text} ({share:.1f} % of their tokens)")


def _unfinished(case: Case, rule: Rule, findings: Findings) -> None:
    table = case.table
    if not has_recorded_takes(table):
        _unfinished_replayed(case, rule, findings)
        return
    for take in recorded_takes(table):
        add_checked(rule, findings, 1, "recorded takes")
        if not take.put_rows:
            task, rollout_id = int(table["task"][take.row]), int(table["rollout_id"][take.row])
            text = f"taken at step {take.train_step}, but never put before"
            findings.add(rule, Subject(table.tasks[task], None, rollout_id), text)
        for row in take.put_rows:
            status = int(table["status"][row])
            if status >= 0 and status != _COMPLETED:
                findings.add(rule, table.subject(row), f"{STATUSES[status]} response taken at step {take.train_step}")


def _unfinished_replayed(case: Case, rule: Rule, findings: Findings) -> None:
    """A group counts as completed where its members are neither failed, aborted, expired nor filtered: init remains."""
    life, status = case.replayed, case.table["status"]
    add_checked(rule, findings, len(life.taken), "taken groups")
    for taken in life.taken:
        if taken.event.responses.measures.is_completed:
            continue
        for row in life.put_rows(taken.put).tolist():
            if status[row] != _COMPLETED:
                text = f"{STATUSES[int(status[row])]} response taken at step {taken.event.train_step}"
                findings.add(rule, case.table.subject(row), text)


def _in_two_groups(case: Case, rule: Rule, findings: Findings) -> None:
    table = case.table
    moved = table.moved_from
    add_rows(
        case, rule, findings, moved >= 0,
        lambda row: f"put {table.put_number[moved[row]]} of this rollout was in group {table['group_id'][moved[row]]}",
    )  # fmt: skip
    add_checked(rule, findings, int(table.is_put.sum()))


def _members_changed(case: Case, rule: Rule, findings: Findings) -> None:
    table = case.table
    rows = np.flatnonzero(table.is_put)
    starts = np.flatnonzero(np.diff(table.put_event[rows], prepend=-1))
    if len(rows) == 0:
        return
    rollout = table["rollout_id"][rows]
    # Sums of well mixed ids tell sets apart without holding one for every group.
    members = np.add.reduceat(np.where(table.segment[rows] == 0, _mixed(rollout), 0), starts)
    task, group_id = table["task"][rows[starts]], table["group_id"][rows[starts]]
    order = np.lexsort((group_id, task))
    before, now = order[:-1], order[1:]
    same_group = (task[before] == task[now]) & (group_id[before] == group_id[now])
    add_checked(rule, findings, int(same_group.sum()), "groups put again")
    changed = np.flatnonzero(same_group & (members[before] != members[now]))
    ends = np.append(starts[1:], len(rows))
    for index in changed[np.argsort(now[changed])].tolist():
        earlier, later = (
            set(rollout[starts[put] : ends[put]].tolist()) for put in (int(before[index]), int(now[index]))
        )
        parts = [
            f"{plural(len(ids), 'rollout')} {what} ({', '.join(map(str, ids[:3]))}{', …' if len(ids) > 3 else ''})"
            for what, ids in (("missing", sorted(earlier - later)), ("new", sorted(later - earlier)))
            if ids
        ]
        findings.add(rule, table.group_subject(int(rows[starts[now[index]]])), " and ".join(parts))


def _mixed(ids: Int64s) -> np.ndarray[Any, np.dtype[np.uint64]]:
    """Numbers that look random, the same for the same id (the finalizer of splitmix64)."""
    mixed = ids.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))


def _reward_missing(case: Case, rule: Rule, findings: Findings) -> None:
    table, life = case.table, case.replayed
    is_unscored = np.isnan(table["reward"])
    has_rewards = not is_unscored[table.is_put].all()
    puts = np.array([taken.put for taken in life.taken], dtype=np.int64)
    bounds = life.digest.events.first_response
    before = np.concatenate([[0], np.cumsum(is_unscored[life.puts.rows])])
    unscored, members = (column[bounds[puts + 1]] - column[bounds[puts]] for column in (before, np.arange(len(before))))
    add_checked(rule, findings, int(members.sum()))
    for place in np.flatnonzero(unscored).tolist():
        taken, rows = life.taken[place], life.put_rows(life.taken[place].put)
        if unscored[place] < members[place]:
            for row in rows[is_unscored[rows]].tolist():
                text = f"no reward at the take of step {taken.event.train_step}, while mates have one"
                findings.add(rule, table.subject(row), text)
        elif has_rewards:
            text = f"no member had a reward at the take of step {taken.event.train_step}"
            findings.add(rule, table.group_subject(int(rows[0])), text, Severity.WARNING)


CHECKS: dict[str, Check] = {
    "group-incomplete": _incomplete,
    "group-singleton": _singleton,
    "fan-out-overweight": _overweight,
    "fan-out-reward-conflict": _reward_conflict,
    "group-filter-split": _filter_split,
    "group-zero-variance": _zero_variance,
    "unfinished-row-trained": _unfinished,
    "reward-missing": _reward_missing,
    "rollout-in-two-groups": _in_two_groups,
    "group-members-changed": _members_changed,
}

"""Checks of groups: members, segments, rewards, and what was taken of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np

from tokenaudit.audit.case import Case
from tokenaudit.audit.findings import Findings, Subject
from tokenaudit.audit.replayed_run import Taken
from tokenaudit.audit.rule import Fact, Severity, rule
from tokenaudit.audit.table import LogTable
from tokenaudit.audit.taken import has_recorded_takes
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
      "A group was taken with fewer or more members than group_size.",
      "Hold a group back until all members are there, or drop it whole; give every group its own id.",
      Fact.TAKES, Fact.GROUP_SIZE)  # fmt: skip
def _group_incomplete(case: Case, findings: Findings) -> None:
    replayed = case.replayed
    last_put = {}
    sizes = {task: replayed.config.task_policy(task).group_size for task in replayed.digest.tasks}
    for taken in replayed.taken:
        size = sizes[taken.event.task_name]
        if size is None:
            continue
        findings.add_checked(1, "taken groups")
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
        text = f"{len(rollouts)} of {plural(size, 'member')}"
        if len(rollouts) > size:
            text = f"{plural(len(rollouts), 'member')}, group_size is {size}"
        text = f"taken at step {taken.event.train_step} with {text}"
        row = int(replayed.put_rows(taken.put)[0])
        findings.add(case.table.group_subject(row), "; ".join([text, *missing[:3]]))


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
    for rows, by_rollout in _fan_out(table):
        findings.add_checked(1, "puts with split rollouts")
        rewards = table["reward"]
        if len({len(own) for own in by_rollout.values()}) == 1 or not np.isfinite(rewards[rows]).all():
            continue
        per_row = float(np.mean(rewards[rows]))
        per_rollout = float(np.mean([np.mean(rewards[own]) for own in by_rollout.values()]))
        if per_row != per_rollout:
            text = f"{len(rows)} rows from {plural(len(by_rollout), 'rollout')}: baseline per row {per_row:.2f}, per"
            findings.add(table.group_subject(int(rows[0])), f"{text} rollout {per_rollout:.2f}")


@rule("G004", "fan-out-reward-conflict", Severity.ERROR,
      "Rows of one rollout in one put have different rewards.",
      "Give every row of a rollout the reward of the rollout.",
      "reward")  # fmt: skip
def _fan_out_reward_conflict(case: Case, findings: Findings) -> None:
    table = case.table
    for _, by_rollout in _fan_out(table):
        for own in by_rollout.values():
            findings.add_checked(1, "rollouts in a put with split ones")
            rewards = table["reward"][own]
            known = np.unique(rewards[~np.isnan(rewards)])
            if len(known) > 1:
                listed = ", ".join(f"{value:g}" for value in known[:4])
                findings.add(table.subject(int(own[0])), f"{len(own)} rows with the rewards {listed}")


@rule("G005", "group-filter-split", Severity.WARNING,
      "Some members of a group are filtered and others completed; an error where the group was taken.",
      "Decide on a filter for the whole group.")  # fmt: skip
def _group_filter_split(case: Case, findings: Findings) -> None:
    table = case.table
    taken_rows = {row for take in case.takes for row in take.put_rows}
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
        findings.add(table.group_subject(int(rows[0])), text, level)
    findings.add_checked(int(table.is_put.sum()))


@rule("G006", "group-zero-variance", Severity.INFO,
      "Groups were taken whose members all have the same reward.",
      "They teach nothing under a group baseline; filter them, or choose other prompts.",
      "reward", Fact.TAKES)  # fmt: skip
def _group_zero_variance(case: Case, findings: Findings) -> None:
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
    findings.add_checked(sum(groups.values()), "taken groups")
    for task, count in flat.items():
        share = 100 * flat_tokens[task] / max(tokens[task], 1)
        text = f"{count} of {plural(groups[task], 'taken group')} with rewards have no spread"
        findings.add(Subject(task), f"{text} ({share:.1f} % of their tokens)")


@rule("G007", "unfinished-row-trained", Severity.ERROR,
      "A response was taken that was never put, or whose last put isn't completed.",
      "Take completed groups only.",
      f"{Fact.RECORDED_TAKES}|{Fact.TAKES}")  # fmt: skip
def _unfinished_row_trained(case: Case, findings: Findings) -> None:
    table = case.table
    if not has_recorded_takes(table):
        _unfinished_replayed(case, findings)
        return
    for take in case.takes:
        findings.add_checked(1, "recorded takes")
        if not take.put_rows:
            task, rollout_id = int(table["task"][take.row]), int(table["rollout_id"][take.row])
            text = f"taken at step {take.train_step}, but never put before"
            findings.add(Subject(table.tasks[task], None, rollout_id), text)
        for row in take.put_rows:
            status = int(table["status"][row])
            if status >= 0 and status != _COMPLETED:
                findings.add(table.subject(row), f"{STATUSES[status]} response taken at step {take.train_step}")


def _unfinished_replayed(case: Case, findings: Findings) -> None:
    """A group counts as completed where its members are neither failed, aborted, expired nor filtered: init remains."""
    replayed, status = case.replayed, case.table["status"]
    findings.add_checked(len(replayed.taken), "taken groups")
    for taken in replayed.taken:
        if taken.event.responses.measures.is_completed:
            continue
        for row in replayed.put_rows(taken.put).tolist():
            if status[row] != _COMPLETED:
                text = f"{STATUSES[int(status[row])]} response taken at step {taken.event.train_step}"
                findings.add(case.table.subject(row), text)


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
      "A group was put again with other rollouts than before.",
      "Put all members of a group every time, finished ones too, under the ids they had.")  # fmt: skip
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
        findings.add(table.group_subject(int(rows[starts[now[index]]])), " and ".join(parts))


def _mixed(ids: Int64s) -> np.ndarray[Any, np.dtype[np.uint64]]:
    """Numbers that look random, the same for the same id (the finalizer of splitmix64)."""
    mixed = ids.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))


@rule("G008", "reward-missing", Severity.ERROR,
      "A completed response of a taken group has no reward, though others have one.",
      "Score before the group is taken; don't stand in a 0.",
      "reward", Fact.TAKES)  # fmt: skip
def _reward_missing(case: Case, findings: Findings) -> None:
    table, replayed = case.table, case.replayed
    is_unscored = np.isnan(table["reward"])
    has_rewards = not is_unscored[table.is_put].all()
    puts = np.array([taken.put for taken in replayed.taken], dtype=np.int64)
    bounds = replayed.digest.events.first_response
    before = np.concatenate([[0], np.cumsum(is_unscored[replayed.puts.rows])])
    unscored, members = (column[bounds[puts + 1]] - column[bounds[puts]] for column in (before, np.arange(len(before))))
    findings.add_checked(int(members.sum()))
    for place in np.flatnonzero(unscored).tolist():
        taken, rows = replayed.taken[place], replayed.put_rows(replayed.taken[place].put)
        if unscored[place] < members[place]:
            for row in rows[is_unscored[rows]].tolist():
                text = (
                    f"no reward at the take of step {taken.event.train_step}, while other members of its group have one"
                )
                findings.add(table.subject(row), text)
        elif has_rewards:
            text = f"no member had a reward at the take of step {taken.event.train_step}"
            findings.add(table.group_subject(int(rows[0])), text, Severity.WARNING)

"""Checks of rewards: whether they teach anything, whether they are those of their own rows, and whom they move."""

from __future__ import annotations

import numpy as np

from tokenaudit.audit.case import Case
from tokenaudit.audit.findings import Findings
from tokenaudit.audit.rewards import (
    LEAST_WRONG,
    RESTORED_SHARE,
    ScoredGroups,
    explaining_shift,
    flat,
    flat_stretches,
    likeness,
    moved_baselines,
    scored_groups,
)
from tokenaudit.audit.rule import Fact, Severity, rule
from tokenaudit.contracts.errors import plural
from tokenaudit.lifecycle.types import Status
from tokenaudit.log.columns import Bools, Int64s
from tokenaudit.log.digest import STATUS_CODE

REJECTED_SHARE = 0.40
"""Share of the tokens of finished groups that the filter may reject."""
LEAST_FINISHED = 20
"""Finished groups that a share of them needs."""
LEAST_GROUPS = 100
"""Finished groups that it takes to say that rewards belong to no group."""
UNLIKE = 1.3
"""Variance between groups over that within, up to which they don't differ: of 100 groups, it is 1 +- 0.17 by chance."""
_COUNTS_DIFFER = 0.02
"""How far the number of filtered groups may be from that of groups without spread, where one is made by the other."""

_COMPLETED, _FILTERED = STATUS_CODE[Status.COMPLETED], STATUS_CODE[Status.FILTERED]


@rule("R001", "rewards-without-spread", Severity.ERROR,
      "Three takes in a row or more have no group with any spread of rewards, though takes before had. "
      "A warning where the groups' rewards differ from each other.",
      "Look at the scorer from that step on; a baseline inside the group teaches nothing here.",
      "reward")  # fmt: skip
def _rewards_without_spread(case: Case, findings: Findings) -> None:
    """By takes where they name responses, else by the steps of the puts of finished groups.

    Where all groups of a task have one member, the spread is that of a take, or of a step.
    """
    table, taken = case.table, case.taken
    if len(taken):
        unscored, sizes = taken.sums(np.isnan(table["reward"])), np.bincount(taken.owner, minlength=len(taken))
        used = unscored == 0
        rows, sizes, what = taken.rows[used[taken.owner]], sizes[used], "take"
        block, step, task = taken.take[used], taken.train_step[used], taken.task[used]
    else:
        scored = scored_groups(table, least=1)
        rows, sizes, what = scored.rows, np.diff(scored.starts, append=len(scored.rows)), "step"
        block = step = table["train_step"][rows[scored.starts]]
        task = scored.task
    for code in range(len(table.tasks)):
        is_alone = not (sizes[task == code] > 1).any()
        own = (task == code) & (is_alone | (sizes > 1))
        own_rows, own_sizes, blocks, steps = rows[np.repeat(own, sizes)], sizes[own], block[own], step[own]
        starts = np.cumsum(own_sizes) - own_sizes
        findings.add_checked(len(starts), "groups with rewards")
        if is_alone:
            starts = np.flatnonzero(np.diff(blocks, prepend=-1))
            blocks, steps = blocks[starts], steps[starts]
        is_flat, ends = flat(table["reward"][own_rows], starts), np.append(starts[1:], len(own_rows))
        for first, behind in flat_stretches(is_flat, blocks):
            found = own_rows[starts[first] : ends[behind - 1]]
            values = np.unique(table["reward"][found])
            level = None if len(values) == 1 else Severity.WARNING
            same = f" (all rewards are {values[0]:g})" if len(values) == 1 else ""
            which = f"{what} of {len(found)} responses" if is_alone else f"of {behind - first} groups"
            text = f"in {len(np.unique(blocks[first:behind]))} {what}s in a row, those of steps {steps[first]} to "
            text += f"{steps[behind - 1]}, {'no' if is_alone else 'none'} {which} has a spread of rewards{same}; of"
            text += f" those before, {100 * float(is_flat[:first].mean()):.0f} % had none"
            findings.add_extent(np.unique(found), text, level, cause=f"step {steps[first]}")


@rule("R002", "rewards-of-other-rows", Severity.ERROR,
      "Filtered groups have a spread of rewards while kept ones have none: rewards are those of other rows. "
      "A warning where only their number says so.",
      "Keep rewards and responses together when a batch is sorted, filtered or shifted.",
      "reward")  # fmt: skip
def _rewards_of_other_rows(case: Case, findings: Findings) -> None:
    table, groups = case.table, scored_groups(case.table)
    findings.add_checked(len(groups.starts), "finished groups")
    for code in range(len(table.tasks)):
        of_task = groups.task == code
        is_spread = of_task & groups.is_filtered & ~groups.is_flat
        is_flat = of_task & ~groups.is_filtered & groups.is_flat
        if is_spread.sum() < LEAST_WRONG:
            continue
        cause = _cause(case, groups, of_task)
        if cause is None:
            continue
        text, level = cause
        numbers = f"{plural(int(is_spread.sum()), 'filtered group')} with a spread of rewards and {is_flat.sum()}"
        findings.add_extent(groups.rows_of(is_spread | is_flat), f"{numbers} kept without any: {text}", level)


def _cause(case: Case, groups: ScoredGroups, of_task: Bools) -> tuple[str, Severity] | None:
    """Why filter and rewards don't fit, and how sure that is; None where the filter may look at something else."""
    rows = groups.rows_of(of_task)
    sizes = np.diff(groups.starts, append=len(groups.rows))[of_task]
    starts, is_filtered = np.cumsum(sizes) - sizes, groups.is_filtered[of_task]
    is_flat = groups.is_flat[of_task]
    shift = explaining_shift(case.table["reward"][rows], starts, is_filtered)
    if shift is not None:
        size = int(sizes[0])
        is_whole = bool((sizes == size).all()) and shift % size == 0
        distance = plural(abs(shift) // size, "group") if is_whole else plural(abs(shift), "row")
        return f"they are those of {distance} {'before' if shift > 0 else 'behind'}", Severity.ERROR
    wrong = np.flatnonzero(is_flat != is_filtered)
    held_before = int(is_filtered[: wrong[0]].sum()) >= 2 * LEAST_WRONG
    later_flat = is_flat[wrong[0] :][is_filtered[wrong[0] :]]
    kept_flat = int((is_flat & ~is_filtered).sum())
    # A filter that also takes out others keeps taking out those without spread, and keeps none of them.
    if held_before and (kept_flat >= LEAST_WRONG or later_flat.mean() <= RESTORED_SHARE):
        return "up to there, the filter took out those without spread and no others", Severity.ERROR
    if len(wrong) >= (1 - RESTORED_SHARE) * len(is_flat) and kept_flat >= LEAST_WRONG:
        return "the filter takes out those with a spread, and keeps those without", Severity.ERROR
    filtered = int(is_filtered.sum())
    if kept_flat >= LEAST_WRONG and abs(int(is_flat.sum()) - filtered) <= max(1, _COUNTS_DIFFER * filtered):
        return f"as many are filtered ({filtered}) as have no spread", Severity.WARNING
    alike = likeness(case.table["reward"][rows], starts)
    is_known = len(is_flat) >= LEAST_GROUPS and is_flat.sum() <= RESTORED_SHARE * filtered
    if is_known and alike < UNLIKE:
        text = (
            f"rewards are no more alike inside of groups than across them (variance between over within: {alike:.2f})"
        )
        return text, Severity.WARNING
    return None


@rule("R003", "filter-rejects-much", Severity.WARNING,
      "The filter rejects more than 40 % of the tokens of finished groups.",
      "Choose prompts that are neither too easy nor too hard, or look at what the filter compares.")  # fmt: skip
def _filter_rejects_much(case: Case, findings: Findings) -> None:
    table = case.table
    is_filtered = table.known & (table["status"] == _FILTERED)
    is_finished = is_filtered | (table.known & (table["status"] == _COMPLETED))
    # A finished member of a group that isn't finished is put again.
    rows = np.flatnonzero(table.is_put)
    unfinished = np.bincount(table.put_event[rows], weights=~is_finished[rows]) if len(rows) else np.zeros(0)
    is_finished[rows] &= unfinished[table.put_event[rows]] == 0
    is_filtered &= is_finished
    tokens = table["tokens"]
    for code in range(len(table.tasks)):
        own, rejected = (where & (table["task"] == code) for where in (is_finished, is_filtered))
        groups = len(np.unique(table.put_event[own]))
        total, lost = int(tokens[own].sum()), int(tokens[rejected].sum())
        findings.add_checked(groups, "finished groups")
        if groups >= LEAST_FINISHED and lost > REJECTED_SHARE * total:
            text = f"the filter rejects {100 * lost / total:.1f} % of the tokens of finished groups"
            findings.cost_tokens += lost
            findings.add_extent(rejected, f"{text} ({lost:,} of {total:,})")


@rule("R004", "baseline-moved", Severity.WARNING,
      "Members that train nothing (masked, empty or too old) give advantages of others in their group another sign.",
      "Take the baseline over the members that are trained.",
      "reward", Fact.READABLE, Fact.RECORDED_TAKES)  # fmt: skip
def _baseline_moved(case: Case, findings: Findings) -> None:
    table, taken = case.table, case.taken
    findings.add_checked(len(taken), "taken groups")
    step = taken.train_step[taken.owner]
    trainable = case.readable.fresh_trainable(taken.rows, step)
    spared = table.spared[taken.rows]
    if spared.any():
        own = np.where(table["mask_len"] >= 0, table["mask_ones"], table["tokens"])
        trainable = np.where(spared, own[taken.rows], trainable)
    # Of rows that replay can't read, nothing is known.
    trains = (trainable > 0) | ~case.readable.is_kept(taken.rows)
    # The trainer's own masks say more than those that it made them from.
    trains &= ~np.isin(taken.rows, np.array(case.trained.untrained, dtype=np.int64))
    moved = moved_baselines(table, taken, trains)

    def message(rows: Int64s) -> str:
        first = int(np.flatnonzero(moved.rows == rows[0])[0])
        group = moved.group[first]
        idle = taken.rows[(taken.owner == group) & ~trains]
        reward, baseline, trained = table["reward"][rows[0]], moved.baseline[first], moved.trained_baseline[first]
        scores = ", ".join(f"{value:g}" for value in table["reward"][idle][:4].tolist())
        groups = len(np.unique(moved.group[np.isin(moved.rows, rows)]))
        return (
            f"members that train nothing turn advantages in {plural(groups, 'group')}; the first, rollout "
            f"{table['rollout_id'][rows[0]]}: {reward:g} - {baseline:.3g} = {reward - baseline:+.3g} with "
            f"{plural(len(idle), 'such member')} (reward {scores}), {reward - trained:+.3g} without"
        )

    findings.add_extent(np.unique(moved.rows), message)

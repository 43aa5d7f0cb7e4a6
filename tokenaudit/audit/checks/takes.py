"""Checks of what the run took, as take rows name it: in parts, too little, out of order, or not what replay takes."""

from __future__ import annotations

import numpy as np

from tokenaudit.audit.case import Case
from tokenaudit.audit.findings import Findings
from tokenaudit.audit.replayed_run import NEVER
from tokenaudit.audit.rule import Fact, Severity, rule
from tokenaudit.audit.taken_groups import TakenGroups, lag, overtaking, split_groups
from tokenaudit.config.model import task_sizes
from tokenaudit.contracts.errors import plural
from tokenaudit.contracts.schema import EventKind
from tokenaudit.lifecycle.buffer import ReplayPolicy
from tokenaudit.lifecycle.types import Status
from tokenaudit.log.columns import Bools, Int64s
from tokenaudit.log.digest import KIND_CODE, STATUS_CODE
from tokenaudit.log.row_checks import ABSENT

INVERTED_SHARE = 0.10
"""Share of taken groups that may overtake others: an order may be recorded only roughly."""
INVERTED_GROUPS = 5
"""Groups that must overtake others besides: of few groups a share says nothing."""
PASSED_OVER_BATCHES = 2
"""Batches of newer groups that may be taken before one that waits counts as passed over."""

_TAKE, _COMPLETED = KIND_CODE[EventKind.TAKE], STATUS_CODE[Status.COMPLETED]


@rule("G020", "group-split", Severity.ERROR,
      "Several takes have parts of a group and none has the whole, so its baseline is that of a part.",
      "Cut batches between groups, never inside of one.",
      Fact.RECORDED_TAKES)  # fmt: skip
def _group_split(case: Case, findings: Findings) -> None:
    table, taken = case.table, case.taken
    split = split_groups(table, taken)
    findings.add_checked(len(taken), "taken groups")

    def message(rows: Int64s) -> str:
        puts = np.unique(table.put_event[rows])
        first = np.flatnonzero(table.put_event[taken.first_row] == puts[0])
        parts = " and ".join(f"{taken.members[part]} at step {taken.train_step[part]}" for part in first[:4].tolist())
        group_id = table["group_id"][taken.first_row[first[0]]]
        return f"{plural(len(puts), 'group')} taken in parts, the first, group {group_id}: {parts}"

    findings.add_extent(taken.rows_of(split), message)


@rule("L033", "take-short", Severity.WARNING,
      "Takes have fewer groups than their batch size.",
      "Wait until the batch is full; look for groups that were dropped behind the buffer.",
      Fact.RECORDED_TAKES)  # fmt: skip
def _take_short(case: Case, findings: Findings) -> None:
    """The batch size is what the take asked for, or more where the config says so and most takes have that many.

    Takes that name responses without a put aren't judged: their groups aren't known.
    """
    table, taken = case.table, case.taken
    asked = _asked(case)
    sizes: dict[str, int] = {}
    if case.config is not None and case.config.timeline.train_batch_size is not None:
        sizes = task_sizes(case.config, table.used_tasks)
    unknown = [take.train_step for take in case.takes if not take.put_rows]
    for code, task in enumerate(table.tasks):
        own = np.flatnonzero(taken.task == code)
        takes, first, got = np.unique(taken.take[own], return_index=True, return_counts=True)
        steps = taken.train_step[own[first]]
        wanted = np.array([asked.get((code, take), 0) for take in takes.tolist()], dtype=np.int64)
        if 2 * int((got >= sizes.get(task, 0)).sum()) > len(got):
            wanted = np.maximum(wanted, sizes.get(task, 0))
        short = (got < wanted) & ~np.isin(steps, unknown)
        findings.add_checked(len(takes), "takes")
        if short.any():
            at = int(np.argmax(short))
            groups = plural(int((wanted - got)[short].sum()), "group")
            text = f"{int(short.sum())} of {plural(len(takes), 'take')} too short by {groups} in all, the first, "
            text += f"at step {steps[at]}: {got[at]} of {wanted[at]}"
            findings.add_extent(taken.rows_of(own[np.isin(taken.take[own], takes[short])]), text)


def _asked(case: Case) -> dict[tuple[int, int], int]:
    """Groups that each take asks for, by code of the task and number of the take; every event counts once."""
    table, taken = case.table, case.taken
    named = (table["kind"] == _TAKE) & table.present("rollout_id") & table.present("batch_size")
    rows = np.flatnonzero(named) if len(taken) else np.zeros(0, dtype=np.int64)
    number, first = np.unique(taken.take, return_index=True)
    take = number[np.searchsorted(taken.take_row[first], rows, side="right") - 1] if len(rows) else rows
    columns = (table["task"][rows], take, table["event_id"][rows], table["batch_size"][rows])
    asked: dict[tuple[int, int], int] = {}
    for task, at, _, size in np.unique(np.stack(columns), axis=1).T.tolist():
        asked[task, at] = asked.get((task, at), 0) + size
    return asked


@rule("L031", "take-order", Severity.WARNING,
      "Groups are taken while others wait that the config's replay_policy puts before them.",
      "Set buffer.replay_policy to what the run does, or mend the order in which its buffer hands out groups.",
      Fact.REPLAY, Fact.RECORDED_TAKES)  # fmt: skip
def _take_order(case: Case, findings: Findings) -> None:
    table, taken, policy = case.table, case.taken, case.known_config.buffer.replay_policy
    overtook = _disordered(case)
    findings.add_checked(len(taken), "taken groups")
    for code in range(len(table.tasks)):
        own = taken.task == code
        wrong = own & overtook
        count, total = int(wrong.sum()), int(own.sum())
        if count:
            waited = "was completed before" if policy is ReplayPolicy.FIFO else "has older tokens"
            share = f"{count:,} of {plural(total, 'taken group')} ({100 * count / total:.0f} %)"
            text = f"{share} were taken while one that {waited} waited, though replay_policy is {policy}, first at step"
            text += f" {taken.train_step[wrong].min()}"
            findings.add_extent(taken.rows_of(wrong), text)


def _disordered(case: Case) -> Bools:
    """Taken groups that overtook others, in tasks where more than a tenth did.

    Few that wait for long are overtaken by all others. That is no order but that of the newest first, under which none
    is taken while a newer one waits; groups that are never taken speak for it where they keep coming.
    """
    table, taken, left = case.table, case.taken, _left_waiting(case)
    ready = np.concatenate([taken.first_row, left])
    key = ready
    if case.known_config.buffer.replay_policy is ReplayPolicy.STALENESS:
        oldest = np.where(table["oldest"] == ABSENT, table["model_step"], table["oldest"])
        of_groups = np.full(len(taken), np.iinfo(np.int64).max)
        np.minimum.at(of_groups, taken.owner, oldest[taken.rows])
        key = np.concatenate([of_groups, _oldest_of_puts(case, left, oldest)])
    task = np.concatenate([taken.task, table["task"][left]])
    groups = len(taken)
    overtook, overtaken = overtaking(taken, task[:groups], key[:groups], ready[:groups])
    overtook_left, _ = overtaking(taken, task, key, ready)
    in_reverse, _ = overtaking(taken, task, -key, ready)
    found = np.zeros(groups, dtype=np.bool_)
    for code in range(len(table.tasks)):
        own = taken.task == code
        total, wrong = int(own.sum()), overtook_left & own
        among, passed, later = (int((where & own).sum()) for where in (overtook, overtaken, in_reverse & wrong))
        is_reverse = later <= INVERTED_SHARE * wrong.sum()
        if _is_much(among, total):
            is_order = is_reverse or _is_much(passed, total)
        else:
            is_order = is_reverse and _is_much(int(wrong.sum()), total)
            is_order = is_order and _keeps_coming(taken, wrong, left[table["task"][left] == code])
        if is_order:
            found |= wrong
    return found


def _is_much(count: int, total: int) -> bool:
    return count >= INVERTED_GROUPS and count > INVERTED_SHARE * total


def _keeps_coming(taken: TakenGroups, overtook: Bools, left: Int64s) -> bool:
    """Whether groups that are never taken were put before at least half of the takes of those that overtook."""
    takes = np.unique(taken.take_row[overtook])
    return 2 * len(np.unique(np.searchsorted(takes, left))) >= len(takes)


def _oldest_of_puts(case: Case, first_rows: Int64s, oldest: Int64s) -> Int64s:
    """The oldest version of the puts that some rows belong to."""
    table = case.table
    rows = table.of_same_puts(first_rows)
    puts, owner = np.unique(table.put_event[rows], return_inverse=True)
    found = np.full(len(puts), np.iinfo(np.int64).max)
    np.minimum.at(found, owner.reshape(-1), oldest[rows])
    return found[np.searchsorted(puts, table.put_event[first_rows])]


def _left_waiting(case: Case) -> Int64s:
    """The first rows of completed groups that replay takes and the run doesn't, as far as it names what it takes."""
    table, taken, replayed = case.table, case.taken, case.replayed
    rows = replayed.puts.rows
    rows = rows[_is_named(case, table["task"][rows], replayed.taken_step)]
    unnamed = np.flatnonzero((table["kind"] == _TAKE) & ~table.present("rollout_id"))
    for task in np.unique(table["task"][unnamed]).tolist():
        last = unnamed[table["task"][unnamed] == task][-1]
        rows = rows[(table["task"][rows] != task) | (rows > last)]
    # group-incomplete tells of groups of which some members are taken.
    rows = rows[~np.isin(table.put_event[rows], np.unique(table.put_event[taken.rows]))]
    return rows[np.flatnonzero(np.diff(table.put_event[rows], prepend=-1))]


def _is_named(case: Case, task: Int64s, train_step: Int64s) -> Bools:
    """Whether the run names what it took of a task at a step: only that can be compared."""
    taken = case.taken
    # Steps never taken are -1, so they are found in none.
    width = max(int(train_step.max(initial=0)), int(taken.train_step.max(initial=0))) + 2
    return np.isin(task * width + train_step + 1, taken.task * width + taken.train_step + 1)


@rule("L032", "group-passed-over", Severity.WARNING,
      "Completed groups were passed over for more than two batches of newer ones, or for good, though the config "
      "neither expires nor filters them.",
      "Look for groups that the buffer loses or that its order never reaches.",
      Fact.TIMELINE, Fact.RECORDED_TAKES)  # fmt: skip
def _group_passed_over(case: Case, findings: Findings) -> None:
    """A group is ready where replay takes it; those put in the last two batches may still have been waiting.

    Groups taken late are judged under fifo; where they are more than a tenth, the order is another one.
    """
    table, taken, put_rows = case.table, case.taken, case.replayed.puts.rows
    left = _left_waiting(case)
    is_fifo = case.known_config.buffer.replay_policy is ReplayPolicy.FIFO
    for code in range(len(table.tasks)):
        own = np.flatnonzero(taken.task == code)
        findings.add_checked(len(np.unique(table.put_event[put_rows[table["task"][put_rows] == code]])), "puts")
        if len(own) == 0:
            continue
        allowed = PASSED_OVER_BATCHES * int(np.median(np.unique(taken.take[own], return_counts=True)[1]))
        never = left[table["task"][left] == code]
        newer = len(own) - np.searchsorted(np.sort(taken.first_row[own]), never)
        never, newer = never[newer > allowed], newer[newer > allowed]
        late = lag(taken, own)
        is_late = (late > allowed) & is_fifo & (np.sum(late > allowed) <= INVERTED_SHARE * len(own))
        delayed, late = own[is_late], late[is_late]
        texts = []
        if len(never):
            first = f"the first, group {table['group_id'][never[0]]}, though {newer.max():,} newer ones were"
            texts.append(f"{plural(len(never), 'completed group')} never taken, {first}")
        if len(delayed):
            text = f"{plural(len(delayed), 'completed group')} taken late, the first, group"
            text += f" {table['group_id'][taken.first_row[delayed[0]]]} at step {taken.train_step[delayed[0]]}"
            texts.append(f"{text}, behind up to {late.max():,} newer ones")
        if texts:
            found = np.concatenate([table.of_same_puts(never), taken.rows_of(delayed)])
            findings.add_extent(np.unique(found), " and ".join(texts))


@rule("L030", "takes-differ-from-replay", Severity.WARNING,
      "The run took other groups than a replay of its own config, or took them at other steps.",
      "Check that the config is the run's own and that every put and sample is recorded before the take that follows.",
      Fact.TIMELINE, Fact.RECORDED_TAKES)  # fmt: skip
def _takes_differ_from_replay(case: Case, findings: Findings) -> None:
    """Per put; replayed steps at which the run names nothing aren't compared."""
    table, taken, replayed = case.table, case.taken, case.replayed
    by_run, by_replay = (np.full(table.rows, NEVER, dtype=np.int64) for _ in range(2))
    by_run[taken.rows] = taken.train_step[taken.owner]
    by_replay[replayed.puts.rows] = replayed.taken_step
    by_replay[~_is_named(case, table["task"], by_replay)] = NEVER
    expired_at = {expired.put: expired.event.train_step for expired in replayed.expired}
    first = replayed.digest.events.first_response
    expired = np.zeros(table.rows, dtype=np.bool_)
    for put in expired_at:
        expired[replayed.puts.rows[int(first[put]) : int(first[put + 1])]] = True
    # One row stands for the group: the first one taken by the run, else the first one.
    rows = np.flatnonzero((by_run != NEVER) | (by_replay != NEVER))
    rows = rows[np.lexsort((rows, by_run[rows] == NEVER, table.put_event[rows]))]
    rows = rows[np.flatnonzero(np.diff(table.put_event[rows], prepend=-1))]
    findings.add_checked(len(rows), "taken groups")
    run, other, status = by_run[rows], by_replay[rows], table["status"][rows]
    is_held = (other == NEVER) & ~expired[rows]
    kinds = {
        "earlier": (run != NEVER) & (other > run),
        "later": (other != NEVER) & (other < run),
        "expired there": (other == NEVER) & expired[rows],
        "not completed there": is_held & (status != _COMPLETED),
        "left waiting there": is_held & (status == _COMPLETED),
    }
    missed = (run == NEVER) & (other != NEVER)
    for code in range(len(table.tasks)):
        of_task = table["task"][rows] == code
        own = of_task & (run != other)
        if not own.any():
            continue
        steps = np.concatenate([run[own], other[own]])
        counts = [f"{int((where & own).sum()):,} {what}" for what, where in kinds.items() if (where & own).any()]
        parts = [f"takes {', '.join(counts)}"] if counts else []
        parts += [f"leaves out {int((missed & own).sum()):,} that replay takes"] if (missed & own).any() else []
        text = f"takes differ from the replay's from step {steps[steps != NEVER].min()} on: the run"
        text += f" {' and '.join(parts)} (of {plural(int(of_task.sum()), 'group')})"
        findings.add_extent(table.of_same_puts(rows[own]), text)

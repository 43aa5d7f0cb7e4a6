"""The groups that take rows name: what every rule about what was taken looks at, and in which order they were taken."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from tokenaudit.audit.table import LogTable
from tokenaudit.audit.taken import RecordedTake
from tokenaudit.log.columns import Bools, Int64s


class TakenGroups(NamedTuple):
    """G groups that the takes of a run name, with the M rows of their last puts; groups in the order of takes.

    All takes of one train step in a row are one take. A group that two takes name is there twice.

    Attributes:
        rows: the put rows, group by group, of shape [M].
        owner: the group of each of them, of shape [M].
        task: code of the task, of shape [G].
        take: number of the take, from 0, of shape [G].
        take_row: first row of the take, of shape [G].
        train_step: its step, of shape [G].
        members: different rollouts, of shape [G].
    """

    rows: Int64s
    owner: Int64s
    task: Int64s
    take: Int64s
    take_row: Int64s
    train_step: Int64s
    members: Int64s

    def __len__(self) -> int:
        return len(self.task)

    @property
    def first_row(self) -> Int64s:
        """The first put row of each group, of shape [G]."""
        return self.rows[np.searchsorted(self.owner, np.arange(len(self)))]

    def sums(self, values: Int64s | Bools) -> Int64s:
        """Sums of values of put rows, given for each row of the log, by group; of shape [G]."""
        return np.bincount(self.owner, values[self.rows], minlength=len(self)).astype(np.int64)

    def rows_of(self, groups: Bools | Int64s) -> Int64s:
        """Put rows of some groups, ascending, each once."""
        chosen = np.zeros(len(self), dtype=np.bool_)
        chosen[groups] = True
        return np.unique(self.rows[chosen[self.owner]])


def taken_groups(table: LogTable, takes: Sequence[RecordedTake]) -> TakenGroups:
    """The groups that recorded takes name; responses without a put belong to none."""
    rows = np.array([row for take in takes for row in take.put_rows], dtype=np.int64)
    per_take = np.array([len(take.put_rows) for take in takes], dtype=np.int64)
    take_rows = np.array([take.row for take in takes], dtype=np.int64)
    steps = np.array([take.train_step for take in takes], dtype=np.int64)
    number = np.cumsum(np.diff(steps, prepend=steps[:1]) != 0)
    take = np.repeat(number, per_take)
    keys = np.stack([take, table["task"][rows], table["group_id"][rows]])
    found, index, owner = np.unique(keys, axis=1, return_index=True, return_inverse=True)
    order = np.argsort(owner.reshape(-1), kind="stable")
    rows, owner = rows[order], owner.reshape(-1)[order]
    pairs = np.unique(np.stack([owner, table["rollout_id"][rows]]), axis=1)
    first_of_take = np.searchsorted(number, found[0])
    return TakenGroups(
        rows, owner, found[1], found[0], take_rows[first_of_take], np.repeat(steps, per_take)[index],
        np.bincount(pairs[0], minlength=len(index)),
    )  # fmt: skip


def split_groups(table: LogTable, taken: TakenGroups) -> Bools:
    """Groups of which several takes have parts and none has all members of the put that are taken; of shape [G]."""
    put = table.put_event[taken.first_row]
    of_put, put_of = np.unique(put, return_inverse=True)
    rollouts = np.stack([table.put_event[taken.rows], table["rollout_id"][taken.rows]])
    member_puts = np.unique(rollouts, axis=1)[0]
    # members may have been put again without the first of their group
    member_puts = member_puts[np.isin(member_puts, of_put)]
    all_members = np.bincount(np.searchsorted(of_put, member_puts), minlength=len(of_put))
    largest = np.zeros(len(of_put), dtype=np.int64)
    np.maximum.at(largest, put_of, taken.members)
    return ((np.bincount(put_of) > 1) & (largest < all_members))[put_of]


def overtaking(taken: TakenGroups, task: Int64s, key: Int64s, ready: Int64s) -> tuple[Bools, Bools]:
    """Which groups were taken while one waited that comes before them, and which groups others overtook so.

    A group waits from when it is ready until a later take names it; tasks have queues of their own.

    Args:
        taken: the G groups taken.
        task: code of the task of these, and of groups that were never taken, of shape [G + L].
        key: place of each group in the order, of shape [G + L]; equal ones may go either way.
        ready: the last row of its put, of shape [G + L].

    Returns:
        Those that overtook, of shape [G], and those overtaken, of shape [G + L].
    """
    groups = len(taken)
    overtook, overtaken = np.zeros(groups, dtype=np.bool_), np.zeros(len(task), dtype=np.bool_)
    # What is taken a second time doesn't wait for it.
    waits = np.zeros(len(task), dtype=np.bool_)
    waits[np.unique(taken.first_row, return_index=True)[1]] = True
    waits[groups:] = True
    never = int(taken.take.max(initial=0)) + 1
    take = np.concatenate([taken.take, np.full(len(task) - groups, never)])
    for code in np.unique(taken.task).tolist():
        own = np.flatnonzero(taken.task == code)
        by_ready = np.flatnonzero(waits & (task == code))
        by_ready = by_ready[np.argsort(ready[by_ready], kind="stable")]
        waiting: list[tuple[int, int]] = []
        added = 0
        starts = np.flatnonzero(np.diff(taken.take[own], prepend=-1))
        for members in np.split(own, starts[1:]):
            now = int(taken.take_row[members[0]])
            while added < len(by_ready) and ready[by_ready[added]] < now:
                group = int(by_ready[added])
                heapq.heappush(waiting, (int(key[group]), int(take[group])))
                added += 1
            # What this take or one before has taken waits no longer.
            while waiting and waiting[0][1] <= taken.take[members[0]]:
                heapq.heappop(waiting)
            if waiting:
                overtook[members] = key[members] > waiting[0][0]
        # The takes from when a group is ready to before its own, and the last in the order that they took.
        last = np.append(np.maximum.reduceat(key[own], starts), 0)
        first = np.searchsorted(taken.take_row[own[starts]], ready[by_ready], side="right")
        behind = np.searchsorted(taken.take[own[starts]], take[by_ready])
        some = np.flatnonzero(first < behind)
        pairs = np.stack([first[some], behind[some]], axis=1).reshape(-1)
        if len(pairs):
            overtaken[by_ready[some]] = np.maximum.reduceat(last, pairs)[::2] > key[by_ready[some]]
    return overtook, overtaken


def lag(taken: TakenGroups, own: Int64s) -> Int64s:
    """How many more groups were taken before each than were put before it, by the begin of its take.

    Args:
        taken: the groups taken.
        own: those of one task, in the order of takes; what is taken again doesn't lag.
    """
    rows, first = np.unique(taken.first_row[own], return_index=True)
    place = np.zeros(len(own), dtype=np.int64)
    place[first] = np.searchsorted(taken.take[own[np.sort(first)]], taken.take[own[first]]) - np.arange(len(rows))
    return place

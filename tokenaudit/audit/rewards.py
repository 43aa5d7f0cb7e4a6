"""Rewards of whole groups: whether they spread, what the filter made of that, and whose baseline they move."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from tokenaudit.audit.table import LogTable
from tokenaudit.audit.taken_groups import TakenGroups
from tokenaudit.lifecycle.types import Status
from tokenaudit.log.columns import Bools, Int64s
from tokenaudit.log.digest import STATUS_CODE

Float64s = np.ndarray[Any, np.dtype[np.float64]]

LEAST_FLAT_TAKES = 3
"""Takes in a row without any spread that a finding needs."""
BEFORE_GROUPS = 200
"""Groups before them that say how often one has no spread."""
CHANCE = 1e-3
"""Chance of so many groups without spread, all places of a run together, below which it is none."""
LARGEST_SHIFT = 64
"""Rows, and groups where all are equally large, by which rewards may be shifted, in both directions."""
LEAST_WRONG = 3
"""Filtered groups with a spread, and taken ones without, that a finding needs of each."""
RESTORED_SHARE = 0.1
"""Share of wrong groups that a shift may leave, where it explains them."""

_ROUNDING = 1e-9
"""Advantages up to it are 0."""
_COMPLETED, _FILTERED = STATUS_CODE[Status.COMPLETED], STATUS_CODE[Status.FILTERED]


class ScoredGroups(NamedTuple):
    """G puts of whole groups that are completed or filtered and have a reward for every member, in log order.

    Attributes:
        rows: their put rows, put by put, of shape [M].
        starts: where each begins in `rows`, of shape [G].
        is_flat: whether all members have the same reward, of shape [G].
        is_filtered: whether it was filtered, of shape [G].
        task: code of the task, of shape [G].
    """

    rows: Int64s
    starts: Int64s
    is_flat: Bools
    is_filtered: Bools
    task: Int64s

    def rows_of(self, groups: Bools) -> Int64s:
        """The put rows of some groups."""
        return self.rows[np.repeat(groups, np.diff(self.starts, append=len(self.rows)))]


def scored_groups(table: LogTable, least: int = 2) -> ScoredGroups:
    """The puts of groups of at least so many rows whose members are all completed, or all filtered, and all scored."""
    rows = np.flatnonzero(table.is_put)
    starts = np.flatnonzero(np.diff(table.put_event[rows], prepend=-1))
    if len(rows) == 0:
        nothing = np.zeros(0, dtype=np.bool_)
        return ScoredGroups(rows, starts, nothing, nothing, rows)
    status = table["status"][rows]
    is_filtered = np.logical_and.reduceat(status == _FILTERED, starts)
    is_whole = is_filtered | np.logical_and.reduceat(status == _COMPLETED, starts)
    is_whole &= np.logical_and.reduceat(~np.isnan(table["reward"][rows]), starts)
    sizes = np.diff(starts, append=len(rows))
    is_whole &= sizes >= least
    kept = rows[np.repeat(is_whole, sizes)]
    sizes = sizes[is_whole]
    starts = np.cumsum(sizes) - sizes
    return ScoredGroups(
        kept, starts, flat(table["reward"][kept], starts), is_filtered[is_whole], table["task"][kept[starts]]
    )


def flat(rewards: Float64s, starts: Int64s) -> Bools:
    """Whether all rewards of each group are the same; groups begin at `starts`."""
    if len(starts) == 0:
        return np.zeros(0, dtype=np.bool_)
    return np.minimum.reduceat(rewards, starts) == np.maximum.reduceat(rewards, starts)


def flat_stretches(is_flat: Bools, block: Int64s) -> list[tuple[int, int]]:
    """Stretches of three blocks or more in which no group has any spread, and which chance doesn't explain.

    How often a group has no spread is taken from the 200 groups before; there must be one with a spread.

    Args:
        is_flat: of groups in the order of their blocks.
        block: the block of each, never falling.

    Returns:
        First group and the one behind the last of each stretch.
    """
    if len(is_flat) == 0:
        return []
    starts = np.flatnonzero(np.diff(block, prepend=block[0] - 1))
    ends = np.append(starts[1:], len(block))
    blocks_flat = np.logical_and.reduceat(is_flat, starts)
    edges = np.flatnonzero(np.diff(np.concatenate([[False], blocks_flat, [False]]).astype(np.int8)))
    found: list[tuple[int, int]] = []
    for first, behind in zip(edges[0::2].tolist(), edges[1::2].tolist(), strict=True):
        begin, end = int(starts[first]), int(ends[behind - 1])
        before = is_flat[max(0, begin - BEFORE_GROUPS) : begin]
        if behind - first < LEAST_FLAT_TAKES or before.all():
            continue
        # By Laplace's rule of succession, so that few groups before don't say "never".
        rate = (int(before.sum()) + 1) / (len(before) + 2)
        if rate ** (end - begin) * len(starts) < CHANCE:
            found.append((begin, end))
    return found


def explaining_shift(rewards: Float64s, starts: Int64s, is_filtered: Bools) -> int | None:
    """By how many rows rewards would have to move so that the filter took out the groups without spread.

    Positive: each row has the reward of a row put earlier. None where they fit as they are, or no shift makes them fit.
    """
    wrong = int((flat(rewards, starts) != is_filtered).sum())
    distances = [*range(1, LARGEST_SHIFT + 1)]
    sizes = np.unique(np.diff(starts, append=len(rewards)))
    if len(sizes) == 1:
        distances += [n * int(sizes[0]) for n in range(1, LARGEST_SHIFT + 1) if n * int(sizes[0]) > LARGEST_SHIFT]
    shifts = [sign * rows for rows in distances for sign in (1, -1) if rows < len(rewards)]
    if wrong < 2 * LEAST_WRONG or not shifts:
        return None
    left = [int((flat(np.roll(rewards, -shift), starts) != is_filtered).sum()) for shift in shifts]
    best = int(np.argmin(left))
    return shifts[best] if left[best] <= RESTORED_SHARE * wrong else None


def likeness(rewards: Float64s, starts: Int64s) -> float:
    """How much more the means of neighbouring groups differ than those of rows drawn at random: a ratio of variances.

    About 1 where rewards belong to no group; the more, the more prompts differ. As only neighbours are compared, what
    whole batches have in common doesn't count. NaN where no group has any spread.
    """
    sizes = np.diff(starts, append=len(rewards))
    means = np.add.reduceat(rewards, starts) / sizes
    between = float(np.mean(np.diff(means) ** 2 / (1 / sizes[1:] + 1 / sizes[:-1]))) if len(starts) > 1 else np.nan
    within = float(((rewards - np.repeat(means, sizes)) ** 2).sum()) / max(len(rewards) - len(starts), 1)
    return between / within if within > 0 else np.nan


class MovedBaseline(NamedTuple):
    """Responses whose advantage has another sign without the members of their group that train nothing.

    Attributes:
        rows: their put rows, of shape [N].
        group: which taken group each is of, of shape [N].
        baseline: mean reward of its whole group, of shape [N].
        trained_baseline: mean reward of those members that train something, of shape [N].
    """

    rows: Int64s
    group: Int64s
    baseline: Float64s
    trained_baseline: Float64s


def moved_baselines(table: LogTable, taken: TakenGroups, trains: Bools) -> MovedBaseline:
    """Where members that train nothing turn the advantage of others, under the mean reward of their group as baseline.

    Args:
        table: the rows.
        taken: the groups taken.
        trains: whether each row of `taken` has a token that is trained, of shape [M].
    """
    rewards, groups = table["reward"][taken.rows], len(taken)
    # The first segment stands for its rollout.
    counts = ~np.isnan(rewards) & (table.segment[taken.rows] == 0)
    means: list[Float64s] = []
    for used in (counts, counts & trains):
        total = np.bincount(taken.owner[used], rewards[used], minlength=groups)
        number = np.bincount(taken.owner[used], minlength=groups)
        means.append((total / np.where(number > 0, number, np.nan))[taken.owner])
    advantages = [rewards - mean for mean in means]
    signs = [np.sign(np.where(np.abs(advantage) > _ROUNDING, advantage, 0)) for advantage in advantages]
    turned = np.flatnonzero(counts & trains & (signs[0] != signs[1]) & ~np.isnan(means[1]))
    return MovedBaseline(taken.rows[turned], taken.owner[turned], means[0][turned], means[1][turned])

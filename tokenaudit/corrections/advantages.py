"""The advantage of each response of a batch: the log's own, else what its group's rewards give."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tokenaudit.corrections.batches import TakenBatch
from tokenaudit.corrections.result import AdvantageSource
from tokenaudit.log.columns import Bools, Floats, Int64s
from tokenaudit.log.digest import sorted_rows
from tokenaudit.masks.plan import MaskPlan

_ROUNDING = 1e-9
"""Advantages up to it are 0: what a mean of equal rewards is off by."""


class Advantages(NamedTuple):
    """Advantages of R responses.

    Attributes:
        values: NaN where it isn't known, shape [R].
        from_column: which the log has itself, bool of shape [R].
    """

    values: Floats
    from_column: Bools


def advantages_of(batch: TakenBatch, plan: MaskPlan) -> Advantages:
    """The column, else the reward less the mean of the scored rollouts of the group that the step took.

    A rollout that was split into segments counts once, with the reward of its first.
    """
    entries = batch.all_entries
    group = group_of(plan, entries)
    counted = np.isfinite(batch.rewards) & (plan.segment[entries] == 0)
    sums = np.bincount(group, np.where(counted, batch.rewards, 0))
    counts = np.bincount(group, counted)
    with np.errstate(invalid="ignore", over="ignore"):
        of_rewards = batch.rewards - (sums / counts)[group]
    of_rewards[np.abs(of_rewards) <= _ROUNDING] = 0
    of_rewards[np.isinf(of_rewards)] = np.nan
    own = of_rewards[np.searchsorted(batch.all_entries, batch.entries)]
    from_column = np.isfinite(batch.advantage)
    return Advantages(np.where(from_column, batch.advantage, own), from_column)


def group_of(plan: MaskPlan, entries: Int64s) -> Int64s:
    """A number for the group of each of some responses of a step."""
    order, is_first = sorted_rows(plan.group_id[entries], plan.task[entries])
    group = np.empty(len(entries), dtype=np.int64)
    group[order] = np.cumsum(is_first) - 1
    return group


def source_of(from_column: int, from_reward: int) -> AdvantageSource:
    """Where advantages come from, by how many come from where."""
    if from_column and from_reward:
        return AdvantageSource.BOTH
    if from_column:
        return AdvantageSource.COLUMN
    return AdvantageSource.REWARD if from_reward else AdvantageSource.NONE

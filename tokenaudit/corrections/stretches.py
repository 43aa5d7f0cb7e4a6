"""A batch cut into stretches of tokens of one response, age and position, and sums over these by what they share."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tokenaudit.corrections.ages import AGES, Grouping, ages
from tokenaudit.corrections.result import Position
from tokenaudit.log.columns import Bools, Floats, Int64s
from tokenaudit.masks.plan import MaskPlan

POSITIONS = tuple(Position)
"""Positions by code."""


class Stretches(NamedTuple):
    """S stretches of the N tokens of R responses.

    Attributes:
        begins: first token of each, and N, shape [S + 1].
        response: index of its response, shape [S], ascending.
        age: its staleness, 1 more, so that it is 0 or more.
        position: code of its position in the response.
    """

    begins: Int64s
    response: Int64s
    age: Int64s
    position: Int64s


def stretches_of(plan: MaskPlan, entries: Int64s, lengths: Int64s, train_step: int) -> Stretches:
    """Cut the tokens of some responses where version, position or response changes.

    Args:
        plan: what they are planned as.
        entries: where they stand there, shape [R].
        lengths: tokens of each.
        train_step: the step that trains them.
    """
    own = plan.of(entries)
    run_begins = np.cumsum(own.run_tokens, dtype=np.int64) - own.run_tokens
    ends = np.cumsum(lengths)
    starts = ends - lengths
    total = int(ends[-1]) if len(ends) else 0
    tenth = -(-lengths // 10)
    last = np.maximum(ends - tenth, starts + tenth)
    begins = np.unique(np.concatenate([run_begins, starts, starts + tenth, last]))
    begins = begins[begins < total]
    # of responses that begin at one token only the last has any
    response = np.searchsorted(starts, begins, side="right") - 1
    run = np.searchsorted(run_begins, begins, side="right") - 1
    is_behind_first = begins >= (starts + tenth)[response]
    position = is_behind_first.astype(np.int64) + (begins >= last[response])
    return Stretches(
        np.append(begins, total), response, ages(own.run_version[run].astype(np.int64), train_step) + 1, position
    )


class Parts(NamedTuple):
    """What the figures of stretches are summed up by.

    Attributes:
        by_response: R responses.
        by_cell: ages x positions.
        by_limit_age: ages, 0 where no staleness limit applies.
        by_stale: whether the config's own limit masks a stretch as stale, 0 or 1.
        age_pairs: the pairs of response and age that there are, and the age of each.
        position_pairs: the same of positions.
    """

    by_response: Grouping
    by_cell: Grouping
    by_limit_age: Grouping
    by_stale: Grouping
    age_pairs: tuple[Grouping, Int64s]
    position_pairs: tuple[Grouping, Int64s]


def parts_of(stretches: Stretches, is_exempt: Bools, stale_from: Floats) -> Parts:
    """The parts of a batch.

    Args:
        stretches: its stretches.
        is_exempt: the responses that no staleness limit applies to, shape [R].
        stale_from: the staleness from which the config's own limit masks the tokens of each, shape [R]; inf: none.
    """
    is_stale = (stretches.age - 1 >= stale_from[stretches.response]) & ~is_exempt[stretches.response]
    response, age = stretches.response, stretches.age

    def pairs(key: Int64s, count: int) -> tuple[Grouping, Int64s]:
        found, inverse = np.unique(response * count + key, return_inverse=True)
        return Grouping(inverse.reshape(-1), len(found)), found % count

    return Parts(
        Grouping(response, len(is_exempt)),
        Grouping(age * len(POSITIONS) + stretches.position, AGES * len(POSITIONS)),
        Grouping(np.where(is_exempt[response], 1, age), AGES),
        Grouping(is_stale.astype(np.int64), 2),
        pairs(age, AGES),
        pairs(stretches.position, len(POSITIONS)),
    )

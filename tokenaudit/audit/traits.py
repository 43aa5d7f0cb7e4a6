"""What some rows of a log have in common that others lack."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from tokenaudit.audit.table import LogTable
from tokenaudit.log.columns import ABSENT, Bools, Int64s

_OF_ALL = 0.9
"""How many of the rows must have what is said of them."""
_LIFT = 1.8
"""How many times as common it must be among them as among all rows looked at: half of these may be of one kind."""
_MOST = 3
_MODULI = (2, 3, 4, 5, 6, 7, 8, 12, 16, 24, 32, 64)
"""Numbers of engines that requests may be dealt out to."""
_VALUES = (
    ("train_step", "put at step"),
    ("start_model_step", "begun under version"),
    ("newest", "newest version"),
    ("prompt_len", "prompt_len"),
    ("tool_turns", "tool_turns"),
)
"""Columns of the table whose values may tell rows apart, and what to say."""


class Trait(NamedTuple):
    """What rows share, in words, and which rows of the log have it."""

    text: str
    has: Bools


def shared_traits(table: LogTable, rows: Int64s, among: Int64s) -> list[Trait]:
    """What most of the rows share and few others among `among` have, the most telling first; three at most.

    The text says how many of those that share it are among the rows.
    """
    chosen = np.isin(among, rows, assume_unique=True)
    found: list[tuple[float, Trait]] = []
    for family in _traits(table, rows):
        best: tuple[float, Trait] | None = None
        for text, has in family:
            here = has[among]
            of_own, of_all = float(here[chosen].mean()), float(here.mean())
            if of_own >= _OF_ALL and of_own >= _LIFT * of_all:
                precision = float(here[chosen].sum() / here.sum())
                if best is None or of_own * precision > best[0]:
                    told = f"{text} ({100 * precision:.0f} % of such rows are off)"
                    best = (of_own * precision, Trait(told, has))
        found += [best] if best else []
    return [trait for _, trait in sorted(found, key=lambda one: -one[0])[:_MOST]]


def _traits(table: LogTable, rows: Int64s) -> Iterator[list[tuple[str, Bools]]]:
    """Traits that the commonest values of the rows suggest, in words, and which rows of the log have them, by family.

    Of a family, the most telling trait says all.
    """
    if table.has_ranks:
        rank = _commonest(table.rank[rows])
        yield [(f"recorded by rank {rank}", table.rank == rank)]
    for name in ("rollout_id", "group_id"):
        family: list[tuple[str, Bools]] = []
        for modulus in _MODULI:
            remainder = _commonest(table[name][rows] % modulus)
            family.append((f"{name} modulo {modulus} is {remainder}", table[name] % modulus == remainder))
        yield family
    for name, label in _VALUES:
        value = _commonest(table[name][rows])
        if value != ABSENT:
            yield [(f"{label} {value}", table[name] == value)]
    reason = _commonest(table["finish_reason"][rows])
    if reason >= 0 and table.reasons[reason] is not None:
        yield [(f"finish_reason {table.reasons[reason]}", table["finish_reason"] == reason)]
    yield [("continued from an earlier put", table["prior_len"] > 0)]
    yield [("with tool calls", table["tool_turns"] > 0)]


def _commonest(values: Int64s) -> int:
    unique, counts = np.unique(values, return_counts=True)
    return int(unique[np.argmax(counts)])

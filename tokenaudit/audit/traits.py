"""What some rows of a log have in common that others lack."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tokenaudit.audit.table import LogTable
from tokenaudit.log.columns import ABSENT, Bools, Int64s

_OF_ALL = 0.9
"""How many of the rows must have what is said of them."""
_LIFT = 2.0
"""How many times as common it must be among them as among all rows looked at."""
_MOST = 3
_MODULI = (2, 3, 4, 5, 6, 7, 8, 12, 16)
"""Numbers of engines that requests may be dealt out to."""
_VALUES = (
    ("train_step", "put at step"),
    ("start_model_step", "begun under version"),
    ("newest", "newest version"),
    ("prompt_len", "prompt_len"),
    ("tool_turns", "tool_turns"),
)
"""Columns of the table whose values may tell rows apart, and what to say."""


def shared_traits(table: LogTable, rows: Int64s, among: Int64s) -> list[str]:
    """What most of the rows share and few others among `among` have, in words, the most telling first; three at most.

    Each with how many of those that share it are among the rows.
    """
    chosen = np.isin(among, rows, assume_unique=True)
    found: list[tuple[float, str]] = []
    for family in _traits(table, rows, among):
        best = (0.0, "")
        for text, has in family:
            of_own, of_all = float(has[chosen].mean()), float(has.mean())
            if of_own >= _OF_ALL and of_own >= _LIFT * of_all:
                precision = float(has[chosen].sum() / has.sum())
                if of_own * precision > best[0]:
                    best = (of_own * precision, f"{text} ({100 * precision:.0f} % of such rows are off)")
        found.append(best)
    return [text for score, text in sorted(found, key=lambda one: -one[0])[:_MOST] if score]


def _traits(table: LogTable, rows: Int64s, among: Int64s) -> Iterator[list[tuple[str, Bools]]]:
    """Traits that the commonest values of the rows suggest, in words, and which of `among` have them, by family.

    Of a family, the most telling trait says all.
    """
    if table.has_ranks:
        rank = _commonest(table.rank[rows])
        yield [(f"recorded by rank {rank}", table.rank[among] == rank)]
    for name in ("rollout_id", "group_id"):
        family: list[tuple[str, Bools]] = []
        for modulus in _MODULI:
            remainder = _commonest(table[name][rows] % modulus)
            family.append((f"{name} modulo {modulus} is {remainder}", table[name][among] % modulus == remainder))
        yield family
    for name, label in _VALUES:
        value = _commonest(table[name][rows])
        if value != ABSENT:
            yield [(f"{label} {value}", table[name][among] == value)]
    reason = _commonest(table["finish_reason"][rows])
    if reason >= 0 and table.reasons[reason] is not None:
        yield [(f"finish_reason {table.reasons[reason]}", table["finish_reason"][among] == reason)]
    yield [("continued from an earlier put", table["prior_len"][among] > 0)]
    yield [("with tool calls", table["tool_turns"][among] > 0)]


def _commonest(values: Int64s) -> int:
    unique, counts = np.unique(values, return_counts=True)
    return int(unique[np.argmax(counts)])

"""A curve and a series of the log at the steps that both have, and where they are equal.

Whole numbers compare exactly, or as single precision rounds them; others within what a mean in single precision may be
off, or to the decimals that a file holds, or as half precision rounds them where the file holds no other values.
"""

from __future__ import annotations

import numpy as np

from tokenaudit.audit.curve_names import KnownCurve
from tokenaudit.audit.curve_points import Curve, Float64s
from tokenaudit.audit.curve_values import LogSeries
from tokenaudit.log.columns import Bools, Int64s

FEWEST_STEPS = 3
"""Steps from which on an offset, a factor or another definition can be told."""
RELATIVE = 2e-6
"""How far a mean in single precision may be off, relative to its value."""
_OF_LARGEST = 1e-7
"""The same relative to the largest value of the curve: means of rewards of both signs cancel out."""
_DECIMALS = range(2, 7)
"""Decimals to which a file may be rounded; fewer would let too much pass."""
TELLING_VALUES = 5
"""Values from which on a file's decimals can be told."""


class CurvePair:
    """A curve and a series at the steps that both have.

    Args:
        curve: the curve.
        known: what it is known as.
        series: the series.
        shift: steps that the curve's numbering is behind what is known of it.

    Attributes:
        steps: the log's steps that both have.
        logged: the curve's values there.
        recomputed: the log's values there.
        is_whole: whether these are whole numbers.
        later: what to add to a step of the curve for the log's.
        half_unit: half of the last decimal that the curve's values have; 0 where they aren't rounded.
        relative: how far values may be off, relative to their size.
    """

    def __init__(self, curve: Curve, known: KnownCurve, series: LogSeries, shift: int = 0) -> None:
        self.curve, self.known, self.series = curve, known, series
        self.later = 1 - known.first_step + shift
        there = np.isfinite(series.values)
        self.steps: Int64s
        self.steps, at, own = np.intersect1d(
            curve.steps + self.later, series.steps[there], assume_unique=True, return_indices=True
        )
        self.logged: Float64s = curve.values[at]
        self.recomputed: Float64s = series.values[there][own] + known.plus
        self.is_whole = series.definition.is_whole
        self.half_unit = 0.0 if self.is_whole else _half_unit(curve.values)
        self.relative = RELATIVE if self.is_whole else _relative(curve.values)

    def close(self, recomputed: Float64s | None = None) -> Bools:
        """Where the curve is equal to the log's values, or to others."""
        other = self.recomputed if recomputed is None else recomputed
        equal = (self.logged == other) | (self.logged == other.astype(np.float32))
        if self.is_whole:
            return equal
        allowed = np.maximum(self.relative * np.abs(other), _OF_LARGEST * np.abs(other).max(initial=0))
        return equal | (np.abs(self.logged - other) <= np.maximum(allowed, self.half_unit))

    def fits(self, recomputed: Float64s | None = None) -> bool:
        """Whether that is everywhere, and of enough steps to tell."""
        return len(self.steps) >= FEWEST_STEPS and bool(self.close(recomputed).all())

    @property
    def tells(self) -> bool:
        """Whether the log's values vary, or are a count of something: a curve of zeros is equal to many."""
        counts = self.series.definition.family in ("counts", "tokens")
        return varies(self.recomputed) or (counts and len(self.steps) > 0 and self.recomputed[0] != 0)

    def shifted(self, shift: int) -> CurvePair:
        """The same with other numbers of steps."""
        return CurvePair(self.curve, self.known, self.series, shift)

    def of(self, series: LogSeries, shift: int = 0) -> CurvePair:
        """The curve with another series."""
        return CurvePair(self.curve, self.known._replace(plus=0), series, shift)


def varies(values: Float64s) -> bool:
    """Whether not all values are one."""
    return len(values) > 0 and bool((values != values[0]).any())


def _half_unit(values: Float64s) -> float:
    """Half of the last decimal to which all values are rounded; 0 where there is none, or no telling."""
    if len(values) < TELLING_VALUES or (values == np.round(values)).all():
        return 0.0
    for decimals in _DECIMALS:
        if (np.abs(values - np.round(values, decimals)) <= 1e-12 * np.maximum(1, np.abs(values))).all():
            return 0.5 * 10.0**-decimals * (1 + 1e-6)
    return 0.0


def _relative(values: Float64s) -> float:
    """How far values may be off: half of the last bit where all are those of bfloat16 or float16.

    Means of few values, which are such numbers by themselves, differ by more than that where they differ.
    """
    if len(values) < TELLING_VALUES or (values == np.round(values)).all():
        return RELATIVE
    with np.errstate(over="ignore"):
        single = values.astype(np.float32)
        if (single == values).all() and not (single.view(np.uint32) & 0xFFFF).any():
            return 2.0**-8
        return 2.0**-11 if (values.astype(np.float16) == values).all() else RELATIVE

"""The few array functions that corrections need, and their form on numpy; operators are those of the arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from tokenaudit.log.columns import Int64s

Array = Any
"""An array of numpy, or a tensor of torch."""


CODES = 2**16
"""Codes of a histogram."""


class Arrays(Protocol):
    """Functions on flat arrays of N tokens that belong to R responses.

    Attributes:
        chunk_tokens: how many tokens are best looked at together.
        description: what computes, for people.
        dtypes: the floating types it has.
    """

    chunk_tokens: int
    description: str
    dtypes: Sequence[str]

    def of(self, values: np.ndarray, dtype: str) -> Array:
        """Values on the device, as float32, float64, int64 or bool."""
        ...

    def host(self, values: Array) -> np.ndarray:
        """Values in numpy."""
        ...

    def cast(self, values: Array, dtype: str) -> Array:
        """Values in another type; the same ones where it is theirs."""
        ...

    def exp(self, values: Array) -> Array:
        """Powers of e; infinite where that overflows."""
        ...

    def exp32(self, values: Array) -> Array:
        """Powers of e of values in float32, rounded to it, also where `exp` is fast rather than exact."""
        ...

    def absolute(self, values: Array) -> Array:
        """Each value without its sign."""
        ...

    def clip(self, values: Array, low: float | None, high: float | None) -> Array:
        """Values between two bounds; None: no bound."""
        ...

    def where(self, condition: Array, values: Array, other: Array | float) -> Array:
        """Values where a condition holds, others elsewhere."""
        ...

    def finite(self, values: Array) -> Array:
        """Whether each value is a number and not infinite."""
        ...

    def spread(self, values: Array, lengths: Int64s) -> Array:
        """Values of shape [R] for every token, of shape [N]."""
        ...

    def sums(self, values: Array, lengths: Int64s) -> Array:
        """Sum over each response, shape [R], made in float64 and given in the type of the values."""
        ...

    def counts(self, flags: Array, lengths: Int64s) -> Array:
        """Flags set in each response, int64 of shape [R]."""
        ...

    def largest(self, values: Array, lengths: Int64s, empty: float) -> Array:
        """Largest value of each response, shape [R]; `empty` for one without tokens."""
        ...

    def smallest(self, values: Array, lengths: Int64s, empty: float) -> Array:
        """Smallest value of each response, shape [R]; `empty` for one without tokens."""
        ...

    def sorted(self, values: Array) -> Array:
        """Values in ascending order."""
        ...

    def total(self, flags: Array) -> int:
        """Flags set in all."""
        ...

    def histogram(self, values: Array) -> tuple[int, Int64s]:
        """How many of the values, some, finite and 0 or more, have each code, from the first code that is given on.

        The code of a value are the 16 bits behind the sign of its float32.
        """
        ...


_BITS = {np.dtype(np.float32): np.dtype(np.int32), np.dtype(np.float64): np.dtype(np.int64)}
_KNOWN_LENGTHS = 8


class NumpyArrays:
    """The functions in numpy."""

    description = "numpy"
    dtypes: Sequence[str] = ("float32", "float64")
    chunk_tokens = 131_072  # few calls for a token, and arrays that fit the caches

    def of(self, values: np.ndarray, dtype: str) -> Array:  # noqa: D102 - see the protocol
        return np.asarray(values, dtype=dtype)

    def host(self, values: Array) -> np.ndarray:  # noqa: D102
        return values

    def cast(self, values: Array, dtype: str) -> Array:  # noqa: D102
        return values.astype(dtype, copy=False)

    def exp(self, values: Array) -> Array:  # noqa: D102
        with np.errstate(over="ignore"):
            return np.exp(values)

    def exp32(self, values: Array) -> Array:  # noqa: D102
        return np.exp(values.astype(np.float64)).astype(np.float32)

    def absolute(self, values: Array) -> Array:  # noqa: D102
        return np.abs(values)

    def clip(self, values: Array, low: float | None, high: float | None) -> Array:  # noqa: D102
        return values if low is None and high is None else np.clip(values, low, high)

    def __init__(self) -> None:
        self._places: dict[int, tuple[Int64s, Int64s, Int64s]] = {}

    def where(self, condition: Array, values: Array, other: Array | float) -> Array:  # noqa: D102
        if isinstance(other, int | float) and other == 0 and values.dtype in _BITS and len(condition) == len(values):
            # half the time of `np.where`
            bits = _BITS[values.dtype]
            kept = np.negative(condition.view(np.int8)).astype(bits)
            return np.bitwise_and(values.view(bits), kept, out=kept).view(values.dtype)
        return np.where(condition, values, other)

    def finite(self, values: Array) -> Array:  # noqa: D102
        return np.isfinite(values)

    def spread(self, values: Array, lengths: Int64s) -> Array:  # noqa: D102
        return np.repeat(values, lengths)

    def sums(self, values: Array, lengths: Int64s) -> Array:  # noqa: D102
        return self._reduced(np.add, values, lengths, 0, np.float64).astype(values.dtype, copy=False)

    def counts(self, flags: Array, lengths: Int64s) -> Array:  # noqa: D102
        if not flags.any():
            return np.zeros(len(lengths), dtype=np.int64)
        return self._reduced(np.add, flags.view(np.int8), lengths, 0, np.int32).astype(np.int64)

    def largest(self, values: Array, lengths: Int64s, empty: float) -> Array:  # noqa: D102
        return self._reduced(np.maximum, values, lengths, empty, values.dtype)

    def smallest(self, values: Array, lengths: Int64s, empty: float) -> Array:  # noqa: D102
        return self._reduced(np.minimum, values, lengths, empty, values.dtype)

    def sorted(self, values: Array) -> Array:  # noqa: D102
        return np.sort(values)

    def total(self, flags: Array) -> int:  # noqa: D102
        return int(np.count_nonzero(flags))

    def histogram(self, values: Array) -> tuple[int, Int64s]:  # noqa: D102
        codes = values.astype(np.float32, copy=False).view(np.int32) >> 15
        first = int(codes.min())
        return first, np.bincount(codes - first)

    def _reduced(self, function: np.ufunc, values: Array, lengths: Int64s, empty: float, dtype: Any) -> Array:
        """`function` over each response; reduceat alone would give an empty one the value behind it."""
        filled, starts = self._starts(lengths)
        with np.errstate(invalid="ignore", over="ignore"):
            if len(filled) == len(lengths) > 0:
                return function.reduceat(values, starts, dtype=dtype)
            reduced = np.full(len(lengths), empty, dtype=dtype)
            if len(filled):
                reduced[filled] = function.reduceat(values, starts, dtype=dtype)
        return reduced

    def _starts(self, lengths: Int64s) -> tuple[Int64s, Int64s]:
        """Which of some lengths aren't 0, and where what has them begins; it is asked for again and again."""
        known = self._places.get(id(lengths))
        if known is None:
            if len(self._places) >= _KNOWN_LENGTHS:
                self._places.clear()
            filled = np.flatnonzero(lengths)
            known = self._places[id(lengths)] = (lengths, filled, (np.cumsum(lengths) - lengths)[filled])
        return known[1], known[2]

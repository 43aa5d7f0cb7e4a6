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

    def sorted(self, values: Array) -> Array:
        """Values in ascending order."""
        ...

    def total(self, flags: Array) -> int:
        """Flags set in all."""
        ...

    def histogram(self, values: Array) -> Int64s:
        """How many of the values, finite and 0 or more, have each code: 16 bits of float32 behind the sign."""
        ...


class NumpyArrays:
    """The functions in numpy."""

    description = "numpy"
    dtypes = ("float32", "float64")
    chunk_tokens = 65_536  # several arrays of them fit the caches of a core

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

    def where(self, condition: Array, values: Array, other: Array | float) -> Array:  # noqa: D102
        return np.where(condition, values, other)

    def finite(self, values: Array) -> Array:  # noqa: D102
        return np.isfinite(values)

    def spread(self, values: Array, lengths: Int64s) -> Array:  # noqa: D102
        return np.repeat(values, lengths)

    def sums(self, values: Array, lengths: Int64s) -> Array:  # noqa: D102
        return self._reduced(np.add, values, lengths, 0, np.float64).astype(values.dtype, copy=False)

    def counts(self, flags: Array, lengths: Int64s) -> Array:  # noqa: D102
        return self._reduced(np.add, flags.view(np.int8), lengths, 0, np.int64)

    def largest(self, values: Array, lengths: Int64s, empty: float) -> Array:  # noqa: D102
        return self._reduced(np.maximum, values, lengths, empty, values.dtype)

    def sorted(self, values: Array) -> Array:  # noqa: D102
        return np.sort(values)

    def total(self, flags: Array) -> int:  # noqa: D102
        return int(np.count_nonzero(flags))

    def histogram(self, values: Array) -> Int64s:  # noqa: D102
        return np.bincount(values.astype(np.float32, copy=False).view(np.uint32) >> 15, minlength=CODES)

    @staticmethod
    def _reduced(function: np.ufunc, values: Array, lengths: Int64s, empty: float, dtype: Any) -> Array:
        """`function` over each response; reduceat alone would give an empty one the value behind it."""
        reduced = np.full(len(lengths), empty, dtype=dtype)
        filled = np.flatnonzero(lengths)
        if len(filled):
            starts = (np.cumsum(lengths) - lengths)[filled]
            with np.errstate(invalid="ignore", over="ignore"):
                reduced[filled] = function.reduceat(values, starts, dtype=dtype)
        return reduced

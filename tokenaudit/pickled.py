"""What a pickle of plain data holds, once it is read without running it."""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, overload

import numpy as np

_DTYPE = re.compile(r"[biuf][1248]")


class PickleFault(ValueError):
    """A pickle that is damaged, or asks for what a data file has no need of."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of one pickle.

    Attributes:
        instructions: instructions, runs of numbers counting as one.
        elements: elements of all lists, tuples, dictionaries and tensors.
        depth: nesting of marks, as in nested lists.
    """

    instructions: int = 20_000_000
    elements: int = 200_000_000
    depth: int = 1_000


@dataclass(slots=True)
class Name:
    """A class or function that a pickle names. It is a text and stays one."""

    name: str


@dataclass(slots=True, repr=False)
class Record:
    """An object of a class that isn't known here: what it was made from, and the state it was given.

    Attributes:
        name: the class, such as `package.module.Class`.
        arguments: what it was called with.
        state: what was set on it afterwards; None if nothing was.
    """

    name: str
    arguments: tuple[Any, ...] = ()
    state: Any = None

    def __repr__(self) -> str:
        return f"<{self.name}>"


class Numbers(Sequence[Any]):
    """A list; as long as it holds only whole numbers that fit 64 bits, or only floats, an array keeps them."""

    __slots__ = ("items",)

    def __init__(self) -> None:
        self.items: array[Any] | list[Any] = []

    def __len__(self) -> int:
        return len(self.items)

    @overload
    def __getitem__(self, index: int) -> Any: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Any]: ...
    def __getitem__(self, index: int | slice) -> Any:
        return self.items[index]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.items)

    def packed(self) -> np.ndarray[Any, Any] | None:
        """The numbers as an array; None where the list holds anything else, or nothing."""
        return np.array(self.items) if isinstance(self.items, array) else None

    def extend(self, values: list[Any]) -> None:
        """Append values, in an array while they allow it."""
        packed = _packed(values) if not len(self.items) or isinstance(self.items, array) else None
        if packed is None:
            if isinstance(self.items, array):
                self.items = list(self.items)
            self.items.extend(values)
        elif isinstance(self.items, array):
            if self.items.typecode == packed.typecode:
                self.items.extend(packed)
            else:
                self.items = [*self.items, *values]
        else:
            self.items = packed


def _packed(values: list[Any]) -> array[Any] | None:
    kinds = set(map(type, values))
    if kinds == {int}:
        try:
            return array("q", values)
        except OverflowError:
            return None
    return array("d", values) if kinds == {float} else None


def array_of(shape: Any, dtype: Any, content: Any, order: Any = "C") -> np.ndarray[Any, Any]:
    """A numpy array from its bytes; only plain number types.

    Raises:
        PickleFault: another type, or a shape that doesn't fit the bytes.
    """
    code = dtype.arguments[0] if isinstance(dtype, Record) and dtype.name == "numpy.dtype" and dtype.arguments else None
    if not isinstance(code, str) or _DTYPE.fullmatch(code) is None or not isinstance(content, bytes):
        raise PickleFault("an array that isn't of plain numbers")
    big = isinstance(dtype.state, tuple) and len(dtype.state) > 1 and dtype.state[1] == ">"
    kind = np.dtype((">" if big else "<") + code)
    is_shape = isinstance(shape, tuple) and all(
        isinstance(n, int) and not isinstance(n, bool) and n >= 0 for n in shape
    )
    if not is_shape or len(shape) > 8 or int(np.prod(shape, dtype=object)) * kind.itemsize != len(content):
        raise PickleFault("an array whose shape doesn't fit its bytes")
    return np.frombuffer(content, dtype=kind).reshape(shape, order=order)

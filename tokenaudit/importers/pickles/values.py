"""What a pickle of plain data makes, once it is read without running it: names, opaque objects and lazy lists."""

from __future__ import annotations

import pickle
import re
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from tokenaudit.importers.pickles.source import AT_ONCE, Source

# Whole numbers of one, two, four and up to eight bytes, floats, and the constants: they refer to nothing.
_LONG = b"|".join(rb"\x8a" + bytes([size]) + b"." * size for size in range(5, 9))
_RUN = rb"(?:K.|M..|J....|G........|[\x88\x89N]|" + _LONG + rb")++"
RUN = re.compile(_RUN, re.DOTALL)
"""A run of opcodes that make numbers and constants and can make nothing else."""
_JOINED = re.compile(_RUN + rb"(?:e\(" + _RUN + rb")*+", re.DOTALL)
"""Such runs as `pickle` writes a long list: between them, one ends and the next begins."""
_CHUNK = 1 << 18
"""Bytes of numbers in the file that are decoded at once."""
_ITEM_COST = 8
"""What a value of any kind costs more than a number, as time goes."""


class PickleFault(ValueError):
    """A pickle that is damaged, or asks for what a data file has no need of."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of one pickle.

    Attributes:
        objects: objects that are made, counted by opcodes; a long run of numbers stays in the file and is one.
        depth: nesting of marks, as in nested lists.
    """

    objects: int = 20_000_000
    depth: int = 1_000


@dataclass(slots=True)
class GlobalName:
    """A class or function that a pickle names. It is a text and stays one."""

    name: str


@dataclass(slots=True, repr=False)
class OpaqueObject:
    """An object of an unknown class, `package.module.Class`: what it was called with, and the state set afterwards."""

    name: str
    arguments: tuple[Any, ...] = ()
    state: Any = None

    def __repr__(self) -> str:
        return f"<{self.name}>"


class _Span(NamedTuple):
    """Bytes of the file, from `start` to before `end`."""

    start: int
    end: int


class LazyList:
    """A list; its long runs of numbers stay in the file.

    Every look at it is charged to the file, also its length: how many numbers a run has is known once it is decoded.
    """

    __slots__ = ("_parts", "_source")

    def __init__(self, source: Source, values: list[Any] | None = None) -> None:
        self._source = source
        # values, and spans of the file that hold what a pickle's list of numbers does between its mark and its end
        self._parts: tuple[()] | list[list[Any] | _Span] = [values] if values else ()

    def __repr__(self) -> str:
        # its length would be a look at it
        return "<list>"

    def extend(self, values: list[Any]) -> None:
        """Append values."""
        parts = self._parts or []
        if parts and isinstance(parts[-1], list):
            parts[-1] += values
        else:
            parts.append(values)
        self._parts = parts

    def extend_lazy(self, start: int, end: int) -> None:
        """Append a `RUN` that lies in the file.

        It may follow the one before after two opcodes, the end of that and its own beginning; both are then one span.
        """
        parts = self._parts or []
        last = parts[-1] if parts else None
        if isinstance(last, _Span) and last.end + 2 == start and end - last.start < _CHUNK:
            parts[-1] = _Span(last.start, end)
        else:
            parts.append(_Span(start, end))
        self._parts = parts

    def chunks(self) -> Iterator[list[Any]]:
        """The values, a piece at a time. Raises like `Source.read` and `Source.spend`."""
        for part in self._parts:
            values = part if isinstance(part, list) else self._decoded(*part)
            self._source.spend(len(values))
            yield values

    def _decoded(self, start: int, end: int) -> list[Any]:
        piece = self._source.read(start, end - start)
        # looked at anew: whoever can write to the file could have changed it since
        if not _JOINED.fullmatch(piece):
            raise self._source.fault("the file was changed while it was read")
        return pickle.loads(b"](" + piece + b"e.")

    def __iter__(self) -> Iterator[Any]:
        return (value for chunk in self.chunks() for value in chunk)

    def __len__(self) -> int:
        return sum(map(len, self.chunks()))

    def items(self, most: int) -> list[Any] | None:
        """The values, to be looked at one by one, which costs more than numbers do; None if they are more than `most`.

        Raises like `chunks`.
        """
        items: list[Any] = []
        for chunk in self.chunks():
            self._source.spend(_ITEM_COST * len(chunk))
            items += chunk
            if len(items) > most:
                return None
        return items

    def packed(self) -> np.ndarray[Any, Any] | None:
        """The numbers as an array: int64 for whole ones and bools, else float64; None if the list isn't all of one.

        Shape [length]. An empty list is None too. Raises like `chunks`, and for more than `AT_ONCE`.
        """
        pieces: list[array[Any]] = []
        size = 0
        for chunk in self.chunks():
            size += len(chunk)
            if size > AT_ONCE:
                raise self._source.fault(f"a list of more than {AT_ONCE} numbers")
            piece = _packed(chunk)
            if piece is None or (pieces and pieces[-1].typecode != piece.typecode):
                return None
            pieces.append(piece)
        return np.concatenate([np.array(piece) for piece in pieces]) if pieces else None


def _packed(values: list[Any]) -> array[Any] | None:
    try:
        return array("q", values)
    except OverflowError:
        return None
    except TypeError:
        return array("d", values) if set(map(type, values)) == {float} else None

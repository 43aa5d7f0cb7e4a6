"""The bytes of a pickle, read from the file a window at a time."""

from __future__ import annotations

import pickle
import struct
from typing import Any

from tokenaudit.importers.pickles.source import Source
from tokenaudit.importers.pickles.values import RUN, PickleFault

_WINDOW = 1 << 20
_RUN_BYTES = 1 << 16
"""Bytes that are in the window where a run of numbers is looked for; `pickle` writes 1,000 numbers a time."""
_MAX_NAME = 1024


class PickleStream:
    """A pickle inside of a file, of `size` bytes from `start` on."""

    def __init__(self, source: Source, start: int, size: int) -> None:
        self._source = source
        self._window = b""
        self._at = 0
        self._next = start
        """Byte of the file behind the window."""
        self._end = start + size

    @property
    def place(self) -> int:
        """Byte of the file that comes next."""
        return self._next - len(self._window) + self._at

    def opcode(self) -> int:
        """The next opcode. Raises like `take`."""
        at = self._at
        if at == len(self._window):
            return self.take(1)[0]
        self._at = at + 1
        return self._window[at]

    def take(self, size: int) -> bytes:
        """The next bytes. Raises a `PickleFault` if the pickle ends before."""
        end = self._at + size
        if end > len(self._window):
            self._fill(size)
            end = size
        piece = self._window[self._at : end]
        self._at = end
        return piece

    def skip(self, size: int) -> int:
        """Pass over bytes, and give the place in the file where they begin. Raises like `take`."""
        start = self.place
        if size < 0:
            raise PickleFault("a negative size")
        if start + size > self._end:
            raise PickleFault("the pickle is cut off")
        if self._at + size <= len(self._window):
            self._at += size
        else:
            self._window, self._at, self._next = b"", 0, start + size
        return start

    def number(self, layout: struct.Struct) -> Any:
        """The next number. Raises like `take`."""
        return layout.unpack(self.take(layout.size))[0]

    def line(self) -> str:
        """A name that ends with a line feed. Raises a `PickleFault` if it has no end."""
        self._look_ahead(_MAX_NAME)
        end = self._window.find(b"\n", self._at, self._at + _MAX_NAME)
        if end < 0:
            raise PickleFault("a name without an end")
        piece = self._window[self._at : end]
        self._at = end + 1
        return piece.decode("utf-8", "replace")

    def run(self) -> slice | None:
        """The part of the window with the run of numbers and constants that comes next; None without any.

        It is passed over; `values_of` decodes it, as long as nothing else was read.
        """
        self._look_ahead(_RUN_BYTES)
        found = RUN.match(self._window, self._at)
        if found is None:
            return None
        self._at = found.end()
        return slice(*found.span())

    def values_of(self, run: slice) -> list[Any]:
        """The values of a run."""
        # these instructions can only make numbers and constants
        return pickle.loads(b"(" + self._window[run] + b"l.")

    def is_next(self, opcodes: bytes) -> bool:
        """Whether one of these opcodes comes next in the window."""
        return self._at < len(self._window) and self._window[self._at] in opcodes

    def _look_ahead(self, size: int) -> None:
        """Have so many bytes in the window, or all that there are."""
        if len(self._window) - self._at < size and self._next < self._end:
            self._fill(min(size, self._end - self.place))

    def _fill(self, size: int) -> None:
        """Begin the window at the next byte, with at least so many bytes in it."""
        place = self.place
        if place + size > self._end:
            raise PickleFault("the pickle is cut off")
        rest = self._window[self._at :]
        more = min(max(size - len(rest), _WINDOW), self._end - self._next)
        self._window = rest + self._source.read(self._next, more)
        self._at = 0
        self._next += more

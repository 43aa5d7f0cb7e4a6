"""What stays in a file until it is asked for: long texts and bytes, as places in the file.

A dump of a gigabyte is a few thousand small objects around long lists, texts and tensors, most of which nobody asks
for. What is asked for is read then, and every reading is charged to an allowance in proportion to the file, so that a
small file can't ask for endless work.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import BinaryIO

from tokenaudit.contracts.errors import Problem, SourceError

LAZY_BYTES = 256
"""Bytes of a text or of bytes from which on they stay in the file."""
CHARACTERS = 16
"""Bytes of a text that count as much as one number."""
AT_ONCE = 2**25
"""Elements of a list or array that is read whole; no response is that long."""
_PER_BYTE, _AT_LEAST = 4, 32_000_000
_HINT = "tokenaudit reads pickles and what torch.save writes by default (torch 1.6 or later), and runs none of it"


class Source:
    """An open file that is read by pieces, and how much may be read from it.

    Args:
        path: its name, for messages.
        file: the file; it stays open as long as values from it are wanted.
    """

    def __init__(self, path: Path, file: BinaryIO) -> None:
        self.path = path
        self.size = os.fstat(file.fileno()).st_size
        self._file = file
        self._allowance = _AT_LEAST + _PER_BYTE * self.size

    def read(self, start: int, size: int) -> bytes:
        """Bytes of the file; reading by place leaves memory alone that mapping the file would take.

        Raises:
            SourceError: they can't be read, or aren't there any more.
        """
        try:
            piece = os.pread(self._file.fileno(), size, start)
            while len(piece) < size and (more := os.pread(self._file.fileno(), size - len(piece), start + len(piece))):
                piece += more
        except OSError as error:
            raise unreadable(self.path, error) from error
        if len(piece) < size:
            raise self.fault("the file was cut off while it was read")
        return piece

    def spend(self, elements: int) -> None:
        """Charge elements that are made from the file, such as numbers of a list.

        A file names each of its values about once, and a value takes a byte at least. A crafted one names the same
        list over and over, or a tensor of a billion times the same number.

        Raises:
            SourceError: more than a file of its size can hold.
        """
        self._allowance -= elements
        if self._allowance < 0:
            raise self.fault(f"a file of {self.size} bytes that names far more than it can hold")

    def fault(self, what: str) -> SourceError:
        """A fault of this file."""
        return SourceError(Problem(what, str(self.path), _HINT))


def unreadable(path: Path, error: OSError) -> SourceError:
    """The fault of a file that can't be read."""
    return SourceError(Problem(f"can't read: {error.strerror or error}", str(path), "check its owner and mode"))


class _InFile:
    """Bytes in the file: where they begin, and how many they are."""

    __slots__ = ("size", "source", "start")

    def __init__(self, source: Source, start: int, size: int) -> None:
        self.source = source
        self.start = start
        self.size = size


class LazyText(_InFile):
    """A long text."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"<text of {self.size} bytes>"

    def text(self) -> str:
        """All of it. Raises like `Source.read` and `Source.spend`."""
        self.source.spend(self.size // CHARACTERS)
        return self.source.read(self.start, self.size).decode("utf-8", "replace")

    def latin1(self) -> LazyBytes:
        """The bytes that the text stands for: protocols before 3 write bytes as a text of their values."""
        return LazyBytes(self.source, self.start, self.size, is_text=True)


class LazyBytes(_InFile):
    """Long bytes, either as they are or as a text of their values.

    Args:
        is_text: whether they are written as a text.
    """

    __slots__ = ("is_text",)

    def __init__(self, source: Source, start: int, size: int, *, is_text: bool = False) -> None:
        super().__init__(source, start, size)
        self.is_text = is_text

    def __repr__(self) -> str:
        return f"<{self.size} bytes>"

    def read(self) -> bytes:
        """All of them. Raises like `Source.read` and `Source.spend`, and for a text that stands for no bytes."""
        self.source.spend(self.size // CHARACTERS)
        piece = self.source.read(self.start, self.size)
        if not self.is_text:
            return piece
        try:
            return piece.decode("utf-8").encode("latin1")
        except UnicodeError as error:
            raise self.source.fault("bytes that aren't") from error

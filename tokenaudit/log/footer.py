"""The sizes that a Parquet footer tells of its column chunks, read without pyarrow.

pyarrow ends the whole process when the metadata of a column chunk is damaged or encrypted, so nothing may ask it for
one. The few numbers that bound memory are read here, from the footer's Thrift compact encoding; everything else is
passed over.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

MOST_FOOTER_BYTES = 2**28
"""Size of a footer that is still read."""

_MAGIC, _ENCRYPTED_MAGIC = b"PAR1", b"PARE"
_STOP, _TRUE, _FALSE, _BYTE, _DOUBLE, _BINARY, _LIST, _SET, _MAP, _STRUCT = 0, 1, 2, 3, 7, 8, 9, 10, 11, 12
_INTEGERS = (4, 5, 6)
_ROW_GROUPS, _COLUMNS, _META_DATA = 4, 1, 3
_PATH, _NUM_VALUES, _UNCOMPRESSED = 3, 5, 6


class ChunkSize(NamedTuple):
    """One column chunk.

    Attributes:
        values: its values; for a list column the elements, with one for every empty or null list.
        uncompressed_bytes: its size before compression.
    """

    values: int
    uncompressed_bytes: int


def chunk_sizes(path: Path) -> list[dict[str, ChunkSize]]:
    """Sizes of the column chunks of every row group, by the name of the top-level column.

    A column of several leaves, such as a list of structs, has the sizes of its largest one.

    Raises:
        OSError: the file can't be read.
        ValueError: the footer is damaged or encrypted.
    """
    with path.open("rb") as file:
        size = file.seek(0, 2)
        file.seek(max(size - 8, 0))
        tail = file.read(8)
        length = int.from_bytes(tail[:4], "little")
        if tail[4:] == _ENCRYPTED_MAGIC:
            raise ValueError("the file is encrypted")
        if tail[4:] != _MAGIC or length + 8 > size or length > MOST_FOOTER_BYTES:
            raise ValueError("the footer is damaged")
        file.seek(size - 8 - length)
        footer = _Compact(file.read(length))
    groups: list[dict[str, ChunkSize]] = []
    try:
        footer.struct({_ROW_GROUPS: lambda: footer.each(lambda: groups.append(_row_group(footer)))})
    except (IndexError, RecursionError, UnicodeDecodeError, OverflowError) as error:
        raise ValueError("the footer is damaged") from error
    return groups


def _row_group(footer: _Compact) -> dict[str, ChunkSize]:
    sizes: dict[str, ChunkSize] = {}

    def chunk() -> None:
        path: list[str] = []
        numbers = {_NUM_VALUES: 0, _UNCOMPRESSED: 0}

        def meta_data() -> None:
            footer.struct(
                {
                    _PATH: lambda: footer.each(lambda: path.append(footer.binary().decode())),
                    _NUM_VALUES: lambda: numbers.update({_NUM_VALUES: footer.integer()}),
                    _UNCOMPRESSED: lambda: numbers.update({_UNCOMPRESSED: footer.integer()}),
                }
            )

        footer.struct({_META_DATA: meta_data})
        if path:
            before = sizes.get(path[0], ChunkSize(0, 0))
            sizes[path[0]] = ChunkSize(
                max(before.values, numbers[_NUM_VALUES]), max(before.uncompressed_bytes, numbers[_UNCOMPRESSED])
            )

    footer.struct({_COLUMNS: lambda: footer.each(chunk)})
    return sizes


class _Compact:
    """A reader of Thrift's compact protocol; IndexError at the end of the data."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._position = 0

    def struct(self, wanted: dict[int, Callable[[], None]]) -> None:
        """Read a struct: call `wanted` for fields by id, and pass over the others."""
        field = 0
        while True:
            header = self._byte()
            if header == _STOP:
                return
            field = field + (header >> 4) if header >> 4 else self.integer()
            read = wanted.get(field)
            if read is not None:
                read()
            else:
                self._skip(header & 15)

    def each(self, read: Callable[[], None]) -> None:
        """Read a list with `read` for every element."""
        for _ in range(self._list_header()[0]):
            read()

    def integer(self) -> int:
        """A number with a sign."""
        value = self._varint()
        return (value >> 1) ^ -(value & 1)

    def binary(self) -> bytes:
        """Bytes with their length in front."""
        length = self._varint()
        return self._take(length)

    def _byte(self) -> int:
        value = self._data[self._position]
        self._position += 1
        return value

    def _take(self, length: int) -> bytes:
        end = self._position + length
        if end > len(self._data):
            raise IndexError("beyond the end")
        taken = self._data[self._position : end]
        self._position = end
        return taken

    def _varint(self) -> int:
        value = shift = 0
        while True:
            byte = self._byte()
            value |= (byte & 127) << shift
            if byte < 128:
                return value
            shift += 7
            if shift > 63:
                raise OverflowError("a number of more than 64 bits")

    def _list_header(self) -> tuple[int, int]:
        header = self._byte()
        count = header >> 4
        return (self._varint() if count == 15 else count), header & 15

    def _skip(self, kind: int, *, in_list: bool = False) -> None:
        if kind in (_TRUE, _FALSE):
            # As a field, a bool is in the header; as an element, it is a byte.
            self._take(1 if in_list else 0)
        elif kind == _BYTE:
            self._take(1)
        elif kind in _INTEGERS:
            self._varint()
        elif kind == _DOUBLE:
            self._take(8)
        elif kind == _BINARY:
            self.binary()
        elif kind in (_LIST, _SET):
            count, element = self._list_header()
            for _ in range(count):
                self._skip(element, in_list=True)
        elif kind == _MAP:
            self._skip_map()
        elif kind == _STRUCT:
            self.struct({})
        else:
            raise IndexError("no such type")

    def _skip_map(self) -> None:
        count = self._varint()
        kinds = self._byte() if count else 0
        for _ in range(count):
            self._skip(kinds >> 4, in_list=True)
            self._skip(kinds & 15, in_list=True)

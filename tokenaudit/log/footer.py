"""The sizes of column chunks, from the footer of a Parquet file.

pyarrow ends the whole process when the metadata of a column chunk is damaged or encrypted, so nothing may ask it for
one. The few numbers that bound memory are read here, from the footer's Thrift compact encoding; everything else is
passed over.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

MOST_FOOTER_BYTES = 2**28
"""Size of a footer that is still read."""

_MAGIC, _ENCRYPTED_MAGIC = b"PAR1", b"PARE"
_STOP, _TRUE, _FALSE, _BYTE, _DOUBLE, _BINARY, _LIST, _SET, _MAP, _STRUCT = 0, 1, 2, 3, 7, 8, 9, 10, 11, 12
_INTEGERS, _CONTAINERS = (4, 5, 6), (_LIST, _SET, _MAP, _STRUCT)
_LONG_LIST = 15  # stands for a length that follows
_MOST_NESTED = 64
"""Structs, lists and maps inside each other; Thrift's own reader draws the same line."""

_FOOTER, _ROW_GROUP, _CHUNK, _META_DATA, _ENCODINGS, _NAMES, _NUM_VALUES, _UNCOMPRESSED = range(1, 9)
_ELSEWHERE = 0
_NUMBERS = (_ENCODINGS, _NUM_VALUES, _UNCOMPRESSED)
_DELTA_TEXT_ENCODINGS = (6, 7)  # DELTA_LENGTH_BYTE_ARRAY, DELTA_BYTE_ARRAY
_FIELDS: dict[int, dict[int, int]] = {
    _FOOTER: {4: _ROW_GROUP},
    _ROW_GROUP: {1: _CHUNK},
    _CHUNK: {3: _META_DATA},
    _META_DATA: {2: _ENCODINGS, 3: _NAMES, 5: _NUM_VALUES, 6: _UNCOMPRESSED},
}
"""The fields on the way to the sizes, by the struct they stand in and their id there."""


class ChunkSize(NamedTuple):
    """One column chunk.

    Attributes:
        values: its values; for a list column the elements, with one for every empty or null list.
        uncompressed_bytes: its size before compression.
        is_delta_text: whether it says that pages are in an encoding of texts that pyarrow decodes to no dictionary.
    """

    values: int
    uncompressed_bytes: int
    is_delta_text: bool


def chunk_sizes(path: Path) -> list[dict[str, ChunkSize]]:
    """Sizes of the column chunks of every row group, by the name of the top-level column.

    A column of several leaves, such as a list of structs, has the sizes of its largest one.

    Raises:
        OSError: the file can't be read.
        ValueError: the footer is damaged or encrypted.
    """
    groups: list[list[dict[int, Any]]] = []
    try:
        for field, value in _values(_footer(path)):
            if field == _ROW_GROUP:
                groups.append([])
            elif field == _CHUNK:
                groups[-1].append({})
            elif field == _NAMES:
                # The names that lead to a leaf; the first is the column's.
                groups[-1][-1].setdefault(field, value)
            elif field == _ENCODINGS:
                groups[-1][-1][field] = groups[-1][-1].get(field, False) or value in _DELTA_TEXT_ENCODINGS
            else:
                groups[-1][-1][field] = value
        sizes: list[dict[str, ChunkSize]] = [{} for _ in groups]
        for of_group, chunks in zip(sizes, groups, strict=True):
            for chunk in chunks:
                if _NAMES in chunk:
                    name = chunk[_NAMES].decode()
                    values, uncompressed, is_delta = of_group.get(name, (0, 0, False))
                    values = max(values, chunk.get(_NUM_VALUES, 0))
                    uncompressed = max(uncompressed, chunk.get(_UNCOMPRESSED, 0))
                    of_group[name] = ChunkSize(values, uncompressed, is_delta or chunk.get(_ENCODINGS, False))
        return sizes
    except (IndexError, UnicodeDecodeError) as error:
        raise ValueError("the footer is damaged") from error


def _footer(path: Path) -> bytes:
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
        return file.read(length)


def _values(data: bytes) -> Iterator[tuple[int, int | bytes | None]]:
    """The integers, texts and structs (as None, before what they hold) of the fields in `_FIELDS`, in order.

    Everything that Thrift's compact encoding can hold is walked in one loop, so that no file sets the depth of the
    stack. As in Thrift's own reader, a field of another type than it should have is passed over.

    Raises:
        IndexError: the data ends too early.
        ValueError: the data is no struct, or nested too deeply.
    """
    position = field = left = 0
    fields = _FIELDS[_FOOTER]
    place = _FOOTER
    element_kinds: tuple[int, ...] = ()  # of a list, set or map; none in a struct
    outside: list[tuple[int, int, int, tuple[int, ...]]] = []
    while True:
        if not element_kinds and (header := data[position]) != _STOP:
            position += 1
            kind = header & 15
            if header >> 4:
                field += header >> 4
            else:
                number, position = _varint(data, position)
                field = _signed(number)
            here = fields.get(field, _ELSEWHERE)
        elif left:
            kind, here = element_kinds[left % len(element_kinds)], place
            left -= 1
        elif outside:
            position += not element_kinds  # the stop of a struct
            field, left, place, element_kinds = outside.pop()
            fields = _FIELDS.get(place, {})
            continue
        else:
            return
        if kind in _INTEGERS:
            number = data[position]
            position += 1
            if number > 127:
                number, position = _varint(data, position - 1)
            if here in _NUMBERS:
                yield here, _signed(number)
        elif kind == _BINARY:
            length, begin = _varint(data, position)
            position = begin + length
            if position > len(data):
                raise IndexError("beyond the end")
            if here == _NAMES:
                yield here, data[begin:position]
        elif kind in (_TRUE, _FALSE):
            # As a field, a bool is in the header; as an element, it is a byte.
            position += bool(element_kinds)
        elif kind == _BYTE:
            position += 1
        elif kind == _DOUBLE:
            position += 8
        elif kind in _CONTAINERS and len(outside) < _MOST_NESTED:
            outside.append((field, left, place, element_kinds))
            field, left, place, element_kinds = 0, 0, here, ()
            if kind == _STRUCT:
                fields = _FIELDS.get(place, {})
                if here in (_ROW_GROUP, _CHUNK):
                    yield here, None
            elif kind == _MAP:
                entries, position = _varint(data, position)
                kinds = data[position] if entries else 0
                position += entries > 0
                left, element_kinds = 2 * entries, (kinds >> 4, kinds & 15)
            else:
                header = data[position]
                position += 1
                left, element_kinds = header >> 4, (header & 15,)
                if left == _LONG_LIST:
                    left, position = _varint(data, position)
        else:
            raise ValueError("the footer is damaged")


def _varint(data: bytes, position: int) -> tuple[int, int]:
    """An unsigned number of up to 64 bits, and the position behind it."""
    value = shift = 0
    while True:
        byte = data[position]
        position += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, position
        shift += 7
        if shift > 63:
            raise ValueError("a number of more than 64 bits")


def _signed(number: int) -> int:
    """The number that a zigzag code stands for."""
    return (number >> 1) ^ -(number & 1)

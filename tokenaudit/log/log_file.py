"""One Parquet file of a log: what its footer says, and how many of its rows fit in a batch.

pyarrow ends the whole process when the metadata of a column chunk is damaged or encrypted, so nothing may ask it for
one. The few numbers that bound memory are read here, from the footer's Thrift compact encoding; everything else is
passed over.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from tokenaudit.contracts.errors import Problem
from tokenaudit.contracts.files import OTHER_TABLES, import_hint
from tokenaudit.contracts.schema import (
    COLUMNS,
    META_CONFIG,
    META_DROPPED,
    META_LIMITS,
    META_MISSING_RANKS,
    META_REJECTED,
    META_SCHEMA_VERSION,
    META_SOURCE,
    META_TRUNCATED,
    SCHEMA_VERSION,
    Column,
    ColumnType,
)
from tokenaudit.log.columns import is_accepted
from tokenaudit.log.ranks import RANK_METADATA, FileRank
from tokenaudit.log.text_columns import MAX_TEXT_BYTES, NAMES_ARE_SHORT

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


TARGET_BATCH_ELEMENTS = 1_500_000
"""Elements of list columns that a batch should hold; bounds memory whatever the size of file or row group.

Larger batches leave the processor's caches and take fresh memory from the system, which halves the speed.
"""
MAX_BATCH_ROWS = 65_536
MAX_ROW_ELEMENTS = 2**24
"""List elements of a row above which a log is refused: no response is that long, a crafted file is."""

COPY_AGAIN = "copy or write the file again; a file still being written has no footer yet"
"""What to do about a damaged file."""

_METADATA = (
    META_SCHEMA_VERSION, META_CONFIG, META_SOURCE, META_TRUNCATED, META_LIMITS, META_DROPPED, META_REJECTED,
    META_MISSING_RANKS, *RANK_METADATA,
)  # fmt: skip
"""The entries of a file's key-value metadata that are read."""
_LIST_TYPES = (ColumnType.INTEGER_LIST, ColumnType.MASK_LIST, ColumnType.RUN_LIST, ColumnType.REAL_LIST)
TEXT_COLUMNS = tuple(column.name for column in COLUMNS if column.type is ColumnType.TEXT)
"""The columns that hold names."""
_REPLAYED_TEXTS = tuple(column.name for column in COLUMNS if column.type is ColumnType.TEXT and column.replayed)
LIST_COLUMNS = frozenset(column.name for column in COLUMNS if column.type in _LIST_TYPES and column.replayed)
"""The columns of replay that hold an element per token or per run."""


class LogFile(NamedTuple):
    """One Parquet file of a log.

    Attributes:
        path: where it is.
        rows: rows in it.
        columns: the columns of the schema that it has.
        batch_rows: rows per batch that keep a batch within `TARGET_BATCH_ELEMENTS`.
        metadata: its footer.
        chunks: sizes of the column chunks of every row group, by name of the column.
        rank: the rank that wrote it; None for a log of one recorder.
    """

    path: Path
    rows: int
    columns: tuple[str, ...]
    batch_rows: int
    metadata: pq.FileMetaData
    chunks: tuple[dict[str, ChunkSize], ...]
    rank: FileRank | None = None


def open_file(
    path: Path, known: Mapping[str, Column], problems: list[Problem]
) -> tuple[LogFile, list[str], dict[str, str]] | None:
    """Read one footer.

    Args:
        path: the file.
        known: the columns that are read, by name.
        problems: what is wrong with the file is added here.

    Returns:
        The file, the names of all its columns, and what its metadata says of the log; None where something is wrong.
    """
    try:
        if not path.is_file():
            problems.append(Problem("not a regular file", str(path), "Parquet is read from files, not from pipes"))
            return None
        if path.stat().st_size == 0:
            problems.append(Problem("empty file (0 bytes)", str(path), COPY_AGAIN))
            return None
        with pq.ParquetFile(path, pre_buffer=False) as parquet:
            schema = parquet.schema_arrow
            footer = parquet.metadata
            raw = footer.metadata or {}
            metadata = {name: raw[name.encode()].decode() for name in _METADATA if name.encode() in raw}
            before = len(problems)
            problems.extend(_schema_problems(path, schema, known, metadata))
            chunks = chunk_sizes(path)
            if len(chunks) != footer.num_row_groups:
                raise ValueError("the footer is damaged")
            batch_rows = _batch_rows(path, footer, chunks, problems)
    except (pa.ArrowException, OSError, ValueError) as error:
        problems.append(_unreadable(path, error))
        return None
    if len(problems) > before:
        return None
    columns = tuple(name for name in known if name in schema.names)
    return LogFile(path, footer.num_rows, columns, batch_rows, footer, tuple(chunks)), schema.names, metadata


def _unreadable(path: Path, error: Exception) -> Problem:
    if isinstance(error, PermissionError):
        return Problem("no permission to read the file", str(path), "check its owner and mode")
    if isinstance(error, UnicodeEncodeError):
        return Problem("its name isn't UTF-8 text", str(path), "rename the file")
    if isinstance(error, UnicodeDecodeError):
        return Problem("its metadata isn't UTF-8 text", str(path), COPY_AGAIN)
    try:
        with path.open("rb") as file:
            begins_well = file.read(4) == b"PAR1"
    except OSError:
        begins_well = False
    if begins_well:
        return Problem(f"truncated or damaged Parquet file: {first_line(error)}", str(path), COPY_AGAIN)
    if path.suffix.lower() == ".toml":
        return Problem("a TOML file is no log", str(path), "name the log here, and this config with -c")
    if path.suffix.lower() in OTHER_TABLES:
        return Problem("not a Parquet file", str(path), import_hint(path))
    return Problem("not a Parquet file", str(path), "tokenaudit reads logs in Parquet; see `tokenaudit help columns`")


def first_line(error: Exception) -> str:
    """The first line of what an error says, or its name where it says nothing."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def _schema_problems(
    path: Path, schema: pa.Schema, known: Mapping[str, Column], metadata: dict[str, str]
) -> Iterator[Problem]:
    version = metadata.get(META_SCHEMA_VERSION)
    if version is not None and version.strip() != str(SCHEMA_VERSION):
        hint = f"this release reads version {SCHEMA_VERSION}; update tokenaudit or write the log again"
        yield Problem(f"log schema version {version!r}", str(path), hint)
    for name, column in known.items():
        indices = schema.get_all_field_indices(name)
        if len(indices) > 1:
            yield Problem(f"column {name!r} is there {len(indices)} times", str(path), "keep one of them")
        elif indices and not is_accepted(column.type, schema.field(name).type):
            what = f"column {name!r} has the type {schema.field(name).type}"
            hint = f"accepted: {column.type.value}"
            # what a workload lacks is not made by an import
            if column.events and is_accepted(ColumnType.TEXT, schema.field(name).type):
                hint += f"; {import_hint(path)}, with numbers in place of texts"
            yield Problem(what, str(path), hint)


def _batch_rows(
    path: Path, metadata: pq.FileMetaData, chunks: Sequence[dict[str, ChunkSize]], problems: list[Problem]
) -> int:
    """Rows per batch that keep the list columns of every row group within the target."""
    most = 0
    for index, sizes in zip(range(metadata.num_row_groups), chunks, strict=False):
        rows = max(metadata.row_group(index).num_rows, 1)
        for name, size in sizes.items():
            if name in LIST_COLUMNS:
                most = max(most, -(-size.values // rows))
            elif name in _REPLAYED_TEXTS and size.uncompressed_bytes > MAX_TEXT_BYTES:
                what = f"column {name!r} holds more than {MAX_TEXT_BYTES // 2**20} MiB of text in a row group"
                problems.append(Problem(what, str(path), NAMES_ARE_SHORT))
    if most > MAX_ROW_ELEMENTS:
        what = f"a row group has {most} list elements per row on average"
        problems.append(Problem(what, str(path), f"tokenaudit reads up to {MAX_ROW_ELEMENTS} tokens per response"))
    return max(1, min(MAX_BATCH_ROWS, TARGET_BATCH_ELEMENTS // max(most, 1)))

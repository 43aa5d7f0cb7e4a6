"""One Parquet file of a log: what its footer says, and how many of its rows fit in a batch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from tokenaudit.contracts.errors import Problem
from tokenaudit.contracts.files import OTHER_TABLES, import_hint
from tokenaudit.contracts.schema import (
    COLUMN_BY_NAME,
    COLUMNS,
    META_CONFIG,
    META_DROPPED,
    META_LIMITS,
    META_MISSING_PARTS,
    META_MISSING_RANKS,
    META_REJECTED,
    META_SCHEMA_VERSION,
    META_SOURCE,
    META_TRUNCATED,
    SCHEMA_VERSION,
    Column,
    ColumnType,
)
from tokenaudit.log.columns import is_accepted, is_text_list, number_lists, plain_lists
from tokenaudit.log.footer import ChunkSize, chunk_sizes
from tokenaudit.log.ranks import RANK_METADATA, FileRank
from tokenaudit.log.text_columns import MAX_TEXT_BYTES, NAMES_ARE_SHORT

TARGET_BATCH_ELEMENTS = 1_500_000
"""Elements of list columns that a batch should hold; bounds memory whatever the size of file or row group.

Larger batches leave the processor's caches and take fresh memory from the system, which halves the speed.
"""
MAX_BATCH_ROWS = 65_536
MAX_ROW_ELEMENTS = 2**24
"""List elements of a row above which a log is refused: no response is that long, a crafted file is."""

COPY_AGAIN = "copy or write the file again; a file still being written has no footer yet"
"""What to do about a damaged file."""

VERSIONS = "response_model_steps"
"""The column whose whole numbers may also be written as texts."""
_LOOKED_AT_ROWS = 64
_LOOKED_AT_ELEMENTS = 2**23
"""Elements of a row group up to which it is looked into before it is read."""

_METADATA = (
    META_SCHEMA_VERSION, META_CONFIG, META_SOURCE, META_TRUNCATED, META_LIMITS, META_DROPPED, META_REJECTED,
    META_MISSING_RANKS, META_MISSING_PARTS, *RANK_METADATA,
)  # fmt: skip
"""The entries of a file's key-value metadata that are read."""
_LIST_TYPES = (ColumnType.INTEGER_LIST, ColumnType.MASK_LIST, ColumnType.RUN_LIST, ColumnType.REAL_LIST)
TEXT_COLUMNS = tuple(column.name for column in COLUMNS if column.type is ColumnType.TEXT)
"""The columns that hold names."""
_REPLAYED_TEXTS = tuple(column.name for column in COLUMNS if column.type is ColumnType.TEXT and column.replayed)
LIST_COLUMNS = frozenset(column.name for column in COLUMNS if column.type in _LIST_TYPES)
"""The columns that hold an element per token or per run."""
_REPLAYED_LISTS = frozenset(name for name in LIST_COLUMNS if COLUMN_BY_NAME[name].replayed)


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
            chunks = chunk_sizes(path)
            if len(chunks) != footer.num_row_groups:
                raise ValueError("the footer is damaged")
            told = VERSIONS in known and _tells_numbers(path, schema, footer, chunks)
            problems.extend(_schema_problems(path, schema, known, metadata, (VERSIONS,) if told else ()))
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
    hint = "tokenaudit reads logs in Parquet; see `tokenaudit help columns`"
    if path.suffix.lower() == ".json":
        hint = "a saved result goes to replay, diff or gate; give this command the log behind it"
    return Problem("not a Parquet file", str(path), hint)


def first_line(error: Exception) -> str:
    """The first line of what an error says, or its name where it says nothing."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def text_elements(footer: pq.FileMetaData) -> list[str]:
    """Path of the versions in a file, where they are texts: as a dictionary, a long text isn't there many times."""
    columns = (footer.schema.column(index) for index in range(footer.num_columns))
    return [one.path for one in columns if one.path.startswith(f"{VERSIONS}.") and one.physical_type == "BYTE_ARRAY"]


def _tells_numbers(
    path: Path, schema: pa.Schema, footer: pq.FileMetaData, chunks: Sequence[dict[str, ChunkSize]]
) -> bool:
    """Whether versions are texts that are whole numbers, as far as the first rows show."""
    if schema.get_all_field_indices(VERSIONS) == [] or not is_text_list(schema.field(VERSIONS).type):
        return False
    if any(VERSIONS in sizes and sizes[VERSIONS].values > _LOOKED_AT_ELEMENTS for sizes in chunks[:1]):
        return True
    with pq.ParquetFile(path, pre_buffer=False, read_dictionary=text_elements(footer)) as parquet:
        for batch in parquet.iter_batches(_LOOKED_AT_ROWS, row_groups=[0] if chunks else [], columns=[VERSIONS]):
            try:
                number_lists(plain_lists(batch.column(0)))
            except pa.ArrowInvalid:
                return False
            break
    return True


def _schema_problems(
    path: Path, schema: pa.Schema, known: Mapping[str, Column], metadata: dict[str, str], told: Sequence[str]
) -> Iterator[Problem]:
    """What is wrong with types; the columns in `told` hold numbers all the same."""
    version = metadata.get(META_SCHEMA_VERSION)
    if version is not None and version.strip() != str(SCHEMA_VERSION):
        hint = f"this release reads version {SCHEMA_VERSION}; update tokenaudit or write the log again"
        yield Problem(f"log schema version {version!r}", str(path), hint)
    for name, column in known.items():
        indices = schema.get_all_field_indices(name)
        if len(indices) > 1:
            yield Problem(f"column {name!r} is there {len(indices)} times", str(path), "keep one of them")
        elif indices and name not in told and not is_accepted(column.type, schema.field(name).type):
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
    most = most_replayed = 0
    for index, sizes in zip(range(metadata.num_row_groups), chunks, strict=False):
        rows = max(metadata.row_group(index).num_rows, 1)
        for name, size in sizes.items():
            if name in LIST_COLUMNS:
                average = -(-size.values // rows)
                most = max(most, average)
                most_replayed = max(most_replayed, average if name in _REPLAYED_LISTS else 0)
            elif name in _REPLAYED_TEXTS and size.uncompressed_bytes > MAX_TEXT_BYTES:
                what = f"column {name!r} holds more than {MAX_TEXT_BYTES // 2**20} MiB of text in a row group"
                problems.append(Problem(what, str(path), NAMES_ARE_SHORT))
    if most_replayed > MAX_ROW_ELEMENTS:
        what = f"a row group has {most_replayed} list elements per row on average"
        problems.append(Problem(what, str(path), f"tokenaudit reads up to {MAX_ROW_ELEMENTS} tokens per response"))
    return max(1, min(MAX_BATCH_ROWS, TARGET_BATCH_ELEMENTS // max(most, 1)))

"""Rollout logs and workloads on disk: which files make one, and what they hold."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from tokenaudit.contracts.errors import LogError, Problem, nearest_hint
from tokenaudit.contracts.files import named_twice, read_bounded
from tokenaudit.contracts.schema import (
    COLUMNS,
    META_CONFIG,
    META_LIMITS,
    META_SCHEMA_VERSION,
    META_SOURCE,
    META_TRUNCATED,
    SCHEMA_VERSION,
    VERSION_RUNS,
    WORKLOAD_COLUMNS,
    Column,
    ColumnType,
)
from tokenaudit.log.columns import is_accepted
from tokenaudit.log.footer import ChunkSize, chunk_sizes
from tokenaudit.log.paths import expand, log_files

TARGET_BATCH_ELEMENTS = 1_500_000
"""Elements of list columns that a batch should hold; bounds memory whatever the size of file or row group.

Larger batches leave the processor's caches and take fresh memory from the system, which halves the speed.
"""
MAX_BATCH_ROWS = 65_536
MAX_ROW_ELEMENTS = 2**24
"""List elements of a row above which a log is refused: no response is that long, a crafted file is."""

COPY_AGAIN = "copy or write the file again; a file still being written has no footer yet"
"""What to do about a damaged file."""

MAX_LIMITS = 50
"""Sentences about what a log's source leaves out that are repeated; a crafted file could hold any number."""

_LENGTH_COLUMNS = ("response_len", "response_ids", "response_model_steps", VERSION_RUNS)
_LIST_TYPES = (ColumnType.INTEGER_LIST, ColumnType.MASK_LIST, ColumnType.RUN_LIST, ColumnType.REAL_LIST)
MAX_TEXT_BYTES = 2**26
"""Bytes of one column of names in a row group above which a log is refused."""
TEXT_COLUMNS = tuple(column.name for column in COLUMNS if column.type is ColumnType.TEXT and column.replayed)
"""The columns of replay that hold names."""
LIST_COLUMNS = frozenset(column.name for column in COLUMNS if column.type in _LIST_TYPES and column.replayed)
"""The columns of replay that hold an element per token or per run."""
_WORKLOAD_MARK, _LOG_MARK = "token_time_us", "event_id"


class LogFile(NamedTuple):
    """One Parquet file of a log.

    Attributes:
        path: where it is.
        rows: rows in it.
        columns: the columns of the schema that it has.
        batch_rows: rows per batch that keep a batch within `TARGET_BATCH_ELEMENTS`.
        metadata: its footer.
        chunks: sizes of the column chunks of every row group, by name of the column.
    """

    path: Path
    rows: int
    columns: tuple[str, ...]
    batch_rows: int
    metadata: pq.FileMetaData
    chunks: tuple[dict[str, ChunkSize], ...]


@dataclass(frozen=True, slots=True)
class Log:
    """A log whose files were found and whose footers were read.

    Attributes:
        name: name for reports, without folders.
        files: its files in reading order.
        rows: rows in all files.
        columns: columns of the schema that at least one file has, in schema order.
        metadata: what the files say of the whole, by key.
        notes: what a person should know about it: columns not read, configs that differ between files.
        limits: what its source leaves out, and which questions it therefore can't answer.
    """

    name: str
    files: tuple[LogFile, ...]
    rows: int
    columns: tuple[str, ...]
    metadata: Mapping[str, str]
    notes: tuple[str, ...]
    limits: tuple[str, ...] = ()

    @property
    def config_json(self) -> str | None:
        """The run's own config; None if there is none."""
        return self.metadata.get(META_CONFIG)

    @property
    def source(self) -> str | None:
        """What wrote it, if it says so."""
        return self.metadata.get(META_SOURCE)


class LogBatch(NamedTuple):
    """Consecutive rows of one file.

    Attributes:
        path: the file.
        first_row: row of the file that the batch begins with, counted from 0.
        columns: the columns read, as Arrow arrays by name.
        rows: rows in the batch.
    """

    path: Path
    first_row: int
    columns: dict[str, pa.Array]
    rows: int


def open_log(paths: Sequence[Path]) -> Log:
    """Find the files of a log and read their footers.

    Args:
        paths: files, folders (every `*.parquet` below them) or glob patterns; folders and patterns in name order.

    Raises:
        LogError: nothing found, a file that can't be read, columns that are missing or of an unknown type, or no
            row at all; all such problems at once.
    """
    return _open(paths, COLUMNS)


def open_workload(paths: Sequence[Path]) -> Log:
    """Find the files of a workload and read their footers; see `open_log`."""
    return _open(paths, WORKLOAD_COLUMNS)


def is_workload(paths: Sequence[Path]) -> bool:
    """Whether the first file that can be read has the columns of a workload and not those of a log."""
    for path in log_files(paths):
        try:
            # Opening a pipe would wait for somebody to write to it.
            if not path.is_file():
                continue
            names = pq.read_schema(path).names
        except (pa.ArrowException, OSError):
            continue
        return _WORKLOAD_MARK in names and _LOG_MARK not in names
    return False


def looks_like_log(path: Path) -> bool:
    """Whether a path names Parquet, by its name or by how the file begins, or a folder with Parquet files."""
    try:
        if path.is_dir():
            return bool(log_files([path]))
        return path.suffix.lower() == ".parquet" or read_bounded(path, 4) == b"PAR1"
    except OSError:
        return False


def _open(paths: Sequence[Path], table: Sequence[Column]) -> Log:
    found = [expand(path) for path in paths]
    problems = [problem for _, problem in found if problem is not None]
    known = {column.name: column for column in table}
    files: list[LogFile] = []
    notes: list[str] = []
    metadata: dict[str, str] = {}
    limits: dict[str, None] = {}
    unknown: dict[str, None] = {}
    listed = [path for group, _ in found for path in group]
    problems.extend(named_twice(listed, "log"))
    for path in listed:
        opened = _open_file(path, known, problems)
        if opened is None:
            continue
        file, names, file_metadata = opened
        files.append(file)
        unknown.update(dict.fromkeys(name for name in names if name not in known))
        limits.update(dict.fromkeys(_limits(file_metadata.pop(META_LIMITS, "[]"))))
        for key, value in file_metadata.items():
            if metadata.setdefault(key, value) != value:
                notes.append(f"{path.name}: {key} differs from the files before it; the first one counts")
    present = {name for file in files for name in file.columns}
    if not problems:
        problems.extend(_missing_columns(files[0].path, table, present, unknown))
    rows = sum(file.rows for file in files)
    if not problems and rows == 0:
        empty, hint = ("workload", "a response") if table is WORKLOAD_COLUMNS else ("log", "record at least one put")
        problems.append(Problem(f"the {empty} has no row", str(files[0].path), hint))
    if problems:
        raise LogError(problems)
    return Log(
        name=", ".join(path.name or str(path) for path in paths),
        files=tuple(files),
        rows=rows,
        columns=tuple(column.name for column in table if column.name in present),
        metadata=metadata,
        notes=(*_misspelled(known, present, unknown), *notes),
        limits=tuple(limits)[:MAX_LIMITS],
    )


def _open_file(
    path: Path, known: Mapping[str, Column], problems: list[Problem]
) -> tuple[LogFile, list[str], dict[str, str]] | None:
    """Read one footer; adds to `problems` what is wrong with it."""
    try:
        if not path.is_file():
            problems.append(Problem("not a regular file", str(path), "Parquet is read from files, not from pipes"))
            return None
        size = path.stat().st_size
        if size == 0:
            problems.append(Problem("empty file (0 bytes)", str(path), COPY_AGAIN))
            return None
        with pq.ParquetFile(path, pre_buffer=False) as parquet:
            schema = parquet.schema_arrow
            footer = parquet.metadata
            metadata = _text_metadata(footer.metadata)
            rows = footer.num_rows
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
    return LogFile(path, rows, columns, batch_rows, footer, tuple(chunks)), schema.names, metadata


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
    return Problem("not a Parquet file", str(path), "tokenaudit reads logs in Parquet; see the README for the columns")


def first_line(error: Exception) -> str:
    """The first line of what an error says, or its name where it says nothing."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def _text_metadata(raw: dict[bytes, bytes] | None) -> dict[str, str]:
    wanted = (META_SCHEMA_VERSION, META_CONFIG, META_SOURCE, META_TRUNCATED, META_LIMITS)
    return {name: raw[name.encode()].decode() for name in wanted if raw and name.encode() in raw}


def _limits(text: str) -> list[str]:
    """The sentences in the metadata; nothing if it isn't a JSON list of texts."""
    try:
        values = json.loads(text)
    except (ValueError, RecursionError):
        return []
    return [value for value in values if isinstance(value, str)] if isinstance(values, list) else []


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
            yield Problem(what, str(path), f"accepted: {column.type.value}")


def _missing_columns(
    path: Path, table: Sequence[Column], present: set[str], unknown: dict[str, None]
) -> Iterator[Problem]:
    there = [*(column.name for column in table if column.name in present), *unknown]
    for column in table:
        if column.required and column.name not in present:
            yield Problem(
                f"column {column.name!r} is missing",
                f"{path}: {_listing(there)}",
                _column_hint(column, unknown),
            )
    if table is COLUMNS and not present.intersection(_LENGTH_COLUMNS):
        hint = nearest_hint("response_len", unknown, "columns that are not read")
        what = f"no column tells the length of a response: one of {', '.join(_LENGTH_COLUMNS)} is needed"
        yield Problem(what, f"{path}: {_listing(there)}", hint)


def _listing(names: Sequence[str]) -> str:
    shown = ", ".join(names[:40])
    return f"columns are {shown}" + (", …" if len(names) > 40 else "")


def _column_hint(column: Column, unknown: dict[str, None]) -> str:
    close = get_close_matches(column.name, list(unknown), n=1)
    if close:
        return f"nearest: {close[0]!r}; rename it if it holds {column.meaning.split(';')[0]}"
    return f"it holds: {column.meaning.split(';')[0]}"


def _misspelled(known: Mapping[str, Column], present: set[str], unknown: dict[str, None]) -> Iterator[str]:
    absent = [name for name in known if name not in present]
    for name in unknown:
        close = get_close_matches(name, absent, n=1, cutoff=0.85)
        if close:
            yield f"column {name!r} is not read; did you mean {close[0]!r}?"


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
            elif name in TEXT_COLUMNS and size.uncompressed_bytes > MAX_TEXT_BYTES:
                what = f"column {name!r} holds more than {MAX_TEXT_BYTES // 2**20} MiB of text in a row group"
                problems.append(Problem(what, str(path), "it holds names, a few characters each"))
    if most > MAX_ROW_ELEMENTS:
        what = f"a row group has {most} list elements per row on average"
        problems.append(Problem(what, str(path), f"tokenaudit reads up to {MAX_ROW_ELEMENTS} tokens per response"))
    return max(1, min(MAX_BATCH_ROWS, TARGET_BATCH_ELEMENTS // max(most, 1)))

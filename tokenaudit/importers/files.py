"""The files of a source: found in an order that is the same everywhere, and read record by record."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tokenaudit.contracts.errors import Problem, SourceError
from tokenaudit.importers.base import Context
from tokenaudit.importers.dumps import first_texts
from tokenaudit.importers.fields import MAX_TOKENS
from tokenaudit.importers.packed import (
    LINE_SUFFIXES,
    first_unreadable,
    opened,
    opened_lines,
    plain_name,
    plain_suffix,
    unreadable_as_is,
)
from tokenaudit.record import json_lines as lines
from tokenaudit.record.json_lines import json_lines

MAX_FILES = 1_000_000
_ROWS_AT_ONCE = 1024
_ELEMENTS_AT_ONCE = 4_000_000
_BYTES_AT_ONCE = 64 * 2**20
"""What of a Parquet file is decoded at once: a small file of a billion equal values must not blow up memory."""
_TEXTS = (pa.types.is_string, pa.types.is_large_string, pa.types.is_binary, pa.types.is_large_binary)
_UNREADABLE_PARQUET = "copy the file again, or update pyarrow, which reads more columns than before"
_DELTA_ENCODINGS = frozenset({"DELTA_LENGTH_BYTE_ARRAY", "DELTA_BYTE_ARRAY"})


class SourceRecord(NamedTuple):
    """One record of a file, and where it stands."""

    data: dict[str, Any]
    where: str


def source_files(paths: Sequence[Path], suffixes: Sequence[str]) -> list[Path]:
    """The files named by paths: files as they are, folders with all files of these extensions below, in order.

    Numbers in names count as numbers, so that `step_10` comes after `step_9`. Links out of a folder aren't followed.

    Raises:
        SourceError: a path that isn't there, a file that has to be unpacked first, a folder without such a file, or far
            too many files.
    """
    found: list[Path] = []
    problems: list[Problem] = []
    for path in paths:
        if path.is_dir():
            below = (entry for entry in path.rglob("*") if plain_suffix(entry) in suffixes and entry.is_file())
            here = sorted((entry for entry in below if not entry.is_symlink()), key=_natural_key)
            if not here:
                problems.append(_nothing_below(path, suffixes))
            found += here
        elif path.is_file():
            problem = unreadable_as_is(path, suffixes)
            problems += [] if problem is None else [problem]
            found.append(path)
        else:
            problems.append(Problem("there is no such file or folder", str(path), "name files or folders of a dump"))
    if len(found) > MAX_FILES:
        problems.append(Problem(f"{len(found)} files", None, f"up to {MAX_FILES} are read; import parts of the dump"))
    if problems:
        raise SourceError(problems)
    return found


def _nothing_below(folder: Path, suffixes: Sequence[str]) -> Problem:
    """Why a folder has no file of these extensions: what would have one may be compressed."""
    packed = (entry for entry in folder.rglob("*") if {suffix.lower() for suffix in entry.suffixes} & {*suffixes})
    hint = f"extensions: {', '.join(suffixes)}"
    nothing = Problem("the folder holds no file to import", str(folder), hint)
    return first_unreadable(filter(Path.is_file, packed), suffixes) or nothing


def _natural_key(path: Path) -> list[tuple[int, int, str]]:
    """Sorts names with numbers in them by these numbers."""
    pieces = re.split(r"(\d+)", str(path))
    return [(0, int(piece[:18]), piece) if piece.isdigit() and piece.isascii() else (1, 0, piece) for piece in pieces]


def number_in(name: str, pattern: str) -> int | None:
    """The number that the first group of a pattern finds in a name; None if it finds none."""
    match = re.search(pattern, name, flags=re.ASCII)
    return int(match[1][:10]) if match else None


def step_in_name(path: Path, pattern: str, low: int = 0) -> int:
    """The train step that the first group of a pattern finds in the name of a file.

    Raises:
        SourceError: it finds none of at least `low`.
    """
    step = number_in(plain_name(path).name, pattern)
    if step is None or step < low:
        hint = "keep the name that the trainer gave it"
        raise SourceError(Problem("the name of the file doesn't hold the train step", str(path), hint))
    return step


def json_records(path: Path, context: Context) -> Iterator[SourceRecord]:
    """The objects of a file of JSON lines; what can't be read is noted and passed over, be it the file."""
    with context.reading(), opened_lines(path, context) as stream:
        for line in json_lines(stream, str(path)):
            if line.problem is not None:
                context.problems.add(line.problem)
            else:
                yield SourceRecord(context.fields(line.data), f"{path}, line {line.number}")


def json_documents(path: Path, context: Context) -> Iterator[SourceRecord]:
    """The objects of a file that holds JSON objects one after the other, each over one line or indented over many.

    What can't be read is noted and passed over, be it the file.
    """
    with context.reading(), opened_lines(path, context) as stream:
        kept: list[bytes] = []
        size = first = number = 0
        while line := stream.readline(lines.MAX_LINE_BYTES + 1):
            number += 1
            if not kept and not line.strip():
                continue
            first = first if kept else number
            kept.append(line)
            size += len(line)
            where = f"{path}, line {first}"
            if size > lines.MAX_LINE_BYTES:
                context.problems.add(Problem(f"an object of more than {size} bytes", where, "the file is damaged"))
                return
            # an object ends with a brace at the margin, or fits its line
            if line.startswith(b"}") or (len(kept) == 1 and line.startswith(b"{") and line.rstrip().endswith(b"}")):
                yield from _document(b"".join(kept), where, context)
                kept, size = [], 0
        if kept:
            context.problems.add(Problem("the last object is cut off", f"{path}, line {first}", "copy it again"))


def _document(text: bytes, where: str, context: Context) -> Iterator[SourceRecord]:
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        what = "JSON nested too deep" if isinstance(error, RecursionError) else f"not JSON: {error}"[:200]
        context.problems.add(Problem(what, where, "the file is damaged"))
        return
    if not isinstance(data, dict):
        context.problems.add(Problem(f"{type(data).__name__} in place of an object", where, "the file is damaged"))
        return
    yield SourceRecord(context.fields(data), where)


def parquet_records(path: Path, chosen: Callable[[pa.Schema], list[str]], context: Context) -> Iterator[SourceRecord]:
    """The rows of a Parquet file; columns that aren't `chosen` by the schema are never read.

    A file that can't be read, or holds lists that are too long, is noted.
    """
    with context.reading():
        yield from _parquet_records(path, chosen, context)


def _parquet_records(path: Path, chosen: Callable[[pa.Schema], list[str]], context: Context) -> Iterator[SourceRecord]:
    try:
        schema = pq.read_schema(path)
        names = chosen(schema)
        context.note_names(schema.names)
        # columns that hold others inside have none of their own name in the file
        texts = [f.name for f in schema if f.name in names and any(is_one(f.type) for is_one in _TEXTS)]
        footer = pq.read_metadata(path)
        deltas = _delta_texts(footer, texts)
        # a long text that every row repeats would otherwise be there once for each of them
        texts = [name for name in texts if name not in deltas]
        with pq.ParquetFile(path, pre_buffer=False, read_dictionary=texts, metadata=footer) as parquet:
            number = 0
            for group in range(parquet.num_row_groups):
                size = _rows_at_once(footer.row_group(group), names, deltas, path)
                for batch in parquet.iter_batches(batch_size=size, row_groups=[group], columns=names):
                    for values in zip(*(_values(column, path) for column in batch.columns), strict=True):
                        row = dict(zip(batch.schema.names, values, strict=True))
                        yield SourceRecord(context.fields(row), f"{path}, row {number}")
                        number += 1
        context.advance(path.stat().st_size)
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        what = f"can't read: {str(error).splitlines()[0]}"
        raise SourceError(Problem(what, str(path), _UNREADABLE_PARQUET)) from error


def _delta_texts(footer: pq.FileMetaData, texts: Collection[str]) -> set[str]:
    """The columns of texts that pyarrow can't decode into dictionaries."""
    groups = [footer.row_group(index) for index in range(footer.num_row_groups)]
    columns = (group.column(index) for group in groups for index in range(group.num_columns))
    return {
        column.path_in_schema
        for column in columns
        if column.path_in_schema in texts and not _DELTA_ENCODINGS.isdisjoint(column.encodings)
    }


def _rows_at_once(group: pq.RowGroupMetaData, names: Collection[str], deltas: set[str], path: Path) -> int:
    """Rows of a row group that are decoded at once, by their size in the footer.

    Each row of `deltas` could repeat all the bytes of its column chunk.
    """
    rows = max(group.num_rows, 1)
    columns = [group.column(index) for index in range(group.num_columns)]
    read = [column for column in columns if f"{column.path_in_schema}.".startswith(tuple(f"{name}." for name in names))]
    elements = max((column.num_values // rows for column in read), default=0)
    if elements > MAX_TOKENS:
        raise _too_long(elements, path)
    sizes = [(column.total_uncompressed_size, 1 if column.path_in_schema in deltas else rows) for column in read]
    width = max((size // of_rows for size, of_rows in sizes), default=0)
    return max(1, min(_ROWS_AT_ONCE, _ELEMENTS_AT_ONCE // max(elements, 1), _BYTES_AT_ONCE // max(width, 1)))


def _values(column: pa.Array, path: Path) -> Iterator[Any]:
    """The values of a column; lists are made one by one, and equal texts of a dictionary only once."""
    if isinstance(column, pa.DictionaryArray):
        texts = column.dictionary.to_pylist()
        return (None if index is None else texts[index] for index in column.indices.to_pylist())
    if pa.types.is_list(column.type) or pa.types.is_large_list(column.type):
        ends = column.offsets.to_numpy()
        longest = int(np.diff(ends).max(initial=0))
        if longest > MAX_TOKENS:
            raise _too_long(longest, path)
    return (value.as_py() for value in column)


def _too_long(elements: int, path: Path) -> SourceError:
    hint = f"responses of up to {MAX_TOKENS} tokens are read"
    return SourceError(Problem(f"lists of {elements} elements", str(path), hint))


def first_keys(path: Path) -> frozenset[str]:
    """The keys of the first object of a JSON file, columns of a CSV or Parquet file, first texts of a dump."""
    suffix = plain_suffix(path)
    if suffix in (".pt", ".pth", ".pkl"):
        return first_texts(path)
    try:
        if suffix == ".parquet":
            return frozenset(pq.read_schema(path).names)
        if suffix in LINE_SUFFIXES:
            with opened(path) as stream:
                return frozenset(_first_keys_of_lines(stream, suffix))
    except (OSError, EOFError, ValueError, RecursionError, NotImplementedError, SourceError):
        pass
    return frozenset()


def _first_keys_of_lines(stream: IO[bytes], suffix: str) -> Iterable[str]:
    head = stream.readline(lines.MAX_LINE_BYTES)
    if suffix == ".csv":
        return [name.strip().strip('"') for name in head.decode("utf-8-sig").rstrip("\r\n").split(",")]
    data = json.loads(head if head.strip() != b"{" else head + _rest_of_object(stream))
    return data if isinstance(data, dict) else ()


def _rest_of_object(stream: IO[bytes]) -> bytearray:
    rest = bytearray()
    while line := stream.readline(1 << 20):
        rest += line
        if line.startswith(b"}") or len(rest) > 1 << 24:
            break
    return rest

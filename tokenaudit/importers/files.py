"""The files of a source: found in an order that is the same everywhere, and read record by record."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from tokenaudit.contracts.errors import Problem, SourceError
from tokenaudit.importers.base import Context
from tokenaudit.importers.fields import MAX_TOKENS
from tokenaudit.importers.packed import (
    first_unreadable,
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
_LISTS = (
    pa.types.is_list,
    pa.types.is_large_list,
    pa.types.is_fixed_size_list,
    pa.types.is_list_view,
    pa.types.is_large_list_view,
)
_NUMBERS = (pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean)
_UNREADABLE_PARQUET = "copy the file again, or update pyarrow, which reads more columns than before"
_DELTA_ENCODINGS = frozenset({"DELTA_LENGTH_BYTE_ARRAY", "DELTA_BYTE_ARRAY"})


class SourceRecord(NamedTuple):
    """One record of a file, and where it stands."""

    data: dict[str, Any]
    where: str


def source_files(paths: Sequence[Path], suffixes: Sequence[str], others: list[Path] | None = None) -> list[Path]:
    """The files named by paths: files as they are, folders with all files of these extensions below, in order.

    Numbers in names count as numbers, so that `step_10` comes after `step_9`. Links out of a folder aren't followed.

    Args:
        paths: files and folders.
        suffixes: the extensions.
        others: where files of folders that have other extensions are added.

    Raises:
        SourceError: a path that isn't there, a file that has to be unpacked first, a folder without such a file, or far
            too many files.
    """
    found: list[Path] = []
    problems: list[Problem] = []
    for path in paths:
        if path.is_dir():
            below = (entry for entry in path.rglob("*") if others is not None or plain_suffix(entry) in suffixes)
            files = sorted((entry for entry in below if entry.is_file() and not entry.is_symlink()), key=_natural_key)
            here = [entry for entry in files if plain_suffix(entry) in suffixes]
            if others is not None:
                others += (entry for entry in files if plain_suffix(entry) not in suffixes)
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
        repeated = _repeated_texts(footer, texts)
        # a long text that every row repeats would otherwise be there once for each of them
        texts = [name for name in texts if name not in repeated]
        with pq.ParquetFile(path, pre_buffer=False, read_dictionary=texts, metadata=footer) as parquet:
            number = 0
            for group in range(parquet.num_row_groups):
                size = _rows_at_once(footer.row_group(group), names, repeated, path)
                for batch in parquet.iter_batches(batch_size=size, row_groups=[group], columns=names):
                    for values in zip(*(_values(column, path) for column in batch.columns), strict=True):
                        row = dict(zip(batch.schema.names, values, strict=True))
                        yield SourceRecord(context.fields(row), f"{path}, row {number}")
                        number += 1
        context.advance(path.stat().st_size)
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        what = f"can't read: {str(error).splitlines()[0]}"
        raise SourceError(Problem(what, str(path), _UNREADABLE_PARQUET)) from error


def _repeated_texts(footer: pq.FileMetaData, texts: Collection[str]) -> set[str]:
    """The columns of texts that pyarrow can't decode into dictionaries: by their encodings, or inside of others."""
    groups = [footer.row_group(index) for index in range(footer.num_row_groups)]
    columns = [group.column(index) for group in groups for index in range(group.num_columns)]
    found = {column.path_in_schema for column in columns if not _DELTA_ENCODINGS.isdisjoint(column.encodings)}
    inside = {column.path_in_schema for column in columns if column.physical_type == "BYTE_ARRAY"} - {*texts}
    return (found & {*texts}) | inside


def _rows_at_once(group: pq.RowGroupMetaData, names: Collection[str], repeated: set[str], path: Path) -> int:
    """Rows of a row group that are decoded at once, by their size in the footer.

    Each row of `repeated` could repeat all the bytes of its column chunk.
    """
    rows = max(group.num_rows, 1)
    columns = [group.column(index) for index in range(group.num_columns)]
    read = [column for column in columns if f"{column.path_in_schema}.".startswith(tuple(f"{name}." for name in names))]
    elements = max((column.num_values // rows for column in read), default=0)
    if elements > MAX_TOKENS:
        raise _too_long(elements, path)
    sizes = [(column.total_uncompressed_size, 1 if column.path_in_schema in repeated else rows) for column in read]
    width = max((size // of_rows for size, of_rows in sizes), default=0)
    return max(1, min(_ROWS_AT_ONCE, _ELEMENTS_AT_ONCE // max(elements, 1), _BYTES_AT_ONCE // max(width, 1)))


def _values(column: pa.Array, path: Path) -> Iterator[Any]:
    """The values of a column: lists of numbers as arrays, one by one, times as microseconds, equal texts only once."""
    if isinstance(column, pa.DictionaryArray):
        texts = column.dictionary.to_pylist()
        return (None if index is None else texts[index] for index in column.indices.to_pylist())
    if any(is_one(column.type) for is_one in _LISTS):
        return (_list(value, path) for value in column)
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.timestamp("us", column.type.tz), safe=False).cast(pa.int64())
    elif pa.types.is_duration(column.type):
        column = column.cast(pa.duration("us"), safe=False).cast(pa.int64())
    return (value.as_py() for value in column)


def _list(value: Any, path: Path) -> Any:
    if not value.is_valid:
        return None
    items: pa.Array = value.values
    if len(items) > MAX_TOKENS:
        raise _too_long(len(items), path)
    is_numbers = any(is_one(items.type) for is_one in _NUMBERS) and items.null_count == 0
    return items.to_numpy(zero_copy_only=False) if is_numbers else items.to_pylist()


def _too_long(elements: int, path: Path) -> SourceError:
    hint = f"responses of up to {MAX_TOKENS} tokens are read"
    return SourceError(Problem(f"lists of {elements} elements", str(path), hint))

"""The files of an audited log: those that can be read, and what is wrong with the others."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from tokenaudit.audit.rule import Severity
from tokenaudit.contracts.errors import LogError, Problem
from tokenaudit.contracts.files import import_hint
from tokenaudit.contracts.schema import COLUMN_BY_NAME
from tokenaudit.log.batches import read_batches
from tokenaudit.log.columns import is_accepted
from tokenaudit.log.files import Log, log_files, open_log
from tokenaudit.log.log_file import LogFile
from tokenaudit.log.pieces import DAMAGED

LARGE_ROW_GROUP_BYTES = 2**30
"""Uncompressed size of a row group that is reported."""
LARGE_LIST_ELEMENTS = 2**31 - 1
"""Elements that 32-bit offsets can count."""

_VERSIONS = "response_model_steps"
_NO_ROW = "the file has no row"


@dataclass(frozen=True, slots=True)
class FileNote:
    """What a rule, given by name, says about a file, named without folders; None: as bad as the rule says."""

    rule: str
    file: str
    message: str
    severity: Severity | None = None


@dataclass(slots=True)
class FileFacts:
    """The part of a log that can be read, how many files the arguments name, and what is wrong with them."""

    log: Log | None
    named: int
    notes: list[FileNote] = field(default_factory=list)

    @property
    def audited(self) -> int:
        """Files that could be read."""
        return len(self.log.files) if self.log else 0

    @property
    def readable(self) -> Log:
        """The part of the log that can be read, for what runs only where there is one."""
        assert self.log is not None
        return self.log


def open_for_audit(paths: Sequence[Path]) -> FileFacts:
    """Open what can be opened of a log. Raises a `LogError` if a path names no file at all."""
    files = log_files(paths)
    try:
        log = open_log(paths)
    except LogError:
        if any(not log_files([path]) for path in paths):
            raise
        facts = _opened_one_by_one(paths, files)
    else:
        facts = FileFacts(log, len(files))
    if facts.log is not None:
        facts.notes += [*_drift(facts.log.files), *_large_parts(facts.log.files)]
    return facts


def _opened_one_by_one(paths: Sequence[Path], files: Sequence[Path]) -> FileFacts:
    notes, good, without_rows = list[FileNote](), list[Path](), set[Path]()
    for path in files:
        try:
            open_log([path])
        except LogError as error:
            refused = [_refused(path, problem) for problem in error.problems]
            notes += refused
            if [note.message for note in refused] != [_NO_ROW]:
                continue
            # beside others it may still say what the recorder lost, or that a rank had nothing to record
            without_rows.add(path)
        good.append(path)
    log = open_log(paths, without=set(files) - set(good)) if set(good) - without_rows else None
    return FileFacts(log, len(files), notes)


def _refused(path: Path, problem: Problem) -> FileNote:
    """Why a file can't be part of a log, as the rule that says so."""
    is_for_import = import_hint(path) in (problem.hint or "")
    what = f"{problem.what}; {import_hint(Path(path.name))}" if is_for_import else problem.what
    try:
        if not path.is_file():  # opening a pipe would wait for ever
            return FileNote("input-truncated-file", path.name, what)
        with pq.ParquetFile(path, pre_buffer=False) as parquet:
            schema, rows = parquet.schema_arrow, parquet.metadata.num_rows
    except (pa.ArrowException, OSError, ValueError):
        return FileNote("input-truncated-file", path.name, what)
    if what.startswith(DAMAGED):
        return FileNote("input-truncated-file", path.name, what)
    if rows == 0 and not problem.what.startswith("column"):
        return FileNote("input-schema-drift", path.name, _NO_ROW, Severity.WARNING)
    if _VERSIONS in schema.names and f"'{_VERSIONS}'" in problem.what:
        arrow_type = schema.field(_VERSIONS).type
        if not is_accepted(COLUMN_BY_NAME[_VERSIONS].type, arrow_type):
            return FileNote("version-not-integer", path.name, f"{_VERSIONS} is {arrow_type}, not a list of integers")
    return FileNote("input-schema-drift", path.name, what, Severity.ERROR)


def _drift(files: Sequence[LogFile]) -> Iterator[FileNote]:
    """Columns and types in which a file differs from the first one."""
    if len(files) < 2:
        return
    first = pq.read_schema(files[0].path)
    for file in files[1:]:
        schema = pq.read_schema(file.path)
        names = [name for name in COLUMN_BY_NAME if name in schema.names or name in first.names]
        for name in names:
            if name not in schema.names or name not in first.names:
                what = "is missing" if name in first.names else "is new"
            elif schema.field(name).type != first.field(name).type:
                what = f"is {schema.field(name).type}, and {first.field(name).type} in the first file"
            else:
                continue
            yield FileNote("input-schema-drift", file.path.name, f"column {name!r} {what}", Severity.WARNING)


def _large_parts(files: Sequence[LogFile]) -> Iterator[FileNote]:
    for file in files:
        for index, sizes in enumerate(file.chunks):
            group = file.metadata.row_group(index)
            elements = max((size.values for size in sizes.values()), default=0)
            yield from large_notes(file.path.name, index, group.num_rows, group.total_byte_size, elements)


def large_notes(file: str, row_group: int, rows: int, total_bytes: int, elements: int) -> Iterator[FileNote]:
    """What to say about a row group of so many bytes without compression, and elements of its largest column."""
    if elements > LARGE_LIST_ELEMENTS:
        yield FileNote("input-large-lists", file, f"row group {row_group} holds {elements:,} list elements")
    if total_bytes > LARGE_ROW_GROUP_BYTES:
        size = f"{rows:,} rows, {total_bytes / 2**30:.1f} GiB"
        yield FileNote("input-row-group-large", file, f"row group {row_group} holds {size} uncompressed")


def without_damage(facts: FileFacts, columns: Sequence[str]) -> FileFacts:
    """The same log without files, or optional columns of files, whose `columns` can't be decoded."""
    notes = list(facts.notes)
    kept: list[LogFile] = []
    for file in facts.readable.files:
        broken = {name: fault for name in columns if name in file.columns and (fault := _fault(facts, file, name))}
        needed = [name for name in broken if COLUMN_BY_NAME[name].replayed]
        if needed:
            notes.append(FileNote("input-truncated-file", file.path.name, broken[needed[0]]))
            continue
        for name, fault in broken.items():
            notes.append(FileNote("input-unreadable-column", file.path.name, f"column {name!r}: {fault}"))
        kept.append(file._replace(columns=tuple(name for name in file.columns if name not in broken)))
    if not kept:
        return FileFacts(None, facts.named, notes)
    return FileFacts(facts.readable.with_files(kept), facts.named, notes)


def _fault(facts: FileFacts, file: LogFile, column: str) -> str | None:
    """Why a column of a file can't be decoded; None if it can."""
    try:
        for _ in read_batches(replace(facts.readable, files=(file,), rows=file.rows, order=None), [column]):
            pass
    except LogError as error:
        return error.problems[0].what
    return None

"""Rollout logs and workloads on disk: which files make one, and what they hold."""

from __future__ import annotations

import glob
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from tokenaudit.contracts.errors import LogError, Problem, nearest_hint, plural
from tokenaudit.contracts.files import OTHER_TABLES, import_hint, named_twice, read_bounded
from tokenaudit.contracts.schema import (
    COLUMNS,
    META_CONFIG,
    META_DROPPED,
    META_LIMITS,
    META_MISSING_RANKS,
    META_REJECTED,
    META_SOURCE,
    SYNONYMS,
    VERSION_RUNS,
    WORKLOAD_COLUMNS,
    Column,
    EventKind,
)
from tokenaudit.log.log_file import LogFile, open_file
from tokenaudit.log.merged_order import MergedOrder, merged_order
from tokenaudit.log.ranks import RANK_METADATA, file_rank, missing_ranks, present_ranks, rank_problems, ranks_text

MAX_LIMITS = 50
"""Sentences about what a log's source leaves out that are repeated; a crafted file could hold any number."""

_MOST_NAMED = 20
"""Unknown columns that a note names."""
_LONGEST_NAME = 60
"""Characters of a column's name that are shown; the schema has none that long."""

_LENGTH_COLUMNS = ("response_len", "response_ids", "response_model_steps", VERSION_RUNS)
_WORKLOAD_MARK, _LOG_MARK = "token_time_us", "event_id"


@dataclass(frozen=True, slots=True)
class Log:
    """A log whose files were found and whose footers were read.

    Attributes:
        name: name for reports, without folders.
        files: its files in reading order.
        rows: rows in all files.
        columns: columns of the schema that at least one file has, in schema order.
        metadata: what the files say of the whole, by key.
        notes: what a person should know about it: columns that another name would make count, configs that differ
            between files.
        limits: what its source leaves out, and which questions it therefore can't answer.
        unread: its columns that the schema doesn't know, but for those in the notes. They change no result, so that
            none says so; who reads a log for the first time should see them.
        lost_events: events of the run that its recorder didn't write, by the metadata key that counts them.
        missing_ranks: ranks of the run that wrote no part, in words.
        order: the order of its rows, where its files are those of several ranks.
    """

    name: str
    files: tuple[LogFile, ...]
    rows: int
    columns: tuple[str, ...]
    metadata: Mapping[str, str]
    notes: tuple[str, ...]
    limits: tuple[str, ...] = ()
    unread: tuple[str, ...] = ()
    lost_events: Mapping[str, int] = field(default_factory=dict)
    missing_ranks: tuple[str, ...] = ()
    order: MergedOrder | None = None

    def __repr__(self) -> str:
        return f"Log({self.name}: {plural(self.rows, 'row')}, files: {len(self.files)}, columns: {len(self.columns)})"

    @property
    def config_json(self) -> str | None:
        """The run's own config; None if there is none."""
        return self.metadata.get(META_CONFIG)

    @property
    def unread_notes(self) -> tuple[str, ...]:
        """A sentence that names the columns `unread`, if there are any."""
        if not self.unread:
            return ()
        names = ", ".join(map(_short, self.unread[:_MOST_NAMED]))
        more = len(self.unread) - _MOST_NAMED
        return (f"columns not read, since the schema doesn't know them: {names}" + f" and {more} more" * (more > 0),)

    @property
    def losses(self) -> tuple[str, ...]:
        """What its recorder didn't write, in sentences."""
        counted = [loss_text(key, count) for key, count in self.lost_events.items()]
        return (*counted, *(f"there is no part of ranks {_short(ranks)}" for ranks in self.missing_ranks))

    @property
    def rank_notes(self) -> tuple[str, ...]:
        """Which ranks' parts are merged, and how well their clocks agree; nothing for a log of one recorder."""
        if self.order is None:
            return ()
        ranks = present_ranks(file.rank for file in self.files if file.rank is not None)
        return (f"parts of {plural(len(ranks), 'rank')} are merged: {ranks_text(ranks)}", *self.order.notes)

    def with_files(self, files: Sequence[LogFile]) -> Log:
        """The same log without its other files.

        Raises:
            LogError: the files that are left can't be merged.
        """
        order = None if self.order is None else merged_order(files)
        present = {name for file in files for name in file.columns}
        return replace(
            self,
            files=tuple(files),
            rows=sum(file.rows for file in files) if order is None else len(order.row),
            columns=tuple(name for name in self.columns if name in present),
            order=order,
        )

    @property
    def source(self) -> str | None:
        """What wrote it, if it says so."""
        return self.metadata.get(META_SOURCE)


def loss_text(key: str, events: int) -> str:
    """That a recorder lost events, which the metadata counts under `META_DROPPED` or `META_REJECTED`."""
    counted = f"{events} event{'s' * (events != 1)}"
    if key == META_DROPPED:
        return f"the recorder dropped {counted} because its queue was full"
    return f"the recorder refused {counted} that couldn't be recorded"


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


def log_files(paths: Sequence[Path]) -> list[Path]:
    """The files that paths name, in reading order; paths that name none are passed over."""
    return [file for path in paths for file in _expand(path)[0]]


def _expand(path: Path) -> tuple[list[Path], Problem | None]:
    """The files behind one path argument, or why there are none."""
    try:
        return _found(path)
    except (OSError, RuntimeError, ValueError) as error:
        # Names too long or not encodable, loops of links, folders that may not be entered.
        what = f"can't look there: {getattr(error, 'strerror', None) or error}"
        return [], Problem(what, str(path), "check the path and its permissions")


def _found(path: Path) -> tuple[list[Path], Problem | None]:
    text = str(path)
    if path.is_dir():
        below = (file for file in path.rglob("*.parquet") if file.is_file())
        hidden = (".", "_")
        files = [file for file in below if not any(part.startswith(hidden) for part in file.relative_to(path).parts)]
        files.sort(key=lambda file: file.relative_to(path).parts)
        if files:
            return files, None
        others = any(file.suffix.lower() in OTHER_TABLES for file in path.rglob("*"))
        hint = import_hint(path) if others else "name the folder the log was written to"
        return [], Problem("the folder holds no *.parquet file", text, hint)
    if path.exists():
        return [path], None
    if glob.has_magic(text):
        matches = sorted(Path(match) for match in glob.glob(text, recursive=True))  # noqa: PTH207 - may be absolute
        files = [match for match in matches if match.is_file()]
        if files:
            return files, None
        return [], Problem("the pattern matches no file", text, "quote it, and check it with ls")
    parent = path.parent
    try:
        neighbours = sorted(entry.name for entry in parent.iterdir()) if parent.is_dir() else []
    except OSError:
        neighbours = []
    close = get_close_matches(path.name, neighbours, n=1)
    hint = f"did you mean {parent / close[0]}?" if close else "give a Parquet file, a folder or a glob pattern"
    return [], Problem("there is no such file or folder", text, hint)


def _open(paths: Sequence[Path], table: Sequence[Column]) -> Log:
    found = [_expand(path) for path in paths]
    problems = [problem for _, problem in found if problem is not None]
    known = {column.name: column for column in table}
    files: list[LogFile] = []
    notes: list[str] = []
    metadata: dict[str, str] = {}
    limits: dict[str, None] = {}
    lost: Counter[str] = Counter()
    missing: dict[str, None] = {}
    unknown: dict[str, None] = {}
    listed = [path for group, _ in found for path in group]
    problems.extend(named_twice(listed, "log"))
    for path in listed:
        opened = open_file(path, known, problems)
        if opened is None:
            continue
        file, names, file_metadata = opened
        rank = file_rank(path, file_metadata, problems) if table is COLUMNS else None
        for key in RANK_METADATA:
            file_metadata.pop(key, None)
        files.append(file._replace(rank=rank))
        unknown.update(dict.fromkeys(name for name in names if name not in known))
        limits.update(dict.fromkeys(_limits(file_metadata.pop(META_LIMITS, "[]"))))
        missing.update(dict.fromkeys(filter(None, [file_metadata.pop(META_MISSING_RANKS, "")])))
        lost.update({key: _whole_number(file_metadata.pop(key, "")) for key in (META_DROPPED, META_REJECTED)})
        for key, value in file_metadata.items():
            if metadata.setdefault(key, value) != value:
                notes.append(f"{path.name}: {key} differs from the files before it; the first one counts")
    present = {name for file in files for name in file.columns}
    if not problems:
        problems.extend(_missing_columns(files[0].path, table, present, unknown))
        problems.extend(_lacking_files(files, table, present))
    if not problems:
        problems.extend(rank_problems([(file.path, file.rank) for file in files]))
    ranks = [file.rank for file in files if file.rank is not None]
    order = merged_order(files) if ranks and not problems else None
    rows = sum(file.rows for file in files) if order is None else len(order.row)
    if not problems and rows == 0:
        empty, hint = ("workload", "a response") if table is WORKLOAD_COLUMNS else ("log", "record at least one put")
        problems.append(Problem(f"the {empty} has no row", str(files[0].path), hint))
    if problems:
        raise LogError(problems)
    suggestions = _suggestions(known, present, unknown)
    suggested = [
        f"column {_short(name)!r} is not read; did you mean {likely!r}?" for name, likely in suggestions.items()
    ]
    return Log(
        name=", ".join(path.name or str(path) for path in paths),
        files=tuple(files),
        rows=rows,
        columns=tuple(column.name for column in table if column.name in present),
        metadata=metadata,
        notes=(*suggested, *notes),
        limits=(*(order.notes if order else ()), *limits)[:MAX_LIMITS],
        unread=tuple(name for name in unknown if name not in suggestions),
        lost_events={key: count for key, count in lost.items() if count},
        missing_ranks=tuple(dict.fromkeys(filter(None, [missing_ranks(ranks), *missing])))[:MAX_LIMITS],
        order=order,
    )


def _whole_number(text: str) -> int:
    """A count in the metadata; 0 where it is none."""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 19 else 0


def _limits(text: str) -> list[str]:
    """The sentences in the metadata; nothing if it isn't a JSON list of texts."""
    try:
        values = json.loads(text)
    except (ValueError, RecursionError):
        return []
    return [value for value in values if isinstance(value, str)] if isinstance(values, list) else []


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


def _lacking_files(files: Sequence[LogFile], table: Sequence[Column], present: set[str]) -> Iterator[Problem]:
    """Files that can't be part of the log: they lack columns that every row of theirs needs, and others have."""
    lacking = [(file, names) for file in files if file.rows and (names := _lacks(file, table, present))]
    for file, names in lacking[:_MOST_NAMED]:
        what = f"the file lacks {', '.join(names)}, which the others have"
        yield Problem(
            what, str(file.path), "if it is no part of the log, move it elsewhere or name the other files alone"
        )
    if len(lacking) > _MOST_NAMED:
        yield Problem(f"{len(lacking) - _MOST_NAMED} more files lack such columns", None, "name the files of the log")


def _lacks(file: LogFile, table: Sequence[Column], present: set[str]) -> list[str]:
    """What a file lacks. One that names the event of each row may hold none that needs more than what all have."""
    may_be_others = "event" in file.columns
    needed = [
        column for column in table if column.required and not (may_be_others and set(column.events) != {*EventKind})
    ]
    names = [column.name for column in needed if column.name in present and column.name not in file.columns]
    is_without_length = not present.isdisjoint(_LENGTH_COLUMNS) and set(file.columns).isdisjoint(_LENGTH_COLUMNS)
    if table is COLUMNS and not may_be_others and is_without_length:
        names.append(" or ".join(_LENGTH_COLUMNS))
    return names


def _listing(names: Sequence[str]) -> str:
    shown = ", ".join(names[:40])
    return f"columns are {shown}" + (", …" if len(names) > 40 else "")


def _column_hint(column: Column, unknown: dict[str, None]) -> str:
    close = [name for name in unknown if column_called(name) == column.name]
    close = close or get_close_matches(column.name, list(unknown), n=1)
    if close:
        return f"nearest: {close[0]!r}; rename it if it holds {column.meaning.split(';')[0]}"
    return f"it holds: {column.meaning.split(';')[0]}"


def _suggestions(known: Mapping[str, Column], present: set[str], unknown: dict[str, None]) -> dict[str, str]:
    """Columns that aren't read, and the absent column that each is likely to be: misspelled, or by another name."""
    absent = [name for name in known if name not in present]
    found: dict[str, str] = {}
    for name in unknown:
        if (meant := column_called(name)) in absent:
            found[name] = meant
        elif len(name) <= _LONGEST_NAME and (close := get_close_matches(name, absent, n=1, cutoff=0.85)):
            found[name] = close[0]
    return found


def column_called(name: str) -> str:
    """The column of the schema that frameworks call so; where there is none, the name in small letters."""
    plain = name.strip().lower().replace("-", "_")
    return SYNONYMS.get(plain, plain)


def _short(name: str) -> str:
    return name if len(name) <= _LONGEST_NAME else f"{name[:_LONGEST_NAME]}…"

"""Columns that a log or one of its files lacks, and those with another name that are likely to be them."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path

from tokenaudit.contracts.errors import Problem, nearest_hint
from tokenaudit.contracts.schema import COLUMNS, SYNONYMS, VERSION_RUNS, Column, EventKind
from tokenaudit.log.log_file import LogFile

MOST_NAMED = 20
"""Unknown columns that a note names."""
_LONGEST_NAME = 60
"""Characters of a column's name that are shown; the schema has none that long."""

_LENGTH_COLUMNS = ("response_len", "response_ids", "response_model_steps", VERSION_RUNS)


def missing_columns(
    path: Path, table: Sequence[Column], present: set[str], unknown: dict[str, None]
) -> Iterator[Problem]:
    """Columns of a table that no file of a log has; `path` is its first file."""
    there = [*(column.name for column in table if column.name in present), *unknown]
    if table is COLUMNS and has_workload_columns(there):
        hint = "simulate takes it; give this command the log that it was derived from"
        yield Problem("this is a workload, not a log", str(path), hint)
        return
    for column in table:
        if column.required and column.name not in present:
            yield Problem(
                f"column {column.name!r} is missing",
                f"{path}: {_listing(there)}",
                _column_hint(column, unknown),
            )
    if table is COLUMNS and not present.intersection(_LENGTH_COLUMNS):
        hint = nearest_hint("response_len", unknown, "columns that are not read")
        what = f"no column gives the length of a response: one of {', '.join(_LENGTH_COLUMNS)} is needed"
        yield Problem(what, f"{path}: {_listing(there)}", hint)


def has_workload_columns(names: Container[str]) -> bool:
    """Whether columns are those of a workload and not those of a log."""
    return "token_time_us" in names and "event_id" not in names


def lacking_files(files: Sequence[LogFile], table: Sequence[Column], present: set[str]) -> Iterator[Problem]:
    """Files that can't be part of the log: they lack columns that every row of theirs needs, and others have."""
    lacking = [(file, names) for file in files if file.rows and (names := _lacks(file, table, present))]
    for file, names in lacking[:MOST_NAMED]:
        what = f"the file lacks {', '.join(names)}, which the others have"
        yield Problem(
            what, str(file.path), "if it is no part of the log, move it elsewhere or name the other files alone"
        )
    if len(lacking) > MOST_NAMED:
        yield Problem(f"{len(lacking) - MOST_NAMED} more files lack such columns", None, "name the files of the log")


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


def suggested_columns(known: Mapping[str, Column], present: set[str], unknown: dict[str, None]) -> dict[str, str]:
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


def short_name(name: str) -> str:
    """A name as it is shown."""
    return name if len(name) <= _LONGEST_NAME else f"{name[:_LONGEST_NAME]}…"

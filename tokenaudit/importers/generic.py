"""Any table with one response a row: JSON lines, CSV or Parquet, with names mapped to the columns of a log."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from tokenaudit.contracts.errors import Problem, SourceError, nearest_hint, shown
from tokenaudit.contracts.schema import COLUMN_BY_NAME, VERSION_RUNS, ColumnType, EventKind
from tokenaudit.importers.base import (
    Context,
    FieldFault,
    Imported,
    ImportedEvent,
    ImportedPut,
    Importer,
    Lack,
    Precision,
)
from tokenaudit.importers.fields import int_list, number, stable_id
from tokenaudit.importers.files import SourceRecord, json_records, parquet_records
from tokenaudit.importers.packed import opened_lines, plain_suffix
from tokenaudit.importers.repeats import Writing
from tokenaudit.importers.shapes import Gives, Shape
from tokenaudit.log.writer import TOKEN_COLUMNS, Row
from tokenaudit.record import json_lines as lines

COLUMNS = tuple(name for name in COLUMN_BY_NAME if name != VERSION_RUNS)
"""Columns that a table may have; a log with version runs needs no import."""

_NUMBER = {ColumnType.INTEGER: "it is a whole number", ColumnType.REAL: "it is a number"}
_IDS = ("group_id", "rollout_id")
_SUFFIXES = (".jsonl", ".csv", ".parquet")
_KINDS = tuple(kind.value for kind in EventKind)


def _read(files: Sequence[Path], context: Context) -> Iterator[Imported]:
    """Rows become puts: consecutive rows of one event, or of one task, group and step where events have no ids.

    A group, or another event, that comes again in a later stretch of its step is another writing of it.
    """
    rollout_id = 0
    has_timeline = False
    missing = {theirs: ours for ours, theirs in context.renamed.items()}
    put: ImportedPut | None = None
    put_key: object = None
    stretch = 0
    stretch_key: object = None
    for path in files:
        for data, where in _records(path, context):
            if missing:
                missing = {theirs: ours for theirs, ours in missing.items() if theirs not in data}
            row = None
            with context.noting(where):
                row = _row(data, context)
            if row is None:
                continue
            event_id = row.pop("event_id", None)
            step = row.get("train_step")
            if step is not None and (path, step) != stretch_key:
                stretch, stretch_key = stretch + 1, (path, step)
            key = (row.get("task_name"), row.get("group_id"), step)
            key = key if event_id is None else ("event", event_id)
            if put is not None and (key != put_key or row.get("event", "put") != "put"):
                yield put
                put = None
            if row.get("event", "put") != "put":
                has_timeline = has_timeline or row["event"] != EventKind.SYNC
                writing = None if step is None else Writing((step, row.get("task_name")), str(stretch))
                yield ImportedEvent(row, where, writing)
                continue
            # a group of a step may be in parts, which its rollouts tell from what a resumed run wrote again
            named = row.get("rollout_id")
            row.setdefault("rollout_id", rollout_id)
            rollout_id += 1
            if put is None:
                put_key, task_name = key, context.task(row.get("task_name"))
                writing = Writing((step, task_name, row["group_id"], named), str(stretch))
                put = ImportedPut(row["train_step"], task_name, row["group_id"], [], where, writing)
            put.rows.append(row)
    if put is not None:
        yield put
    if not has_timeline:
        context.limit(Lack.TIMELINE)
    for theirs, ours in missing.items():
        context.limit(f"no row has the column {theirs!r:.60} that --map names, so {ours} is unknown")


def _row(data: dict[str, Any], context: Context) -> Row:
    row: Row = {}
    for ours in COLUMNS:
        value = data.get(context.renamed.get(ours, ours))
        if value is not None and value != "":
            row[ours] = _value(ours, value)
    event = row.get("event", EventKind.PUT)
    if event == EventKind.PUT:
        for name in ("group_id", "train_step"):
            if name not in row:
                hint = f"every response needs it; name its column with --map theirs={name}"
                raise FieldFault(f"{context.renamed.get(name, name)} is missing", hint)
        row.setdefault("status", "completed")
        _stamp(row, context)
    elif event not in _KINDS:
        raise FieldFault(f"unknown event {shown(event)}", f"events: {', '.join(_KINDS)}")
    return row


def _stamp(row: Row, context: Context) -> None:
    """Versions on the scale of a log, and how well they are known where the row doesn't say it."""
    versions = row.get("response_model_steps")
    if versions is not None:
        row["response_model_steps"] = context.versions.model_steps(versions)
    for name in ("model_step", "model_step_end"):
        if name in row:
            row[name] = context.versions.model_step(row[name])
    known = row.get("model_step") is not None or (versions is not None and len(versions) > 0)
    is_span = known and row.get("model_step_end", row.get("model_step")) != row.get("model_step")
    derived = Precision.SPAN if is_span else Precision.EXACT if known else Precision.NONE
    context.limit_of(row.setdefault("version_precision", derived))


def _value(name: str, value: Any) -> Any:
    """A value as its column holds it; texts of a CSV file are read as what they should be."""
    kind = COLUMN_BY_NAME[name].type
    if name in _IDS:
        return stable_id(value)
    if name in TOKEN_COLUMNS:
        return _list(name, value, kind)
    if kind is ColumnType.TEXT:
        if not isinstance(value, str):
            raise FieldFault(f"{name} is {shown(value)}", "it is text")
        return value
    if kind is ColumnType.FLAG:
        if isinstance(value, str) and value.lower() in ("true", "false", "0", "1"):
            value = value.lower() in ("true", "1")
        if not isinstance(value, bool):
            raise FieldFault(f"{name} is {shown(value)}", "it is true or false")
        return value
    real = value
    if isinstance(value, str):
        try:
            real = int(value) if kind is ColumnType.INTEGER else float(value)
        except ValueError as error:
            raise FieldFault(f"{name} is {shown(value)}", _NUMBER[kind]) from error
    if kind is ColumnType.REAL:
        return number(real, name)
    if isinstance(real, float) and real.is_integer():
        real = int(real)
    if isinstance(real, bool) or not isinstance(real, int) or abs(real) >= 2**63:
        raise FieldFault(f"{name} is {shown(value)}", "it is a whole number")
    return real


def _list(name: str, value: Any, kind: ColumnType) -> Any:
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError) as error:
            raise FieldFault(f"{name} is {shown(value)}", "lists in CSV are written as JSON: [1, 2]") from error
    if kind is ColumnType.REAL_LIST:
        if not isinstance(value, list):
            raise FieldFault(f"{name} is {shown(value)}", "it is a list of numbers")
        return [number(item, name) for item in value]
    array = int_list(value, name)
    return (array != 0).astype("int8") if kind is ColumnType.MASK_LIST else array


def _records(path: Path, context: Context) -> Iterator[SourceRecord]:
    """The rows of a file; columns of a Parquet file that have no place in a log are never read."""
    suffix = plain_suffix(path)
    if suffix == ".csv":
        return _csv(path, context)
    if suffix == ".parquet":
        wanted = {context.renamed.get(ours, ours) for ours in COLUMNS}
        return parquet_records(path, lambda schema: [name for name in schema.names if name in wanted], context)
    return json_records(path, context)


def _csv(path: Path, context: Context) -> Iterator[SourceRecord]:
    csv.field_size_limit(lines.MAX_LINE_BYTES)
    with context.reading(), _as_csv(path), opened_lines(path, context) as stream:
        reader = csv.DictReader(_bounded(io.TextIOWrapper(stream, "utf-8-sig", newline="")))
        for data in reader:
            named = {name: value for name, value in data.items() if name}
            yield SourceRecord(context.fields(named), f"{path}, line {reader.line_num}")


@contextmanager
def _as_csv(path: Path) -> Iterator[None]:
    """What isn't CSV inside is a fault of the file."""
    try:
        yield
    except (csv.Error, UnicodeDecodeError) as error:
        raise SourceError(Problem(f"not a CSV file: {error}", str(path), "write it as UTF-8 with a header")) from error


def _bounded(stream: IO[str]) -> Iterator[str]:
    while line := stream.readline(lines.MAX_LINE_BYTES):
        if len(line) == lines.MAX_LINE_BYTES:
            raise csv.Error(f"a line of more than {lines.MAX_LINE_BYTES} characters")
        yield line


def parsed_map(pairs: Sequence[str]) -> dict[str, str]:
    """Their names by ours, from texts like `theirs=ours`.

    Raises:
        SourceError: a text that is none, or names a column that a log doesn't have; all of them at once.
    """
    renamed: dict[str, str] = {}
    problems: list[Problem] = []
    for pair in pairs:
        theirs, _, ours = pair.rpartition("=")
        if not theirs or ours not in COLUMNS:
            hint = nearest_hint(ours, COLUMNS, "columns") if theirs else "write --map theirs=ours"
            problems.append(Problem(f"--map {pair!r:.80} names no column of a log", None, hint))
        elif renamed.get(ours, theirs) != theirs:
            hint = "map one of them"
            problems.append(Problem(f"--map takes {renamed[ours]!r:.60} and {theirs!r:.60} for {ours}", None, hint))
        renamed[ours] = theirs
    if problems:
        raise SourceError(problems)
    return renamed


IMPORTER = Importer(
    name="generic",
    title="any table with one response a row",
    files="*.jsonl, *.csv, *.parquet",
    looks_like=lambda path, keys: path.suffix.lower() in _SUFFIXES and keys >= {"group_id", "train_step"},
    read=_read,
    suffixes=_SUFFIXES,
    precisions=tuple(Precision),
    reads=COLUMNS,
    lacks=(),
    shapes=(Shape("any", "", "*.jsonl, *.csv, *.parquet", tuple(Gives)),),
    is_generic=True,
)

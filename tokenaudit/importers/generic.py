"""Any table with one response a row: JSON lines, CSV or Parquet, with names mapped to the columns of a log."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokenaudit.contracts.errors import Problem, SourceError, nearest_hint, shown
from tokenaudit.contracts.schema import EventKind
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
from tokenaudit.importers.csv_files import csv_records
from tokenaudit.importers.files import SourceRecord, json_records, parquet_records
from tokenaudit.importers.packed import CSV_SUFFIXES, plain_suffix
from tokenaudit.importers.repeats import Writing
from tokenaudit.importers.shapes import Gives, Shape
from tokenaudit.importers.table_columns import COLUMNS, NEEDED, ColumnPlaces, Place, no_columns, value_at
from tokenaudit.importers.table_values import table_value
from tokenaudit.log.writer import Row
from tokenaudit.record.waiting_rows import cost_of

if TYPE_CHECKING:
    import pyarrow as pa

_SUFFIXES = (".jsonl", ".ndjson", *CSV_SUFFIXES, ".parquet")
_KINDS = tuple(kind.value for kind in EventKind)
_MISSED_ROWS = 1000
"""Rows without the columns that are needed after which a table is given up."""
MOST_PUT_COST = 2**27
"""What the rows of one put may take, as `cost_of` counts it; no group is that large, a crafted table is."""
_MOST_GROUPS = 1_000_000
"""Groups of a stretch that are remembered."""
_APART = (
    "rows of some groups don't stand together within their step, so each stretch of them counts as a put of its own: "
    "sort the table by train_step and group_id, or give it an event_id"
)


def _read(files: Sequence[Path], context: Context) -> Iterator[Imported]:
    """Rows become puts: consecutive rows of one event, or of one task, group and step where events have no ids.

    A group, or another event, that comes again in a later stretch of its step is another writing of it.
    """
    table = _Table(files, context)
    puts = _Puts(context)
    has_timeline = False
    stretch = 0
    stretch_key: object = None
    for path, row, where in table.rows():
        step = row.get("train_step")
        if step is not None and (path, step) != stretch_key:
            stretch, stretch_key = stretch + 1, (path, step)
        if row.get("event", "put") == "put":
            yield from puts.add(row, where, stretch)
            continue
        yield from puts.end()
        has_timeline = has_timeline or row["event"] != EventKind.SYNC
        row.pop("event_id", None)
        writing = None if step is None else Writing((step, row.get("task_name")), str(stretch))
        yield ImportedEvent(row, where, writing)
    yield from puts.end()
    if not has_timeline:
        context.limit(Lack.TIMELINE)
    for ours, theirs in table.missing.items():
        context.limit(f"no row has the column {theirs!r:.60} that --map names, so {ours} is unknown")


class _Puts:
    """Rows of responses, gathered into puts."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._put: ImportedPut | None = None
        self._key: object = None
        self._cost = 0
        self._responses = 0
        self._stretch = 0
        self._groups: set[int] = set()

    def add(self, row: Row, where: str, stretch: int) -> Iterator[ImportedPut]:
        """Add a response, of one stretch of its step; the put before it, where it begins another one.

        Raises:
            SourceError: a put of more rows than memory can be expected to hold.
        """
        event_id = row.pop("event_id", None)
        group = (row.get("task_name"), row["group_id"], row["train_step"])
        key = group if event_id is None else ("event", event_id)
        if self._put is None or key != self._key:
            yield from self.end()
            if event_id is None:
                self._begin(group, stretch)
            self._key = key
            task = self._context.task(row.get("task_name"))
            # a group of a step may be in parts, which its rollouts tell from what a resumed run wrote again
            writing = Writing((row["train_step"], task, row["group_id"], row.get("rollout_id")), str(stretch))
            self._put = ImportedPut(row["train_step"], task, row["group_id"], [], where, writing)
        row.setdefault("rollout_id", self._responses)
        self._responses += 1
        self._put.rows.append(row)
        self._cost += cost_of([row])
        if self._cost > MOST_PUT_COST:
            what = f"group {row['group_id']} of train step {row['train_step']} has too many rows to be one group"
            raise SourceError(Problem(what, self._put.where, "group_id is the same for the responses to one prompt"))

    def _begin(self, group: object, stretch: int) -> None:
        """Notice a group that was there before in the same stretch of a step."""
        if self._stretch != stretch:
            self._stretch = stretch
            self._groups.clear()
        if hash(group) in self._groups:
            self._context.limit(_APART)
        if len(self._groups) < _MOST_GROUPS:
            self._groups.add(hash(group))

    def end(self) -> Iterator[ImportedPut]:
        """The put that is open, if any."""
        if self._put is not None:
            yield self._put
        self._put, self._cost = None, 0


class _Table:
    """The rows of files as log columns.

    Attributes:
        missing: their names by ours, of the columns that `--map` names and no row had so far.
    """

    def __init__(self, files: Sequence[Path], context: Context) -> None:
        self._files = files
        self._context = context
        self._places = ColumnPlaces(context.renamed)
        self.missing = dict(context.renamed)

    def rows(self) -> Iterator[tuple[Path, Row, str]]:
        """Every row that can be read, with its file and its place.

        Raises:
            SourceError: a file can't be read, or no row has the columns that are needed.
        """
        missed, found_any = 0, False
        lacking: Problem | None = None
        for path in self._files:
            for data, where in self._records(path):
                places = self._places.of(data)
                row = None
                with self._context.noting(where):
                    row = self._row(data, places)
                if row is not None:
                    found_any = True
                    yield path, row, where
                elif not found_any and not places.keys() >= {*NEEDED}:
                    missed += 1
                    lacking = lacking or no_columns([*data], places, where)
                    if missed == _MISSED_ROWS:
                        raise SourceError(lacking)
        if lacking is not None and not found_any:
            raise SourceError(lacking)

    def _records(self, path: Path) -> Iterator[SourceRecord]:
        """The rows of a file; columns of a Parquet file that have no place in a log are never read."""
        suffix = plain_suffix(path)
        if suffix in CSV_SUFFIXES:
            return csv_records(path, self._context)
        if suffix == ".parquet":
            return parquet_records(path, self._wanted, self._context)
        return json_records(path, self._context)

    def _wanted(self, schema: pa.Schema) -> list[str]:
        places = self._places.of(schema.names).values()
        return [*dict.fromkeys(".".join(place) for place in places)]

    def _row(self, data: dict[str, Any], places: Mapping[str, Place]) -> Row:
        row: Row = {}
        for ours, place in places.items():
            value = value_at(data, place)
            if self.missing and ours in self.missing and (value is not None or len(place) == 1):
                del self.missing[ours]
            value = table_value(ours, value)
            if value is not None:
                row[ours] = value
        event = row.get("event", EventKind.PUT)
        if event == EventKind.PUT:
            missing = [name for name in NEEDED if name not in row]
            if missing:
                hint = f"every response needs it; name its column with --map theirs={missing[0]}"
                called = " and ".join(self._context.renamed.get(name, name) for name in missing)
                raise FieldFault(f"{called} {'is' if len(missing) == 1 else 'are'} missing", hint)
            row.setdefault("status", "completed")
            _stamp(row, self._context)
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
    stated = row.get("version_precision")
    if stated is not None and stated not in {*Precision}:
        raise FieldFault(f"version_precision is {shown(stated)}", f"it is one of: {', '.join(Precision)}")
    known = row.get("model_step") is not None or (versions is not None and len(versions) > 0)
    is_span = known and row.get("model_step_end", row.get("model_step")) != row.get("model_step")
    derived = Precision.SPAN if is_span else Precision.EXACT if known else Precision.NONE
    context.limit_of(row.setdefault("version_precision", derived))


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
    files="*.jsonl, *.csv, *.tsv, *.parquet",
    looks_like=lambda path, keys: path.suffix.lower() in _SUFFIXES and ColumnPlaces({}).of(keys).keys() >= {*NEEDED},
    read=_read,
    suffixes=_SUFFIXES,
    precisions=tuple(Precision),
    reads=COLUMNS,
    lacks=(),
    shapes=(Shape("any", "", "*.jsonl, *.csv, *.tsv, *.parquet", tuple(Gives)),),
    is_generic=True,
)

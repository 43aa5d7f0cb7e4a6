"""Read files of a format and write a rollout log: streamed, checked, and there only if all of it could be read.

`detect.py` finds the importer and its files. The importer reads them into puts and other events (`base.py`); each is
checked here as a recorder checks it, and its rows are written. `first_look` does the same without writing.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import BinaryIO, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from tokenaudit.contracts.errors import Problem, RecordError, SourceError
from tokenaudit.contracts.files import replacing
from tokenaudit.contracts.schema import META_LIMITS, EventKind
from tokenaudit.importers import left_out
from tokenaudit.importers.answers import Imports
from tokenaudit.importers.base import Context, Imported, ImportedEvent, ImportedPut, Importer
from tokenaudit.importers.noticed import SmallerGroups, VersionResets
from tokenaudit.importers.repeats import Keep, Writing
from tokenaudit.log.writer import Row, log_metadata, log_schema, log_table, sync_folder
from tokenaudit.record.event_rows import RESPONSE_COLUMNS, event_row, put_rows
from tokenaudit.record.waiting_rows import cost_of

FLUSH_ELEMENTS = 4_000_000
"""Elements of token columns, plus 64 per row, that are held before they are written."""
LOOKED_AT_EVENTS = 100
"""Events that a first look reads."""


def import_log(importer: Importer, files: Sequence[Path], context: Context, output: Path) -> Imports:
    """Read files of a format, in order, and write a log to the Parquet file `output`, which appears once it is whole.

    Raises:
        SourceError: files or records that can't be read, all at once, or no response at all; nothing is written.
        UsageError: the log can't be written.
    """
    with replacing(output) as stream:
        imports = _write(importer, files, context, stream)
        repeated = context.repeats.left_out(context.keep)
        if repeated is not None and context.keep is not Keep.BOTH:
            # which writing is the last one is only known behind it, and nothing that goes by is held
            context.begin_again(repeated.writings)
            stream.seek(0)
            stream.truncate()
            imports = _write(importer, files, context, stream)
        stream.flush()
        os.fsync(stream.fileno())
    sync_folder(output.parent)
    return imports


def _write(importer: Importer, files: Sequence[Path], context: Context, stream: BinaryIO) -> Imports:
    imports, resets, smaller = Imports(), VersionResets(), SmallerGroups()
    schema = log_schema(token_columns=True)
    metadata = log_metadata(None, f"tokenaudit import --from {importer.name}")
    unwritten: list[Row] = []
    cost = 0
    with pq.ParquetWriter(stream, schema.with_metadata(metadata), compression="zstd") as writer:
        for event_id, rows in enumerate(checked_events(importer, files, context), start=1):
            imports.count(rows)
            resets.see(rows)
            smaller.see(rows, context.problems.records)
            unwritten += [row | {"event_id": event_id} for row in rows]
            cost += cost_of(rows)
            if cost >= FLUSH_ELEMENTS:
                _flush(writer, unwritten)
                unwritten, cost = [], 0
        _flush(writer, unwritten)
        _check(imports.responses > 0, importer, files, context)
        noticed = [*resets.found(), *smaller.found(context.problems.records)]
        imports.limits = (*_limits(importer, context), *noticed)
        if imports.limits:
            writer.add_key_value_metadata({META_LIMITS: log_metadata(None, "", imports.limits)[META_LIMITS]})
    return imports


def _limits(importer: Importer, context: Context) -> Iterator[str]:
    """What is left out: what always is, what turned out to be, what can't be read and what is there more than once."""
    yield from dict.fromkeys([*importer.lacks, *context.limits])
    repeated = context.repeats.left_out(context.keep)
    unread, too_old = context.problems.limit(), context.too_old.limit(context.versions.offset)
    yield from filter(None, (unread, too_old, repeated and repeated.message(context.keep)))


def _flush(writer: pq.ParquetWriter, rows: Sequence[Row]) -> None:
    if rows:
        batches = log_table(rows, token_columns=True, metadata={}).to_batches()
        writer.write_table(pa.Table.from_batches(batches, writer.schema))


class Look(NamedTuple):
    """What a first look found: the rows of the first put, None if there was none, and all that it read."""

    first_put: list[Row] | None
    imports: Imports


def first_look(importer: Importer, files: Sequence[Path], context: Context) -> Look:
    """Read the first events and write nothing. What they leave out is noted in the context.

    Raises:
        SourceError: like `import_log`, as far as the first events go.
    """
    events = list(islice(checked_events(importer, files, context), LOOKED_AT_EVENTS))
    first_put = next((rows for rows in events if rows[0]["event"] == EventKind.PUT), None)
    _check(first_put is not None or len(events) == LOOKED_AT_EVENTS, importer, files, context)
    imports = Imports()
    for rows in events:
        imports.count(rows)
    imports.limits = tuple(_limits(importer, context))
    return Look(first_put, imports)


def _check(has_some: bool, importer: Importer, files: Sequence[Path], context: Context) -> None:
    """Raises a `SourceError` for what can't be read, as `left_out.check` says, and for files without any response."""
    left_out.check(context.damaged, context.problems, is_strict=context.is_strict, has_responses=has_some)
    if not has_some:
        raise SourceError(Problem("the files hold no response", str(files[0]), f"a dump of {importer.title} has some"))


def checked_events(importer: Importer, files: Sequence[Path], context: Context) -> Iterator[list[Row]]:
    """The rows of every event of a source, checked like those of a recorder; faults are noted in the context.

    So is what is written more than once; writings that the context leaves out are passed over.
    """
    for imported in importer.read(files, context):
        if imported.writing is not None and _writing(imported, imported.writing, context) in context.left_out_writings:
            continue
        rows = _checked(imported, context)
        if rows:
            yield rows


def _checked(imported: Imported, context: Context) -> list[Row]:
    """The rows of an event, without the responses that can't be recorded; none if nothing of it can be."""
    try:
        return _rows(imported)
    except RecordError as error:
        if isinstance(imported, ImportedEvent) or len(imported.rows) == 1:
            context.problems.add(*(_placed(problem, imported.where) for problem in error.problems))
            return []
    # the others of the group are as they should be
    single = (
        replace(imported, rows=[row], where=f"{imported.where}, response {index} of the group")
        for index, row in enumerate(imported.rows)
    )
    return [row for one in single for row in _checked(one, context)]


def _placed(problem: Problem, where: str) -> Problem:
    return Problem(problem.what, where, problem.hint)


def _writing(imported: Imported, writing: Writing, context: Context) -> int:
    """The number of an event's writing, which is noted."""
    if isinstance(imported, ImportedPut):
        return context.repeats.see(EventKind.PUT, writing, imported.train_step, len(imported.rows))
    kind, train_step = str(imported.values.get("event")), imported.values.get("train_step") or 0
    return context.repeats.see(kind, writing, train_step, 0)


def _rows(imported: Imported) -> list[Row]:
    if isinstance(imported, ImportedEvent):
        values = imported.values.copy()
        return [event_row(EventKind(values.pop("event", "put")), **values)]
    responses = [{name: value for name, value in row.items() if name in RESPONSE_COLUMNS} for row in imported.rows]
    times = [row["time_us"] for row in imported.rows if row.get("time_us") is not None]
    return put_rows(
        responses,
        group_id=imported.group_id,
        train_step=imported.train_step,
        task_name=imported.task_name,
        # a group is put once its last response is there
        time_us=max(times, default=None),
    )

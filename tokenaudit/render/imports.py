"""The formats of imports, what an import would read, and what it read."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from tokenaudit.contracts.errors import plural, printable
from tokenaudit.importers.answers import Imports, answers
from tokenaudit.importers.base import Context, Importer
from tokenaudit.importers.table_columns import ColumnPlaces
from tokenaudit.importers.write import LOOKED_AT_EVENTS, Look
from tokenaudit.log.absent_columns import column_called
from tokenaudit.log.writer import Row
from tokenaudit.render.blocks import (
    Block,
    Fit,
    Gap,
    Heading,
    Lines,
    Listing,
    Paragraph,
    Table,
    TableColumn,
    TableRow,
)


def formats_blocks(importers: Iterable[Importer]) -> Iterator[Block]:
    """The formats: name, title, how versions are read by default, and the files of each trainer with what they give."""
    yield Heading("tokenaudit import")
    for importer in importers:
        yield Paragraph(f"{importer.name}: {importer.title}")
        lines = [f"versions: {_versions(importer)}"]
        for shape in importer.shapes:
            version = f" ({shape.version})" if shape.version else ""
            lines.append(f"{shape.trainer}{version}: {shape.file}: {', '.join(shape.gives)}")
        yield Lines(lines, indent=2)


def _versions(importer: Importer) -> str:
    names = ", ".join(importer.precisions)
    if names == "none":
        return names
    unit = "weight pushes (--sync-interval, default 1 train step)" if importer.counts_pushes else "train steps"
    return f"{names}; counted in {unit}, initial weights = {importer.version_offset} (--version-offset)"


def plan_blocks(
    importer: Importer,
    files: Sequence[Path],
    size: tuple[int, int],
    context: Context,
    look: Look,
) -> Iterator[Block]:
    """What an import would read.

    Args:
        importer: the format.
        files: the first files.
        size: number of all files, and their bytes.
        context: what turned up while the first events were read.
        look: the first put, and what was read for this.
    """
    count, total = size
    lines = [f"format: {importer.name} ({importer.title})", f"files: {count:,} with {plural(total, 'byte')}"]
    lines += [f"  {printable(name)}" for name in _names(files)]
    if count > len(files):
        lines.append(f"  and {count - len(files):,} more")
    lines.append(f"versions: {_versions(importer)}")
    scale = context.versions
    if (scale.offset, scale.train_steps) != (importer.version_offset, 1):
        lines.append(f"  read as (version - {scale.offset}) * {scale.train_steps} train steps")
    lines.append(f"reads: {', '.join(importer.reads)}")
    if context.left_out:
        lines.append(f"not read: {left_out_text(importer, context)}")
    lines.append(f"first put: {_put(look.first_put)}")
    limits = look.imports.limits
    lines.append("can't be known:" if limits else "can't be known: nothing is left out")
    yield Heading("tokenaudit import")
    yield Listing([*lines, *(f"  - {limit}" for limit in limits)])
    yield Gap()
    events = look.imports.events.total()
    yield Paragraph(f"What the first {events} events answer:" if events == LOOKED_AT_EVENTS else "What it answers:")
    yield answers_table(importer, look.imports)


def answers_table(importer: Importer, imports: Imports) -> Table:
    """What can be answered with what was read."""
    columns = [TableColumn(name, "left", is_label=name == "question") for name in ("question", "answer", "why")]
    rows = [TableRow(answer) for answer in answers(importer, imports, imports.limits)]
    return Table(columns, rows, fit=Fit(("answer", "why")))


def left_out_text(importer: Importer, context: Context) -> str:
    """The columns of the source that are not read; where a person names columns, how, and what they may be."""
    names = context.left_out
    listed = ", ".join(map(printable, names))
    if not importer.is_generic:
        return listed
    absent = {*importer.reads} - ColumnPlaces(context.renamed).of(context.names).keys()
    # of several that mean the same column, the first
    likely = {ours: name for name in reversed(names) if (ours := column_called(name)) in absent}
    pairs = [f"--map {shlex.quote(f'{printable(name)}={ours}')}" for ours, name in reversed(likely.items())]
    return f"{listed} ({' '.join(pairs) or '--map theirs=ours'})"


def _names(files: Sequence[Path]) -> list[str]:
    """Names of files, with some of their folders where names repeat."""
    names = [path.name for path in files]
    return names if len(set(names)) == len(names) else ["/".join(path.parts[-4:]) for path in files]


def _put(rows: Sequence[Row] | None) -> str:
    if not rows:
        return "none"
    first = rows[0]
    tokens = sum(row["response_len"] for row in rows)
    precision = ", ".join(dict.fromkeys(str(row.get("version_precision", "exact")) for row in rows))
    return (
        f"task {printable(first['task_name'])}, group {first['group_id']}, train step {first['train_step']}, "
        f"{plural(len(rows), 'response')}, {plural(tokens, 'token')}, versions {precision}"
    )


def imports_text(imports: Imports) -> str:
    """What was imported, in one line."""
    events = ", ".join(plural(count, kind) for kind, count in imports.events.items())
    precisions = ", ".join(f"{name} ({count:,})" for name, count in imports.precisions.items())
    steps = (
        "" if imports.train_steps is None else f" · train steps {imports.train_steps[0]} to {imports.train_steps[1]}"
    )
    return (
        f"{events} · {plural(imports.responses, 'response')} · {plural(imports.tokens, 'token')}{steps} · "
        f"versions {precisions}"
    )

"""CSV files: row by row, in bounded memory, with whatever delimiter their header has."""

from __future__ import annotations

import csv
import io
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import IO, Any

from tokenaudit.contracts.errors import Problem, SourceError, plural, shown
from tokenaudit.importers.base import Context
from tokenaudit.importers.files import SourceRecord
from tokenaudit.importers.packed import opened_lines
from tokenaudit.record import json_lines as lines

_DELIMITERS = (",", ";", "\t", "|")
_UTF_16 = (b"\xff\xfe", b"\xfe\xff")


def csv_names(head: bytes) -> list[str]:
    """The columns that the first line of a CSV file names."""
    text = head.decode("utf-8-sig", "surrogateescape")
    try:
        return _stripped(next(_reader(text, iter([text])), []))
    except csv.Error:
        return []


def csv_records(path: Path, context: Context) -> Iterator[SourceRecord]:
    """The rows of a CSV file as texts by column; what can't be read is noted and passed over, be it the file."""
    csv.field_size_limit(lines.MAX_LINE_BYTES)
    with context.reading(), opened_lines(path, context) as stream:
        # a text that isn't UTF-8 is a fault of its row, if the row is asked for it
        texts = _bounded(io.TextIOWrapper(stream, "utf-8-sig", "surrogateescape", newline=""), path)
        head = next(texts, "")
        if head.encode("utf-8", "surrogateescape").startswith(_UTF_16):
            raise SourceError(Problem("a CSV file in UTF-16", str(path), "write it as UTF-8"))
        reader = _reader(head, chain([head], texts))
        names: list[str] | None = None
        while True:
            try:
                cells = next(reader)
            except StopIteration:
                return
            except csv.Error as error:
                where = f"{path}, line {reader.line_num}"
                context.problems.add(Problem(f"not CSV: {error}", where, 'quote texts with ", and double those inside'))
                continue
            where = f"{path}, line {reader.line_num}"
            if not cells:
                continue
            if names is None:
                names = _checked_names(_stripped(cells), path)
            elif len(cells) < len(names) or any(cells[len(names) :]):
                what = f"{plural(len(cells), 'cell')} for {plural(len(names), 'column')}"
                hint = "quote texts and lists that hold the delimiter, and give every column a cell"
                context.problems.add(Problem(what, where, hint))
            else:
                # columns without a name, such as an index, hold nothing that could be asked for
                row = {name: cell for name, cell in zip(names, cells, strict=False) if name}
                yield SourceRecord(context.fields(row), where)


def _reader(head: str, texts: Iterator[str]) -> Any:
    """Reads cells parted like those of the header: by the character it has most often, a comma if none, and a space."""
    bare = re.sub('"[^"]*"', "", head)
    delimiter = max(_DELIMITERS, key=bare.count)
    _, *others = bare.split(delimiter)
    is_spaced = all(name.startswith(" ") for name in others)
    return csv.reader(texts, delimiter=delimiter, skipinitialspace=is_spaced, strict=True)


def _stripped(names: Sequence[str]) -> list[str]:
    return [name.strip() for name in names]


def _checked_names(names: list[str], path: Path) -> list[str]:
    twice = [name for name, count in Counter(names).items() if name and count > 1]
    if twice:
        problems = [Problem(f"two columns are called {shown(name)}", f"{path}, line 1", "rename one") for name in twice]
        raise SourceError(problems[: lines.SHOWN_PROBLEMS])
    return names


def _bounded(stream: IO[str], path: Path) -> Iterator[str]:
    while line := stream.readline(lines.MAX_LINE_BYTES):
        if len(line) == lines.MAX_LINE_BYTES:
            what = f"a line of more than {lines.MAX_LINE_BYTES} characters"
            raise SourceError(Problem(what, str(path), "write it as UTF-8 with a header"))
        yield line

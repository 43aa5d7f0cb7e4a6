"""Files of curves that a trainer logged, read in bounded memory.

Forms, all as JSON lines, CSV or Parquet: a column per metric; a row per step, tag and value; TensorBoard's CSV of one
tag (`Wall time,Step,Value`), which only the file's name tells (tensorflow/tensorboard 12c5b45: the name of the run;
before that `run-RUN-tag-TAG.csv`); a history of Weights & Biases with `_step` and gaps, or its CSV of a chart with
`RUN - METRIC`, `…__MIN` and `…__MAX`; SwanLab's CSV of a column with `RUN-METRIC_step` for the values (SwanHubX/SwanLab
f8bb3a5); verl's JSON lines of `step` and `data` (verl-project/verl 1dda039).
"""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.types as pat

from tokenaudit.audit.curve_points import MOST_POINTS, SHOWN_PROBLEMS, Curve, CurveReader
from tokenaudit.contracts.errors import Problem, SourceError, UsageError, shown
from tokenaudit.contracts.files import named_twice
from tokenaudit.log.footer import chunk_sizes

MOST_FILE_BYTES = 2**28
"""Size of a text file, or of a column chunk of Parquet, that is still read."""
_TEXTS = {".csv", ".jsonl", ".ndjson", ".json"}
_EXTENSIONS = ".jsonl, .csv, .parquet"


class Curves(NamedTuple):
    """The curves that were asked for, in the order of the files, and names of others, the first few thousand."""

    wanted: tuple[Curve, ...]
    others: tuple[str, ...]


Row = tuple[str, Mapping[str, Any]]
"""Where a row stands, and its cells by column."""


def read_curves(paths: Sequence[Path], is_wanted: Callable[[str], bool], step_column: str | None = None) -> Curves:
    """Read the curves of files.

    Args:
        paths: the files.
        is_wanted: whether a curve is to be read, by the name that the file gives it.
        step_column: the column of steps; None: one of `STEP_COLUMNS`.

    Raises:
        UsageError: a path names no file, or one that is none of curves by its extension; or a file is named twice.
        SourceError: a file can't be read, has no column of steps, or holds what is no number; all faults at once.
    """
    problems = [*_path_problems(paths), *named_twice(paths, "run")]
    if problems:
        raise UsageError(problems)
    faults: list[Problem] = []
    found: list[Curve] = []
    others: dict[str, None] = {}
    left = MOST_POINTS
    for path in paths:
        reader = CurveReader(path, is_wanted, step_column, faults, left)
        try:
            _read(path, reader)
        except (OSError, ValueError, pa.ArrowException, csv.Error, RecursionError) as error:
            faults.append(Problem(f"can't be read: {str(error)[:200]}", str(path), "export the curves again"))
        reader.finish()
        left -= reader.points
        found += reader.curves()
        others |= reader.others
    if faults:
        more = len(faults) - SHOWN_PROBLEMS
        rest = [Problem(f"{more} more faults in the curves", None, "mend those above first")] if more > 0 else []
        raise SourceError([*faults[:SHOWN_PROBLEMS], *rest])
    return Curves(tuple(found), tuple(others))


def _path_problems(paths: Sequence[Path]) -> Iterator[Problem]:
    for path in paths:
        if not path.is_file():
            yield Problem("there is no such file of curves", str(path), f"give one file or several: {_EXTENSIONS}")
        elif path.suffix.lower() not in {*_TEXTS, ".parquet"}:
            hint = f"export them as one of {_EXTENSIONS}"
            yield Problem(f"curves aren't read from {path.suffix or 'a file without extension'}", str(path), hint)


def _read(path: Path, reader: CurveReader) -> None:
    if path.suffix.lower() == ".parquet":
        _read_parquet(path, reader)
        return
    if path.stat().st_size > MOST_FILE_BYTES:
        raise ValueError(f"more than {MOST_FILE_BYTES // 2**20} MiB")
    read_rows = _csv_rows if path.suffix.lower() == ".csv" else _json_rows
    for where, row in read_rows(path):
        reader.add(where, row)


def _csv_rows(path: Path) -> Iterator[Row]:
    with path.open(encoding="utf-8-sig", newline="") as file:
        table = csv.reader(file)
        header = next(table, [])
        if not header:
            raise ValueError("it is empty")
        if len(set(header)) < len(header):
            raise ValueError("two columns have one name")
        for cells in table:
            if len(cells) > len(header):
                raise ValueError(f"line {table.line_num} has {len(cells)} cells for {len(header)} columns")
            if cells:
                yield f"{path}, line {table.line_num}", dict(zip(header, cells, strict=False))


def _json_rows(path: Path) -> Iterator[Row]:
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                record = json.loads(line)
            except ValueError:
                if number > 1 and not line.endswith(b"\n"):
                    return  # still being written
                raise ValueError(f"line {number} is no JSON; one object a line is read") from None
            if not isinstance(record, dict):
                raise ValueError(f"line {number} is no object; one object a line is read")
            yield f"{path}, line {number}", _flat(record)


def _flat(record: Mapping[str, Any]) -> dict[str, Any]:
    """A record whose objects inside have become names with a slash; those of `data` keep theirs. Lists are left out."""
    flat: dict[str, Any] = {}
    for name, value in record.items():
        if isinstance(value, dict):
            prefix = "" if name == "data" else f"{name}/"
            inner = {f"{prefix}{key}": entry for key, entry in value.items()}
            flat |= {key: entry for key, entry in inner.items() if not isinstance(entry, dict | list)}
        elif not isinstance(value, list):
            flat[name] = value
    return flat


def _read_parquet(path: Path, reader: CurveReader) -> None:
    with pq.ParquetFile(path, pre_buffer=False) as parquet:
        schema = parquet.schema_arrow
        columns = reader.columns(schema.names)
        for name in columns:
            kind = schema.field(name).type
            if not (pat.is_integer(kind) or pat.is_floating(kind) or pat.is_null(kind) or _is_text(kind)):
                raise ValueError(f"column {shown(name)} holds {kind}, no numbers")
        texts = [name for name in columns if _is_text(schema.field(name).type)]
        rows, groups = 0, chunk_sizes(path)
        if len(groups) != parquet.metadata.num_row_groups or parquet.metadata.num_rows > MOST_POINTS:
            raise ValueError(f"the footer is damaged, or says more than {MOST_POINTS:,} rows")
        for sizes in groups:
            chunks = [sizes[name] for name in columns if name in sizes]
            rows += max((chunk.values for chunk in chunks), default=0)
            if any(chunk.uncompressed_bytes > MOST_FILE_BYTES for chunk in chunks) or rows > MOST_POINTS:
                raise ValueError(f"more than {MOST_POINTS:,} rows, or {MOST_FILE_BYTES // 2**20} MiB in a column")
            if any(sizes[name].is_delta_text for name in texts if name in sizes):
                raise ValueError("texts in an encoding that isn't read here; write CSV")
    with pq.ParquetFile(path, pre_buffer=False, read_dictionary=texts) as parquet:
        first = 1
        for batch in parquet.iter_batches(batch_size=4096, columns=columns, use_threads=False):
            for number, row in enumerate(batch.to_pylist(), first):
                reader.add(f"{path}, row {number}", row)
            first += batch.num_rows


def _is_text(kind: pa.DataType) -> bool:
    return pat.is_string(kind) or pat.is_large_string(kind) or pat.is_dictionary(kind)

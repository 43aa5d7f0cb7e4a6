"""Small builders for tests: rows of every event as dicts, logs on disk in any spelling, digests of rows."""

import json
import random
import tempfile
from collections.abc import Iterable, Sequence
from itertools import groupby, islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import tokenaudit.log.log_file
import tokenaudit.log.merged_batches
import tokenaudit.log.pieces
from tokenaudit.contracts.schema import COLUMNS, RUN_FIELDS, ColumnType
from tokenaudit.log.digest import Digest
from tokenaudit.log.files import open_log
from tokenaudit.log.reading import read_digest

Row = dict[str, Any]

INT64 = pa.int64()
INTEGER_RANGES = {
    pa.int8(): (-(2**7), 2**7 - 1),
    pa.int16(): (-(2**15), 2**15 - 1),
    pa.int32(): (-(2**31), 2**31 - 1),
    pa.uint8(): (0, 2**8 - 1),
    pa.uint16(): (0, 2**16 - 1),
    pa.uint32(): (0, 2**32 - 1),
    pa.uint64(): (0, 2**63 - 1),
}
"""What an integer type can hold here; int64 holds everything."""
TEXTS = {
    "string": pa.string(),
    "large_string": pa.large_string(),
    "dictionary": pa.dictionary(pa.int32(), pa.string()),
}
LENGTH_COLUMNS = ("response_len", "response_ids", "response_model_steps", "response_version_runs")
LIST_TYPES = (ColumnType.INTEGER_LIST, ColumnType.MASK_LIST, ColumnType.REAL_LIST)


# ---- rows; an absent key is a null


def put(
    event_id: int = 0,
    group_id: int = 0,
    rollout_id: int | None = None,
    *,
    train_step: int = 1,
    status: str = "completed",
    tokens: int = 4,
    model_step: int | None = 0,
    prior_len: int | None = 0,
    **others: Any,
) -> Row:
    """One response of a put; its rollout is called like the group unless it is named."""
    row = {
        "event": "put",
        "event_id": event_id,
        "train_step": train_step,
        "group_id": group_id,
        "rollout_id": group_id if rollout_id is None else rollout_id,
        "status": status,
        "response_len": tokens,
        "model_step": model_step,
        "prior_len": prior_len,
    }
    return row | others


def sample(event_id: int = 0, group_id: int = 0, status: str = "aborted", **others: Any) -> Row:
    return {"event": "sample", "event_id": event_id, "group_id": group_id, "status": status} | others


def refresh(event_id: int = 0, train_step: int = 1, **others: Any) -> Row:
    return {"event": "refresh", "event_id": event_id, "train_step": train_step} | others


def take(event_id: int = 0, train_step: int = 1, batch_size: int = 1, **others: Any) -> Row:
    row = {"event": "take", "event_id": event_id, "train_step": train_step, "batch_size": batch_size}
    return row | others


def sync(event_id: int = 0, train_step: int = 1, model_step: int | None = 1, **others: Any) -> Row:
    return {"event": "sync", "event_id": event_id, "train_step": train_step, "model_step": model_step} | others


def numbered(rows: Iterable[Row]) -> list[Row]:
    """The rows with an event each."""
    return [row | {"event_id": event_id} for event_id, row in enumerate(rows)]


def two_steps() -> list[Row]:
    """A group put and taken at each of two steps; under max_staleness 0 the second one expires."""
    return numbered(
        [
            refresh(train_step=1),
            put(group_id=1),
            take(train_step=1),
            refresh(train_step=2),
            put(group_id=2, train_step=2),
            take(train_step=2),
        ]
    )


# ---- the same log, told otherwise


def respelled(row: Row, versions: str) -> Row:
    """The row with its versions told otherwise, and everything else as it was.

    Args:
        row: any row.
        versions: "complete": one per token; "stamped": those of `model_step` at the end are left out; "runs":
            version runs in place of versions and mask; "split runs": those, one per token.

    Where versions are missing, and prior_len with them, their number tells what came before: such a row stays as it
    is. So does a row without model_step that would need one.
    """
    stamp, recorded = row.get("model_step"), list(row.get("response_model_steps") or [])
    if row.get("event", "put") not in ("put", None):
        return row
    tokens = row.get("response_len")
    if tokens is None:
        tokens = len(recorded if row.get("response_ids") is None else row["response_ids"])
    as_runs = versions in ("runs", "split runs")
    if (stamp is None or row.get("prior_len") is None) and not (as_runs and len(recorded) == tokens):
        return row
    recorded += [stamp] * (tokens - len(recorded))
    if as_runs:
        mask = [1] * tokens if row.get("response_mask") is None else row["response_mask"]
        assert len(mask) == tokens
        entries = map(bool, mask)
        if versions == "runs":
            lengths = [(version, sum(1 for _ in group)) for version, group in groupby(recorded)]
        else:
            lengths = [(version, 1) for version in recorded]
        runs = [(version, count, sum(islice(entries, count))) for version, count in lengths]
        told = [dict(zip(RUN_FIELDS, run, strict=True)) for run in runs]
        without = {"response_model_steps": None, "response_mask": None}
        return row | without | {"response_len": tokens, "response_version_runs": told}
    while versions == "stamped" and recorded and recorded[-1] == stamp:
        recorded.pop()
    return row | {"response_len": tokens, "response_model_steps": recorded}


def write_log(
    path: Path,
    rows: Sequence[Row],
    *,
    versions: str = "as given",
    integers: pa.DataType | Sequence[pa.DataType] = INT64,
    list_type: str = "list",
    text: str = "string",
    mask: str = "int8",
    omit_null_columns: bool = True,
    null_type: bool = False,
    row_group_size: int | None = None,
    files: int = 1,
    file_seed: int = 0,
    column_seed: int | None = None,
    extra_column: bool = False,
    metadata: dict[str, str] | None = None,
    **parquet_options: Any,
) -> Path:
    """Write a log as Parquet.

    Args:
        path: the file; the folder if there are several files.
        rows: one dict per row; keys that no row has can be left out.
        versions: "as given", or as `respelled` takes it.
        integers: type of integer columns and elements, or several to take in turn; int64 where one is too small.
        list_type: "list" or "large_list".
        text: a key of `TEXTS`.
        mask: "int8", "bool", or "integers" for the type of the other integers.
        omit_null_columns: leave out columns without any value, in each file.
        null_type: give columns without any value the null type.
        row_group_size: rows per row group.
        files: how many files share the rows.
        file_seed: decides where the files are cut, in the middle of events too.
        column_seed: shuffles the columns.
        extra_column: add a column that the schema doesn't know.
        metadata: key-value metadata.
        parquet_options: for `pyarrow.parquet.write_table`.
    """
    if versions != "as given":
        rows = [respelled(row, versions) for row in rows]
    types = [integers] if isinstance(integers, pa.DataType) else list(integers)
    kept = {column.name for column in COLUMNS if column.required}
    if all(row.get(name) is None for row in rows for name in LENGTH_COLUMNS):
        kept.add("response_len")  # a log without any of them is refused

    def table(part: Sequence[Row]) -> pa.Table:
        columns = {}
        for position, column in enumerate(COLUMNS):
            values = [row.get(column.name) for row in part]
            if all(value is None for value in values):
                if omit_null_columns and column.name not in kept:
                    continue
                if null_type:
                    columns[column.name] = pa.nulls(len(part))
                    continue
            columns[column.name] = _arrow(
                column.type, values, types[position % len(types)], list_type, TEXTS[text], mask
            )
        if extra_column:
            columns["x_unknown"] = pa.array([str(number) for number in range(len(part))])
        names = list(columns)
        if column_seed is not None:
            random.Random(column_seed).shuffle(names)
        made = pa.table({name: columns[name] for name in names})
        return made.replace_schema_metadata(metadata) if metadata else made

    if files == 1:
        pq.write_table(table(rows), path, row_group_size=row_group_size, **parquet_options)
        return path
    path.mkdir()
    cuts = sorted(random.Random(file_seed).randint(0, len(rows)) for _ in range(files - 1))
    for number, (first, last) in enumerate(zip([0, *cuts], [*cuts, len(rows)], strict=True)):
        part = table(rows[first:last])
        pq.write_table(part, path / f"{number:03}.parquet", row_group_size=row_group_size, **parquet_options)
    return path


def make_digest(rows: Sequence[Row], *, allow_missing_versions: bool = False, **options: Any) -> Digest:
    """The digest of a log with these rows, read back from disk; `options` as for `write_log`."""
    with tempfile.TemporaryDirectory() as folder:
        path = write_log(Path(folder, "log.parquet"), rows, **options)
        return read_digest(open_log([path]), allow_missing_versions=allow_missing_versions)


def small_batches(patch: pytest.MonkeyPatch, *, rows: int, elements: int = 10**9) -> None:
    """Read logs in batches of at most so many rows, and list elements on average."""
    for module in (tokenaudit.log.log_file, tokenaudit.log.merged_batches, tokenaudit.log.pieces):
        patch.setattr(module, "MAX_BATCH_ROWS", rows)
        patch.setattr(module, "TARGET_BATCH_ELEMENTS", elements)
    patch.setattr(tokenaudit.log.pieces, "SMALL_PIECE_ELEMENTS", elements)


def read_rows(path: Path) -> list[Row]:
    """A log as one dict per row."""
    return pq.read_table(path).to_pylist()


def read_json(path: Path) -> Any:
    return json.loads(path.read_text())


def _arrow(
    kind: ColumnType, values: list[Any], integer: pa.DataType, list_type: str, text: pa.DataType, mask: str
) -> pa.Array:
    if kind is ColumnType.TEXT:
        return pa.array(values, pa.string()).cast(text)
    if kind is ColumnType.FLAG:
        return pa.array(values, pa.bool_())
    if kind is ColumnType.REAL:
        return pa.array(values, pa.float64())
    if kind is ColumnType.INTEGER:
        return pa.array(values, _fitting(integer, (value for value in values if value is not None)))
    list_of = pa.large_list if list_type == "large_list" else pa.list_
    if kind is ColumnType.RUN_LIST:
        numbers = [number for runs in values if runs for run in runs if run for number in run.values()]
        field_type = _fitting(integer, [number for number in numbers if number is not None])
        return pa.array(values, list_of(pa.struct([(name, field_type) for name in RUN_FIELDS])))
    assert kind in LIST_TYPES
    elements = [element for value in values if value for element in value if element is not None]
    element_type = pa.float32() if kind is ColumnType.REAL_LIST else _fitting(integer, elements)
    if kind is ColumnType.MASK_LIST and mask != "integers":
        element_type = _fitting(pa.int8(), elements) if mask == "int8" else pa.bool_()
        if mask == "bool":
            values = [None if value is None else [_as_bool(entry) for entry in value] for value in values]
    return pa.array(values, list_of(element_type))


def _as_bool(entry: int | None) -> bool | None:
    return None if entry is None else bool(entry)


def _fitting(wanted: pa.DataType, values: Iterable[int]) -> pa.DataType:
    values = list(values)
    low, high = INTEGER_RANGES.get(wanted, (-(2**63), 2**63 - 1))
    return wanted if not values or (low <= min(values) and max(values) <= high) else pa.int64()

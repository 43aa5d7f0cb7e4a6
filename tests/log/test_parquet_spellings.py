"""Every encoding, compression, page version, list naming and nesting that pyarrow reads gives the same log."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.builders import Row, put, refresh, sample, small_batches, sync, take, write_log
from tokenaudit.audit.session import audit_log
from tokenaudit.contracts.errors import LogError
from tokenaudit.log.files import open_log
from tokenaudit.log.reading import read_digest

NAMES = ("event", "status", "task_name")
NUMBERS = ("event_id", "train_step", "group_id", "rollout_id", "response_len", "model_step", "prior_len")


def rows() -> list[Row]:
    rng = np.random.default_rng(3)
    told: list[Row] = [refresh()]
    for group in range(24):
        task = (None, "math", "code", "x" * 300)[group % 4]
        tokens = int(rng.integers(1, 40))
        mask = rng.integers(0, 2, tokens).tolist() if group % 3 else None
        versions = np.sort(rng.integers(0, 3, tokens)).tolist()
        status = ("completed", "aborted", "failed")[group % 3]
        reward = float(rng.random()) if group % 5 else None
        told.append(
            put(group_id=group, task_name=task, tokens=tokens, status=status, model_step=3, response_mask=mask,
                response_model_steps=versions[: tokens - group % 2], agentic=group % 7 == 0, reward=reward)
        )  # fmt: skip
        if status == "aborted":
            told.append(sample(group_id=group, task_name=task))
    told += [sync(), take(task_name="math", batch_size=2)]
    return [row | {"event_id": event_id} for event_id, row in enumerate(told)]


@pytest.fixture(scope="module", params=["as given", "runs"])
def log(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_log(tmp_path_factory.mktemp("log") / "plain.parquet", rows(), versions=request.param)


def content(path: Path) -> str:
    return read_digest(open_log([path])).content_hash()


Check = Callable[..., None]


@pytest.fixture
def check(log: Path, tmp_path: Path) -> Check:
    """Writes the log as told with pyarrow, and compares what is read with the log as it was."""
    expected = content(log)

    def write_and_compare(change: Callable[[pa.Table], pa.Table] = lambda table: table, **options: Any) -> None:
        path = tmp_path / "told.parquet"
        pq.write_table(change(pq.read_table(log)), path, **options)
        assert content(path) == expected, options

    return write_and_compare


def encoded(table: pa.Table, text: str | None, number: str, flag: str) -> dict[str, str]:
    """An encoding for every leaf of the table that can have it; none for texts leaves them to dictionaries."""
    kinds = {"BYTE_ARRAY": text, "INT64": number, "INT32": number, "BOOLEAN": flag, "DOUBLE": "BYTE_STREAM_SPLIT"}
    buffer = pa.BufferOutputStream()
    pq.write_table(table, buffer)
    schema = pq.ParquetFile(buffer.getvalue()).schema
    leaves = [schema.column(index) for index in range(len(schema.names))]
    return {leaf.path: kind for leaf in leaves if (kind := kinds.get(leaf.physical_type))}


@pytest.mark.parametrize("text", [None, "PLAIN", "DELTA_BYTE_ARRAY", "DELTA_LENGTH_BYTE_ARRAY"])
@pytest.mark.parametrize("number", ["PLAIN", "DELTA_BINARY_PACKED", "BYTE_STREAM_SPLIT"])
@pytest.mark.parametrize("pages", ["1.0", "2.0"])
def test_encodings_compressions_and_pages(text: str | None, number: str, pages: str, log: Path, check: Check):
    flag = "RLE" if pages == "2.0" else "PLAIN"
    encodings = encoded(pq.read_table(log), text, number, flag)
    as_dictionaries = [name for name in NAMES if text is None]
    for compression, group in zip(["none", "snappy", "gzip", "brotli", "zstd", "lz4"], [5, 1000] * 3, strict=True):
        check(column_encoding=encodings, use_dictionary=as_dictionaries, compression=compression,
              data_page_version=pages, row_group_size=group, write_page_checksum=group == 5)  # fmt: skip


@pytest.mark.parametrize("batch", [1, 4, 65_536])
@pytest.mark.parametrize("text", ["DELTA_BYTE_ARRAY", "DELTA_LENGTH_BYTE_ARRAY"])
def test_delta_texts_in_small_batches(text: str, batch: int, check: Check, monkeypatch: pytest.MonkeyPatch):
    small_batches(monkeypatch, rows=batch)
    monkeypatch.setattr("tokenaudit.log.text_columns._BYTES_AT_ONCE", 3000)
    monkeypatch.setattr("tokenaudit.log.text_columns._PENDING_BYTES", 500)
    check(use_dictionary=False, column_encoding=dict.fromkeys(NAMES, text))
    some = {"status": text}
    check(use_dictionary=["event", "task_name"], column_encoding=some, row_group_size=7)


def test_pages_and_dictionaries_that_are_too_small(check: Check):
    for page, dictionary, version in product([10, 200], [10, 200], ["1.0", "2.0"]):
        group = 7 if page == dictionary else 1000
        check(data_page_size=page, dictionary_pagesize_limit=dictionary, row_group_size=group,
              data_page_version=version, write_batch_size=3, write_page_index=True)  # fmt: skip


def with_texts(kind: pa.DataType) -> Callable[[pa.Table], pa.Table]:
    def change(table: pa.Table) -> pa.Table:
        for name in NAMES:
            column = table[name].combine_chunks()
            if pa.types.is_dictionary(kind):
                made = column.dictionary_encode()
                column = pa.DictionaryArray.from_arrays(
                    made.indices.cast(kind.index_type), made.dictionary.cast(kind.value_type)
                )
            table = table.set_column(table.schema.get_field_index(name), name, column.cast(kind))
        return table

    return change


@pytest.mark.parametrize("text", [None, "PLAIN", "DELTA_BYTE_ARRAY", "DELTA_LENGTH_BYTE_ARRAY"])
@pytest.mark.parametrize("with_schema", [True, False])
@pytest.mark.parametrize(
    "kind",
    [pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int8(), pa.string()),
     pa.dictionary(pa.uint32(), pa.large_string())],
    ids=str,
)  # fmt: skip
def test_types_of_text(kind: pa.DataType, with_schema: bool, text: str | None, check: Check):
    options = {} if text is None else {"use_dictionary": False, "column_encoding": dict.fromkeys(NAMES, text)}
    if pa.types.is_dictionary(kind) and with_schema and text is not None and text != "PLAIN":
        with pytest.raises(LogError, match="pyarrow can't decode a column: Not yet implemented"):
            check(with_texts(kind), store_schema=with_schema, **options)
    else:
        check(with_texts(kind), store_schema=with_schema, **options)


@pytest.mark.parametrize("make", [pa.list_, pa.large_list, pa.list_view, pa.large_list_view], ids=lambda f: f.__name__)
@pytest.mark.parametrize("with_schema", [True, False])
@pytest.mark.parametrize("compliant", [True, False])
def test_kinds_and_names_of_lists(make: Callable[[pa.DataType], pa.DataType], with_schema, compliant, check: Check):
    def change(table: pa.Table) -> pa.Table:
        for position, field in enumerate(table.schema):
            if pa.types.is_list(field.type):
                column = pa.array(table[field.name].to_pylist(), make(field.type.value_type))
                table = table.set_column(position, field.name, column)
        return table

    check(change, store_schema=with_schema, use_compliant_nested_type=compliant)


def test_lists_of_a_fixed_size(tmp_path: Path):
    told = [put(number, number, tokens=5, response_model_steps=[1, 1, 2, 2, 3], response_mask=[1, 0, 1, 1, 1])
            for number in range(4)]  # fmt: skip
    told[2]["response_mask"] = None
    told[3] |= {"response_model_steps": None, "model_step": 2}
    plain = write_log(tmp_path / "plain.parquet", told)
    table = pq.read_table(plain)
    for name, kind, element in (("response_model_steps", pa.int64(), int), ("response_mask", pa.bool_(), bool)):
        values = [None if row is None else [element(entry) for entry in row] for row in table[name].to_pylist()]
        table = table.set_column(table.schema.get_field_index(name), name, pa.array(values, pa.list_(kind, 5)))
    pq.write_table(table, tmp_path / "fixed.parquet")
    assert content(tmp_path / "fixed.parquet") == content(plain)


@pytest.mark.parametrize("compression", ["uncompressed", "snappy", "gzip", "lz4", "zstd", "brotli"])
@pytest.mark.parametrize("as_category", [False, True])
def test_what_polars_writes(compression: Any, as_category: bool, log: Path, tmp_path: Path):
    frame = pl.read_parquet(log)
    if as_category:
        frame = frame.with_columns(pl.col(NAMES).cast(pl.Categorical))
    for rows_per_group, page in product([5, None], [100, None]):
        path = tmp_path / "polars.parquet"
        frame.write_parquet(path, compression=compression, row_group_size=rows_per_group, data_page_size=page)
        assert content(path) == content(log)


@pytest.mark.parametrize("version", ["v1", "v2"])
@pytest.mark.parametrize("compression", ["uncompressed", "snappy", "gzip", "lz4_raw", "zstd", "brotli"])
def test_what_duckdb_writes(version: str, compression: str, log: Path, tmp_path: Path):
    path = tmp_path / "duck.parquet"
    for limit in (1, 1000):
        with duckdb.connect() as connection:
            connection.execute(
                f"COPY (SELECT * FROM '{log}') TO '{path}' (FORMAT parquet, PARQUET_VERSION {version}, "
                f"COMPRESSION {compression}, STRING_DICTIONARY_PAGE_SIZE_LIMIT {limit})"
            )
        row_group = pq.ParquetFile(path).metadata.row_group(0)
        columns = [row_group.column(index) for index in range(row_group.num_columns)]
        encodings = next(column.encodings for column in columns if column.path_in_schema == "status")
        assert ("DELTA_LENGTH_BYTE_ARRAY" in encodings) == (version == "v2" and limit == 1)
        assert content(path) == content(log)
    audit_log(path)

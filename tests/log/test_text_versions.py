"""Versions written as texts that are whole numbers are read as those numbers."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.audit.model import Run, log_of
from tests.builders import put, write_log
from tokenaudit.audit.report import report_data
from tokenaudit.audit.session import audit_log
from tokenaudit.contracts.errors import LogError
from tokenaudit.replay.session import replay_log

VERSIONS = "response_model_steps"
TYPES = {
    "string": pa.list_(pa.string()),
    "large": pa.large_list(pa.large_string()),
    "dictionary": pa.list_(pa.dictionary(pa.int32(), pa.string())),
}


def as_text(path: Path, to: Path, kind: pa.DataType, change: dict[int, list[str | None]] | None = None) -> Path:
    """The log with its versions as texts, those of some rows changed."""
    table = pq.read_table(path)
    rows = [None if row is None else [None if one is None else str(one) for one in row]
            for row in table[VERSIONS].to_pylist()]  # fmt: skip
    for row, versions in (change or {}).items():
        rows[row] = versions
    index = table.schema.get_field_index(VERSIONS)
    plain = pa.large_list(pa.large_string()) if pa.types.is_large_list(kind) else pa.list_(pa.string())
    told = table.set_column(index, VERSIONS, pa.array(rows, plain).cast(kind))
    pq.write_table(told, to, row_group_size=50)
    return to


@pytest.mark.parametrize("kind", TYPES)
def test_a_log_with_versions_as_texts_is_the_log(kind: str, tmp_path: Path):
    run = Run(steps=5)
    (tmp_path / "texts").mkdir()
    path = write_log(tmp_path / "log.parquet", log_of(run))
    told = as_text(path, tmp_path / "texts" / "log.parquet", TYPES[kind])
    expected, found = (audit_log([one], overrides=run.config, isolated=True) for one in (path, told))
    assert found.rows
    assert report_data(found) == report_data(expected)
    totals = [replay_log(one, overrides=run.config, isolated=True).result.totals for one in (path, told)]
    assert totals[0] == totals[1]


def test_a_label_among_the_first_rows_is_refused_as_before(tmp_path: Path):
    path = write_log(tmp_path / "log.parquet", [put(1, 1, tokens=2, response_model_steps=[0, 0])])
    told = as_text(path, tmp_path / "texts.parquet", TYPES["string"], {0: ["step-0", "0"]})
    with pytest.raises(LogError, match="column 'response_model_steps' has the type list<element: string>"):
        replay_log(told, isolated=True)


def test_a_label_further_on_is_told_with_its_place(tmp_path: Path):
    rows = [put(n, n, tokens=2, response_model_steps=[0, 0]) for n in range(100)]
    told = as_text(write_log(tmp_path / "log.parquet", rows), tmp_path / "texts.parquet", TYPES["string"],
                   {90: ["0", "step-0"]})  # fmt: skip
    with pytest.raises(LogError, match="holds a text that is no whole number"):
        replay_log(told, overrides=("timeline.train_batch_size=1",), isolated=True)
    report = audit_log([told], isolated=True)
    (message,) = (one.message for one in report.findings if one.name == "input-truncated-file")
    assert message.startswith("column 'response_model_steps' holds a text that is no whole number")


def test_a_long_text_that_every_token_repeats_takes_little_memory(tmp_path: Path):
    """Decoded one by one, these are 2 GB."""
    text, tokens = "0" * 10_000 + "1", 200_000
    values = pa.DictionaryArray.from_arrays(pa.array([0] * tokens, pa.int32()), pa.array([text]))
    versions = pa.ListArray.from_arrays(pa.array([0, tokens], pa.int32()), values)
    path = write_log(tmp_path / "log.parquet", [put(1, 1, tokens=tokens, train_step=2, response_model_steps=[1])])
    table = pq.read_table(path)
    index = table.schema.get_field_index(VERSIONS)
    pq.write_table(table.set_column(index, VERSIONS, versions), tmp_path / "texts.parquet")
    before = pa.default_memory_pool().max_memory()
    report = audit_log([tmp_path / "texts.parquet"], isolated=True)
    assert report.tokens == tokens
    assert pa.default_memory_pool().max_memory() - before < 2**29

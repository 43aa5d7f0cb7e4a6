"""Reading in several threads: the order stays, memory is bounded, and crafted files are refused."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenaudit.contracts.errors import LogError
from tokenaudit.log import batches, log_file, pieces, reading
from tokenaudit.log.batches import map_batches, read_batches
from tokenaudit.log.files import open_log
from tokenaudit.log.prefetch import Prefetch
from tokenaudit.log.reading import read_digest


def no_threads_left(before: int) -> bool:
    for _ in range(100):
        if threading.active_count() <= before:
            return True
        time.sleep(0.01)
    return False


@given(st.lists(st.lists(st.integers()), max_size=6), st.integers(1, 4), st.integers(0, 5))
def test_parts_come_in_order(parts: list[list[int]], workers: int, limit: int):
    with Prefetch([iter(part) for part in parts], workers, lambda _: 1, limit) as items:
        assert list(items) == [item for part in parts for item in part]


def test_a_thread_waits_when_enough_waits_for_the_reader():
    made: list[int] = []

    def items() -> Iterator[int]:
        for item in range(100):
            made.append(item)
            yield item

    with Prefetch([items()], 1, lambda _: 10, 25) as ahead:
        assert next(iter(ahead)) == 0
        time.sleep(0.05)
        assert len(made) <= 6


def test_an_error_is_raised_in_its_place_and_ends_the_threads():
    def failing() -> Iterator[int]:
        yield 1
        raise ValueError("broken")

    before = threading.active_count()
    got: list[int] = []
    parts = [iter([0]), failing(), iter(range(10**9))]
    with pytest.raises(ValueError, match="broken"), Prefetch(parts, 3, lambda _: 1, 30) as items:
        got.extend(items)
    assert got == [0, 1]
    assert no_threads_left(before)


def test_a_reader_that_stops_ends_the_threads():
    before = threading.active_count()
    with Prefetch([iter(range(10**9)) for _ in range(3)], 2, lambda _: 1, 8) as ahead:
        items = iter(ahead)
        assert [next(items), next(items)] == [0, 1]
    assert no_threads_left(before)


def test_a_thread_that_is_done_begins_a_part_that_nobody_reads_yet():
    last_began = threading.Event()

    def slow() -> Iterator[int]:
        assert last_began.wait(10)
        yield 0

    def last() -> Iterator[int]:
        last_began.set()
        yield 2

    with Prefetch([slow(), iter([1]), last()], 2, lambda _: 1, 10) as items:
        assert list(items) == [0, 1, 2]


def table(lengths: list[int], *, versions: list[list[int]] | None = None, **columns: Any) -> pa.Table:
    count = len(lengths)
    lists = [[3] * length for length in lengths] if versions is None else versions
    return pa.table(
        {
            "event_id": range(count),
            "train_step": [1] * count,
            "group_id": range(count),
            "rollout_id": range(count),
            "status": pa.array(["completed"] * count).dictionary_encode(),
            "response_len": lengths,
            "response_model_steps": pa.array(lists, pa.list_(pa.int32())),
            "response_mask": pa.array([[1] * length for length in lengths], pa.list_(pa.int8())),
        }
        | columns
    )


@pytest.mark.parametrize("row_group_size", [1, 3, 50, 1000])
@pytest.mark.parametrize("workers", [1, 2, 5])
@pytest.mark.parametrize("files", [1, 3])
def test_every_way_to_read_gives_the_same_rows(
    row_group_size: int, workers: int, files: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    rng = np.random.default_rng(5)
    for number in range(files):
        part = table(rng.integers(0, 40, 200).tolist())
        pq.write_table(part, tmp_path / f"{number}.parquet", row_group_size=row_group_size)
    monkeypatch.setattr(batches, "worker_count", lambda: workers)
    monkeypatch.setattr(log_file, "TARGET_BATCH_ELEMENTS", 150)
    log = open_log([tmp_path])
    names = ["status", "response_len", "response_model_steps", "response_mask"]

    def rows(batch: pieces.LogBatch) -> list[tuple[Any, ...]]:
        columns = [batch.columns[name].to_pylist() for name in names]
        places = [(batch.places.at(row), batch.first_row + row) for row in range(batch.rows)]
        return list(zip(places, *columns, strict=True))

    done: list[int] = []
    expected = [row for batch in read_batches(log, names) for row in rows(batch)]
    mapped = map_batches(log, names, rows, rows_of=len, weigh=len, limit=20, on_progress=done.append)
    assert [row for part in mapped for row in part] == expected
    assert len(expected) == done[-1] == 200 * files
    assert done == sorted(done)


def test_long_responses_that_stand_together_are_cut_into_smaller_batches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    lengths = [1] * 900 + [1000] * 100
    pq.write_table(table(lengths), tmp_path / "log.parquet")
    monkeypatch.setattr(log_file, "TARGET_BATCH_ELEMENTS", 10_000)
    monkeypatch.setattr(pieces, "TARGET_BATCH_ELEMENTS", 10_000)
    monkeypatch.setattr(pieces, "SMALL_PIECE_ELEMENTS", 10_000)
    sizes = [
        len(batch.columns["response_mask"].flatten())
        for batch in read_batches(open_log([tmp_path / "log.parquet"]), ["response_mask"])
    ]
    assert sum(sizes) == sum(lengths)
    assert max(sizes) <= 20_000


@pytest.fixture
def small_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pieces, "TARGET_BATCH_ELEMENTS", 100)
    monkeypatch.setattr(pieces, "SMALL_PIECE_ELEMENTS", 100)
    monkeypatch.setattr(pieces, "MAX_ROW_ELEMENTS", 1000)
    monkeypatch.setattr(pieces, "MAX_UNBOUNDED_ELEMENTS", 3000)


def refused(path: Path, part: pa.Table) -> str:
    pq.write_table(part, path)
    with pytest.raises(LogError) as caught:
        read_digest(open_log([path]))
    assert caught.value.problems[0].hint
    assert caught.value.problems[0].where == f"{path}, rows 0 to {len(part) - 1}"
    return caught.value.problems[0].what


@pytest.mark.usefixtures("small_limits")
def test_rows_that_no_response_is_long_enough_for(tmp_path: Path):
    path = tmp_path / "log.parquet"
    honest = table([10] * 20 + [1500])
    assert "the longest of 1500" in refused(path, honest)
    lengths = [10] * 21
    lying = table(lengths, versions=[[3] * 10] * 20 + [[3] * 1500])
    assert refused(path, lying).startswith("lists of 1700 elements for responses of 210 tokens")
    untold = table([10] * 20 + [4000]).drop_columns(["response_len"])
    assert "doesn't give the length of every response" in refused(path, untold)
    partly = table([10] * 20 + [4000], response_len=pa.array([None] + [10] * 19 + [4000]))
    assert "doesn't give the length of every response" in refused(path, partly)


@pytest.mark.usefixtures("small_limits")
def test_a_list_that_is_a_little_too_long_is_a_fault_of_its_row(tmp_path: Path):
    path = tmp_path / "log.parquet"
    pq.write_table(table([10] * 30, versions=[[3] * 10] * 29 + [[3] * 200]), path)
    with pytest.raises(LogError, match="200 versions for 10 tokens"):
        read_digest(open_log([path]))


def test_one_row_of_very_many_equal_entries_is_refused_before_it_is_decoded(tmp_path: Path):
    """The file is small: equal entries are stored as one run of a dictionary code."""
    path = tmp_path / "log.parquet"
    entries = 2**25
    part = table([entries], versions=[[0]]).set_column(
        6,
        "response_model_steps",
        pa.ListArray.from_arrays(pa.array([0, entries], pa.int32()), np.zeros(entries, np.int32)),
    )
    pq.write_table(part.drop_columns(["response_mask"]), path)
    del part
    assert path.stat().st_size < 100_000
    before = pa.total_allocated_bytes()
    with pytest.raises(LogError, match="list elements per row on average"):
        open_log([path])
    assert pa.total_allocated_bytes() - before < 2**20


def test_a_version_change_on_every_token_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(reading, "MAX_RUNS", 5000)
    path = tmp_path / "log.parquet"
    pq.write_table(table([100] * 60, versions=[list(range(100))] * 60), path)
    with pytest.raises(LogError, match="the version changes 6000 times in the first 60 responses"):
        read_digest(open_log([path]))
    pq.write_table(table([100] * 60, versions=[[step // 2 for step in range(100)]] * 60), path)
    monkeypatch.setattr(reading, "MAX_RUNS", 1000)
    assert len(read_digest(open_log([path])).runs.tokens) == 3000


@pytest.mark.parametrize("row_group_size", [10, 1000])
def test_damage_behind_the_footer_is_told_with_its_place(row_group_size: int, tmp_path: Path):
    path = tmp_path / "log.parquet"
    pq.write_table(table([50] * 100), path, row_group_size=row_group_size, use_dictionary=False, compression="zstd")
    chunk = pq.ParquetFile(path).metadata.row_group(0).column(6)
    content = bytearray(path.read_bytes())
    content[chunk.data_page_offset : chunk.data_page_offset + chunk.total_compressed_size] = bytes(
        chunk.total_compressed_size
    )
    path.write_bytes(content)
    with pytest.raises(LogError, match="damaged Parquet file") as caught:
        read_digest(open_log([path]))
    assert caught.value.problems[0].where == f"{path}, behind row 0"

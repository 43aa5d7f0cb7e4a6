"""The times of a log's events: one per event of its digest, whatever files, batches, ranks and faults there are."""

from __future__ import annotations

import tempfile
from itertools import groupby
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.builders import put, refresh, small_batches, sync, take, write_log
from tests.conftest import examples
from tests.log.ranked_logs import write_ranks
from tests.oracles.slow_ranks import RankRows
from tests.strategies import logs
from tokenaudit.contracts.errors import LogError
from tokenaudit.log.columns import ABSENT
from tokenaudit.log.files import open_log
from tokenaudit.log.reading import read_digest
from tokenaudit.log.recorded_times import recorded_times


def times_in(path: Path, *, quarantine: bool = False) -> list[int | None]:
    log = open_log([path])
    times = recorded_times(log, read_digest(log, quarantine=quarantine)).tolist()
    return [None if time == ABSENT else time for time in times]


@examples(1)
@given(data=st.data(), rows=logs(max_events=20), files=st.integers(1, 3), batch_rows=st.integers(1, 6))
def test_an_event_has_the_largest_time_of_its_rows(data, rows, files, batch_rows):
    times = data.draw(st.lists(st.none() | st.integers(0, 9), min_size=len(rows), max_size=len(rows)))
    rows = [row | {"time_us": time} for row, time in zip(rows, times, strict=True)]
    expected = [
        max((row["time_us"] for row in event if row["time_us"] is not None), default=None)
        for _, event in groupby(rows, key=lambda row: row["event_id"])
    ]
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        small_batches(patch, rows=batch_rows, elements=batch_rows)
        assert times_in(write_log(Path(folder, "log.parquet"), rows, files=files)) == expected


def test_what_quarantine_leaves_out_has_no_time(tmp_path: Path):
    rows = [
        refresh(1, time_us=1),
        put(2, 1, time_us=2),
        put(3, 2, time_us=3, tokens=-1),
        put(4, 2, time_us=4),
        put(5, 3, time_us=5),
        take(6, time_us=6),
    ]
    assert times_in(write_log(tmp_path / "log.parquet", rows), quarantine=True) == [1, 2, 5, 6]


def test_times_of_ranks_are_those_of_the_merged_clock(tmp_path: Path):
    ranks = [
        RankRows(0, 1_000, [refresh(1, time_us=0), take(2, time_us=50), sync(3, time_us=60)]),
        RankRows(1, 1_010, [put(1, 1, time_us=5), put(2, 2, time_us=45)]),
    ]
    assert times_in(write_ranks(tmp_path / "log", ranks)) == [0, 15, 50, 55, 60]


def test_a_log_that_changed_meanwhile_is_refused(tmp_path: Path):
    path = write_log(tmp_path / "log.parquet", [put(1, 1, time_us=1), put(2, 2, time_us=2)])
    digest = read_digest(open_log([path]))
    write_log(path, [put(1, 1, time_us=1)])
    with pytest.raises(LogError, match="other events than before"):
        recorded_times(open_log([path]), digest)


def test_a_log_without_times_is_not_read_again(tmp_path: Path):
    path = write_log(tmp_path / "log.parquet", [put(1, 1), put(2, 2)])
    log = open_log([path])
    digest = read_digest(log)
    path.unlink()
    assert recorded_times(log, digest).tolist() == [ABSENT, ABSENT]
    assert recorded_times(log, digest).dtype == np.int64

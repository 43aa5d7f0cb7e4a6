"""Logs of many ranks: merged by clock into what one recorder would have written, or refused with the reason."""

import json
import re
import tempfile
import tomllib
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.builders import Row, numbered, put, read_rows, refresh, sample, small_batches, sync, take, write_log
from tests.conftest import examples
from tests.log.ranked_logs import ORIGIN, RANK, WORLD_SIZE, rank_metadata, split_in_ranks, write_ranks
from tests.oracles.slow_ranks import RankRows, merged_rows
from tests.strategies import configs, logs
from tokenaudit.contracts.errors import LogError
from tokenaudit.contracts.schema import COLUMNS
from tokenaudit.log import ranks as ranks_module
from tokenaudit.log.batches import read_batches
from tokenaudit.log.files import open_log
from tokenaudit.log.reading import read_digest
from tokenaudit.replay.saved_result import result_to_json
from tokenaudit.replay.session import replay_log

GOLDEN = Path(__file__).parent.parent / "golden"


def rows_read(path: Path) -> list[Row]:
    """The rows of a log as its readers get them; what is null is left out."""
    log = open_log([path])
    names = [column.name for column in COLUMNS]
    rows: list[Row] = []
    for batch in read_batches(log, names):
        assert batch.first_row == len(rows)
        columns = {name: array.to_pylist() for name, array in batch.columns.items()}
        lists = zip(*columns.values(), strict=True)
        rows += plain([dict(zip(columns, values, strict=True)) for values in lists])
    assert len(rows) == log.rows
    return rows


def plain(rows: list[Row]) -> list[Row]:
    return [{name: value for name, value in row.items() if value is not None} for row in rows]


SMALL_EVENTS = st.lists(
    st.tuples(
        st.sampled_from(("put", "put", "two", "refresh", "sync", "sample", "take")),
        st.integers(0, 3),
        st.sampled_from((None, 0, 1, 1, 2, 5, 9, -4)),
        st.integers(0, 2),
    ),
    max_size=12,
)


def recorded(events: list[tuple[str, int, int | None, int]], *, may_take: bool) -> list[Row]:
    """Rows of a rank from (kind, step, time, distance to the event before); rows of one event may differ in time."""
    rows: list[Row] = []
    event_id = 0
    for kind, step, time, gap in events:
        event_id += 1 + gap
        shared: dict[str, Any] = {"time_us": time}
        if kind in ("put", "two") or (kind == "take" and not may_take):
            members = (1, 2) if kind == "two" else (1,)
            rows += [put(event_id, len(rows), 10 * len(rows) + m, train_step=step, **shared) for m in members]
            if kind == "two":
                rows[-1]["time_us"] = None if gap == 1 else step + gap
        elif kind == "sample":
            rows.append(sample(event_id, 3, **shared))
        elif kind == "take":
            rows.append(take(event_id, step, **shared))
        else:
            rows.append((refresh if kind == "refresh" else sync)(event_id, step, **shared))
    return rows


@examples(1)
@given(
    ranks=st.lists(st.tuples(st.integers(0, 12), SMALL_EVENTS), min_size=1, max_size=5),
    taker=st.integers(0, 4),
    files=st.integers(1, 3),
    batch_rows=st.integers(1, 6),
)
def test_ranks_are_merged_as_the_obvious_program_does(ranks, taker, files, batch_rows):
    parts = [
        RankRows(number, origin, recorded(events, may_take=number == taker))
        for number, (origin, events) in enumerate(ranks)
    ]
    expected = merged_rows(parts)
    if not expected:
        return
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        small_batches(patch, rows=batch_rows, elements=batch_rows)
        read = rows_read(write_ranks(Path(folder, "log"), parts, files=files))
    assert read == plain(expected)


@examples(1)
@given(data=st.data(), rows=logs(max_events=25), config=configs(), files=st.integers(1, 2))
def test_a_log_split_in_ranks_replays_to_the_same_bytes(data, rows, config, files):
    parts = data.draw(split_in_ranks(rows))
    with tempfile.TemporaryDirectory() as folder:
        single = write_log(Path(folder, "log.parquet"), rows)
        ranked = write_ranks(Path(folder, "ranked"), parts, world_size=10, files=files)
        # the names of inputs are all that may differ, and that ranks are missing
        whole, merged = (
            replay_log([path], config=config, with_groups=True, isolated=True).result for path in (single, ranked)
        )
    assert merged.inputs[0].rows == whole.inputs[0].rows == len(rows)
    assert merged.inputs[0].content_hash == whole.inputs[0].content_hash
    told = {"lost-events", "source-limit"}
    notices = (tuple(notice for notice in run.warnings if notice.code not in told) for run in (whole, merged))
    whole, merged = (replace(run, inputs=(), warnings=told) for run, told in zip((whole, merged), notices, strict=True))
    assert result_to_json(merged) == result_to_json(whole)


def test_times_before_the_origin_and_no_time_at_all_count_as_the_origin(tmp_path: Path):
    """Of an event, its latest row decides."""
    early = [
        put(1, 1),
        put(2, 2, time_us=-50),
        put(3, 3, 30, time_us=1),
        put(3, 3, 31, time_us=9),
        put(4, 4, time_us=2),
    ]
    other = [put(1, 5, time_us=-1), put(2, 6, time_us=0), put(3, 7, time_us=4), put(4, 8, time_us=5)]
    folder = write_ranks(tmp_path / "log", [RankRows(0, 104, early), RankRows(1, 100, other)])
    read = rows_read(folder)
    assert [row["group_id"] for row in read] == [5, 6, 1, 2, 7, 8, 3, 3, 4]
    assert [row["event_id"] for row in read] == [1, 2, 3, 4, 5, 6, 7, 7, 8]
    assert [row.get("time_us") for row in read] == [-1, 0, None, -46, 4, 5, 5, 13, 6]


def test_ranks_that_recorded_nothing_are_a_log_without_a_row(tmp_path: Path, run_cli):
    folder = write_ranks(tmp_path / "log", [RankRows(0, 0, []), RankRows(1, 5, [])], omit_null_columns=False)
    assert refused(folder) == [("the log has no row", "part-rank0000-000001.parquet")]
    assert run_cli("audit", folder).code == 2


def test_a_file_is_closed_though_its_last_rows_are_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    first = RankRows(0, 0, numbered([refresh(0, step, time_us=step) for step in range(200)]))
    folder = write_ranks(tmp_path / "log", [first], world_size=2)
    for number in range(20):
        base = 1000 + 10 * number
        own = [
            put(base, number, time_us=base),
            *(refresh(base + n, 9 * number + n, time_us=base + n) for n in range(1, 9)),
        ]
        part(folder, f"part-rank0001-{number:06}", own, rank_metadata(1, 2))
    log = open_log([folder])
    small_batches(monkeypatch, rows=2)
    before = len(list(Path("/proc/self/fd").iterdir()))
    most = [len(list(Path("/proc/self/fd").iterdir())) - before for _ in read_batches(log, ("group_id", "event_id"))]
    assert log.rows == 220
    assert max(most) <= 2


def part(folder: Path, name: str, rows: list[Row], metadata: dict[str, str] | None) -> Path:
    folder.mkdir(exist_ok=True)
    return write_log(folder / f"{name}.parquet", rows, metadata=metadata, omit_null_columns=False)


def refused(folder: Path) -> list[tuple[str, str]]:
    with pytest.raises(LogError) as caught:
        open_log([folder])
    assert all(problem.hint for problem in caught.value.problems)
    return [(problem.what, (problem.where or "").replace(f"{folder}/", "")) for problem in caught.value.problems]


def test_takes_from_several_ranks_are_refused_with_where_they_stand(tmp_path: Path):
    for rank in (0, 1, 2, 5):
        rows = [put(1, rank, time_us=1), take(2, 1, time_us=2)] if rank != 1 else [put(1, 1, time_us=1)]
        part(tmp_path / "log", f"r{rank}", rows, rank_metadata(rank, 6))
    expected = ("takes come from ranks 0, 2, 5", "r0.parquet, row 1; r2.parquet, row 1; …")
    assert refused(tmp_path / "log") == [expected]


def test_parts_with_and_without_a_rank_are_refused(tmp_path: Path):
    folder = tmp_path / "log"
    part(folder, "a", [put(1)], rank_metadata(3, 4))
    part(folder, "b", [put(1)], {ORIGIN: "7"})
    assert refused(folder) == [
        ("parts with and without a rank: a.parquet is of rank 3, b.parquet of none", "b.parquet")
    ]


def test_two_runs_of_a_rank_are_refused(tmp_path: Path):
    folder = tmp_path / "log"
    part(folder, "a", [put(1, time_us=5)], rank_metadata(1, 4, 100))
    part(folder, "b", [put(2, time_us=5)], rank_metadata(1, 4, 200))
    part(folder, "c", [put(3, time_us=5)], rank_metadata(0, 8, 100))
    assert refused(folder) == [
        (f"two runs of rank 1: {ORIGIN} is 100 in a.parquet and 200 in b.parquet", "b.parquet"),
        (f"parts of two runs: {WORLD_SIZE} is 4 in a.parquet (rank 1) and 8 in c.parquet (rank 0)", "c.parquet"),
    ]
    other = tmp_path / "ids"
    part(other, "a", [put(1), put(6), take(7)], rank_metadata(1, 2))
    part(other, "b", [put(7), put(8), put(2)], rank_metadata(1, 2))
    part(other, "c", [put(1)], rank_metadata(0, 2))
    assert refused(other) == [
        ("two runs of rank 1: event_id 2 comes after 8", "b.parquet, row 2, column event_id"),
    ]


@pytest.mark.parametrize(
    ("metadata", "what"),
    [
        ({RANK: "0"}, [f"the part of a rank lacks {name} in its metadata" for name in (WORLD_SIZE, ORIGIN)]),
        ({WORLD_SIZE: "2", ORIGIN: "0"}, [f"the part of a rank lacks {RANK} in its metadata"]),
        ({RANK: "2", WORLD_SIZE: "2", ORIGIN: "0"}, ["rank 2 of a world size of 2"]),
        ({RANK: "0", WORLD_SIZE: "0", ORIGIN: "0"}, ["rank 0 of a world size of 0"]),
        ({RANK: "-1", WORLD_SIZE: "2", ORIGIN: "0"}, [f"{RANK} is '-1' in its metadata"]),
        ({RANK: "²", WORLD_SIZE: " 2", ORIGIN: "1e3"}, [
            f"{RANK} is '²' in its metadata",
            f"{WORLD_SIZE} is ' 2' in its metadata",
            f"{ORIGIN} is '1e3' in its metadata",
        ]),
        ({RANK: "0", WORLD_SIZE: "2", ORIGIN: str(2**62)}, [f"{ORIGIN} is '{2**62}' in its metadata"]),
        ({RANK: "9" * 5000, WORLD_SIZE: "2", ORIGIN: "0"}, [f"{RANK} is '{'9' * 12}...{'9' * 13}' in its metadata"]),
    ],
)  # fmt: skip
def test_metadata_that_says_no_rank_is_refused(metadata: dict[str, str], what: list[str], tmp_path: Path):
    folder = tmp_path / "log"
    part(folder, "a", [put(1)], metadata)
    assert refused(folder) == [(text, "a.parquet") for text in what]


def test_more_ranks_than_files_can_be_open_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(ranks_module, "MAX_RANKS", 2)
    write_ranks(tmp_path / "log", [RankRows(rank, 0, [put(1)]) for rank in range(3)])
    assert refused(tmp_path / "log") == [("parts of 3 ranks", "part-rank0000-000001.parquet")]


def test_a_fault_is_named_by_the_file_and_row_of_its_rank(tmp_path: Path):
    folder = tmp_path / "log"
    part(folder, "a", [put(1, 1, time_us=1), put(2, 2, time_us=4)], rank_metadata(0, 2))
    bad = [put(1, 3, time_us=2), put(2, 4, status="odd", time_us=3), put(None, 5, time_us=9)]  # type: ignore[arg-type]
    part(folder, "b", bad, rank_metadata(1, 2))
    log = open_log([folder])
    with pytest.raises(LogError) as caught:
        read_digest(log)
    places = [(problem.what, problem.where) for problem in caught.value.problems[:-1]]
    assert places == [
        ("unknown status 'odd'", f"{folder / 'b.parquet'}, row 1, column status"),
        ("event_id is null", f"{folder / 'b.parquet'}, row 2, column event_id"),
    ]


def notices_of(folder: Path) -> list[tuple[str, str]]:
    codes = ("lost-events", "source-limit", "log-note")
    warnings = replay_log(folder, isolated=True).result.warnings
    return [(notice.code, notice.message) for notice in warnings if notice.code in codes]


def test_ranks_without_a_part_are_named_and_the_gate_does_not_judge_them(tmp_path: Path, run_cli):
    rows = [put(1, 1, time_us=1), take(2, 1, time_us=9)]
    others = [RankRows(rank, 0, [put(1, 10 + rank, time_us=2)]) for rank in (2, 3, 7)]
    write_ranks(tmp_path / "log", [RankRows(0, 0, rows), *others], world_size=10**6)
    lost = [("lost-events", "there is no part of ranks 1, 4 to 6, 8 to 999999 of 1000000")]
    assert notices_of(tmp_path / "log") == lost
    assert lost[0][1] in run_cli("inspect", "log").out
    assert run_cli("compact", "log", "-o", "small.parquet").code == 0
    assert notices_of(tmp_path / "small.parquet") == lost
    rule = ("--isolated", "--rule", "failed_tokens <= 0")
    for name in ("log", "small.parquet"):
        ran = run_cli("gate", name, *rule)
        assert (ran.code, f"error: {lost[0][1]}\n  at: {name}" in ran.err) == (2, True)
        assert run_cli("gate", name, *rule, "--allow-lost-events").code == 0


def test_all_ranks_are_there(tmp_path: Path, run_cli):
    rows = [put(1, 1, time_us=1), take(2, 1, time_us=9)]
    others = [RankRows(rank, 0, [put(1, 10 + rank, time_us=1)]) for rank in (1, 2)]
    write_ranks(tmp_path / "log", [RankRows(0, 0, rows), *others])
    assert notices_of(tmp_path / "log") == []
    assert "parts of 3 ranks are merged: 0 to 2" in run_cli("inspect", "log").out


def test_the_last_train_step_of_each_rank_is_shown_and_who_ended_early(tmp_path: Path, run_cli):
    def of_steps(rank: int, *steps: int) -> RankRows:
        return RankRows(rank, 0, [put(n, 10 * rank + n, train_step=step, time_us=n) for n, step in enumerate(steps, 1)])

    together = [of_steps(0, 1, 4), of_steps(1, 2, 5), of_steps(2, 5, 3)]
    write_ranks(tmp_path / "log", together)
    out = run_cli("inspect", "log").out
    assert "last train step: 5 (ranks 1 to 2), 4 (rank 0)" in out
    assert "early" not in out
    write_ranks(tmp_path / "log", [*together, of_steps(3, 3, 2), of_steps(4)])
    notes = json.loads(run_cli("inspect", "log", "--format", "json").out)["notes"]
    assert notes[1:3] == [
        "last train step: 5 (ranks 1 to 2), 4 (rank 0), 3 (rank 3)",
        "rank 3 ended early: others recorded up to train step 5",
    ]


def clock_warnings(folder: Path, *parts: RankRows) -> list[str]:
    return [message for code, message in notices_of(write_ranks(folder, parts)) if code == "source-limit"]


def trainer(*, with_refresh: bool) -> RankRows:
    """Steps of 10 seconds: a refresh at 0, the take at 9, the sync at 9.5."""
    rows: list[Row] = []
    for step in (1, 2, 3):
        begin = 10_000_000 * step
        if with_refresh:
            rows.append(refresh(0, step, time_us=begin))
        rows += [put(0, step, train_step=step, time_us=begin + 1_000_000), take(0, step, time_us=begin + 9_000_000)]
        rows.append(sync(0, step, step, time_us=begin + 9_500_000))
    return RankRows(0, 0, numbered(rows))


@pytest.mark.parametrize(
    ("with_refresh", "step", "seconds", "off"),
    [
        (True, 2, 20.0, None),
        (True, 2, 30.0, None),
        (True, 2, 19.5, "500.000 ms early"),
        (True, 2, 31.25, "1.250 s late"),
        (True, 3, 99.0, None),
        (True, 1, 9.999_999, "1 µs early"),
        (False, 1, 0.0, None),
        (False, 2, 19.0, None),
        (False, 2, 18.5, "500.000 ms early"),
        (False, 2, 29.5, "500.000 ms late"),
        (False, 3, 39.5, "500.000 ms late"),
        (False, 5, 38.0, "1.000 s early"),
    ],
)
def test_clocks_that_put_a_put_outside_its_step(
    with_refresh: bool, step: int, seconds: float, off: str | None, tmp_path: Path
):
    time = round(seconds * 1e6)
    other = RankRows(1, 3, numbered([put(0, 9, train_step=step, time_us=time - 3)]))
    expected = (
        "by the clocks of the ranks, events lie outside their train steps as rank 0 records those: rank 1 (1 event, up"
        f" to {off}); synchronise the clocks of the hosts, or let every rank record the train step that the buffer is"
        " in"
    )
    warnings = clock_warnings(tmp_path / "log", trainer(with_refresh=with_refresh), other)
    assert warnings == ([expected] if off else [])


def test_clocks_that_put_refreshes_and_syncs_outside_their_steps(tmp_path: Path):
    early = [refresh(0, 3, time_us=28_000_000), sync(0, 3, 3, time_us=38_000_000)]
    late = [put(0, 8, train_step=1, time_us=99_000_000), put(0, 9, train_step=2, time_us=99_000_000)]
    trainer_rows = trainer(with_refresh=True)
    (message,) = clock_warnings(
        tmp_path / "log", trainer_rows, RankRows(1, 0, numbered(early)), RankRows(2, 0, numbered(late))
    )
    assert "rank 1 (2 events, up to 1.000 s early), rank 2 (2 events, up to 79.000 s late);" in message
    # a sync that counts only once, and later, is nothing to warn of
    in_time = RankRows(1, 0, numbered([sync(0, 3, 3, time_us=60_000_000), refresh(0, 3, time_us=61_000_000)]))
    assert clock_warnings(tmp_path / "other", trainer_rows, in_time) == []


def test_syncs_of_a_step_to_different_versions_are_named(tmp_path: Path):
    other = RankRows(1, 0, numbered([sync(0, step, step - step // 2, time_us=80_000_000) for step in (1, 2, 3)]))
    (message,) = clock_warnings(tmp_path / "log", trainer(with_refresh=True), other)
    assert message == (
        "ranks record different versions for the syncs of 2 train steps, such as step 2: 2 on rank 0, 1 on rank 1; the"
        " first counts"
    )


def test_ranks_may_differ_in_columns_and_types(tmp_path: Path):
    spellings = (
        {"integers": pa.uint64(), "list_type": "large_list", "text": "dictionary", "mask": "bool"},
        {"integers": pa.int32(), "omit_null_columns": False, "null_type": True},
        {"integers": pa.int8(), "text": "large_string", "versions": "runs"},
    )
    folder = tmp_path / "log"
    folder.mkdir()
    rows = [
        put(0, number, tokens=3, time_us=number, task_name="math" if number % 2 else None, response_mask=[1, 0, 1])
        | ({"reward": 0.5, "logprobs": [0.5, 0.25, 0.5]} if number % 3 == 0 else {})
        for number in range(60)
    ]
    for rank, options in enumerate(spellings):
        own = numbered(rows[rank::3])
        write_log(folder / f"{rank}.parquet", own, metadata=rank_metadata(rank, 3), **options)  # type: ignore[arg-type]
    single = write_log(tmp_path / "single.parquet", numbered(rows))
    merged = read_digest(open_log([folder]))
    assert merged.content_hash() == read_digest(open_log([single])).content_hash()
    assert merged.log_row.tolist() == list(range(60))
    read = rows_read(folder)
    assert [row.get("reward") for row in read] == [row.get("reward") for row in rows]
    assert [row.get("task_name") for row in read] == [row.get("task_name") for row in rows]


def test_many_ranks_hold_a_file_open_each_and_no_more(tmp_path: Path):
    parts = [
        RankRows(rank, 0, numbered([put(0, 100 * step + rank, time_us=70 * step + rank) for step in range(24)]))
        for rank in range(70)
    ]
    folder = write_ranks(tmp_path / "log", parts, files=2)
    log = open_log([folder])
    before = len(list(Path("/proc/self/fd").iterdir()))
    most, read = 0, []
    with pytest.MonkeyPatch.context() as patch:
        small_batches(patch, rows=100)
        for batch in read_batches(log, ("group_id", "event_id")):
            most = max(most, len(list(Path("/proc/self/fd").iterdir())) - before)
            read += batch.columns["group_id"].to_pylist()
    assert read == [100 * step + rank for step in range(24) for rank in range(70)]
    assert 0 < most <= 70
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def golden_in_ranks(folder: Path, case: str) -> None:
    """`many/log`, a recorded case split in ranks, and `one/log`, the same of one recorder."""
    source = GOLDEN / case / "log.parquet"
    rows = [row | {"time_us": 1000 * (row["time_us"] or 0)} for row in read_rows(source)]
    events = [list(group) for _, group in groupby(rows, key=lambda row: row["event_id"])]
    owned: dict[int, list[Row]] = {rank: [] for rank in range(4)}
    latest = 0
    single: list[Row] = []
    for number, event in enumerate(events, 1):
        latest = max(latest + 1, event[0]["time_us"])
        rank = 3 if event[0]["event"] in ("take", "refresh", "sync") else number % 4
        single += [row | {"event_id": number, "time_us": latest} for row in event]
        owned[rank] += [row | {"event_id": number, "time_us": latest - 10 * rank} for row in event]
        if event[0]["event"] == "sync":
            owned[0] += [row | {"event_id": number, "time_us": latest + 1} for row in event]
    metadata = {"tokenaudit.config": json.dumps(tomllib.loads((GOLDEN / case / "config.toml").read_text()))}
    for kind in ("one", "many"):
        (folder / kind / "log").mkdir(parents=True)
    write_log(folder / "one" / "log" / "part.parquet", single, metadata=metadata, omit_null_columns=False)
    for rank, own in owned.items():
        cut = len(own) // 2
        for number, rows_of_part in enumerate((own[:cut], own[cut:])):
            path = folder / "many" / "log" / f"part-rank{rank:04}-{number:06}.parquet"
            of_rank = metadata | rank_metadata(rank, 4, 10**15 + 10 * rank)
            write_log(path, rows_of_part, metadata=of_rank, omit_null_columns=False)


@pytest.mark.parametrize("case", ["disagg_001", "colocated_003"])
def test_every_command_gives_what_it_gives_for_the_log_of_one_recorder(
    case: str, tmp_path: Path, run_cli, monkeypatch: pytest.MonkeyPatch
):
    golden_in_ranks(tmp_path, case)
    group = next(row for row in read_rows(GOLDEN / case / "log.parquet") if row["event"] == "put")
    commands = (
        ["replay", "log", "--format", "json", "--groups"],
        ["replay", "log", "--cache", "kept", "--format", "csv"],
        ["replay", "log", "--cache", "kept", "--format", "csv"],
        ["diff", "--log", "log", "--set-b", "policy.max_staleness=0", "--format", "json"],
        ["gate", "log", "--rule", "expired_groups <= 3", "--format", "json"],
        ["mask", "log", "-o", "masks.parquet", "--device", "cpu", "--include-untaken", "3"],
        ["audit", "log", "--format", "json"],
        ["explain", "log", "--group", f"{group['task_name']}/{group['group_id']}"],
        ["explain", "log", "--step", "2"],
        ["simulate", "log", "--prompt-order", "start", "--format", "json"],
        ["workload", "log", "-o", "workload.parquet"],
        ["compact", "log", "-o", "small.parquet"],
        ["replay", "small.parquet", "--format", "json"],
    )
    for command in commands:
        told = []
        for kind in ("one", "many"):
            monkeypatch.chdir(tmp_path / kind)
            ran = run_cli(*command)
            told.append((ran.code, re.sub(r'("(?:files_\w+|checked)"): 8', r"\1: 1", ran.out), ran.err))
        assert told[0] == told[1], command
        assert told[0][0] in (0, 1), told[0]
    for name in ("masks.parquet", "workload.parquet", "small.parquet"):
        one, many = (pq.read_table(tmp_path / kind / name) for kind in ("one", "many"))
        assert many.equals(one, check_metadata=True), name

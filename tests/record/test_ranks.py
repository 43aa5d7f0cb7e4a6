"""A recorder per rank: each has parts, ids and a lock of its own, whatever happens to the other ranks."""

from __future__ import annotations

import asyncio
import json
import os
import random
import subprocess
import sys
import threading
import time
from collections import defaultdict
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.conftest import ROOT
from tests.record.rank_kill import FIRST_GROUP, WORLD_SIZE
from tests.record.test_record import GOLDEN, record_rows, rows_of, stalled
from tests.record.xtuner_fake import FakeReplayBuffer, FakeState, FakeStatus
from tokenaudit import Recorder, replay_log
from tokenaudit.contracts.errors import RecordError
from tokenaudit.contracts.schema import META_CLOCK_ORIGIN, META_RANK, META_WORLD_SIZE
from tokenaudit.record.event_times import RunClock
from tokenaudit.record.waiting_rows import WhenFull
from tokenaudit.record.xtuner import attach_xtuner

ENVIRONMENT = os.environ | {"PYTHONPATH": str(ROOT)}


def metadata_of(part: Path) -> dict[str, str]:
    return {key.decode(): value.decode() for key, value in pq.read_schema(part).metadata.items()}


def record(folder: Path, step: int = 1, **options: Any) -> None:
    with Recorder(folder, **options) as recorder:
        recorder.refresh(step)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_every_rank_has_parts_ids_and_metadata_of_its_own(tmp_path: Path):
    before_us = time.time_ns() // 1000
    recorders = [Recorder(tmp_path, rank=rank, world_size=np.int64(12)) for rank in (0, 11)]
    for recorder in recorders:
        recorder.refresh(1)
        recorder.take(1, 1)
    for recorder in recorders:
        recorder.close()
    after_us = time.time_ns() // 1000
    assert names(tmp_path) == ["part-rank0000-000001.parquet", "part-rank0011-000001.parquet"]
    for rank, recorder in zip(("0", "11"), recorders, strict=True):
        part = tmp_path / f"part-rank{int(rank):04}-000001.parquet"
        metadata = metadata_of(part)
        assert (metadata[META_RANK], metadata[META_WORLD_SIZE]) == (rank, "12")
        assert metadata[META_CLOCK_ORIGIN] == str(recorder.clock_origin_us)
        rows = pq.read_table(part).to_pylist()
        assert [(row["event_id"], row["event"]) for row in rows] == [(1, "refresh"), (2, "take")]
        times = [int(metadata[META_CLOCK_ORIGIN]) + row["time_us"] for row in rows]
        assert before_us <= times[0] <= times[1] <= after_us


@pytest.mark.parametrize(
    ("options", "messages"),
    [
        ({"rank": 0}, ["world_size is missing"]),
        ({"world_size": 2}, ["rank is missing"]),
        ({"rank": True, "world_size": False}, ["rank is True", "world_size is False"]),
        ({"rank": "0", "world_size": 2.0}, ["rank is '0'", "world_size is 2.0"]),
        ({"rank": -1, "world_size": 2**31}, ["rank is -1", f"world_size is {2**31}"]),
        ({"rank": 2, "world_size": 2}, ["rank is 2 of a world_size of 2"]),
        ({"rank": 512, "world_size": 513}, ["world_size is 513, and readers merge up to 512 ranks"]),
        ({"rank": 0, "world_size": 0}, ["rank is 0 of a world_size of 0"]),
    ],
)
def test_a_rank_that_cannot_be_is_refused_and_nothing_made(options: dict, messages: list[str], tmp_path: Path, run_cli):
    with pytest.raises(RecordError) as caught:
        Recorder(tmp_path / "log", **options)
    assert [problem.what for problem in caught.value.problems] == messages
    assert not (tmp_path / "log").exists()


@pytest.mark.parametrize("option", [{}, {"append": True}, {"overwrite": True}])
def test_a_second_recorder_of_a_rank_is_refused_and_one_of_another_rank_is_not(option: dict, tmp_path: Path):
    first = Recorder(tmp_path, rank=1, world_size=2)
    first.refresh(1)
    with pytest.raises(RecordError, match="another recorder of rank 1 writes to this folder"):
        Recorder(tmp_path, rank=1, world_size=2, **option)
    record(tmp_path, 2, rank=0, world_size=2, **option)
    first.refresh(3)
    first.close()
    record(tmp_path, 4, rank=1, world_size=2, append=True)
    assert names(tmp_path) == [f"part-rank{rank:04}-{part:06}.parquet" for rank, part in ((0, 1), (1, 1), (1, 2))]
    assert [(row["event_id"], row["train_step"]) for row in rows_of(tmp_path)] == [(1, 2), (1, 1), (2, 3), (3, 4)]


RANKED, UNRANKED = {"rank": 1, "world_size": 2}, {}


@pytest.mark.parametrize("option", [{}, {"append": True}, {"overwrite": True}])
@pytest.mark.parametrize(
    ("first", "second", "open_message", "closed_message"),
    [
        (RANKED, UNRANKED, "a recorder of a rank writes", "holds part-rank0001-000001.parquet, from a recorder with a"),
        (UNRANKED, RANKED, "a recorder without a rank writes", "holds part-000001.parquet, from a recorder without a"),
    ],
    ids=["unranked-second", "ranked-second"],
)
def test_recorders_with_and_without_a_rank_never_share_a_folder(
    first: dict, second: dict, open_message: str, closed_message: str, option: dict, tmp_path: Path
):
    with Recorder(tmp_path, **first) as recorder:
        with pytest.raises(RecordError, match=open_message) as caught:
            Recorder(tmp_path, **second, **option)
        recorder.refresh(1)
    assert "rank and world_size" in (caught.value.problems[0].hint or "")
    with pytest.raises(RecordError, match=closed_message):
        Recorder(tmp_path, **second, **option)
    record(tmp_path, 2, **first, append=True)
    assert [row["train_step"] for row in rows_of(tmp_path)] == [1, 2]
    assert len(names(tmp_path)) == 2, "no lock stays behind"


@pytest.mark.parametrize("option", [{}, {"append": True}, {"overwrite": True}])
@pytest.mark.parametrize(("rank", "world_size"), [(0, 4), (1, 4), (3, 4), (0, 1)])
def test_another_world_size_than_that_of_the_parts_is_refused(rank: int, world_size: int, option: dict, tmp_path: Path):
    for written in (0, 1):
        record(tmp_path, rank=written, world_size=2)
    with pytest.raises(RecordError, match=f"have a world_size of 2, not {world_size}"):
        Recorder(tmp_path, rank=rank, world_size=world_size, **option)
    assert len(names(tmp_path)) == 2


@pytest.mark.parametrize("case", GOLDEN[::7], ids=lambda case: case.name)
def test_a_golden_log_recorded_by_several_ranks_gives_equal_rows(case: Path, tmp_path: Path):
    rows = [row | {"time_us": None} for row in pq.read_table(case / "log.parquet").to_pylist()]
    chance = random.Random(1)
    options = {"config": case / "config.toml", "world_size": 4, "seal_rows": 30}
    recorders = [Recorder(tmp_path / "log", rank=rank, **options) for rank in range(4)]
    for _, event in groupby(rows, key=lambda row: row["event_id"]):
        group = list(event)
        kind = group[0]["event"]
        ranks = [2] if kind == "take" else chance.sample(range(4), 4 if kind in ("refresh", "sync") else 1)
        for rank in ranks:
            record_rows(recorders[rank], group)
            # what happens at one microsecond has no order
            time.sleep(0.00002)
    for recorder in recorders:
        recorder.close()
    expected = replay_log(case / "log.parquet", config_path=case / "config.toml", with_groups=True).result
    merged = replay_log(tmp_path / "log", isolated=True, with_groups=True).result
    assert merged.steps == expected.steps
    assert (merged.tail, merged.totals, merged.ledger) == (expected.tail, expected.totals, expected.ledger)


def test_a_rank_that_records_nothing_leaves_a_part_that_says_so(tmp_path: Path):
    for turn in range(2):
        Recorder(tmp_path, rank=0, world_size=3, append=turn > 0).close()
    with Recorder(tmp_path, rank=1, world_size=3) as recorder, pytest.raises(RecordError):
        recorder.refresh(-1)
    Recorder(tmp_path / "unranked").close()
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["part-rank0000-000001.parquet"]
    assert rows_of(tmp_path) == []
    assert metadata_of(tmp_path / "part-rank0000-000001.parquet")[META_RANK] == "0"
    record(tmp_path, 5, rank=0, world_size=3, append=True)
    assert [(row["event_id"], row["train_step"]) for row in rows_of(tmp_path)] == [(1, 5)]


def test_overwriting_and_leftovers_are_those_of_the_own_rank(tmp_path: Path):
    for rank in (0, 1):
        for step in (1, 2):
            record(tmp_path, step, rank=rank, world_size=3, append=True)
    others = [".part-000003.parquet.ab12.tmp", ".part-rank0000-000003.parquet.ab12.tmp"]
    for leftover in (*others, ".part-rank0001-000003.parquet.ab12.tmp"):
        (tmp_path / leftover).write_bytes(b"half a part")
    with pytest.raises(RecordError, match="already holds 2 Parquet files"):
        Recorder(tmp_path, rank=1, world_size=3)
    record(tmp_path, 7, rank=1, world_size=3, overwrite=True)
    # a part of another rank that can't be read is not this rank's
    (tmp_path / "part-rank0000-000001.parquet").write_bytes(b"PAR1")
    record(tmp_path, 8, rank=2, world_size=3)
    parts = [f"part-rank{rank:04}-{part:06}.parquet" for rank, part in ((0, 1), (0, 2), (1, 1), (2, 1))]
    assert names(tmp_path) == [*others, *parts]
    (row,) = pq.read_table(tmp_path / parts[2]).to_pylist()
    assert (row["event_id"], row["train_step"]) == (1, 7)
    with pytest.raises(RecordError, match="world_size of 3, not 4"):
        Recorder(tmp_path, rank=3, world_size=4)
    (tmp_path / parts[3]).write_bytes(b"PAR1")
    with pytest.raises(RecordError, match="can't go on behind this part"):
        Recorder(tmp_path, rank=2, world_size=3, append=True)


OPEN = """
import sys, tokenaudit
from tokenaudit.contracts.errors import RecordError
rank = None if sys.argv[2] == "-" else int(sys.argv[2])
try:
    recorder = tokenaudit.Recorder(sys.argv[1], rank=rank, world_size=rank if rank is None else 4, append=True)
except RecordError as error:
    print(error.problems[0].what, flush=True)
    sys.exit()
print("open", flush=True)
recorder.refresh(1)
sys.stdin.read()
recorder.close()
"""


def opened(folder: Path, rank: str) -> tuple[subprocess.Popen[str], str]:
    """A process that opens a recorder until its standard input ends, and what became of it."""
    process = subprocess.Popen(
        [sys.executable, "-c", OPEN, folder, rank], stdin=-1, stdout=-1, text=True, env=ENVIRONMENT
    )
    assert process.stdout is not None
    return process, process.stdout.readline().strip()


def test_locks_of_ranks_hold_across_processes_and_end_with_them(tmp_path: Path):
    first, said = opened(tmp_path, "2")
    assert said == "open"
    results = {rank: opened(tmp_path, rank) for rank in ("2", "3", "-")}
    assert {rank: said for rank, (_, said) in results.items()} == {
        "2": "another recorder of rank 2 writes to this folder",
        "3": "open",
        "-": "a recorder of a rank writes to this folder",
    }
    # the lock of a process that never said goodbye is taken over
    first.kill()
    first.wait()
    assert ".tokenaudit-recorder-rank0002.lock" in names(tmp_path)
    again, said = opened(tmp_path, "2")
    assert said == "open"
    for process in (first, again, *(process for process, _ in results.values())):
        process.communicate("")
    assert names(tmp_path) == ["part-rank0002-000001.parquet", "part-rank0003-000001.parquet"]


def test_ranks_that_come_and_go_at_once_are_never_in_each_others_way(tmp_path: Path):
    code = (
        "import sys\nfrom tokenaudit import Recorder\nfor step in range(15):\n"
        "    with Recorder(sys.argv[1], rank=int(sys.argv[2]), world_size=4, append=True) as recorder:\n"
        "        recorder.refresh(step)\n"
    )
    command = [sys.executable, "-c", code, tmp_path]
    started = [subprocess.Popen([*command, str(rank)], stderr=-1, text=True, env=ENVIRONMENT) for rank in range(4)]
    assert [process.communicate()[1] for process in started] == [""] * 4
    for rank in range(4):
        steps = [
            row["train_step"]
            for part in sorted(tmp_path.glob(f"part-rank{rank:04}-*"))
            for row in pq.read_table(part).to_pylist()
        ]
        assert steps == list(range(15))


def test_nothing_that_a_killed_rank_reported_as_sealed_is_lost_or_there_twice(tmp_path: Path):
    folder = tmp_path / "log"
    ran = subprocess.run(
        [sys.executable, ROOT / "tests" / "record" / "rank_kill.py", folder, "16", "1"],
        capture_output=True,
        text=True,
        check=True,
        env=ENVIRONMENT,
    )
    reports = [[int(value) for value in line.split()] for line in ran.stdout.splitlines()]
    assert len(reports) == 16 * WORLD_SIZE
    assert sum(sealed > 0 for *_, sealed in reports) > 10
    recorded: dict[int, list[dict[str, Any]]] = defaultdict(list)
    origins: dict[str, str] = {}
    for part in sorted(folder.glob("*.parquet")):
        metadata = metadata_of(part)
        assert part.name.startswith(f"part-rank{int(metadata[META_RANK]):04}-")
        assert metadata[META_WORLD_SIZE] == str(WORLD_SIZE)
        assert origins.setdefault(metadata[META_RANK], metadata[META_CLOCK_ORIGIN]) == metadata[META_CLOCK_ORIGIN]
        recorded[int(metadata[META_RANK])] += pq.read_table(part).to_pylist()
    for rank, rows in recorded.items():
        assert [row["event_id"] for row in rows] == list(range(1, len(rows) + 1))
        times = [row["time_us"] for row in rows]
        assert times == sorted(times)
        parts = sorted(folder.glob(f"part-rank{rank:04}-*"))
        assert [part.name for part in parts] == [f"part-rank{rank:04}-{n:06}.parquet" for n in range(1, len(parts) + 1)]
    kept: dict[int, list[int]] = defaultdict(list)
    for rows in recorded.values():
        for row in rows:
            assert row["response_len"] == 1 + row["group_id"] % 7
            kept[row["group_id"] // FIRST_GROUP].append(row["group_id"] % FIRST_GROUP)
    for number, (turn, rank, accepted, sealed) in enumerate(reports):
        assert number == turn * WORLD_SIZE + rank
        there = kept[number]
        assert there == list(range(len(there))), "the first ones, each once"
        # an event may be sealed before its caller can say that it was accepted
        assert sealed <= len(there) <= accepted + 1
    # whatever the killed ones left behind is in nobody's way
    for rank in range(WORLD_SIZE):
        record(folder, rank=rank, world_size=WORLD_SIZE, append=True)
    assert all(name.startswith("part-rank") for name in names(folder))
    totals = replay_log(folder, isolated=True).result.totals
    rows = [row for own in recorded.values() for row in own]
    assert totals["put_groups"] == len(rows)
    assert totals["produced_tokens"] == sum(row["response_len"] for row in rows)


def test_events_have_the_time_of_their_call_unless_the_caller_gives_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    recorder, go_on = stalled(tmp_path, monkeypatch, WhenFull.BLOCK)
    calls = []
    for step in (3, 4):
        # both wait for room in the queue
        caller = threading.Thread(target=recorder.refresh, args=(step,))
        calls.append((time.time_ns() // 1000 - recorder.clock_origin_us, caller))
        caller.start()
        time.sleep(0.05)
    waited_us = time.time_ns() // 1000 - recorder.clock_origin_us
    go_on.set()
    for _, caller in calls:
        caller.join(10)
    recorder.sample(1, "aborted", time_us=-5)
    recorder.put([{"rollout_id": 1, "response_len": 2}, {"rollout_id": 2, "response_len": 2}], group_id=1, train_step=1,
                 model_step=0)  # fmt: skip
    recorder.take(2, 1, rollout_ids=[1, 2])
    recorder.close()
    rows = rows_of(tmp_path)
    times = {row["event_id"]: row["time_us"] for row in rows}
    assert [row["time_us"] for row in rows] == [times[row["event_id"]] for row in rows], "one time for an event"
    assert times.pop(6) == -5
    assert list(times.values()) == sorted(times.values())
    assert all(0 <= times[event] < waited_us for event in range(1, 6))
    # of two that wait at once, the first in the queue sets the time for the second
    assert times[4] >= calls[0][0] - 1000


def test_time_never_goes_back_whatever_happens_to_the_clock_of_the_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    options = {"rank": 0, "world_size": 1, "append": True}
    recorder = Recorder(tmp_path, **options)
    origin_us = recorder.clock_origin_us
    recorder.refresh(1)
    real = time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: real() - 3_600 * 10**9)
    recorder.refresh(2)
    recorder.close()
    # a resumed run goes on behind the last time, and as soon as the clock of the system is right, with it
    record(tmp_path, 3, **options)
    monkeypatch.setattr(time, "time_ns", lambda: real() + 3_600 * 10**9)
    record(tmp_path, 4, **options)
    times = [row["time_us"] for row in rows_of(tmp_path)]
    assert times == sorted(times)
    assert times[2] < 60 * 10**6 < 3_600 * 10**6 <= times[3] < 3_660 * 10**6
    assert {metadata_of(part)[META_CLOCK_ORIGIN] for part in tmp_path.glob("*.parquet")} == {str(origin_us)}


def test_of_two_calls_that_wait_the_one_recorded_later_is_not_earlier():
    clock = RunClock(None, 0)
    rows: list[dict[str, Any]] = [{}, {"time_us": 7}, {"time_us": None}]
    for row, called_us in zip(rows, (2 * 10**9, 3 * 10**9, 10**9), strict=True):
        clock.stamp([row], called_us)
    assert [row["time_us"] for row in rows] == [2 * 10**9, 7, 3 * 10**9]


@pytest.mark.parametrize("slow", ["time_ns", "monotonic_ns"])
def test_a_process_that_waits_between_two_clocks_reads_them_again(slow: str, monkeypatch: pytest.MonkeyPatch):
    real, slow_calls = getattr(time, slow), [1]

    def now() -> int:
        if slow_calls:
            slow_calls.pop()
            time.sleep(0.2)
        return real()

    monkeypatch.setattr(time, slow, now)
    clock = RunClock(None, 0)
    assert abs(clock.origin_us + clock.now_us() - time.time_ns() // 1000) < 100_000


@pytest.mark.parametrize("last", [None, 7_000_000, 2**63 - 1, 1 - 2**63])
def test_a_run_goes_on_behind_parts_that_say_nothing_of_the_clock(last: int | None, tmp_path: Path):
    with Recorder(tmp_path, stamp_time=False) as recorder:
        recorder.refresh(1, time_us=last)
    assert META_CLOCK_ORIGIN not in metadata_of(tmp_path / "part-000001.parquet")
    # as files of other writers, which need not have the column
    table = pq.read_table(tmp_path / "part-000001.parquet")
    if last is None:
        pq.write_table(table.drop_columns(["time_us"]), tmp_path / "part-000001.parquet")
    for _ in range(2):
        record(tmp_path, append=True)
    parts = sorted(tmp_path.glob("*.parquet"))
    times = [pq.read_table(part)["time_us"][0].as_py() for part in parts[1:]]
    reached = max(0, last or 0)
    assert reached <= times[0] <= times[1] <= min(reached + 60 * 10**6, 2**63 - 1)
    assert len({metadata_of(part)[META_CLOCK_ORIGIN] for part in parts[1:]}) == 1


def test_a_part_whose_clock_is_no_number_is_not_gone_on_behind(tmp_path: Path):
    record(tmp_path)
    path = tmp_path / "part-000001.parquet"
    table = pq.read_table(path)
    for value in ("9" * 5000, "soon", b"\xff\x00"):
        pq.write_table(table.replace_schema_metadata({META_CLOCK_ORIGIN: value}), path)
        with pytest.raises(RecordError, match="can't go on behind this part"):
            Recorder(tmp_path, append=True)
    # no matter how far the clock is off
    for value in (10**30, -(10**30)):
        pq.write_table(pa.table({"event_id": [3]}, metadata={META_CLOCK_ORIGIN: str(value)}), path)
        record(tmp_path, append=True)
        (part,) = set(tmp_path.glob("*.parquet")) - {path}
        assert pq.read_table(part)["event_id"].to_pylist() == [4]
        part.unlink()


def lines(tmp_path: Path, *events: dict[str, Any]) -> Path:
    path = tmp_path / "events.jsonl"
    path.write_text("".join(f"{json.dumps(event)}\n" for event in events))
    return path


def test_lines_keep_the_time_they_have_and_get_none(tmp_path: Path, run_cli):
    events = [{"event": "refresh", "train_step": 1}, {"event": "refresh", "train_step": 2, "time_us": 5}]
    path = lines(tmp_path, *events)
    for folder in ("a", "b"):
        assert run_cli("record", "--from-jsonl", path, "-o", folder).code == 0
    assert [row["time_us"] for row in rows_of(tmp_path / "a")] == [None, 5]
    written = [(tmp_path / folder / "part-000001.parquet").read_bytes() for folder in "ab"]
    assert written[0] == written[1]
    assert META_CLOCK_ORIGIN not in metadata_of(tmp_path / "a" / "part-000001.parquet")


def test_lines_of_a_rank_say_when_they_were(tmp_path: Path, run_cli):
    events = [{"event": "refresh", "train_step": 1}, {"event": "refresh", "train_step": 2, "time_us": 5}]
    path = lines(tmp_path, *events)
    ran = run_cli("record", "--from-jsonl", path, "-o", "log", "--rank", "1", "--world-size", "2")
    assert (ran.code, ran.out) == (2, "1 events in log\n")
    assert f"time_us is missing\n  at: {path}, line 1, the refresh\n  hint: give microseconds of the Unix" in ran.err
    metadata = metadata_of(tmp_path / "log" / "part-rank0001-000001.parquet")
    assert (metadata[META_RANK], metadata[META_WORLD_SIZE], metadata[META_CLOCK_ORIGIN]) == ("1", "2", "0")
    record(tmp_path / "live", rank=1, world_size=2)
    ran = run_cli("record", "--from-jsonl", path, "-o", "live", "--append", "--rank", "1", "--world-size", "2")
    assert (ran.code, ran.out) == (2, "")
    assert "microseconds after the epoch, not from the epoch" in ran.err
    assert names(tmp_path / "live") == ["part-rank0001-000001.parquet"]
    ran = run_cli("record", "--from-jsonl", path, "-o", "log", "--rank", "2", "--world-size", "2")
    assert (ran.code, ran.out) == (2, "")
    assert "error: rank is 2 of a world_size of 2\n" in ran.err


def test_every_rank_may_attach_a_recorder_to_its_buffer(tmp_path: Path):
    async def run(buffer: FakeReplayBuffer, rank: int) -> None:
        state = FakeState(rank, rank, FakeStatus.COMPLETED, response_ids=[1, 2], response_model_steps=[0, 0])
        await buffer.put([state], "math", model_step=0, current_train_step=1)

    for rank in range(2):
        with Recorder(tmp_path, rank=rank, world_size=2) as recorder:
            buffer = FakeReplayBuffer(by_staleness=True)
            attach_xtuner(buffer, recorder)
            asyncio.run(run(buffer, rank))
    assert [(row["event_id"], row["group_id"], row["response_len"]) for row in rows_of(tmp_path)] == [
        (1, 0, 2),
        (1, 1, 2),
    ]
    assert all(row["time_us"] > 0 for row in rows_of(tmp_path))

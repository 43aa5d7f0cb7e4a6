"""The recorder: what is put comes back, in order, whatever happens to the process."""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

from tests.conftest import ROOT
from tests.record.recorder_kill import LOSS_BOUND, RESPONSES, TOKENS, record_without_closing
from tokenaudit import Recorder, load_log, replay_log
from tokenaudit.contracts.errors import ConfigError, KeywordError, RecordError, UsageError
from tokenaudit.contracts.schema import META_CONFIG, META_LIMITS, META_SOURCE
from tokenaudit.log import writer as writer
from tokenaudit.record.event_rows import RESPONSE_COLUMNS
from tokenaudit.record.folder_lock import LOCK_NAME
from tokenaudit.record.waiting_rows import WhenFull

GOLDEN = sorted((ROOT / "tests" / "golden").iterdir())


def rows_of(folder: Path) -> list[dict[str, Any]]:
    return [row for part in sorted(folder.glob("*.parquet")) for row in pq.read_table(part).to_pylist()]


def record_rows(recorder: Recorder, rows: list[dict[str, Any]]) -> None:
    """Hand the rows of a log to a recorder, event by event."""
    for _, event in groupby(rows, key=lambda row: row["event_id"]):
        group = list(event)
        first = group[0]
        shared = {"task_name": first["task_name"] or "default", "time_us": first["time_us"]}
        if first["event"] == "put":
            responses = [{name: row.get(name) for name in RESPONSE_COLUMNS} for row in group]
            shared |= {"group_id": first["group_id"], "train_step": first["train_step"]}
            recorder.put(responses, model_step=first["model_step"], **shared)
        elif first["event"] == "sample":
            recorder.sample(first["group_id"], first["status"], **shared)
        elif first["event"] == "take":
            recorder.take(first["train_step"], first["batch_size"], **shared)
        elif first["event"] == "sync":
            recorder.sync(first["train_step"], first["model_step"], time_us=first["time_us"])
        else:
            recorder.refresh(first["train_step"], time_us=first["time_us"])


@pytest.mark.parametrize(
    ("case", "token_columns"),
    [
        *(pytest.param(case, False, id=f"{case.name}-runs") for case in GOLDEN),
        *(pytest.param(case, True, id=f"{case.name}-tokens") for case in GOLDEN[::5]),
    ],
)
def test_a_golden_log_recorded_again_gives_equal_rows(case: Path, token_columns: bool, tmp_path: Path):
    with Recorder(tmp_path / "log", case / "config.toml", token_columns=token_columns, seal_rows=120) as recorder:
        record_rows(recorder, pq.read_table(case / "log.parquet").to_pylist())
    expected = replay_log(case / "log.parquet", config_path=case / "config.toml", with_groups=True).result
    again = replay_log(tmp_path / "log", isolated=True, with_groups=True).result
    assert again.steps == expected.steps
    assert (again.tail, again.totals, again.ledger) == (expected.tail, expected.totals, expected.ledger)


def test_killed_recorders_leave_whole_parts_in_order_and_lose_only_what_was_promised(tmp_path: Path):
    ran = subprocess.run(
        [sys.executable, ROOT / "tests" / "record" / "recorder_kill.py", tmp_path, "50", "1"],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )
    accepted = [int(line) for line in ran.stdout.split()]
    assert len(accepted) == 50
    sealed = []
    for number, count in enumerate(accepted):
        folder = tmp_path / f"run{number:02}"
        rows = rows_of(folder)
        events = len(rows) // RESPONSES
        sealed.append(events)
        assert [row["event_id"] for row in rows] == [1 + index // RESPONSES for index in range(len(rows))]
        assert all(row["response_model_steps"] == [row["event_id"]] * TOKENS for row in rows)
        assert count - events <= LOSS_BOUND
        names = sorted(part.name for part in folder.glob("*.parquet"))
        assert names == [f"part-{index:06}.parquet" for index in range(1, len(names) + 1)]
    assert sum(events > 0 for events in sealed) > 10


def test_a_run_goes_on_behind_a_killed_one(tmp_path: Path):
    with Recorder(tmp_path) as recorder:
        recorder.put([{"rollout_id": 1, "response_len": 3}], group_id=1, train_step=1, model_step=0)
    (tmp_path / ".part-000002.parquet.tmp").write_bytes(b"half a part")
    with Recorder(tmp_path, append=True) as recorder:
        recorder.take(1, 1)
    assert [(row["event_id"], row["event"]) for row in rows_of(tmp_path)] == [(1, "put"), (2, "take")]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["part-000001.parquet", "part-000002.parquet"]


def test_a_log_is_never_overwritten_by_accident(tmp_path: Path):
    Recorder(tmp_path).close()
    with Recorder(tmp_path) as recorder:
        recorder.refresh(1)
    with pytest.raises(RecordError, match="already holds 1 Parquet file"):
        Recorder(tmp_path)
    with Recorder(tmp_path, overwrite=True) as recorder:
        recorder.refresh(2)
    assert [row["train_step"] for row in rows_of(tmp_path)] == [2]
    (tmp_path / "theirs.parquet").write_bytes(b"")
    for option in ("append", "overwrite"):
        with pytest.raises(RecordError, match=r"theirs\.parquet"):
            Recorder(tmp_path, **{option: True})
    assert (tmp_path / "part-000001.parquet").exists()


def test_nothing_is_erased_by_an_option_of_another_name(tmp_path: Path):
    with Recorder(tmp_path) as recorder:
        recorder.refresh(1)
    for value in (True, False):
        with pytest.raises(KeywordError, match=r"force is called overwrite\n  hint: overwrite=True \(--overwrite\)"):
            Recorder(tmp_path, force=value)
    with pytest.raises(UsageError, match="append and overwrite exclude each other"):
        Recorder(tmp_path, append=True, overwrite=True)
    assert [row["train_step"] for row in rows_of(tmp_path)] == [1]


@pytest.mark.parametrize("options", [{}, {"append": True}, {"overwrite": True}])
def test_a_second_recorder_on_a_folder_is_refused_at_once(options: dict[str, bool], tmp_path: Path):
    first = Recorder(tmp_path, append=True)
    first.refresh(1)
    with pytest.raises(RecordError, match="another recorder writes to this folder"):
        Recorder(tmp_path, **options)
    first.close()
    with Recorder(tmp_path, append=True) as second:
        second.refresh(2)
    assert [row["train_step"] for row in rows_of(tmp_path)] == [1, 2]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["part-000001.parquet", "part-000002.parquet"]


def test_a_part_that_somebody_else_wrote_is_never_replaced(tmp_path: Path):
    recorder = Recorder(tmp_path)
    with Recorder(tmp_path / "other") as other:
        other.refresh(1)
    (tmp_path / "other" / "part-000001.parquet").rename(tmp_path / "part-000001.parquet")
    recorder.refresh(2)
    with pytest.raises(RecordError, match=r"part-000001.parquet is there already: another recorder writes"):
        recorder.close()
    assert [row["train_step"] for row in rows_of(tmp_path)] == [1]
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["part-000001.parquet"]


def test_a_name_is_taken_once_where_the_file_system_has_no_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def no_links(*_: object) -> None:
        raise PermissionError("no links here")

    monkeypatch.setattr("os.link", no_links)
    with Recorder(tmp_path) as recorder:
        recorder.refresh(1)
    table = pq.read_table(tmp_path / "part-000001.parquet")
    with pytest.raises(FileExistsError):
        writer.seal(table, tmp_path / "part-000001.parquet")
    assert [row["train_step"] for row in rows_of(tmp_path)] == [1]
    assert [path.name for path in tmp_path.iterdir()] == ["part-000001.parquet"]


def test_planted_links_lead_nowhere(tmp_path: Path):
    victim = tmp_path / "victim"
    victim.write_text("kept")
    folder = tmp_path / "log"
    folder.mkdir()
    (folder / ".part-000001.parquet.tmp").symlink_to(victim)
    (folder / "part-000001.parquet.tmp").symlink_to(victim)
    with Recorder(folder) as recorder:
        recorder.refresh(1)
    (folder / LOCK_NAME).symlink_to(victim)
    with pytest.raises(RecordError, match="can't write here"):
        Recorder(folder, append=True)
    assert victim.read_text() == "kept"
    assert [row["train_step"] for row in rows_of(folder)] == [1]


def test_a_process_that_was_killed_leaves_no_lock_behind_even_where_its_children_live_on(tmp_path: Path):
    # the child outlives the recorder's process, as workers of a data loader do
    code = (
        f"import os, signal, time\nimport tokenaudit\nr = tokenaudit.Recorder({str(tmp_path)!r})\n"
        "if os.fork() == 0:\n    print(os.getpid(), flush=True)\n    time.sleep(60)\n    os._exit(0)\n"
        "time.sleep(60)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=os.environ | {"PYTHONPATH": str(ROOT)}
    )
    assert process.stdout is not None
    child = int(process.stdout.readline())
    try:
        with pytest.raises(RecordError, match="another recorder writes to this folder"):
            Recorder(tmp_path)
        process.kill()
        process.wait()
        with Recorder(tmp_path) as recorder:
            recorder.refresh(1)
    finally:
        os.kill(child, signal.SIGKILL)
        process.stdout.close()
    assert [row["train_step"] for row in rows_of(tmp_path)] == [1]


def test_many_processes_that_want_one_folder_corrupt_nothing(tmp_path: Path):
    code = (
        "import sys\nfrom tokenaudit import Recorder\nfrom tokenaudit.contracts.errors import RecordError\n"
        "try:\n    recorder = Recorder(sys.argv[1], append=True, seal_rows=3)\n"
        "except RecordError as error:\n    sys.exit(7 if 'another recorder' in str(error) else 1)\n"
        "for step in range(30):\n    recorder.refresh(step)\n"
        "recorder.close()\nprint(recorder.sealed_events)\n"
    )
    started = [
        subprocess.Popen(
            [sys.executable, "-c", code, tmp_path],
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
        )
        for _ in range(4)
    ]
    sealed = sum(int(process.communicate()[0] or 0) for process in started)
    assert {process.returncode for process in started} <= {0, 7}
    assert [row["event_id"] for row in rows_of(tmp_path)] == list(range(1, sealed + 1))
    assert sealed >= 30


def test_a_folder_that_vanished_is_reported_when_the_process_ends(tmp_path: Path):
    code = (
        f"import shutil\nimport tokenaudit\nr = tokenaudit.Recorder({str(tmp_path / 'log')!r})\n"
        f"r.refresh(1)\nshutil.rmtree({str(tmp_path / 'log')!r})\n"
    )
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    ran = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, env=environment)
    assert ran.stdout == ""
    assert f"tokenaudit: {tmp_path / 'log'}: the recorder lost the last 1 events: can't write: " in ran.stderr


def test_pandas_changes_nothing_for_a_process_that_ends_without_closing(tmp_path: Path):
    pytest.importorskip("pandas")
    code = (
        f"import sys\nimport tokenaudit\nassert 'pandas' not in sys.modules\n"
        f"r = tokenaudit.Recorder({str(tmp_path)!r}, token_columns=True)\n"
        "r.put([{'rollout_id': 1, 'response_model_steps': [0, 1], 'logprobs': [0.5, 1]}], group_id=1, train_step=2)\n"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
    ran = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, env=environment)
    assert ran.stderr == ""
    assert [row["response_model_steps"] for row in rows_of(tmp_path)] == [[0, 1]]


def test_whatever_writing_needs_is_loaded_when_a_recorder_is_made(tmp_path: Path):
    code = (
        f"import sys\nimport tokenaudit\nr = tokenaudit.Recorder({str(tmp_path)!r}, token_columns=True)\n"
        "before = set(sys.modules)\n"
        "r.put([{'rollout_id': 1, 'response_model_steps': [0, 1], 'logprobs': [0.5, 1]}], group_id=1, train_step=2)\n"
        "r.take(2, 1, rollout_ids=[1])\nr.close()\nprint(sorted(set(sys.modules) - before))\n"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
    ran = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, env=environment)
    assert ran.stdout == "[]\n"


def test_a_worker_of_multiprocessing_loses_nothing_without_closing(tmp_path: Path):
    worker = multiprocessing.get_context("spawn").Process(target=record_without_closing, args=(tmp_path,))
    worker.start()
    worker.join()
    assert worker.exitcode == 0
    assert [row["train_step"] for row in rows_of(tmp_path)] == [1]


def test_rows_that_wait_are_sealed_after_a_while(tmp_path: Path):
    recorder = Recorder(tmp_path, seal_seconds=0.05)
    recorder.refresh(1)
    deadline = time.monotonic() + 10
    while recorder.sealed_events == 0 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert len(rows_of(tmp_path)) == 1
    recorder.close()


def test_a_process_that_ends_without_closing_loses_nothing(tmp_path: Path):
    code = f"import tokenaudit\nr = tokenaudit.Recorder({str(tmp_path)!r})\nr.refresh(1)\nr.take(1, 2)\n"
    subprocess.run([sys.executable, "-c", code], check=True, env=os.environ | {"PYTHONPATH": str(ROOT)})
    assert [row["event"] for row in rows_of(tmp_path)] == ["refresh", "take"]


def test_threads_and_coroutines_may_share_a_recorder(tmp_path: Path):
    async def puts(recorder: Recorder, task_name: str) -> None:
        for number in range(50):
            recorder.put(
                [{"rollout_id": number, "response_len": 1}], group_id=number, train_step=1, task_name=task_name
            )
            await asyncio.sleep(0)

    async def both(recorder: Recorder, names: tuple[str, str]) -> None:
        await asyncio.gather(*(puts(recorder, name) for name in names))

    with Recorder(tmp_path, seal_rows=7) as recorder:
        threads = [threading.Thread(target=asyncio.run, args=(both(recorder, pair),)) for pair in ("ab", "cd")]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    rows = rows_of(tmp_path)
    assert [row["event_id"] for row in rows] == list(range(1, 201))
    for name in "abcd":
        assert [row["group_id"] for row in rows if row["task_name"] == name] == list(range(50))


def test_lists_are_copied_at_once(tmp_path: Path):
    steps, mask = [3, 3], np.array([1, 0])
    with Recorder(tmp_path, token_columns=True) as recorder:
        recorder.put(
            [{"rollout_id": 1, "response_model_steps": steps, "response_mask": mask}], group_id=1, train_step=5
        )
        steps.append(9)
        mask[0] = 7
    (row,) = rows_of(tmp_path)
    assert (row["response_model_steps"], row["response_mask"], row["response_len"]) == ([3, 3], [1, 0], 2)


def stalled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when_full: WhenFull) -> tuple[Recorder, threading.Event]:
    """A recorder with room for two events whose disk hangs until the event is set."""
    go_on = threading.Event()
    seal = writer.seal

    def slow(table: Any, path: Path) -> None:
        go_on.wait(10)
        seal(table, path)

    monkeypatch.setattr("tokenaudit.record.part_files.seal", slow)
    recorder = Recorder(tmp_path, when_full=when_full, queue_elements=2 * 64, seal_rows=1)
    recorder.refresh(0)
    while recorder._queue:
        time.sleep(0.001)
    recorder.refresh(1)
    recorder.refresh(2)
    return recorder, go_on


def test_a_full_queue_makes_the_caller_wait_and_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    recorder, go_on = stalled(tmp_path, monkeypatch, WhenFull.BLOCK)
    caller = threading.Thread(target=recorder.refresh, args=(3,))
    caller.start()
    caller.join(0.1)
    assert caller.is_alive()
    go_on.set()
    caller.join(10)
    recorder.close()
    assert [row["train_step"] for row in rows_of(tmp_path)] == [0, 1, 2, 3]


def test_a_full_queue_may_drop_and_says_how_much(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    recorder, go_on = stalled(tmp_path, monkeypatch, WhenFull.DROP)
    recorder.refresh(3)
    recorder.refresh(4)
    assert recorder.dropped_events == 2
    go_on.set()
    while recorder.sealed_events < 3:
        time.sleep(0.001)
    recorder.put([{"rollout_id": 1, "response_len": 2}], group_id=1, train_step=5, model_step=4)
    with pytest.warns(RuntimeWarning, match="dropped 2 events"):
        recorder.close()
    assert [row["event_id"] for row in rows_of(tmp_path)] == [1, 2, 3, 6]
    result = replay_log(tmp_path, isolated=True).result
    assert "the recorder dropped 2 events because its queue was full" in [notice.message for notice in result.warnings]


def test_a_disk_that_fails_is_told_and_the_rows_are_kept_until_it_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    failing = threading.Event()
    failing.set()
    seal = writer.seal

    def broken(table: Any, path: Path) -> None:
        if failing.is_set():
            raise OSError("no space left")
        seal(table, path)

    monkeypatch.setattr("tokenaudit.record.part_files.seal", broken)
    monkeypatch.setattr("tokenaudit.record.recorder._RETRY_SECONDS", 0.01)
    recorder = Recorder(tmp_path, seal_rows=1)
    recorder.refresh(1)
    while not recorder.is_failed:
        time.sleep(0.001)
    with pytest.raises(RecordError, match="no space left"):
        recorder.refresh(2)
    failing.clear()
    while recorder.is_failed:
        time.sleep(0.001)
    recorder.refresh(3)
    recorder.close()
    assert [(row["event_id"], row["train_step"]) for row in rows_of(tmp_path)] == [(1, 1), (2, 3)]


@pytest.mark.parametrize(
    ("response", "message"),
    [
        ({"response_len": 3}, "rollout_id is missing"),
        ({"rollout_id": 1}, "nothing gives the length"),
        ({"rollout_id": 1, "response_len": 3, "rewards": 1.0}, "'rewards' is no column of a response"),
        ({"rollout_id": 1, "response_len": -1}, "response_len is -1"),
        ({"rollout_id": 1, "response_len": True}, "response_len is True"),
        ({"rollout_id": "one", "response_len": 1}, "rollout_id is 'one'"),
        ({"rollout_id": 1, "response_len": 1, "status": "done"}, "unknown status 'done'"),
        ({"rollout_id": 1, "response_len": 2, "response_mask": [1]}, "1 mask entries for 2 tokens"),
        ({"rollout_id": 1, "response_len": 1, "response_model_steps": [1, 1]}, "2 versions for 1 tokens"),
        (
            {"rollout_id": 1, "response_len": 2, "response_model_steps": [1]},
            "1 versions for 2 tokens and no model_step",
        ),
        ({"rollout_id": 1, "response_len": 2, "prior_len": 3}, "prior_len is 3 for 2 tokens"),
        ({"rollout_id": 1, "response_len": 1, "reward": "good"}, "reward is 'good'"),
        ({"rollout_id": 1, "response_len": 1, "agentic": 1}, "agentic is 1"),
        ({"rollout_id": 1, "response_len": 1, "reward": 10**400}, "reward is 1000"),
        ({"rollout_id": 1, "response_len": 1, "advantage": [0.5]}, "advantage is \\[0.5\\]"),
        ({"rollout_id": 1, "response_len": 10**5000}, "response_len is int"),
        ({"rollout_id": 1, "response_len": 1, "status": np.array([1, 2])}, "unknown status array"),
        ({"rollout_id": 1, "response_len": 1, "finish_reason": "\ud800"}, r"finish_reason is '\\ud800'"),
        ({"rollout_id": 1, "response_len": 1, 7: 1}, "7 is no column of a response"),
        ({"rollout_id": 1, "response_len": 1, "logprobs": torch.zeros(1, device="meta")}, "logprobs can't be copied"),
    ],
)
def test_a_response_that_makes_no_sense_is_refused_at_the_put(response: dict, message: str, tmp_path: Path):
    with Recorder(tmp_path / "log") as recorder, pytest.raises(RecordError, match=message):
        recorder.put([response], group_id=1, train_step=1)
    assert rows_of(tmp_path / "log") == []


@pytest.mark.parametrize("group", [None, {"rollout_id": 1}, [None], [7], "ab", np.array([1, 2]), iter([{}])])
def test_what_is_no_list_of_mappings_is_refused_at_the_put(group: Any, tmp_path: Path):
    with Recorder(tmp_path) as recorder, pytest.raises(RecordError, match="the responses are"):
        recorder.put(group, group_id=1, train_step=1)


@pytest.mark.parametrize("token_columns", [False, True])
def test_no_value_keeps_the_other_events_of_its_part_from_being_written(token_columns: bool, tmp_path: Path):
    recorder = Recorder(tmp_path, token_columns=token_columns)
    response = {"rollout_id": 1, "response_len": 2}
    for task in ("\ud800", "\udc80"):
        with pytest.raises(RecordError, match="task_name is"):
            recorder.put([response], group_id=1, train_step=1, task_name=task)
        with pytest.raises(RecordError, match="task_name is"):
            recorder.sample(1, "aborted", task_name=task)
    names = ("response_ids", "response_mask", "trained_mask", "logprobs")
    flawed = [{name: [[1, 2], [3, 4]]} for name in names] + [{"logprobs": [1j, 2]}, {"response_mask": [0.5, 1]}]
    for values in flawed:
        with pytest.raises(RecordError, match=next(iter(values))):
            recorder.put([response | values], group_id=1, train_step=1, model_step=0)
    rewards = [np.float16(1), np.int64(2), 3, np.longdouble(4), 2**70]
    for reward in rewards:
        recorder.put([response | {"reward": reward, "advantage": reward}], group_id=1, train_step=1, model_step=0)
    recorder.close()
    # two tasks in two kinds of events, and the flawed lists
    assert recorder.rejected_events == 4 + len(flawed)
    for name in ("reward", "advantage"):
        assert [row[name] for row in rows_of(tmp_path)] == [1.0, 2.0, 3.0, 4.0, 2.0**70]


def test_a_response_may_name_the_version_of_its_own(tmp_path: Path):
    with Recorder(tmp_path, token_columns=True) as recorder:
        span = {"model_step": 1, "model_step_end": 3, "version_precision": "span"}
        responses = [{"rollout_id": 1, "response_len": 2} | span, {"rollout_id": 2, "response_len": 1}]
        recorder.put(responses, group_id=1, train_step=4, model_step=3)
        recorder.put([{"rollout_id": 3, "response_len": 1, "model_step": 2}], group_id=2, train_step=4)
        with pytest.raises(RecordError) as refused:
            recorder.put([{"rollout_id": 4, "response_len": 1, "model_step": -1}], group_id=3, train_step=4)
        assert [problem.where for problem in refused.value.problems] == ["response 0 of group 3"]
    rows = rows_of(tmp_path)
    assert [(row["model_step"], row["model_step_end"], row["version_precision"]) for row in rows] == [
        (1, 3, "span"),
        (3, None, None),
        (2, None, None),
    ]


def test_what_a_source_leaves_out_is_noted_once_in_the_log(tmp_path: Path):
    with Recorder(tmp_path, seal_rows=1) as recorder:
        recorder.refresh(1)
        while recorder.sealed_events < 1:
            time.sleep(0.01)
        for what in ("no masks", "no takes", "no masks"):
            recorder.note_limit(what)
        recorder.refresh(2)
    first, second = sorted(tmp_path.glob("*.parquet"))
    assert META_LIMITS.encode() not in pq.read_schema(first).metadata
    assert json.loads(pq.read_schema(second).metadata[META_LIMITS.encode()]) == ["no masks", "no takes"]
    assert load_log(tmp_path, isolated=True).log.limits == ("no masks", "no takes")


def test_tensors_are_taken_as_they_are(tmp_path: Path):
    with Recorder(tmp_path, token_columns=True) as recorder:
        for logprobs in (
            torch.tensor([-0.5, -1.0], requires_grad=True),
            torch.tensor([-0.5, -1.0], dtype=torch.bfloat16),
        ):
            response = {"rollout_id": 1, "response_model_steps": torch.tensor([0, 1]), "logprobs": logprobs}
            recorder.put([response], group_id=1, train_step=2)
            with torch.no_grad():
                logprobs.zero_()
    assert [row["logprobs"] for row in rows_of(tmp_path)] == [[-0.5, -1.0]] * 2
    assert [row["response_model_steps"] for row in rows_of(tmp_path)] == [[0, 1]] * 2


@pytest.mark.parametrize("kind", [list, tuple, np.array, lambda values: torch.tensor(values, dtype=torch.float64)])
@pytest.mark.parametrize("name", ["response_model_steps", "response_mask", "trained_mask", "response_ids"])
def test_floats_that_are_whole_numbers_are_integers(kind: Callable[[list], Any], name: str, tmp_path: Path):
    response = {"rollout_id": 1, "response_len": 3}
    with Recorder(tmp_path, token_columns=True) as recorder:
        recorder.put([response | {name: kind([1.0, 0.0, 1.0])}], group_id=1, train_step=2, model_step=0)
        for wrong in ([1.0, 0.5, 1.0], [1.0, float("nan"), 1.0], [1.0, float("inf"), 0.0]):
            with pytest.raises(RecordError, match=name):
                recorder.put([response | {name: kind(wrong)}], group_id=1, train_step=2, model_step=0)
    assert [row[name] for row in rows_of(tmp_path)] == [[1, 0, 1]]
    # a float mask is the same as one of integers
    assert recorder.rejected_events == 3


@pytest.mark.parametrize("steps", [[0, "x"], [0, -1], [0.5, 1], [0, 2**31], [0, None], [0.0, 2.0**31], [-1.0, 0.0]])
@pytest.mark.parametrize("kind", [list, np.array])
def test_lists_that_hold_no_versions_are_refused_at_the_put(steps: list, kind: Callable, tmp_path: Path):
    with Recorder(tmp_path, token_columns=True) as recorder:
        with pytest.raises(RecordError, match="response_model_steps"):
            recorder.put([{"rollout_id": 1, "response_model_steps": kind(steps)}], group_id=1, train_step=1)
        recorder.refresh(1)
    assert [row["event_id"] for row in rows_of(tmp_path)] == [1]


def losses_of(folder: Path) -> list[str]:
    warnings = replay_log(folder, isolated=True).result.warnings
    return [notice.message for notice in warnings if notice.code == "lost-events"]


def test_refused_events_are_counted_in_the_log_once_each_and_the_gate_does_not_judge_it(tmp_path: Path, run_cli):
    response = {"rollout_id": 1, "response_len": 2}
    for option in ({}, {"append": True}):
        with Recorder(tmp_path / "log", seal_rows=1, **option) as recorder:
            for group_id in range(3):
                recorder.put([response], group_id=group_id, train_step=1, model_step=0)
                with pytest.raises(RecordError):
                    recorder.put([response | {"response_mask": [0.5, 1]}], group_id=9, train_step=1, model_step=0)
            recorder.take(1, 1)
            with pytest.raises(RecordError):
                recorder.take(1, "two")  # type: ignore[arg-type]
    message = "the recorder refused 8 events that couldn't be recorded"
    assert losses_of(tmp_path / "log") == [message]
    assert replay_log(tmp_path / "log", isolated=True).result.totals["put_groups"] == 3
    run_cli("compact", "log", "-o", "small.parquet")
    assert losses_of(tmp_path / "small.parquet") == [message]
    for command in (
        ["replay", "log"],
        ["inspect", "log"],
        ["diff", "--log", "log", "--set-b", "policy.max_staleness=1", "-s", "mode=colocated"],
    ):
        ran = run_cli(*command)
        assert (ran.code, message in ran.out + ran.err) == (0, True), command
    rule = ("--isolated", "--rule", "failed_tokens <= 0")
    ran = run_cli("gate", "log", *rule)
    assert (ran.code, ran.out) == (2, "")
    assert f"error: {message}\n  at: log\n  hint: " in ran.err
    assert run_cli("gate", "log", *rule, "--allow-lost-events").code == 0
    assert run_cli("gate", "log", *rule, "--write-baseline", "b.json").code == 2
    assert not (tmp_path / "b.json").exists()
    run_cli("replay", "log", "--isolated", "-o", "b.json")
    with Recorder(tmp_path / "whole") as recorder:
        recorder.put([response], group_id=1, train_step=1, model_step=0)
        recorder.take(1, 1)
    whole = ("gate", "whole", *rule, "--baseline", "b.json", "--allow-different-log")
    ran = run_cli(*whole)
    assert (ran.code, f"error: {message}\n  at: b.json" in ran.err) == (2, True)
    assert run_cli(*whole, "--allow-lost-events").code == 0
    assert run_cli("gate", "whole", *rule).code == 0


def test_losses_reach_the_disk_without_another_event(tmp_path: Path):
    recorder = Recorder(tmp_path, seal_rows=2, seal_seconds=0.05)
    recorder.put([{"rollout_id": 1, "response_len": 2}], group_id=1, train_step=1, model_step=0)
    recorder.take(1, 1)
    while recorder.sealed_events < 2:
        time.sleep(0.001)
    with pytest.raises(RecordError):
        recorder.refresh(-1)
    deadline = time.monotonic() + 10
    while len(list(tmp_path.glob("*.parquet"))) < 2 and time.monotonic() < deadline:
        time.sleep(0.01)
    # as if the process were killed now
    assert losses_of(tmp_path) == ["the recorder refused 1 event that couldn't be recorded"]
    recorder.close()
    with Recorder(tmp_path, append=True) as recorder:
        recorder.refresh(2)
    assert [row["event_id"] for row in rows_of(tmp_path)] == [1, 2, 3]


@pytest.mark.parametrize("of_rank", [{}, {"rank": 0, "world_size": 1}])
def test_a_resumed_run_of_which_every_event_is_refused_says_so(of_rank: dict[str, int], tmp_path: Path):
    with Recorder(tmp_path, **of_rank) as recorder:
        recorder.put([{"rollout_id": 1, "response_len": 2}], group_id=1, train_step=1, model_step=0)
        recorder.take(1, 1)
    with Recorder(tmp_path, append=True, **of_rank) as recorder:
        for _ in range(2):
            with pytest.raises(RecordError):
                recorder.refresh(-1)
    assert losses_of(tmp_path) == ["the recorder refused 2 events that couldn't be recorded"]


@pytest.mark.parametrize("value", [-(2**63) + 1, -1, 2**63 - 2])
def test_ids_and_times_that_are_recorded_are_read(value: int, tmp_path: Path):
    with Recorder(tmp_path / "log") as recorder:
        recorder.put([{"rollout_id": value, "response_len": 2}], group_id=value, train_step=1, model_step=0, time_us=-1)
        recorder.take(1, 1, rollout_ids=[value])
    assert replay_log(tmp_path / "log", isolated=True).result.totals["taken_groups"] == 1


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("group_id", 2**63 - 1), ("rollout_id", 2**63 - 1), ("group_id", -(2**63)), ("time_us", -(2**63)),
        ("generate_time_us", 2**63),
    ],
)  # fmt: skip
def test_ids_and_times_that_no_reader_takes_are_refused_at_the_put(name: str, value: int, tmp_path: Path):
    response = {"rollout_id": 1, "response_len": 2}
    put: dict[str, Any] = {"group_id": 1, "train_step": 1, "model_step": 0}
    (response if name in RESPONSE_COLUMNS else put)[name] = value
    with Recorder(tmp_path / "log") as recorder, pytest.raises(RecordError, match=rf"{name} is -?\d+"):
        recorder.put([response], **put)


@pytest.mark.parametrize("name", ["task_name", "finish_reason"])
def test_a_text_that_is_no_name_is_refused_at_the_put(name: str, tmp_path: Path):
    response: dict[str, Any] = {"rollout_id": 1, "response_len": 2}
    put: dict[str, Any] = {"group_id": 1, "train_step": 1, "model_step": 0}
    values = response if name in RESPONSE_COLUMNS else put
    with Recorder(tmp_path / "log") as recorder:
        values[name] = "\U0001f600" * 2**17
        recorder.put([response], **put)
        values[name] += "x"
        with pytest.raises(RecordError, match=f"{name} has 131073 characters"):
            recorder.put([response], **put)
        recorder.take(1, 1)
    assert replay_log(tmp_path / "log", isolated=True).result.totals["put_groups"] == 1


def test_a_take_names_what_was_taken(tmp_path: Path):
    with Recorder(tmp_path, token_columns=True) as recorder:
        recorder.take(1, 2)
        recorder.take(2, 2, rollout_ids=np.array([5, 6]))
        recorder.take(3, 2, rollout_ids=[])
        responses = [{"rollout_id": 7, "group_id": 3, "response_len": 2, "trained_mask": [1.0, 0.0]}, {"rollout_id": 8}]
        recorder.take(4, 1, task_name="math", responses=responses)
        for values, message in (
            ({"rollout_ids": [1], "responses": []}, "rollout_ids beside responses"),
            ({"rollout_ids": ["a"]}, "rollout_id is 'a'"),
            ({"rollout_ids": "ab"}, "what was taken is 'ab'"),
            ({"rollout_ids": 7}, "what was taken is 7"),
            ({"responses": [{"group_id": 1}]}, "rollout_id is missing"),
            ({"responses": [{"rollout_id": 1, "group": 1}]}, "'group' is no column of a response"),
            ({"responses": [7]}, "it is 7"),
        ):
            with pytest.raises(RecordError, match=message):
                recorder.take(1, 1, **values)
    names = ("event_id", "train_step", "task_name", "batch_size", "rollout_id", "group_id", "trained_mask")
    assert [tuple(row[name] for name in names) for row in rows_of(tmp_path)] == [
        (1, 1, "default", 2, None, None, None),
        (2, 2, "default", 2, 5, None, None),
        (2, 2, "default", 2, 6, None, None),
        (3, 3, "default", 2, None, None, None),
        (4, 4, "math", 1, 7, 3, [1, 0]),
        (4, 4, "math", 1, 8, None, None),
    ]


def test_values_that_cannot_even_be_looked_at_do_not_end_the_recording(tmp_path: Path):
    class Odd:
        def __len__(self) -> int:
            return 2

        def __array__(self, *_: object, **__: object) -> Any:
            raise KeyError("odd")

    recorder = Recorder(tmp_path, token_columns=True)
    with pytest.raises((RecordError, KeyError)):
        recorder.put([{"rollout_id": 1, "response_model_steps": Odd()}], group_id=1, train_step=1)
    with pytest.raises(RecordError, match="response_model_steps can't be copied"):
        recorder.put([{"rollout_id": 1, "response_model_steps": (Odd(), 1)}], group_id=1, train_step=1)
    recorder.refresh(2)
    recorder.close()
    assert [row["event"] for row in rows_of(tmp_path)] == ["refresh"]


def test_a_forked_process_is_told_that_the_recorder_is_not_its_own(tmp_path: Path):
    code = (
        f"import os\nimport tokenaudit\nr = tokenaudit.Recorder({str(tmp_path)!r})\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    try:\n        r.refresh(1)\n"
        "    except tokenaudit.contracts.errors.RecordError as error:\n"
        "        os._exit(7 if 'forked' in str(error) else 1)\n"
        "r.refresh(2)\nr.close()\nprint(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))\n"
    )
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    ran = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, env=environment)
    assert ran.stdout == "7\n"
    assert [row["train_step"] for row in rows_of(tmp_path)] == [2]


def test_a_process_forked_while_the_lock_is_held_does_not_wait_for_it(tmp_path: Path):
    code = (
        f"import os, sys\nimport tokenaudit\nr = tokenaudit.Recorder({str(tmp_path)!r})\n"
        "r.refresh(1)\n"
        # another thread holds the lock while the process forks
        "import threading\nheld, go = threading.Event(), threading.Event()\n"
        "def hold():\n    with r._state:\n        held.set()\n        go.wait()\n"
        "threading.Thread(target=hold).start()\nheld.wait()\nchild = os.fork()\ngo.set()\n"
        "if child == 0:\n"
        "    try:\n        r.refresh(1)\n"
        "    except tokenaudit.contracts.errors.RecordError:\n        r.close()\n        sys.exit(7)\n"
        "print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))\n"
    )
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    ran = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, env=environment, timeout=30
    )
    assert ran.stdout == "7\n"
    assert [row["train_step"] for row in rows_of(tmp_path)] == [1]


def test_a_closed_recorder_refuses_events_and_closes_twice(tmp_path: Path):
    recorder = Recorder(tmp_path)
    recorder.close()
    recorder.close()
    with pytest.raises(RecordError, match="closed"):
        recorder.refresh(1)


def test_the_metadata_holds_config_and_source(tmp_path: Path):
    with Recorder(tmp_path / "a", {"policy": {"max_staleness": 2}}) as recorder:
        recorder.refresh(1)
    metadata = pq.read_schema(tmp_path / "a" / "part-000001.parquet").metadata
    assert json.loads(metadata[META_CONFIG.encode()])["policy"]["max_staleness"] == 2
    assert metadata[META_SOURCE.encode()] == b"tokenaudit.Recorder"
    with pytest.raises(ConfigError, match="max_stalenes"):
        Recorder(tmp_path / "b", {"policy": {"max_stalenes": 2}})


def test_version_runs_stand_for_the_token_columns():
    rows: list[writer.Row] = [
        {"response_len": 5, "response_model_steps": np.array([1, 1, 2]), "model_step": 4, "response_mask": None},
        {"event": "take"},
        {"response_len": 4, "model_step": 3, "response_mask": np.array([1, 0, 0, 1], dtype=np.int8)},
        {"response_len": 0, "model_step": 3},
        {"response_len": 2, "response_mask": np.array([1, 0], dtype=np.int8)},
        {"response_len": 2, "response_model_steps": np.array([5, 6]), "response_mask": np.array([0, 1], dtype=np.int8)},
    ]
    runs = writer.runs_column(rows).to_pylist()
    values = [None if row is None else [tuple(run.values()) for run in row] for row in runs]
    assert values == [
        [(1, 2, 2), (2, 1, 1), (4, 2, 2)],
        None,
        [(3, 1, 1), (3, 2, 0), (3, 1, 1)],
        [],
        [(None, 1, 1), (None, 1, 0)],
        [(5, 1, 0), (6, 1, 1)],
    ]

"""Events as JSON lines: recorded one by one, faults told with their lines."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.conftest import ROOT
from tokenaudit import replay_log
from tokenaudit.contracts.schema import META_REJECTED
from tokenaudit.record import json_lines as lines

PUT = {
    "event": "put",
    "train_step": 1,
    "model_step": 0,
    "group_id": 7,
    "responses": [
        {"rollout_id": 14, "response_len": 5, "reward": 1.0},
        {"rollout_id": 15, "response_len": 3, "response_model_steps": [0, 0, 0], "response_mask": [1, 1, 0]},
    ],
}
TAKE = {"event": "take", "train_step": 1, "batch_size": 1}


def written(tmp_path: Path, *events: dict[str, Any] | str) -> Path:
    path = tmp_path / "events.jsonl"
    path.write_text("".join(f"{event if isinstance(event, str) else json.dumps(event)}\n" for event in events))
    return path


def test_lines_on_standard_input_become_a_log_that_replays(tmp_path: Path):
    ran = subprocess.run(
        [sys.executable, "-m", "tokenaudit", "record", "--from-jsonl", "-", "-o", tmp_path / "log", "--token-columns"],
        input=f"{json.dumps(PUT)}\n{json.dumps(TAKE)}\n",
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, f"2 events in {tmp_path / 'log'}\n", "")
    result = replay_log(tmp_path / "log", isolated=True).result
    # 5 tokens, and 2 of 3 in the loss
    assert (result.totals["produced_tokens"], result.totals["trained_tokens"]) == (8, 7)
    assert result.totals["masked_semantic_tokens"] == 1


def test_every_kind_of_event_is_recorded(tmp_path: Path, run_cli):
    events = [
        {"event": "refresh", "train_step": 1, "time_us": 5},
        {key: PUT[key] for key in PUT if key != "event"} | {"task_name": "math"},
        {"event": "sample", "group_id": 7, "status": "aborted", "task_name": "math"},
        TAKE | {"task_name": "math"},
        {"event": "sync", "train_step": 1, "model_step": 1},
    ]
    assert run_cli("record", "--from-jsonl", written(tmp_path, *events), "-o", "log").code == 0
    rows = pq.read_table(tmp_path / "log" / "part-000001.parquet").to_pylist()
    assert [row["event"] for row in rows] == ["refresh", "put", "put", "sample", "take", "sync"]
    assert [row["event_id"] for row in rows] == [1, 2, 2, 3, 4, 5]


def test_faulty_lines_are_told_and_the_others_recorded(tmp_path: Path, run_cli):
    path = written(
        tmp_path,
        "not json",
        "[1]",
        TAKE | {"event": "tak"},
        TAKE | {"batchsize": 1},
        {"event": "take", "train_step": 1},
        PUT | {"responses": [{"rollout_id": 1}]},
        PUT | {"responses": [5]},
        "[" * 100_000,
        "",
        TAKE,
    )
    ran = run_cli("record", "--from-jsonl", path, "-o", "log")
    assert (ran.code, ran.out) == (2, "1 events in log\n")
    for part in (
        f"error: not JSON: Expecting value: line 1 column 1 (char 0)\n  at: {path}, line 1\n",
        "list in place of an object",
        "unknown event 'tak'\n  at: " + f"{path}, line 3\n  hint: did you mean 'take'?",
        "'batchsize' is no field of a take",
        "batch_size is missing",
        f"nothing gives the length of the response\n  at: {path}, line 6, response 0 of group 7",
        "responses is no list of objects",
        "JSON nested too deep",
        f"8 lines could not be recorded\n  at: {path}\n",
    ):
        assert part in ran.err


def test_a_key_twice_in_one_object_is_a_fault_of_its_line(tmp_path: Path, run_cli):
    twice = '{"event": "take", "train_step": 1, "batch_size": 1, "batch_size": 9}'
    nested = json.dumps(PUT).replace('"reward": 1.0', '"reward": 1.0, "reward": 0.0')
    path = written(
        tmp_path, twice, nested, TAKE | {"rollout_ids": [14, 15]}, TAKE | {"responses": [{"rollout_id": 14}]}
    )
    ran = run_cli("record", "--from-jsonl", path, "-o", "log")
    assert (ran.code, ran.out) == (2, "2 events in log\n")
    hint = "  hint: give every key once\n"
    assert f"error: the key 'batch_size' is twice in one object\n  at: {path}, line 1\n{hint}" in ran.err
    assert f"error: the key 'reward' is twice in one object\n  at: {path}, line 2\n{hint}" in ran.err
    rows = pq.read_table(tmp_path / "log").to_pylist()
    assert [(row["event_id"], row["rollout_id"]) for row in rows] == [(1, 14), (1, 15), (2, 14)]
    metadata = pq.read_schema(tmp_path / "log" / "part-000001.parquet").metadata
    assert metadata[META_REJECTED.encode()] == b"2"


def test_only_the_first_faults_are_told_one_by_one(tmp_path: Path, run_cli):
    ran = run_cli("record", "--from-jsonl", written(tmp_path, *["{"] * 50), "-o", "log")
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.count("error: not JSON") == 20
    assert "50 lines could not be recorded" in ran.err


def test_lines_that_are_all_faulty_make_no_log_and_are_counted_in_one_that_goes_on(tmp_path: Path, run_cli):
    bad, good = written(tmp_path, "{", "[1]"), tmp_path / "good.jsonl"
    good.write_text(f"{json.dumps(TAKE)}\n")
    ran = run_cli("record", "--from-jsonl", bad, "-o", "log")
    assert (ran.code, ran.out) == (2, "")
    assert "2 lines could not be recorded" in ran.err
    assert not (tmp_path / "log").exists()
    run_cli("record", "--from-jsonl", good, "-o", "log")
    ran = run_cli("record", "--from-jsonl", bad, "-o", "log", "--append")
    assert (ran.code, ran.out) == (2, "")
    assert pq.read_table(tmp_path / "log" / "part-000002.parquet").num_rows == 0
    metadata = pq.read_schema(tmp_path / "log" / "part-000002.parquet").metadata
    assert metadata[META_REJECTED.encode()] == b"2"


def test_a_line_of_any_length_takes_bounded_memory(tmp_path: Path, run_cli, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(lines, "MAX_LINE_BYTES", 1000)
    ran = run_cli("record", "--from-jsonl", written(tmp_path, "x" * 5_000_000, TAKE), "-o", "log")
    assert (ran.code, ran.out) == (2, "1 events in log\n")
    assert "a line of 5000001 bytes" in ran.err


def test_a_folder_with_a_log_is_refused_without_an_option(tmp_path: Path, run_cli):
    path = written(tmp_path, TAKE)
    assert run_cli("record", "--from-jsonl", path, "-o", "log").code == 0
    ran = run_cli("record", "--from-jsonl", path, "-o", "log")
    assert ran.code == 2
    assert "already holds 1 Parquet file\n" in ran.err
    assert run_cli("record", "--from-jsonl", path, "-o", "log", "--append").code == 0
    assert [row["event_id"] for row in pq.read_table(tmp_path / "log").to_pylist()] == [1, 2]
    for options, what in (
        (["--force"], "force is called overwrite"),
        (["--append", "--overwrite"], "exclude each other"),
    ):
        ran = run_cli("record", "--from-jsonl", path, "-o", "log", *options)
        assert (ran.code, ran.out) == (2, "")
        assert what in ran.err
        assert len(pq.read_table(tmp_path / "log")) == 2
    assert "--force" not in run_cli("record", "--help").out
    assert run_cli("record", "--from-jsonl", path, "-o", "log", "--overwrite").code == 0
    assert len(pq.read_table(tmp_path / "log")) == 1


def test_a_missing_file_is_an_error(run_cli):
    ran = run_cli("record", "--from-jsonl", "nothing.jsonl", "-o", "log")
    assert (ran.code, ran.out) == (2, "")
    assert "can't read: No such file or directory" in ran.err


@pytest.mark.parametrize(
    ("command", "message"),
    [("- <&-", "error: standard input is closed"), ("/proc/self/mem", "at: /proc/self/mem")],
)
def test_a_stream_that_cannot_be_read_is_an_error(command: str, message: str, tmp_path: Path):
    ran = subprocess.run(
        ["bash", "-c", f"{sys.executable} -m tokenaudit record -o log --from-jsonl {command}"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )
    assert (ran.returncode, ran.stdout) == (2, "")
    assert message in ran.stderr


def test_values_that_take_forever_to_print_are_told_in_short(tmp_path: Path, run_cli):
    deep = "[" * 900 + "]" * 900
    lines = [
        f'{{"event": {deep}}}',
        f'{{"event": "take", "train_step": {deep}, "batch_size": 1}}',
        f'{{"event": "sample", "group_id": 1, "status": "{"x" * 3_000_000}"}}',
        f'{{"event": "refresh", "train_step": 1, "{"x" * 3_000_000}": 1}}',
        '{"event": "put", "train_step": 1, "group_id": 1, "task_name": "\\ud800", "responses": [{"rollout_id": 1}]}',
        TAKE,
    ]
    ran = run_cli("record", "--from-jsonl", written(tmp_path, *lines), "-o", "log")
    assert (ran.code, ran.out) == (2, "1 events in log\n")
    assert len(ran.err) < 4_000
    for message in (
        "unknown event [",
        "train_step is [",
        "unknown status 'xxx",
        "is no field of a refresh",
        "task_name is",
    ):
        assert message in ran.err

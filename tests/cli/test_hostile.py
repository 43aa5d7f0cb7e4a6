"""Hostile files and odd streams: told in a line, in bounded memory, and never with the exit code of a verdict."""

from __future__ import annotations

import io
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.builders import put, take, write_log
from tests.conftest import SAMPLE
from tokenaudit.contracts.schema import META_DROPPED

RUN = f"{sys.executable} -m tokenaudit"


def shell(command: str, folder: Path) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(["bash", "-c", command], cwd=folder, capture_output=True, timeout=60)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return write_log(tmp_path / "log.parquet", [put(1, 1, task_name="mäth"), take(2, task_name="mäth")])


@pytest.mark.parametrize(
    ("command", "code"),
    [
        ("replay no.parquet 2>&-", 2),
        ("replay no.parquet 2>/dev/full", 2),
        ("(replay no.parquet 2>&1; exit $?) | true; exit ${PIPESTATUS[0]}", 2),
        ("replay log.parquet 2>/dev/full", 0),
        ("replay log.parquet 2>&-", 0),
        ("replay log.parquet >/dev/full", 2),
        ("replay log.parquet >&-", 0),
        ("replay log.parquet -o result.json >&-; test -s result.json", 0),
        ("--help | true; exit ${PIPESTATUS[0]}", 0),
        ("replay log.parquet | true; exit ${PIPESTATUS[0]}", 0),
    ],
)
def test_streams_that_are_closed_or_full(command: str, code: int, log: Path):
    text = command.replace("replay ", f"{RUN} replay ", 1).replace("--help", f"{RUN} --help", 1)
    ran = shell(text, log.parent)
    assert ran.returncode == code
    assert b"Traceback" not in ran.stderr
    if "no.parquet" in command and "2>&1" not in command:
        assert ran.stdout == b""


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
@pytest.mark.parametrize("name", ["json", "csv", "markdown"])
def test_what_programs_read_is_utf8_whatever_the_terminal(
    encoding: str, name: str, log: Path, run_cli, monkeypatch: pytest.MonkeyPatch
):
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding=encoding))
    assert run_cli("replay", log, "--by-task", "--format", name, "-q").code == 0
    assert "mäth" in written.getvalue().decode()
    if name == "json":
        assert list(json.loads(written.getvalue())["totals"]["tasks"]) == ["mäth"]


@contextmanager
def written_after_a_while(*pipes: Path) -> Iterator[None]:
    """Fails if the block waits for a pipe: a command that opens one to read waits for somebody who writes."""
    waiting = threading.Timer(20, lambda: [os.close(os.open(pipe, os.O_RDWR)) for pipe in pipes])
    waiting.start()
    began = time.monotonic()
    try:
        yield
    finally:
        waiting.cancel()
    assert time.monotonic() - began < 15


@pytest.mark.parametrize("command", ["replay pipe", "replay log.parquet -c pipe", "lint pipe", "replay pipe.json"])
def test_a_pipe_is_refused_instead_of_waited_for(command: str, log: Path, run_cli):
    pipes = [log.parent / name for name in ("pipe", "pipe.json")]
    for pipe in pipes:
        os.mkfifo(pipe)
    with written_after_a_while(*pipes):
        ran = run_cli(*command.split())
    assert (ran.code, ran.out) == (2, "")
    assert "not a regular file" in ran.err
    assert "internal error" not in ran.err


@pytest.mark.parametrize(
    "arguments",
    [
        "replay " + "a" * 300,
        "replay log.parquet -o " + "a" * 300 + ".json",
        "replay log.parquet -o loop.json",
        "replay loop.parquet",
        "replay log.parquet -c loop.toml",
        "replay log.parquet log.parquet",
        "replay log.parquet ./log.parquet",
        "replay log.parquet -s " + "a." * 5000 + "a=1",
    ],
)
def test_odd_paths_and_arguments_are_the_users_to_mend(arguments: str, log: Path, run_cli):
    for suffix in ("json", "parquet", "toml"):
        (log.parent / f"loop.{suffix}").symlink_to(f"loop.{suffix}")
    ran = run_cli(*arguments.split())
    assert (ran.code, ran.out) == (2, "")
    assert "error: " in ran.err
    assert "internal error" not in ran.err


def test_a_found_config_that_cannot_be_read_is_not_passed_over(log: Path, run_cli):
    (log.parent / "tokenaudit.toml").mkdir()
    ran = run_cli("replay", "log.parquet")
    assert (ran.code, ran.out) == (2, "")
    assert "tokenaudit.toml" in ran.err


def peak_mebibytes(command: str, folder: Path) -> tuple[int, float]:
    """Exit code, and the most memory that the command took."""
    code = (
        "import resource, subprocess, sys;"
        f"done = subprocess.run([sys.executable, '-m', 'tokenaudit', *{command.split()!r}], capture_output=True);"
        "print(done.returncode, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024)"
    )
    ran = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=True)
    exit_code, peak = ran.stdout.split()
    return int(exit_code), float(peak)


def one_row(**columns: pa.Array) -> pa.Table:
    plain = {
        "event_id": pa.array([1]), "train_step": pa.array([1]), "group_id": pa.array([1]),
        "rollout_id": pa.array([1]), "status": pa.array(["completed"]), "model_step": pa.array([0]),
    }  # fmt: skip
    return pa.table(plain | columns)


def test_a_small_file_that_expands_hugely_is_refused(tmp_path: Path):
    tokens = 60_000_000
    versions = pa.ListArray.from_arrays([0, tokens], pa.array(np.zeros(tokens, dtype=np.int32)))
    pq.write_table(one_row(response_model_steps=versions), tmp_path / "long.parquet", compression="zstd")
    pq.write_table(one_row(status=pa.array(["x" * 200_000_000]), response_len=pa.array([1])), tmp_path / "text.parquet")
    for name in ("long", "text"):
        code, peak = peak_mebibytes(f"replay {name}.parquet", tmp_path)
        assert code == 2
        assert peak < 400


def test_a_long_name_in_every_row_takes_its_memory_once(tmp_path: Path):
    rows = 3000
    log = pa.table(
        {
            "event_id": pa.array(range(rows)),
            "train_step": pa.array([1] * rows),
            "group_id": pa.array(range(rows)),
            "rollout_id": pa.array(range(rows)),
            "status": pa.array(["completed"] * rows),
            "model_step": pa.array([0] * rows),
            "response_len": pa.array([1] * rows),
            "task_name": pa.DictionaryArray.from_arrays(np.zeros(rows, np.int32), ["x" * 1_000_000]),
        }
    )
    pq.write_table(log, tmp_path / "names.parquet")
    code, peak = peak_mebibytes("replay names.parquet -q -s timeline.train_batch_size=1", tmp_path)
    assert code == 0
    assert peak < 600


@pytest.mark.parametrize(("is_one_name", "code"), [(True, 0), (False, 2)])
def test_long_names_that_share_their_beginning_do_not_expand(is_one_name: bool, code: int, tmp_path: Path):
    """A hundred kilobytes of file stand for 700 MB of names."""
    rows = 700
    columns: dict[str, Any] = {name: range(rows) for name in ("event_id", "group_id", "rollout_id")}
    columns |= {"train_step": [1] * rows, "model_step": [0] * rows, "response_len": [1] * rows}
    columns["status"] = ["completed"] * rows
    columns["task_name"] = ["x" * 1_000_000 + ("" if is_one_name else str(row)) for row in range(rows)]
    path = tmp_path / "names.parquet"
    encoding = {"task_name": "DELTA_BYTE_ARRAY"}
    pq.write_table(pa.table(columns), path, use_dictionary=False, column_encoding=encoding)
    assert path.stat().st_size < 200_000
    ran, peak = peak_mebibytes("replay names.parquet -q -s timeline.train_batch_size=1", tmp_path)
    assert ran == code
    assert peak < 600


def test_numbers_beyond_64_bits_are_faults_not_other_numbers(tmp_path: Path, run_cli):
    for name in ("group_id", "event_id", "rollout_id", "prior_len"):
        table = one_row(response_len=pa.array([4]), prior_len=pa.array([0]))
        table = table.set_column(table.schema.get_field_index(name), name, pa.array([2**63 + 5], pa.uint64()))
        pq.write_table(table, tmp_path / "large.parquet")
        ran = run_cli("replay", "large.parquet", "-s", "timeline.train_batch_size=1")
        assert (ran.code, ran.out) == (2, "")
        assert f"column {name}" in ran.err


def test_names_that_are_no_utf8_are_escaped(tmp_path: Path, run_cli):
    raw = pa.array([b"m\x81th"]).cast(pa.binary())
    names = pa.Array.from_buffers(pa.string(), 1, raw.buffers())
    pq.write_table(one_row(task_name=names, response_len=pa.array([4])), tmp_path / "raw.parquet")
    ran = run_cli("replay", "raw.parquet", "-s", "timeline.train_batch_size=1", "--by-task", "--format", "json")
    assert ran.code == 0
    assert list(json.loads(ran.out)["totals"]["tasks"]) == ["m\\x81th"]


@pytest.mark.parametrize("others", [[], [take(2)]])
@pytest.mark.parametrize(
    "command",
    [
        ["replay"],
        ["gate", "--rule", "expired_groups <= 0"],
        ["mask", "-o", "out.parquet"],
        ["compact", "-o", "out.parquet"],
        ["explain", "--step", "1"],
        ["diff", "--set-b", "policy.max_staleness=1", "--log"],
    ],
    ids=lambda command: command[0],
)
def test_a_log_of_faulty_groups_only_leaves_nothing_to_judge(command, others, tmp_path: Path, run_cli):
    write_log(tmp_path / "log.parquet", [put(1, 1, response_mask=[1]), *others])
    ran = run_cli(*command, "log.parquet", "--quarantine", "-q")
    assert (ran.code, ran.out) == (2, "")
    assert "error: no put is left to replay\n  at: log.parquet\n" in ran.err
    assert not (tmp_path / "out.parquet").exists()


@pytest.mark.parametrize("place", ["pipe", "pipe.parquet", "socket", "/dev/null", "folder"])
@pytest.mark.parametrize(
    "command",
    [
        "replay",
        "audit",
        "inspect",
        "simulate",
        "lint",
        "explain --step 1",
        "workload -o out.parquet",
        "mask -o out.parquet",
        "compact -o out.parquet",
        "gate --rule expired_groups<=0",
        "gate --simulate --rule expired_groups<=0",
        "diff --set-b policy.max_staleness=1 --log",
        "diff --simulate --set-b policy.max_staleness=1 --log",
    ],
)
def test_what_is_no_file_is_refused_without_waiting_for_it(command: str, place: str, tmp_path: Path, run_cli):
    os.mkfifo(tmp_path / "pipe")
    os.mkfifo(tmp_path / "pipe.parquet")
    (tmp_path / "folder").mkdir()
    with socket.socket(socket.AF_UNIX) as unix:
        unix.bind(str(tmp_path / "socket"))
    with written_after_a_while(tmp_path / "pipe", tmp_path / "pipe.parquet"):
        ran = run_cli(*command.split(), place)
    assert ran.code == 2
    assert "internal error" not in ran.err
    assert not (tmp_path / "out.parquet").exists()


def test_too_many_rows_are_refused_before_they_are_made(tmp_path: Path, run_cli):
    many = "\n".join(f"[tasks.t{number}]" for number in range(3000))
    (tmp_path / "many.toml").write_text(many)
    ran = run_cli("replay", SAMPLE, "-c", "many.toml", "--timeline", "simulated", "-s", "timeline.train_batch_size=1",
                  "-s", "timeline.steps=1000")  # fmt: skip
    assert (ran.code, ran.out) == (2, "")
    assert "1000 steps of 3002 tasks make more than 2000000 rows" in ran.err


def test_a_wide_name_does_not_crop_numbers(tmp_path: Path):
    from tokenaudit.render.console import Terminal, console_text
    from tokenaudit.render.result import result_blocks
    from tokenaudit.replay.session import replay_log

    name = "数学推理任务"
    path = write_log(tmp_path / "log.parquet", [put(1, 1, tokens=123_456_789, task_name=name), take(2, task_name=name)])
    shown = console_text(result_blocks(replay_log(path, isolated=True).result, by_task=True), Terminal(width=70))
    assert "123,456,789" in shown
    assert "…" not in shown


@pytest.mark.parametrize("count", ["-5", "many", "1" * 30, ""])
def test_a_count_of_lost_events_that_counts_nothing_is_no_loss_of_none(count: str, run_cli, tmp_path: Path):
    path = write_log(tmp_path / "log.parquet", [put(1, 1), take(2)], metadata={META_DROPPED: count})
    for command in ("replay", "gate", "audit"):
        ran = run_cli(command, path, "--isolated")
        assert ran.code == 2
    assert f"{META_DROPPED} is {count[:12]!r}"[:-1] in run_cli("replay", path).err

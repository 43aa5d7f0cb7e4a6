"""`tokenaudit import`: what it says, what it refuses, and what hostile or large files do to it."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from tests.conftest import ROOT
from tests.importers.importing import ROW, imported, jsonl
from tests.importers.test_import_dumps import slime_dump
from tests.importers.test_import_texts import areal, areal_dump, prime_dump, summary
from tokenaudit import replay_log
from tokenaudit.contracts import files
from tokenaudit.importers.base import Lack
from tokenaudit.importers.detect import IMPORTERS
from tokenaudit.record import json_lines as lines

GENERIC_PLAN = """\
format: generic (any table with one response a row)
files: 1 with 74 bytes
  mine.jsonl
versions: exact, segment, span, start, none; counted in train steps, initial weights = 0 (--version-offset)
  read as (version - 1) * 1 train steps
reads: {columns}
not read: extra (--map theirs=ours)
first put: task math, group 1, train step 1, 1 response, 5 tokens, versions exact
can't be known:
  - {timeline}

What it answers:
question         answer      why
───────────────────────────────────────────────────────────────────────────────────────
replay           exact       versions per token
token counts     yes         all responses
masks            no          none in these files; tokens without one count as trainable
rewards          no          none in these files
takes            simulated   the source records none
dropped groups   yes         as replay drops them
"""


TEXT = {"input": "q", "output": "a", "score": 1, "step": 1, "uid": "a_0_0"}
DUMPS: dict[str, Callable[[Path], object]] = {
    "areal": areal_dump,
    "prime-rl": prime_dump,
    "slime": slime_dump,
    "verl": lambda folder: jsonl(
        folder / "1.jsonl", {"input": "q", "output": "a", "score": 1, "step": 1, "uid": "a_0_0"}
    ),
    "tinker": lambda folder: jsonl(
        folder / "iteration_8" / "train_rollout_summaries.jsonl", summary(8, 0, 0, 8, (5, 9))
    ),
    "generic": lambda folder: jsonl(folder / "mine.jsonl", ROW),
}


@pytest.mark.parametrize("name", DUMPS)
def test_dry_run_says_what_would_be_read_and_what_cannot_be_told(name: str, tmp_path: Path, run_cli):
    DUMPS[name](tmp_path / "dump")
    ran = run_cli("import", tmp_path / "dump", "--dry-run")
    assert ran.code == 0
    expected = (ROOT / "tests" / "outputs" / "dry_run" / f"{name}.txt").read_text()
    assert re.sub(r"with [0-9,]+ bytes", "with N bytes", ran.out) == expected
    assert ran.err.startswith(f"note: the files look like {name}: ")
    assert ("note: 1 other file passed over" in ran.err) == (name in ("prime-rl", "slime"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["dump"]


def test_dry_run_of_a_table(tmp_path: Path, run_cli):
    path = jsonl(tmp_path / "mine.jsonl", {"g": 1, "train_step": 1, "response_len": 5, "model_step": 1, "extra": 7})
    options = ["--from", "generic", "--map", "g=group_id", "--task", "math", "--version-offset", 1, "--dry-run"]
    ran = run_cli("import", path, *options)
    expected = GENERIC_PLAN.format(columns=", ".join(IMPORTERS["generic"].reads), timeline=Lack.TIMELINE)
    assert (ran.code, ran.out, ran.err) == (0, expected, "")


def test_the_list_names_every_format(run_cli):
    ran = run_cli("import", "--list")
    assert ran.code == 0
    assert [line.split(":")[0] for line in ran.out.splitlines() if not line.startswith(" ")] == list(IMPORTERS)


def test_an_import_says_what_it_read_and_what_is_left_out(tmp_path: Path, run_cli):
    ran = run_cli("import", prime_dump(tmp_path / "dump"), "-o", "log.parquet")
    expected = (
        "log.parquet: 3 puts, 1 take · 8 responses · 220 tokens · train steps 5 to 5 · versions span (4), exact (4)\n"
    )
    answers = (ROOT / "tests" / "outputs" / "dry_run" / "prime-rl.txt").read_text().partition("What it answers:\n")[2]
    assert (ran.code, ran.out) == (0, f"{expected}\n{answers}")
    assert f"warning: {Lack.CANCELLED}\n" in ran.err
    again = run_cli("replay", "log.parquet")
    assert again.code == 0
    assert f"warning: {Lack.CANCELLED}\n" in again.err


def test_what_a_table_leaves_out_is_kept_and_told_again(tmp_path: Path, run_cli):
    span = ROW | {"group_id": 2, "model_step_end": 1, "train_step": 3}
    bare = {name: ROW[name] for name in ROW if name != "model_step"} | {"group_id": 3, "train_step": 3}
    jsonl(tmp_path / "mine.jsonl", ROW, span, bare)
    lacks = (Lack.SPANS, Lack.VERSIONS, Lack.TIMELINE)
    assert imported("generic", tmp_path / "mine.jsonl").imports.limits == lacks
    options = ["-s", "timeline.stamp_missing=true", "-s", "timeline.train_batch_size=1"]
    ran = run_cli("replay", "log.parquet", *options)
    assert [lack for lack in lacks if f"warning: {lack}\n" not in ran.err] == []
    take = {"event": "take", "train_step": 1, "batch_size": 1}
    assert imported("generic", jsonl(tmp_path / "mine.jsonl", ROW, take)).imports.limits == ()


def test_a_log_is_never_overwritten_without_force(tmp_path: Path, run_cli):
    path = jsonl(tmp_path / "mine.jsonl", ROW)
    assert run_cli("import", path, "-o", "log.parquet", "-q").code == 0
    ran = run_cli("import", path, "-o", "log.parquet")
    assert ran.code == 2
    assert "the file is there already" in ran.err
    assert run_cli("import", path, "-o", "log.parquet", "--force").code == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["mine.jsonl"], "-o is missing"),
        (["mine.jsonl", "-o", "log.json"], "extensions: .parquet"),
        (["mine.jsonl", "-o", "no/log.parquet"], "create no first"),
        ([], "nothing to import"),
        (["nothing", "-o", "log.parquet"], "there is no such file or folder"),
        (["mine.jsonl", "--from", "arael", "-o", "log.parquet"], "did you mean 'areal'?"),
        (["mine.jsonl", "--map", "a=group", "-o", "log.parquet"], "did you mean 'group_id'?"),
        (["mine.jsonl", "--map", "group_id", "-o", "log.parquet"], "write --map theirs=ours"),
        (
            ["mine.parquet", "--from", "trl", "--sync-interval", "2", "-o", "log.parquet"],
            "count train steps, not weight",
        ),
        (
            ["mine.jsonl", "--map", "a=group_id", "--map", "b=group_id", "-o", "log.parquet"],
            "takes 'a' and 'b' for group",
        ),
        (["empty", "-o", "log.parquet"], "extensions: .csv, .jsonl, .ndjson, .parquet, .pkl, .pt, .pth, .tsv"),
        (["mine.jsonl", "-o", f"{'x' * 250}.parquet"], "File name too long"),
        (["odd.jsonl", "-o", "log.parquet"], "logprobs is 3"),
        (["odd.jsonl", "-o", "log.parquet"], "task_name is '\\ud800'"),
        (["odd.jsonl", "-o", "log.parquet"], "logprobs is {'a': 1}"),
        (["mine.jsonl", "--version-offset", "5", "-o", "log.parquet"], "version 0 lies outside the run"),
        (["mine.jsonl", "--from", "areal", "--map", "a=group_id", "-o", "log.parquet"], "--map is for generic tables"),
        (["other.jsonl", "-o", "log.parquet"], "look like no known format"),
        (["empty", "-o", "log.parquet"], "the folder holds no file to import"),
        (["mixed", "-o", "log.parquet"], "several formats: generic (1 file), tinker (1 file)"),
        (["blank.jsonl", "--from", "generic", "-o", "log.parquet"], "the files hold no response"),
        (["mine.parquet", "--from", "generic", "-o", "mine.parquet", "--force"], "overwrite what is being read"),
    ],
)
def test_arguments_that_make_no_sense_are_refused(arguments: list[str], message: str, tmp_path: Path, run_cli):
    jsonl(tmp_path / "mine.jsonl", ROW)
    jsonl(tmp_path / "other.jsonl", {"a": 1})
    jsonl(tmp_path / "odd.jsonl", ROW | {"logprobs": 3}, ROW | {"task_name": "\ud800"}, ROW | {"logprobs": {"a": 1}})
    jsonl(tmp_path / "mixed" / "a.jsonl", ROW)
    jsonl(tmp_path / "mixed" / "b.jsonl", summary(0, 0, 0, 0))
    jsonl(tmp_path / "blank.jsonl")
    (tmp_path / "mine.parquet").write_bytes(b"")
    (tmp_path / "empty").mkdir()
    ran = run_cli("import", *arguments)
    assert (ran.code, ran.out) == (2, "")
    assert message in ran.err
    assert not (tmp_path / "log.parquet").exists()


def test_all_faults_are_told_at_once_and_nothing_is_written(tmp_path: Path, run_cli):
    faulty = [areal(7, index, prompt_len=99) for index in range(30)]
    jsonl(tmp_path / "dump" / "2" / "7.jsonl", areal(7, 50), *faulty, "{", "[" * 100_000)
    ran = run_cli("import", "--from", "areal", tmp_path / "dump", "-o", "log.parquet", "--strict")
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.count("error: prompt_len 99 exceeds seqlen 14") == 20
    assert "error: 12 more faults" in ran.err
    assert [path.name for path in tmp_path.iterdir()] == ["dump"]


def test_a_mapped_column_that_no_row_has_is_told(tmp_path: Path, run_cli):
    jsonl(tmp_path / "mine.jsonl", ROW, ROW | {"score": 1.0})
    options = ["--from", "generic", "--map", "score=reward", "--map", "turns=tool_turns"]
    message = "no row has the column 'turns' that --map names, so tool_turns is unknown"
    ran = run_cli("import", "mine.jsonl", "-o", "log.parquet", *options)
    assert (ran.code, ran.err.count("no row has"), message in ran.err) == (0, 1, True)
    assert message in run_cli("import", "mine.jsonl", "--dry-run", *options).out


def test_a_trial_without_a_response_is_refused_like_the_import(tmp_path: Path, run_cli):
    jsonl(tmp_path / "mine.jsonl", {"event": "sync", "train_step": 1, "model_step": 1})
    for options in (["--dry-run"], ["-o", "log.parquet"]):
        ran = run_cli("import", "mine.jsonl", "--from", "generic", *options)
        assert (ran.code, ran.out) == (2, "")
        assert "the files hold no response" in ran.err


def test_versions_of_a_table_may_count_pushes(tmp_path: Path, run_cli):
    path = jsonl(tmp_path / "mine.jsonl", ROW | {"train_step": 9, "model_step": 3})
    options = ["--version-offset", "1", "--sync-interval", "4"]
    assert run_cli("import", path, "-o", "log.parquet", *options).code == 0
    assert pq.read_table(tmp_path / "log.parquet")["model_step"].to_pylist() == [8]


def test_versions_that_begin_anew_are_noticed(tmp_path: Path):
    steps = [(7, 6), (8, 7), (9, 7), (10, 0), (11, 1)]
    for iteration, client in steps:
        jsonl(tmp_path / "dump" / f"iteration_{iteration}" / "x.jsonl", summary(iteration, 0, 0, client, (1, 4)))
    (reset,) = [limit for limit in imported("tinker", tmp_path / "dump").imports.limits if "anew" in limit]
    assert reset.startswith(
        "versions begin anew: train step 11 has none above 0, although train step 9 had none below 7;"
    )
    result = replay_log(tmp_path / "log.parquet", isolated=True).result
    assert reset in [notice.message for notice in result.warnings]


def test_versions_that_lag_are_no_reset(tmp_path: Path):
    for iteration, client in [(7, 6), (8, 6), (9, 6), (10, 9), (11, 9)]:
        jsonl(tmp_path / "dump" / f"iteration_{iteration}" / "x.jsonl", summary(iteration, 0, 0, client, (1, 4)))
    assert imported("tinker", tmp_path / "dump").imports.limits == (Lack.DROPPED,)


def test_a_resumed_run_can_be_imported_with_an_offset_of_its_own(tmp_path: Path):
    jsonl(tmp_path / "dump" / "x.jsonl", summary(10, 0, 0, 0, (1, 4)))
    # version 0 of the second process is what step 10 left behind
    assert imported("tinker", tmp_path / "dump", offset=-10).column("model_step") == [10]


@pytest.mark.parametrize("name", ["mine.jsonl", "mine.csv"])
def test_a_line_of_any_length_takes_bounded_memory(name: str, tmp_path: Path, run_cli, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(lines, "MAX_LINE_BYTES", 10_000)
    (tmp_path / name).write_text("group_id,train_step\n" * name.endswith("csv") + "x" * 1_000_000)
    ran = run_cli("import", "--from", "generic", tmp_path / name, "-o", "log.parquet")
    assert ran.code == 2
    assert "a line of " in ran.err
    assert "1000" in ran.err


def test_links_out_of_a_folder_are_not_followed(tmp_path: Path, run_cli):
    jsonl(tmp_path / "outside" / "a.jsonl", ROW)
    jsonl(tmp_path / "dump" / "b.jsonl", ROW | {"group_id": 2})
    (tmp_path / "dump" / "c.jsonl").symlink_to(tmp_path / "outside" / "a.jsonl")
    (tmp_path / "dump" / "d").symlink_to(tmp_path / "outside")
    assert imported("generic", tmp_path / "dump").column("group_id") == [2]


def test_numbers_in_names_order_files_and_texts_are_ids_too(tmp_path: Path):
    for step in (9, 10, 100):
        jsonl(tmp_path / "dump" / f"step_{step}.jsonl", ROW | {"train_step": step, "group_id": f"g{step}"})
    log = imported("generic", tmp_path / "dump")
    assert log.column("train_step") == [9, 10, 100]
    assert len(set(log.column("group_id"))) == 3
    assert all(0 <= group < 2**63 for group in log.column("group_id"))


def peak_kib(folder: Path, source: Path, name: str = "generic") -> int:
    """Peak memory of an import in a process of its own."""
    # not ru_maxrss, which begins with the memory of the process that started this one
    code = "import re; from tokenaudit.cli import _run; _run(); "
    code += "print(re.search(r'VmHWM:\\s+([0-9]+)', open('/proc/self/status').read())[1])"
    arguments = ["import", "--from", name, str(source), "-o", str(folder / "log.parquet"), "--force"]
    ran = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )
    assert "internal error" not in ran.stderr
    return int(ran.stdout.splitlines()[-1])


def test_memory_stays_flat_while_the_source_grows(tmp_path: Path):
    line = json.dumps(ROW | {"response_len": 5000, "response_mask": [1] * 5000, "text": "x" * 20_000}) + "\n"
    sizes: dict[int, int] = {}
    for count in (1_500, 6_000):
        path = tmp_path / "mine.jsonl"
        with path.open("w") as file:
            for group in range(count):
                file.write(line.replace('"group_id": 1,', f'"group_id": {group},'))
        sizes[count] = peak_kib(tmp_path, path)
        path.unlink()
    assert len(pq.read_table(tmp_path / "log.parquet", columns=["event"])) == 6_000
    # 52 MB and 210 MB of text, of which the masks of the log alone are 22 MB; rows that are held take 34 MB more
    assert sizes[6_000] < sizes[1_500] + 30_000


def test_memory_holds_one_dump_at_a_time(tmp_path: Path):
    def dumps(count: int) -> Path:
        folder = tmp_path / f"dumps{count}"
        folder.mkdir()
        tokens, responses = 1_000, 2_000
        values = {"index": 0, "group_index": 0, "response_length": tokens, "weight_versions": ["1"]}
        for number in range(count):
            # lists of their own, as a trainer writes them: 2 million numbers
            samples = [values | {"group_index": index, "tokens": list(range(tokens))} for index in range(responses)]
            torch.save({"rollout_id": number, "samples": samples}, folder / f"rollout_{number}.pt")
        return folder

    one, three = (peak_kib(tmp_path, dumps(count), "slime") for count in (1, 3))
    # a dump takes 16 MB for its numbers alone
    assert three < one + 15_000


def equal_values(name: str) -> pa.Table:
    """A table that takes a few bytes in a file, and hundreds of megabytes where it's read at once."""
    rows = 300
    if name == "lists":
        ends = np.arange(3, dtype=np.int32) * 40_000_000
        bits = pa.ListArray.from_arrays(ends, pa.array(np.zeros(80_000_000, np.int8)))
        return pa.table({"group_id": [1, 2], "train_step": [1, 1], "response_mask": bits})
    if name == "masks":
        ends = np.arange(101, dtype=np.int32) * 500_000
        masks = pa.ListArray.from_arrays(ends, pa.array(np.zeros(50_000_000, np.int8)))
        return pa.table({"group_id": [1] * 100, "train_step": [1] * 100, "response_mask": masks})
    text = pa.DictionaryArray.from_arrays(np.zeros(rows, dtype=np.int32), ["x" * 2_000_000])
    if name == "texts":
        ids = {"group_id": list(range(rows)), "train_step": [1] * rows, "response_len": [1] * rows}
        return pa.table(ids | {"task_name": text})
    return pa.table({"step": [1] * rows, "prompt": text, "advantage": [1.0] * rows})


@pytest.mark.parametrize("name", ["lists", "masks", "texts", "prompts"])
def test_a_small_table_of_equal_values_takes_bounded_memory(name: str, tmp_path: Path):
    pq.write_table(equal_values(name), tmp_path / "small.parquet", compression="zstd")
    assert (tmp_path / "small.parquet").stat().st_size < 100_000
    assert peak_kib(tmp_path, tmp_path / "small.parquet", "trl" if name == "prompts" else "generic") < 600_000


@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_import_that_is_stopped_leaves_nothing_behind(number: signal.Signals, tmp_path: Path):
    rows = ({"group_id": row, "train_step": row // 1000, "response_len": 5} for row in range(400_000))
    source = jsonl(tmp_path / "rows.jsonl", *rows)
    out = tmp_path / "out"
    out.mkdir()
    command = [
        sys.executable,
        "-m",
        "tokenaudit",
        "import",
        source,
        "--from",
        "generic",
        "-o",
        out / "log.parquet",
        "-q",
    ]
    # tests that run in the background of a shell have SIGINT ignored, and so would what they start
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    running = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL)
    signal.signal(signal.SIGINT, before)
    deadline = time.monotonic() + 60
    while not list(out.iterdir()) and running.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)
    assert running.poll() is None, "it ended before it could be stopped"
    running.send_signal(number)
    _, told = running.communicate(timeout=60)
    assert running.returncode == 128 + number
    assert b"Traceback" not in told
    assert list(out.iterdir()) == []


def test_a_file_is_whole_or_not_there_wherever_a_signal_comes(tmp_path: Path):
    path = tmp_path / "log.parquet"
    module = files.__file__

    def write(last: int) -> bool:
        """Write, with a signal before the line of that number; whether there are so many."""
        count = 0

        def tracer(frame: FrameType, event: str, _: object) -> Any:
            nonlocal count
            # a second signal may well come while the first one is dealt with
            if frame.f_code.co_filename == module and frame.f_code.co_name != "__exit__":
                count += event == "line"
                if count == last:
                    sys.settrace(None)
                    raise KeyboardInterrupt
            return tracer

        before = sys.gettrace()
        sys.settrace(tracer)
        try:
            with files.replacing(path) as stream:
                stream.write(b"whole")
        except KeyboardInterrupt:
            return True
        finally:
            sys.settrace(before)
        return False

    outcomes: list[list[bytes]] = []
    while write(len(outcomes) + 1):
        outcomes.append([file.read_bytes() for file in tmp_path.iterdir()])
        path.unlink(missing_ok=True)
    assert len(outcomes) > 10
    assert set(map(tuple, outcomes)) == {(), (b"whole",)}

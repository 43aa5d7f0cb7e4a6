"""`tokenaudit mask`: rows, selection, what is held, devices, and the same file without torch."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from tests.builders import write_log
from tests.conftest import ROOT, SAMPLE
from tokenaudit.masks import writing
from tokenaudit.masks.backends import MaskBatch
from tokenaudit.masks.plan import MaskPlan

CONFIG = ("-s", "policy.max_staleness=5", "-s", "policy.max_token_staleness=0")
COLUMNS = ["train_step", "task_name", "group_id", "rollout_id", "segment", "effective_mask"]
COUNTS = ["trained_tokens", "masked_stale_tokens", "masked_semantic_tokens"]
needs_no_cuda = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")

WITHOUT_TORCH = """
import sys
class NoTorch:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "torch":
            raise ModuleNotFoundError(name)
import importlib.util
found = importlib.util.find_spec
importlib.util.find_spec = lambda name, package=None: None if name == "torch" else found(name, package)
sys.meta_path.insert(0, NoTorch())
from tokenaudit.cli import main
main()
"""


def put(event_id: int, group_id: int, rollout_id: int, versions: list[int], **others: Any) -> dict[str, Any]:
    row = {"event": "put", "train_step": 2, "status": "completed", "response_len": len(versions), "prior_len": 0}
    return (
        row
        | {"event_id": event_id, "group_id": group_id, "rollout_id": rollout_id, "response_model_steps": versions}
        | others
    )


ROWS = [
    put(0, 1, 10, [0, 0, 1], response_mask=[1, 0, 1]),
    put(0, 1, 11, [1, 1]),
    put(1, 2, 20, [0, 1], agentic=True),
    put(1, 2, 21, [0, 0, 1]),
    put(2, 3, 30, [0, 1]),
    put(2, 3, 30, [1], response_mask=[0]),
    put(3, 4, 40, []),
    put(4, 5, 50, [1, 1, 1]),
    {"event": "take", "event_id": 5, "train_step": 2, "batch_size": 4},
    {"event": "refresh", "event_id": 6, "train_step": 3},
    {"event": "take", "event_id": 7, "train_step": 3, "batch_size": 4},
]
TAKEN = [
    (2, "default", 1, 10, 0, [0, 0, 1], 1, 1, 1),
    (2, "default", 1, 11, 0, [1, 1], 2, 0, 0),
    (2, "default", 2, 20, 0, [1, 1], 2, 0, 0),
    (2, "default", 2, 21, 0, [1, 1, 1], 3, 0, 0),
    (2, "default", 3, 30, 0, [0, 1], 1, 1, 0),
    (2, "default", 3, 30, 1, [0], 0, 0, 1),
    (2, "default", 4, 40, 0, [], 0, 0, 0),
]


def test_names_of_tasks_are_plain_strings_as_in_the_log(log: Path, run_cli, tmp_path: Path):
    import polars as pl

    assert run_cli("mask", log, "-o", "masks.parquet", "--device", "cpu", "--isolated").code == 0
    assert pq.read_schema("masks.parquet").field("task_name").type == pa.string()
    named = pl.read_parquet(log).filter(pl.col("event") == "put").with_columns(task_name=pl.lit("default"))
    keys = ["task_name", "group_id", "rollout_id"]
    assert named.join(pl.read_parquet("masks.parquet"), on=keys).height > 0


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Four groups taken at step 2: with a mask, agentic, in segments, empty; a fifth is left, and expires."""
    path = tmp_path / "log.parquet"
    schema = pa.schema(
        {
            "event": pa.string(),
            "event_id": pa.int64(),
            "train_step": pa.int32(),
            "group_id": pa.int64(),
            "rollout_id": pa.int64(),
            "status": pa.string(),
            "response_len": pa.int32(),
            "prior_len": pa.int32(),
            "response_model_steps": pa.list_(pa.int32()),
            "response_mask": pa.list_(pa.int8()),
            "agentic": pa.bool_(),
            "batch_size": pa.int32(),
        }
    )
    pq.write_table(pa.Table.from_pylist(ROWS, schema), path, row_group_size=3)
    return path


def rows_of(path: Path, columns: list[str] | None = None) -> list[tuple[Any, ...]]:
    return [tuple(row.values()) for row in pq.read_table(path, columns=columns or COLUMNS + COUNTS).to_pylist()]


def test_one_row_per_response_taken_in_the_order_of_the_log(run_cli, log: Path):
    ran = run_cli("mask", log, "-o", "masks.parquet", "--isolated", "--device", "cpu", *CONFIG)
    assert (ran.code, ran.err) == (0, "")
    assert ran.out == "7 responses: 9 tokens trained, 2 masked as stale, 2 not in the loss\n"
    assert rows_of(Path("masks.parquet")) == TAKEN
    assert rows_of(Path("masks.parquet"), ["taken"]) == [(True,)] * 7


def test_what_is_held_right_after_a_take(run_cli, log: Path):
    run_cli("mask", log, "-o", "masks.parquet", "--isolated", "--include-untaken", 2, *CONFIG)
    held = (2, "default", 5, 50, 0, [1, 1, 1], 3, 0, 0)
    assert rows_of(Path("masks.parquet")) == [*TAKEN, held]
    assert rows_of(Path("masks.parquet"), ["taken"]) == [(True,)] * 7 + [(False,)]


def test_what_was_reset_has_an_empty_mask(run_cli, log: Path):
    retried = ("-s", "policy.tail_batch_trigger_size=0", "-s", "policy.max_staleness=1")
    ran = run_cli("mask", log, "-o", "masks.parquet", "--isolated", "--include-untaken", 3, *CONFIG, *retried)
    assert ran.code == 0
    assert rows_of(Path("masks.parquet"))[-1] == (3, "default", 5, 50, 0, [], 0, 0, 0)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("--step", "2"), TAKEN),
        (("--step", "1..2", "--task", "default"), TAKEN),
        (("--step", "3"), []),
    ],
)
def test_selected_steps_and_tasks(run_cli, log: Path, arguments: tuple[str, ...], expected: list[Any]):
    assert run_cli("mask", log, "-o", "masks.parquet", "--isolated", *CONFIG, *arguments).code == 0
    assert rows_of(Path("masks.parquet")) == expected


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--step", "9"), "--step 9..9: the run has no such step"),
        (("--step", "x"), "--step 'x' is no range"),
        (("--task", "math"), "there is no task 'math'"),
        (("--include-untaken", "9"), "--include-untaken 9: the run has no such step"),
        (("--device", "tpu"), "--device 'tpu' is unknown"),
        (("--device", "cpu:1"), "--device 'cpu:1' is unknown"),
        pytest.param(("--device", "cuda"), "there is no CUDA device", marks=needs_no_cuda),
        pytest.param(("--device", "cuda:1"), "there is no CUDA device", marks=needs_no_cuda),
    ],
)
def test_what_is_not_there_is_2_and_leaves_no_file(run_cli, log: Path, arguments: tuple[str, ...], message: str):
    ran = run_cli("mask", log, "-o", "masks.parquet", "--isolated", *CONFIG, *arguments)
    assert (ran.code, ran.out) == (2, "")
    assert message in ran.err
    assert "hint:" in ran.err
    assert [path.name for path in Path.cwd().iterdir()] == ["log.parquet"]


@pytest.mark.parametrize(
    ("output", "message"),
    [("masks.csv", "extensions: .parquet"), ("none/masks.parquet", "isn't there"), ("log.parquet", "overwrite")],
)
def test_outputs_that_are_refused(run_cli, log: Path, output: str, message: str):
    ran = run_cli("mask", log, "-o", output)
    assert ran.code == 2
    assert message in ran.err


def test_auto_says_what_it_chose_and_the_file_records_it(run_cli, log: Path):
    ran = run_cli("mask", log, "-o", "masks.parquet", "--isolated", *CONFIG)
    metadata = pq.read_schema("masks.parquet").metadata
    chosen = metadata[b"tokenaudit.device"].decode()
    assert f"note: masks are computed by {chosen}\n" in ran.err
    assert metadata[b"tokenaudit.input"].startswith(b"sha256:")
    assert metadata[b"tokenaudit.kind"] == b"tokenaudit.masks"


def test_the_same_masks_without_torch(run_cli, tmp_path: Path):
    command = [sys.executable, "-c", WITHOUT_TORCH, "mask", str(SAMPLE), "--isolated", "-o", "numpy.parquet"]
    environment = {"PYTHONPATH": str(ROOT), "PATH": ""}
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True, env=environment)
    assert "note: masks are computed by numpy\n" in ran.stderr
    assert run_cli("mask", SAMPLE, "-o", "torch.parquet", "--isolated", "--device", "cpu").code == 0
    assert pq.read_table("numpy.parquet").equals(pq.read_table("torch.parquet"))


@pytest.mark.parametrize("device", ["cuda", "cuda:0", "mps"])
def test_other_devices_need_torch(device: str, log: Path, run_cli, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("tokenaudit.masks.backends.find_spec", lambda name: None)
    monkeypatch.setitem(sys.modules, "torch", None)
    ran = run_cli("mask", log, "-o", "masks.parquet", "--isolated", "--device", device)
    assert ran.code == 2
    assert f"--device {device} needs torch, which isn't installed" in ran.err
    assert "pip install torch" in ran.err


def test_groups_that_quarantine_leaves_out_are_told(log: Path, run_cli: Any):
    table = pq.read_table(log)
    lengths = pa.array([1, *table["response_len"].to_pylist()[1:]], pa.int32())
    pq.write_table(table.set_column(table.schema.get_field_index("response_len"), "response_len", lengths), log)
    ran = run_cli("mask", log, "-o", "masks.parquet", "--quarantine", *CONFIG)
    assert ran.code == 0, ran.err
    assert "warning: 1 group with 3 new tokens left out because of structural faults\n" in ran.err


def test_runs_of_any_number_of_tokens_are_masked_in_bounded_parts(tmp_path: Path, run_cli, monkeypatch):
    """Rows of runs are short: a batch of them stands for more tokens than may be masked at a time."""
    rows = []
    for group in range(30):
        first = {"model_step": 0, "tokens": group % 7, "trainable": 0}
        runs = [run for run in (first, {"model_step": 1, "tokens": 5, "trainable": 5}) if run["tokens"]]
        length = sum(run["tokens"] for run in runs)
        row = put(group, group, group, []) | {"response_version_runs": runs, "response_len": length}
        rows.append({name: value for name, value in row.items() if name != "response_model_steps"})
    rows.append({"event": "take", "event_id": 99, "train_step": 2, "batch_size": 25})
    log = write_log(tmp_path / "runs.parquet", rows)
    whole = run_cli("mask", log, "-o", tmp_path / "whole.parquet", *CONFIG, "-q")
    assert whole.code == 0, whole.err
    sizes = []
    masked = writing._mask_batch

    def watched(plan: MaskPlan, entries: slice, *others: Any) -> MaskBatch:
        batch = masked(plan, entries, *others)
        sizes.append(int(batch.offsets[-1]))
        return batch

    monkeypatch.setattr(writing, "_mask_batch", watched)
    monkeypatch.setattr(writing, "_PART_TOKENS", 12)
    parts = run_cli("mask", log, "-o", tmp_path / "parts.parquet", *CONFIG, "-q")
    assert parts.code == 0, parts.err
    assert len(sizes) > 5
    assert max(sizes) <= 12 + 11
    assert pq.read_table(tmp_path / "parts.parquet").equals(pq.read_table(tmp_path / "whole.parquet"))


def test_a_response_longer_than_any_is_refused(tmp_path: Path, run_cli):
    runs = [{"model_step": 1, "tokens": 2**31 - 1, "trainable": 2**31 - 1}]
    row = put(0, 1, 10, []) | {"response_version_runs": runs, "response_len": 2**31 - 1}
    del row["response_model_steps"]
    rows = [row, {"event": "take", "event_id": 1, "train_step": 2, "batch_size": 1}]
    log = write_log(tmp_path / "long.parquet", rows)
    ran = run_cli("mask", log, "-o", tmp_path / "masks.parquet", *CONFIG, "-q")
    assert ran.code == 2
    assert ran.err.startswith("error: a response of 2147483647 tokens\n  at: long.parquet\n")
    assert not (tmp_path / "masks.parquet").exists()

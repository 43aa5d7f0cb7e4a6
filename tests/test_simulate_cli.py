"""`tokenaudit simulate` and `tokenaudit workload` as people and scripts meet them."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from conftest import SAMPLE
from simulated import prompts, replayed_part, response, write_workload_rows

from tokenaudit import metrics as m
from tokenaudit.metrics import ROW_METRICS, SIMULATED_METRICS
from tokenaudit.render.frames import rows_frame
from tokenaudit.result import result_from_json
from tokenaudit.session import replay_log

CONFIG = """
mode = "disaggregated"
[timeline]
train_batch_size = 1
train_time_us = 20
sync_time_us = 5
poll_interval_us = 3
[policy]
over_sample_threshold = 1.0
"""


@pytest.fixture
def small(tmp_path: Path) -> tuple[Path, Path]:
    """A workload of six prompts and a config for it."""
    config = tmp_path / "async.toml"
    config.write_text(CONFIG)
    return write_workload_rows(tmp_path / "workload.parquet", prompts(10, [7, 40], 12, 9, 30, 5)), config


def test_every_format_tells_the_same_run(run_cli: Any, small: tuple[Path, Path]):
    arguments = ("simulate", small[0], "-c", small[1], "--steps", "3")
    ran = run_cli(*arguments, "--format", "json")
    assert (ran.code, ran.err) == (0, "")
    result = result_from_json(ran.out, "stdout")
    assert result.kind == "tokenaudit.simulate"
    assert [row["train_step"] for row in result.steps] == [1, 2, 3]
    rows = list(csv.DictReader(io.StringIO(run_cli(*arguments, "--format", "csv").out)))
    assert list(rows[0]) == ["row", "train_step", *(metric.name for metric in (*ROW_METRICS, *SIMULATED_METRICS))]
    for metric in SIMULATED_METRICS:
        told = [row[metric.name] for row in rows[:3]]
        assert told == [str(row[metric.name]) for row in result.steps]
    table = run_cli(*arguments).out
    assert "closed loop" in table
    assert "s simulated" in table
    markdown = run_cli(*arguments, "--format", "markdown").out
    assert markdown.startswith("## tokenaudit simulate: ")
    assert "taken_at_us" in markdown


def test_rows_by_task_have_the_figures_of_their_task(run_cli: Any, small: tuple[Path, Path]):
    arguments = ("simulate", small[0], "-c", small[1], "--steps", "3", "--by-task", "--format", "csv")
    rows = list(csv.DictReader(io.StringIO(run_cli(*arguments).out)))
    assert [row["in_flight_groups"] for row in rows[:3]] != ["", "", ""]
    assert [row["wall_time_us"] for row in rows] == [""] * 4
    assert all(row["taken_at_us"] for row in rows[:3])


def test_the_event_log_is_a_log_and_the_other_files_are_results(run_cli: Any, small: tuple[Path, Path], tmp_path: Path):
    log, saved = tmp_path / "sim.parquet", tmp_path / "result.json"
    ran = run_cli("simulate", small[0], "-c", small[1], "--steps", "3", "-o", log, "-o", saved, "--format", "json")
    assert saved.read_text() == ran.out
    simulated = result_from_json(ran.out, "stdout")
    assert replayed_part(replay_log(log, isolated=True).result) == replayed_part(simulated)
    assert pq.read_schema(log).metadata[b"tokenaudit.source"] == b"tokenaudit simulate"
    again = tmp_path / "again.parquet"
    run_cli("simulate", small[0], "-c", small[1], "--steps", "3", "-o", again)
    assert again.read_bytes() == log.read_bytes()
    assert run_cli("replay", saved, "--format", "json").out == ran.out


def test_selected_steps(run_cli: Any, small: tuple[Path, Path]):
    arguments = ("simulate", small[0], "-c", small[1], "--steps", "4", "--format", "json")
    whole, part = (json.loads(run_cli(*arguments, *more).out) for more in ((), ("--show-steps", "2..3")))
    assert [row["train_step"] for row in part["steps"]] == [2, 3]
    assert part["totals"] == whole["totals"]
    refused = run_cli(*arguments, "--show-steps", "9")
    assert refused.code == 2
    assert "the run has no such step" in refused.err


def test_settings_of_the_command_line(run_cli: Any, small: tuple[Path, Path]):
    arguments = ("simulate", small[0], "-c", small[1], "--format", "json", "-s", "timeline.steps=2")
    result = json.loads(run_cli(*arguments, "--max-concurrency", "1", "--groups").out)
    assert result["config"]["timeline"]["steps"] == 2
    assert result["simulation"]["max_concurrency"] == 1
    assert result["steps"][0]["taken_group_ids"] == {"default": [0]}


def test_a_log_brings_its_config_and_its_steps(run_cli: Any):
    result = json.loads(run_cli("simulate", SAMPLE, "--format", "json", "-q").out)
    assert len(result["steps"]) == 30
    assert result["config"]["timeline"]["train_batch_size"] == 24
    codes = [warning["code"] for warning in result["warnings"]]
    assert codes == ["tail-batch-zero", "truncated-responses"]


def test_a_workload_file_of_a_log_gives_the_same_run(run_cli: Any, tmp_path: Path):
    path = tmp_path / "workload.parquet"
    told = run_cli("workload", SAMPLE, "-o", path)
    assert told.code == 0
    assert "truncated_responses" in told.out
    from_file = json.loads(run_cli("simulate", path, "--steps", "5", "--format", "json").out)
    from_log = json.loads(run_cli("simulate", SAMPLE, "--steps", "5", "--format", "json").out)
    for part in ("steps", "totals", "ledger", "simulation", "config"):
        assert from_file[part] == from_log[part]
    assert from_file["inputs"][0]["content_hash"] == from_log["inputs"][0]["content_hash"]


def test_the_sample_simulated_under_its_own_config_is_close_to_its_record(run_cli: Any):
    """Within 1 % of what the recorded steps put, produced, took, trained and expired."""
    recorded = json.loads(run_cli("replay", SAMPLE, "--format", "json").out)["steps"]
    simulated = json.loads(run_cli("simulate", SAMPLE, "--format", "json").out)["steps"]
    close = (m.PUT_GROUPS, m.PRODUCED_TOKENS, m.TAKEN_GROUPS, m.TAKEN_TOKENS, m.TRAINED_TOKENS, m.EXPIRED_GROUPS)
    for metric in close:
        wanted = sum(row[metric.name] for row in recorded)
        assert sum(row[metric.name] for row in simulated) == pytest.approx(wanted, rel=0.01), metric.name


def test_a_run_that_cannot_go_on_shows_its_rows_and_says_why(run_cli: Any, tmp_path: Path):
    workload = write_workload_rows(tmp_path / "workload.parquet", prompts(5, 6, 7))
    config = tmp_path / "stale.toml"
    config.write_text(CONFIG + "max_staleness = 3\nmax_token_staleness = 0\n")
    log, saved = tmp_path / "sim.parquet", tmp_path / "result.json"
    arguments = ("simulate", workload, "-c", config, "--steps", "3", "-s", "timeline.train_time_us=100000")
    ran = run_cli(*arguments, "-o", log, "-o", saved, "-q")
    assert ran.code == 1
    assert "stuck: task default waits for a completed group" in ran.out
    assert ran.err.startswith("error: the run can't go on: task default waits for a completed group: a whole pass")
    assert "at: task default, step 2" in ran.err
    result = result_from_json(saved.read_text(), "saved")
    assert [row["train_step"] for row in result.steps] == [1]
    assert result.simulation is not None
    assert [task.reason for task in result.simulation.stuck] == ["no_completed_group"]
    assert replayed_part(replay_log(log, isolated=True).result) == replayed_part(result)
    assert len(rows_frame(result)) == 2


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--steps", "0"], "should be greater than or equal to 1"),
        (["--max-concurrency", "0"], "should be greater than or equal to 1"),
        ([], "a disaggregated simulation needs timeline.steps"),
        (["--steps", "2", "-s", "tasks.other.weight=1", "-s", "timeline.train_batch_size=2"], "has no prompt"),
        (["--steps", "2", "--token-time-us", "5"], "--token-time-us is for logs, and this is a workload"),
        (["--steps", "2", "-o", "a.parquet", "-o", "b.parquet"], "-o names more than one event log"),
        (["--steps", "2", "-o", "rows.xlsx"], "-o can't tell a format"),
        (["--steps", "2", "--show-steps", "x"], "--show-steps 'x' is no range"),
    ],
)
def test_what_cannot_begin_exits_with_2(arguments: list[str], told: str, run_cli: Any, small: tuple[Path, Path]):
    ran = run_cli("simulate", small[0], "-c", small[1], *arguments)
    assert (ran.code, ran.out) == (2, "")
    assert told in ran.err


def test_a_workload_that_is_all_failed_cannot_begin(run_cli: Any, small: tuple[Path, Path], tmp_path: Path):
    path = write_workload_rows(tmp_path / "failed.parquet", [response(0, failed=True), response(1, filtered=True)])
    log = tmp_path / "sim.parquet"
    ran = run_cli("simulate", path, "-c", small[1], "--steps", "2", "-o", log)
    assert ran.code == 2
    assert "every group of task default is marked as failed or filtered" in ran.err
    assert [file.name for file in tmp_path.iterdir() if "sim" in file.name] == []


def test_the_event_log_may_not_replace_the_workload(run_cli: Any, small: tuple[Path, Path]):
    ran = run_cli("simulate", small[0], "-c", small[1], "--steps", "2", "-o", small[0])
    assert ran.code == 2
    assert "-o would overwrite what is being read" in ran.err


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["-o", "workload.csv"], "-o must name a .parquet file"),
        (["-o", "w.parquet", "--token-time-us", "0"], "should be greater than or equal to 1"),
        ([], "Missing option"),
    ],
)
def test_workload_refuses(arguments: list[str], told: str, run_cli: Any):
    ran = run_cli("workload", SAMPLE, *arguments)
    assert ran.code == 2
    assert told in ran.err


def test_workload_refuses_a_workload(run_cli: Any, small: tuple[Path, Path]):
    ran = run_cli("workload", small[0], "-o", "other.parquet")
    assert ran.code == 2
    assert "this is a workload already" in ran.err


def test_workload_tells_what_it_wrote(run_cli: Any, tmp_path: Path):
    ran = run_cli("workload", SAMPLE, "-o", tmp_path / "w.parquet", "--format", "json")
    facts = json.loads(ran.out)
    assert facts["groups"] == 828
    assert facts["responses"] == pq.read_metadata(tmp_path / "w.parquet").num_rows == 6624

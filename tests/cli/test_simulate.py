"""`tokenaudit simulate` and `tokenaudit workload` as people and scripts meet them."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.conftest import ROOT, SAMPLE
from tests.simulate.simulated import prompts, replayed_part, response, write_workload_rows
from tokenaudit.contracts import metrics as m
from tokenaudit.contracts.metrics import ROW_METRICS, SIMULATED_METRICS
from tokenaudit.render.frames import rows_frame
from tokenaudit.replay.saved_result import result_from_json
from tokenaudit.replay.session import replay_log

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


ORDER = ("--prompt-order", "first-put")
TIME = ("--token-time-us", "900")


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
    assert result["simulation"]["prompt_order"] == "start"
    codes = [
        warning["code"]
        for warning in json.loads(run_cli("simulate", SAMPLE, *ORDER, "--format", "json").out)["warnings"]
    ]
    assert codes == ["tail-batch-zero", "truncated-responses", "prompt-order"]


def test_a_workload_file_of_a_log_gives_the_same_run(run_cli: Any, tmp_path: Path):
    path = tmp_path / "workload.parquet"
    told = run_cli("workload", SAMPLE, "-o", path)
    assert told.code == 0
    assert "truncated_responses" in told.out
    from_file = json.loads(run_cli("simulate", path, "--steps", "5", "--format", "json").out)
    from_log = json.loads(run_cli("simulate", SAMPLE, "--steps", "5", "--format", "json").out)
    assert from_log["simulation"].pop("prompt_order") == "start"
    assert from_file["simulation"].pop("prompt_order") is None
    for part in ("steps", "totals", "ledger", "simulation", "config"):
        assert from_file[part] == from_log[part]
    assert from_file["inputs"][0]["content_hash"] == from_log["inputs"][0]["content_hash"]


def test_the_sample_simulated_under_its_own_config_is_close_to_its_record(run_cli: Any):
    """Within 1 % of what the recorded steps put, produced, took, trained and expired, by their first puts too."""
    recorded = json.loads(run_cli("replay", SAMPLE, "--format", "json").out)["steps"]
    simulated = json.loads(run_cli("simulate", SAMPLE, *ORDER, "--format", "json").out)["steps"]
    close = (m.PUT_GROUPS, m.PRODUCED_TOKENS, m.TAKEN_GROUPS, m.TAKEN_TOKENS, m.TRAINED_TOKENS, m.EXPIRED_GROUPS)
    for metric in close:
        wanted = sum(row[metric.name] for row in recorded)
        assert sum(row[metric.name] for row in simulated) == pytest.approx(wanted, rel=0.01), metric.name


CLOSE_IN_ORDER = (
    m.PUT_GROUPS, m.PRODUCED_SAMPLES, m.PRODUCED_TOKENS, m.TAKEN_GROUPS, m.TAKEN_TOKENS, m.TRAINED_TOKENS,
    m.MASKED_STALE_TOKENS, m.MASKED_SEMANTIC_TOKENS, m.DROPPED_TOKENS, m.RESET_TOKENS, m.EXPIRED_GROUPS,
    m.EXPIRED_AT_PUT, m.EXPIRED_BY_TOKEN, m.SEQ_STALENESS_SUM, m.FAILED_SAMPLES, m.FAILED_TOKENS, m.FILTERED_SAMPLES,
    m.FILTERED_TOKENS, m.RAW_REWARDS_COUNT,
)  # fmt: skip


@pytest.mark.parametrize("order", ["auto", "group-id"])
def test_with_its_prompts_in_order_the_sample_is_close_in_what_goes_stale_too(order: str, run_cli: Any, tmp_path: Path):
    """Within 1 % of the recorded steps; the ids of the sample's groups count its prompts."""
    recorded = json.loads(run_cli("replay", SAMPLE, "--format", "json").out)["steps"]
    ran = run_cli("simulate", SAMPLE, "--prompt-order", order, "--format", "json")
    assert "--prompt-order" not in ran.err
    simulated = json.loads(ran.out)
    assert simulated["simulation"]["prompt_order"] == ("start" if order == "auto" else order)
    for metric in CLOSE_IN_ORDER:
        wanted = sum(row[metric.name] for row in recorded)
        off = sum(row[metric.name] for row in simulated["steps"]) - wanted
        assert 100 * abs(off) <= wanted, metric.name
    path = tmp_path / "workload.parquet"
    assert run_cli("workload", SAMPLE, "-o", path, "--prompt-order", order).err == ""
    from_file = json.loads(run_cli("simulate", path, "--steps", "30", "--format", "json").out)
    assert from_file["steps"] == simulated["steps"]


@pytest.mark.parametrize("choice", [ORDER, TIME])
def test_commands_that_simulate_take_what_derives_a_workload(choice: tuple[str, str], run_cli: Any, tmp_path: Path):
    saved, config = tmp_path / "result.json", ROOT / "sample_data" / "config.toml"
    run_cli("simulate", SAMPLE, *choice, "-o", saved, "-q")
    same = run_cli("diff", saved, config, "--log", SAMPLE, "--simulate", *choice, "--format", "json")
    assert same.code == 0
    assert all(total["a"] == total["b"] for total in json.loads(same.out)["totals"].values())
    stale = sum(row["masked_stale_tokens"] for row in json.loads(saved.read_text())["steps"])
    assert run_cli("gate", SAMPLE, "--simulate", *choice, "--rule", f"masked_stale_tokens == {stale}", "-q").code == 0
    other = run_cli("diff", saved, config, "--log", SAMPLE, "--simulate")
    assert (other.code, other.out) == (2, "")
    assert "A and B come from different logs" in other.err
    assert ("prompts stand by first-put and by start, --prompt-order makes them alike" in other.err) == (
        choice == ORDER
    )


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("simulate", "WORKLOAD", *ORDER), "--prompt-order is for logs, and this is a workload"),
        (("gate", "WORKLOAD", "--simulate", *ORDER), "--prompt-order is for logs, and this is a workload"),
        (("diff", "--log", "WORKLOAD", "--set-b", "policy.max_staleness=1", "--simulate", *ORDER),
         "--prompt-order is for logs, and this is a workload"),
        (("gate", SAMPLE, *ORDER), "--prompt-order is for simulations"),
        (("diff", "--log", SAMPLE, "--set-b", "policy.max_staleness=1", *ORDER), "--prompt-order is for simulations"),
        (("gate", SAMPLE, *TIME), "--token-time-us is for simulations"),
        (("diff", "--log", SAMPLE, "--set-b", "policy.max_staleness=1", *TIME), "--token-time-us is for simulations"),
        (("gate", "SAVED", *ORDER), "--prompt-order would need the log"),
        (("diff", "SAVED", "SAVED", *TIME), "--token-time-us would need a log"),
        (("diff", "SAVED", "SAVED", *ORDER), "--prompt-order would need a log"),
        (("simulate", SAMPLE, "--prompt-order", "id"), "'id' is not one of 'auto', 'start', 'first-put', 'group-id'"),
        (("workload", SAMPLE, "-o", "w.parquet", "--prompt-order", ""), "is not one of 'auto', 'start', 'first-put'"),
    ],
)  # fmt: skip
def test_a_choice_of_simulations_without_a_use_is_refused(
    arguments: tuple[object, ...], told: str, run_cli: Any, small: tuple[Path, Path], tmp_path: Path
):
    saved = tmp_path / "saved.json"
    run_cli("simulate", small[0], "-c", small[1], "--steps", "2", "-o", saved)
    places = {"WORKLOAD": small[0], "SAVED": saved}
    ran = run_cli(*(places.get(str(argument), argument) for argument in arguments))
    assert (ran.code, ran.out) == (2, "")
    assert told in " ".join(ran.err.split())


def test_deriving_a_workload_tells_when_another_order_may_be_closer(run_cli: Any, tmp_path: Path):
    told = run_cli("workload", SAMPLE, *ORDER, "-o", tmp_path / "w.parquet").err
    assert "tasks math, code: group ids are a count, and 55 of 828 groups were put before one with a smaller" in told
    assert "--prompt-order group-id is closer to the recorded run" in told


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
        (["--steps", "2", "-c", "other.toml", "-s", "timeline.train_batch_size=2"], "task other has no prompt"),
        (["--steps", "2", "-s", "tasks.defualt.weight=1"], "there is no task 'defualt'\n  at: workload.parquet"),
        (["--steps", "2", "--token-time-us", "5"], "--token-time-us is for logs, and this is a workload"),
        (["--steps", "2", "-o", "a.parquet", "-o", "b.parquet"], "-o names more than one event log"),
        (["--steps", "2", "-o", "rows.xlsx"], "-o knows no format"),
        (["--steps", "2", "--show-steps", "x"], "--show-steps 'x' is no range"),
    ],
)
def test_what_cannot_begin_exits_with_2(arguments: list[str], told: str, run_cli: Any, small: tuple[Path, Path]):
    (small[1].parent / "other.toml").write_text(f"{CONFIG}\n[tasks.other]\nweight = 1\n")
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
    ("command", "name"), [("simulate", "config.txt"), ("replay", "config.txt"), ("mask", "config.parquet")]
)
def test_the_config_is_not_overwritten(command: str, name: str, run_cli: Any, tmp_path: Path):
    config = tmp_path / name
    config.write_text((ROOT / "sample_data" / "config.toml").read_text())
    before = config.read_text()
    ran = run_cli(command, SAMPLE, "-c", config, "-o", config)
    assert (ran.code, ran.out, config.read_text()) == (2, "", before)
    assert "-o would overwrite what is being read" in ran.err


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["-o", "workload.csv"], "extensions: .parquet"),
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


def test_diff_compares_two_simulations(run_cli):
    ran = run_cli(
        "diff", ROOT / "sample_data" / "config.toml", "--set-b", "tasks.code.max_token_staleness=0", "--log", SAMPLE,
        "--simulate", "--format", "json", "-q",
    )  # fmt: skip
    assert ran.code == 0
    totals = json.loads(ran.out)["totals"]
    assert totals["wall_time_us"]["a"] < totals["wall_time_us"]["b"]
    assert totals["expired_groups"]["a"] == 250


def test_gate_judges_a_simulation_and_refuses_one_that_cannot_go_on(run_cli):
    passed = run_cli("gate", SAMPLE, "--simulate", "--rule", "trainer_utilization >= 20%", "-q")
    failed = run_cli("gate", SAMPLE, "--simulate", "--rule", "trainer_utilization >= 30%", "-q")
    assert (passed.code, failed.code) == (0, 1)
    replayed = run_cli("gate", SAMPLE, "--simulate", "--timeline", "recorded", "--rule", "expired_groups <= 0")
    assert (replayed.code, replayed.out) == (2, "")
    assert "--timeline is for replays" in replayed.err

"""`--metrics`: the columns of replay and simulate, and what gate judges without rules."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from fractions import Fraction
from io import StringIO
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from tests.conftest import SAMPLE
from tokenaudit import load_result, replay_log, rows_frame
from tokenaudit.compare.metric_values import figures_named
from tokenaudit.render.console import Terminal, console_text
from tokenaudit.render.result import result_blocks

Run = Callable[..., Any]
GOOD, WORSE = SAMPLE.parent / "config.toml", SAMPLE.parent / "worse.toml"
CHOSEN = "trained_tokens,dropped_token_rate,held_tokens,model_step,raw_rewards_sum"


def markdown_table(text: str, first: str) -> list[list[str]]:
    """The rows of the table whose first heading is that, headings first, the line below them left out."""
    part = next(part for part in text.split("\n\n") if part.startswith(f"| {first} "))
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in part.splitlines()]
    return [rows[0], *rows[2:]]


def percent(part: int, whole: int) -> str:
    return f"{float(round(Fraction(100 * part, whole), 2)):.2f} %"


def test_replay_has_the_columns_that_are_asked_for_in_their_order(run_cli: Run):
    ran = run_cli("replay", SAMPLE, "-c", GOOD, "--metrics", f" {CHOSEN},trained_tokens", "--format", "markdown", "-q")
    run = replay_log(SAMPLE, config_path=GOOD, isolated=True).result
    headings, *rows = markdown_table(ran.out, "step")
    assert headings == ["step", *CHOSEN.split(",")]
    assert len(rows) == 30 + 2
    for cells, row in zip(rows, (*run.steps, run.tail, run.totals), strict=True):
        rate = percent(row["dropped_tokens"], row["produced_tokens"])
        step = "" if row is run.tail or row is run.totals else row["model_step"]
        held = f"{run.ledger['total']['held_tokens']:,}" if row is run.totals else ""
        assert cells[1:] == [f"{row['trained_tokens']:,}", rate, held, str(step), f"{row['raw_rewards_sum']:,.3f}"]
    headings, *rows = markdown_table(ran.out, "task")
    assert headings[-4:] == ["trained_tokens", "dropped_token_rate", "held_tokens", "raw_rewards_sum"]
    for cells in rows:
        total, ledger = run.totals["tasks"][cells[0]], run.ledger["tasks"][cells[0]]
        rate = percent(total["dropped_tokens"], total["produced_tokens"])
        assert cells[-4:-1] == [f"{total['trained_tokens']:,}", rate, f"{ledger['held_tokens']:,}"]


def test_by_task_what_belongs_to_the_step_is_in_every_row_and_what_the_ledger_knows_in_the_totals(run_cli: Run):
    arguments = ("--by-task", "--metrics", "model_step,in_flight_tokens,dropped_token_rate", "--format", "markdown")
    ran = run_cli("replay", SAMPLE, "-c", WORSE, *arguments, "--steps", "7..8", "-q")
    run = replay_log(SAMPLE, config_path=WORSE, isolated=True).result
    rows = markdown_table(ran.out, "step")[1:]
    assert [" ".join(row[:3]) for row in rows[:4]] == ["7 math 6", "7 code 6", "8 math 7", "8 code 7"]
    for row in rows[:4]:
        part = run.steps[int(row[0]) - 1]["tasks"][row[1]]
        assert row[3:] == ["", percent(part["dropped_tokens"], part["produced_tokens"])]
    in_flight = [f"{run.ledger['tasks'][task]['in_flight_tokens']:,}" for task in ("math", "code")]
    assert [row[3] for row in rows[4:]] == in_flight


@pytest.mark.parametrize("by_task", [False, True])
def test_flat_tables_have_them_too_with_rates_as_numbers(by_task: bool, tmp_path: Path, run_cli: Run):
    options = ["--by-task"] if by_task else []
    files = [part for kind in ("csv", "jsonl", "parquet") for part in ("-o", f"rows.{kind}")]
    ran = run_cli("replay", SAMPLE, "-c", GOOD, "--metrics", CHOSEN, *options, *files, "-q")
    assert ran.code == 0
    run = replay_log(SAMPLE, config_path=GOOD, isolated=True).result
    frame = pl.read_parquet(tmp_path / "rows.parquet")
    assert frame.columns == ["row", "train_step", *(["task"] if by_task else []), *CHOSEN.split(",")]
    whole = rows_frame(run, by_task=by_task)
    for name in ("trained_tokens", "model_step", "raw_rewards_sum"):
        assert frame[name].to_list() == whole[name].to_list()
    shares = [d / p for d, p in zip(whole["dropped_tokens"], whole["produced_tokens"], strict=True)]
    assert frame["dropped_token_rate"].to_list() == shares
    assert frame["held_tokens"].null_count() == len(frame)
    assert rows_frame(run, by_task=by_task, metrics=CHOSEN.split(",")).equals(frame)
    assert [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()] == frame.to_dicts()
    read = list(csv.DictReader(StringIO((tmp_path / "rows.csv").read_text())))
    assert [float(row["dropped_token_rate"]) for row in read] == shares


def test_json_stays_whole_and_says_so(tmp_path: Path, run_cli: Run):
    ran = run_cli("replay", SAMPLE, "-c", GOOD, "--metrics", "dropped_tokens", "-o", "a.json")
    assert "note: JSON holds every metric, whatever --metrics names" in ran.err
    assert run_cli("replay", SAMPLE, "-c", GOOD, "-o", "b.json", "-q").code == 0
    assert (tmp_path / "a.json").read_bytes() == (tmp_path / "b.json").read_bytes()
    again = run_cli("replay", "a.json", "--metrics", "dropped_tokens", "--format", "csv", "-q").out.splitlines()
    assert again[0] == "row,train_step,dropped_tokens"
    assert again[5] == f"step,5,{load_result(tmp_path / 'a.json').steps[4]['dropped_tokens']}"


def test_simulate_has_its_own_metrics_which_a_replay_has_not(run_cli: Run):
    arguments = ("simulate", SAMPLE, "-c", GOOD, "--steps", "3", "-q")
    chosen = ("--metrics", "trainer_utilization,wall_time_us,taken_at_us")
    ran = run_cli(*arguments, *chosen, "--format", "markdown")
    headings, *rows = markdown_table(ran.out, "step")
    assert headings == ["step", "trainer_utilization", "wall_time_us", "taken_at_us"]
    whole = json.loads(run_cli(*arguments, "--format", "json").out)
    assert [row[2] for row in rows[:3]] == [f"{row['wall_time_us']:,}" for row in whole["steps"]]
    total = whole["totals"]
    assert rows[-1][1:] == [percent(total["trainer_busy_us"], total["wall_time_us"]), f"{total['wall_time_us']:,}", ""]
    # no task has any of them, so the table of tasks is that of policies
    policy = ["max_staleness", "max_token_staleness", "tail_batch_trigger_size"]
    assert markdown_table(ran.out, "task")[0] == ["task", *policy]
    refused = run_cli("replay", SAMPLE, *chosen)
    assert (refused.code, refused.out) == (2, "")
    assert [line for line in refused.err.splitlines() if line.startswith("error")] == [
        f"error: --metrics: a replay has no {name}" for name in chosen[1].split(",")
    ]


@pytest.mark.parametrize("command", ["replay", "simulate", "gate"])
def test_unknown_metrics_are_refused_with_the_nearest_before_the_log_is_read(command: str, run_cli: Run):
    ran = run_cli(command, "nothing.parquet", "--metrics", "droped_tokens,trained_tokens,expired_grups")
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.splitlines() == [
        "error: unknown metric 'droped_tokens'",
        "  hint: did you mean 'dropped_tokens'?",
        "error: unknown metric 'expired_grups'",
        "  hint: did you mean 'expired_groups'?",
    ]
    assert "--metrics names none" in run_cli(command, SAMPLE, "--metrics", " , ").err


def test_a_narrow_terminal_keeps_the_first_columns():
    figures = figures_named(["seq_staleness_sum", "produced_tokens", "dropped_tokens", "discarded_fresh_tokens"])
    run = replay_log(SAMPLE, config_path=WORSE, isolated=True).result
    text = console_text(result_blocks(run, figures=figures), Terminal(50))
    assert "1 more column in a wider terminal, in a pipe, or with --format csv; --metrics chooses" in " ".join(
        text.split()
    )
    headings = text.split("─")[0]
    assert all(word in headings for word in ("sum", "produced", "dropped"))
    assert "discarded" not in headings


@pytest.fixture
def baseline(tmp_path: Path, run_cli: Run) -> Path:
    assert run_cli("gate", SAMPLE, "-c", GOOD, "--write-baseline", "base.json", "-q").code == 0
    return tmp_path / "base.json"


def test_gate_judges_them_in_place_of_the_outcomes(baseline: Path, run_cli: Run):
    arguments = ("gate", SAMPLE, "-c", WORSE, "--baseline", baseline, "--format", "json", "-q")
    ran = run_cli(*arguments, "--metrics", "dropped_tokens,trained_token_rate")
    data = json.loads(ran.out)
    assert ran.code == 1
    assert [(one["rule"], one["outcome"], one["source"]) for one in data["verdicts"]] == [
        ("dropped_tokens <= +0", "failed", "--metrics"),
        ("trained_token_rate >= +0pp", "failed", "--metrics"),
    ]
    # the one outcome that is better under the worse config passes alone, and is all that is judged
    ran = run_cli(*arguments, "--metrics", "masked_token_rate")
    assert (ran.code, [one["rule"] for one in json.loads(ran.out)["verdicts"]]) == (0, ["masked_token_rate <= +0pp"])
    # what was asked for and has no value can't be judged, though outcomes without a value are passed over
    ran = run_cli(*arguments, "--metrics", "masked_token_rate,wall_time_us")
    assert ran.code == 2
    assert [one["outcome"] for one in json.loads(ran.out)["verdicts"]] == ["not_judged", "passed"]


def test_gate_refuses_metrics_without_a_worse_direction(baseline: Path, run_cli: Run):
    ran = run_cli("gate", SAMPLE, "--baseline", baseline, "--metrics", "reset_tokens,fresh_loss_rate,model_step", "-q")
    assert ran.code == 2
    assert "neither more nor less reset_tokens is always worse" in ran.err
    assert "hint: a rule says which, such as --rule 'reset_tokens <= +0'" in ran.err
    assert "hint: a rule says which, such as --rule 'fresh_loss_rate <= +0pp'" in ran.err
    assert "neither more nor less model_step is always worse" in ran.err
    for rule in ("reset_tokens <= +0", "fresh_loss_rate <= +0pp"):
        assert run_cli("gate", SAMPLE, "--baseline", baseline, "--rule", rule, "-q").code in (0, 1)


def test_gate_refuses_metrics_beside_rules_which_they_could_hide(baseline: Path, tmp_path: Path, run_cli: Run):
    rules = tmp_path / "rules.toml"
    rules.write_text('[gate]\nrules = ["expired_groups <= 0"]\n')
    arguments = ("gate", SAMPLE, "--baseline", baseline, "--metrics", "trained_tokens", "-q")
    for options, place in (
        (["--rule", "expired_groups <= 0"], "--rule"),
        (["--rules", rules], "--rules"),
        (["-c", rules], "rules.toml, line 2"),
    ):
        ran = run_cli(*arguments, *options)
        assert (ran.code, ran.out) == (2, "")
        assert f"--metrics is for a gate without rules, and there is {place}" in ran.err
    ran = run_cli("gate", SAMPLE, "--write-baseline", "new.json", "--metrics", "trained_tokens", "-q")
    assert (ran.code, (tmp_path / "new.json").exists()) == (2, False)
    ran = run_cli("gate", SAMPLE, "--metrics", "trained_tokens", "-q")
    assert ran.code == 2
    assert "trained_tokens >= +0 needs a baseline" in ran.err

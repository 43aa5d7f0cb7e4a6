"""GPU-hours and dollars as they are printed, in every command that knows them."""

from __future__ import annotations

import json
from fractions import Fraction

import pytest

from tests.conftest import SAMPLE
from tokenaudit.render.cost import amount_text, cost_lines
from tokenaudit.replay.cost import RunCost
from tokenaudit.replay.run_times import COLOCATED_WAIT

OPTIONS = ("-s", "cost.rollout_gpus=64", "-s", "cost.train_gpus=32", "-s", "cost.usd_per_gpu_hour=2.5", "--isolated")
OTHER = ("-s", "tasks.code.max_token_staleness=2")
# 64 GPUs for the 1,650.771588 s between the first put of the sample and its last one; 1,596,955 of 6,596,441 tokens
UNTRAINED = "GPU-hours on tokens never trained: 7.10 of 29.35 (24.2 %), $17.76\n"
WAIT = "GPU-hours the trainer waited: unknown, no take of the log has time_us\n"
ELSEWHERE = "times are those of the recorded run, which this config would have changed: a simulation decides\n"


def test_replay_says_what_a_run_cost_behind_its_verdict(run_cli):
    out = run_cli("replay", SAMPLE, *OPTIONS).out
    assert out.endswith(UNTRAINED + WAIT)
    assert run_cli("replay", SAMPLE, *OPTIONS, *OTHER).out.endswith(WAIT + ELSEWHERE)
    lines = run_cli("replay", SAMPLE, *OPTIONS, "--steps", "2..3").out.splitlines()
    assert lines[-2] == UNTRAINED.strip().replace(":", " (whole run):", 1)


def test_without_a_cost_nothing_is_said_of_it(run_cli):
    for arguments in (["replay", SAMPLE], ["replay", SAMPLE, "--format", "json"], ["explain", SAMPLE]):
        out = run_cli(*arguments).out
        assert "GPU-hours" not in out
        assert "cost" not in out.replace('"cost": "', "")


def test_simulate_prices_its_own_times(run_cli):
    data = json.loads(run_cli("simulate", SAMPLE, *OPTIONS, "--format", "json").out)
    cost, totals = data["cost"], data["totals"]
    wait = 32 * totals["trainer_wait_us"] / 3.6e9
    assert (cost["wait_gpu_hours"], cost["wait_usd"]) == (pytest.approx(wait), pytest.approx(2.5 * wait))
    assert (
        f"GPU-hours the trainer waited: {wait:,.2f}, ${2.5 * wait:,.2f}\n" in run_cli("simulate", SAMPLE, *OPTIONS).out
    )


def test_diff_shows_both_sides_and_the_difference(run_cli):
    arguments = ("diff", SAMPLE.parent / "config.toml", "--log", SAMPLE, *OPTIONS[:-1], "--set-b", OTHER[1])
    out = run_cli(*arguments).out
    rows = [line.split("  ") for line in out.splitlines() if "never trained" in line]
    cells = [[cell.strip() for cell in row if cell.strip()] for row in rows]
    assert [row[:2] for row in cells] == [
        ["GPU-hours on tokens never trained", "7.10"],
        ["US dollars on tokens never trained", "17.76"],
    ]
    assert f"A and B: {WAIT}" in out
    assert f"B: {ELSEWHERE}" in out
    data = json.loads(run_cli(*arguments, "--format", "json").out)
    change = data["cost"]["untrained_gpu_hours"]
    assert (change["a"], change["b"]) == tuple(data[side]["cost"]["untrained_gpu_hours"] for side in "ab")
    assert change["change"] == pytest.approx(change["b"] - change["a"])
    assert [row[3] for row in cells] == [f"{change['change']:.2f}", f"{change['change'] * 2.5:.2f}"]


def test_explain_says_what_was_lost_and_what_a_change_saves(run_cli):
    out = run_cli("explain", SAMPLE, *OPTIONS).out
    assert UNTRAINED + WAIT in out
    data = json.loads(run_cli("explain", SAMPLE, *OPTIONS, "--format", "json").out)
    trials = data["trials"]
    for trial in trials["tried"]:
        saved = trials["base"]["wall_time_us"] - trial["figures"]["wall_time_us"]
        assert trial["gpu_hours_saved"] == pytest.approx(96 * saved / 3.6e9)
    assert data["next"]["gpu_hours_saved"] > 0
    assert data["cost"]["untrained_tokens"] == 1_596_955


def test_colocated_no_trainer_waits():
    cost = RunCost(64, None, None, 4, 1, 3_600_000_000, None, "", COLOCATED_WAIT)
    assert cost_lines(cost) == [
        "GPU-hours on tokens never trained: 16.00 of 64.00 (25.0 %)",
        "GPU-hours the trainer waited: none, training and rollouts take turns on the same GPUs",
    ]


@pytest.mark.parametrize(
    ("amount", "text"),
    [
        (0, "0.00"),
        (Fraction(1, 101), "<0.01"),
        (Fraction(-1, 101), "-<0.01"),
        (Fraction(12_345_678, 10), "1,234,567.80"),
    ],
)
def test_amounts_are_never_0_of_something_that_is_not(amount: Fraction, text: str):
    assert amount_text(Fraction(amount)) == text

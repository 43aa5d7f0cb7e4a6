"""What the commands say beside their answer on standard error, and what of it --quiet leaves."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.builders import put, take, write_log
from tests.conftest import ROOT, SAMPLE, get_command
from tokenaudit import replay_log
from tokenaudit.cli import app

POLICY = "policy.max_token_staleness=2"
LOOSER = "tasks.code.max_token_staleness=2"
SET_BY_TASKS = (
    "-s policy.max_token_staleness changes nothing for tasks math, code, which set their own\n"
    "  Use -s tasks.math.max_token_staleness=2 -s tasks.code.max_token_staleness=2\n"
)


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        (("replay", SAMPLE, "-s", POLICY), ""),
        (("simulate", SAMPLE, "-s", POLICY, "--steps", "1"), ""),
        (("gate", SAMPLE, "-s", POLICY, "--rule", "dropped_token_rate <= 20%"), ""),
        (("diff", "--log", SAMPLE, "--set-b", POLICY), "B: "),
        (("explain", SAMPLE, "-s", POLICY, "--step", "3"), ""),
        (("mask", SAMPLE, "-s", POLICY, "-o", "masks.parquet"), ""),
    ],
)
def test_an_override_that_tasks_ignore_is_said_though_quiet(arguments: tuple[object, ...], name: str, run_cli: Any):
    ran = run_cli(*arguments, "-q")
    assert (ran.code, ran.err) == (0, f"caution: {name}{SET_BY_TASKS}")


def test_quiet_hides_warnings(run_cli: Any):
    assert run_cli("replay", SAMPLE).err.startswith("warning: ")
    assert run_cli("replay", SAMPLE, "-q").err == ""


NO_CONFIG = (
    "no config was found, so every setting that -s doesn't give is a default\n"
    "  Name the run's config with -c FILE, or write one with tokenaudit init; --isolated takes the defaults.\n"
)
BATCH = ("-s", "timeline.train_batch_size=1")


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        (("replay", "LOG"), ""),
        (("simulate", "LOG", "--token-time-us", "1"), ""),
        (("simulate", "LOG", "--token-time-us", "1", "--prompt-order", "group-id"), ""),
        (("gate", "LOG", "--rule", "dropped_tokens <= 0"), ""),
        (("diff", "--log", "LOG", "--set-b", "policy.max_staleness=2"), "A and B: "),
    ],
)
def test_a_run_on_defaults_says_that_no_config_was_found(
    arguments: tuple[str, ...], name: str, run_cli: Any, tmp_path: Path
):
    log = write_log(tmp_path / "log.parquet", [put(1, 1), take(2)])
    command = [log if part == "LOG" else part for part in (*arguments, *BATCH)]
    said = f"warning: {name}{NO_CONFIG}"
    assert said in run_cli(*command).err
    assert "no config" not in run_cli(*command, "-q").err
    assert "no config" not in run_cli(*command, "--isolated").err
    (tmp_path / "tokenaudit.toml").write_text("[gate]\nrules = []\n")
    assert said in run_cli(*command).err
    (tmp_path / "tokenaudit.toml").write_text("[policy]\nmax_staleness = 1\n")
    assert "no config" not in run_cli(*command).err


def test_a_config_that_is_named_may_hold_defaults_only(run_cli: Any, tmp_path: Path):
    log = write_log(tmp_path / "log.parquet", [put(1, 1), take(2)])
    (tmp_path / "empty.toml").write_text("")
    assert run_cli("replay", log, "-c", "empty.toml").err == ""
    assert replay_log(log, config={}).result.warnings == ()
    assert [notice.code for notice in replay_log(log).result.warnings] == ["no-config"]


def following(err: str) -> list[str]:
    """The arguments of the command that a notice says to run."""
    (line,) = (line for line in err.splitlines() if line.startswith("  Run `tokenaudit "))
    return shlex.split(line.removeprefix("  Run `tokenaudit ").removesuffix("`"))


def test_a_simulation_that_cannot_run_is_no_command(run_cli: Any, tmp_path: Path):
    golden = ROOT / "tests" / "golden" / "colocated_002" / "log.parquet"
    lacking = "  It can't run yet: a simulated timeline needs timeline.train_batch_size"
    for command in ("replay", "explain"):
        ran = run_cli(command, golden, "--isolated", "-q")
        assert ran.err.endswith(f"{lacking} (-s timeline.train_batch_size=24)\n")
    assert run_cli("diff", "--log", golden, "--isolated", "--set-b", "policy.max_staleness=1", "-q").err.count(lacking)
    config = tmp_path / "golden.toml"
    config.write_text("[timeline]\ntrain_batch_size = 6\n")
    ran = run_cli("replay", golden, "-c", config, "-q")
    assert run_cli(*following(ran.err), "-q").code == 0
    log = tmp_path / "without_times.parquet"
    pq.write_table(pq.read_table(golden).drop_columns(["generate_time_us"]), log)
    ran = run_cli("replay", log, "-c", config, "-q")
    assert "can't run yet: no put says how long its tokens took" in ran.err
    assert ran.err.endswith(" (give one with --token-time-us)\n")


def test_replay_gives_the_simulation_that_decides(run_cli: Any, tmp_path: Path):
    config = tmp_path / "my config.toml"
    config.write_bytes((ROOT / "sample_data" / "config.toml").read_bytes())
    arguments = (SAMPLE, "-c", config, "-s", LOOSER, "--isolated")
    ran = run_cli("replay", *arguments, "-q")
    message = "caution: 9.6 % of tokens rest on counterfactual rules, more than 5 %: a simulation decides this config\n"
    assert ran.err.startswith(message)
    assert ran.out.endswith("9.6 % of tokens rest on counterfactual rules, simulate decides\n")
    assert following(ran.err) == ["simulate", *map(str, arguments)]
    totals = json.loads(run_cli(*following(ran.err), "--format", "json").out)["totals"]
    assert round(100 * totals["dropped_tokens"] / totals["produced_tokens"], 1) == 7.7


def test_diff_gives_the_simulation_that_decides(run_cli: Any, tmp_path: Path):
    arguments = ("--log", SAMPLE, "--set-b", LOOSER)
    ran = run_cli("diff", *arguments, "-q", "--format", "json", "-o", tmp_path / "diff.txt")
    assert "caution: B: 9.6 % of tokens rest on counterfactual rules" in ran.err
    assert following(ran.err) == ["diff", *map(str, arguments), "--simulate"]
    line = "9.6 % of B's tokens, 0.0 % of A's tokens rest on counterfactual rules, --simulate decides\n"
    assert line in (tmp_path / "diff.txt").read_text()
    simulated = run_cli(*following(ran.err), "-q")
    assert (simulated.code, simulated.err) == (0, "")
    assert "0.0 % of B's tokens, 0.0 % of A's tokens rest on counterfactual rules\n" in simulated.out


def test_of_a_saved_result_no_command_is_made_up(run_cli: Any):
    run_cli("replay", SAMPLE, "-s", LOOSER, "-q", "-o", "saved.json")
    ran = run_cli("replay", "saved.json", "-q")
    assert ran.err.endswith(
        "\n  tokenaudit simulate LOG with the same options, or --simulate of diff and gate, runs it.\n"
    )


def test_overrides_in_the_examples_of_commands_do_something_on_the_sample(
    run_cli: Any, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(ROOT)
    examples = [command.epilog.removeprefix("\b\nExample: ") for command in get_command(app).commands.values()]  # type: ignore[attr-defined]
    overriding = [shlex.split(example)[1:] for example in examples if " -s " in example or " --set-b " in example]
    assert len(overriding) >= 2
    for arguments in overriding:
        assert "sample_data/rollouts.parquet" in arguments
        command = [part for part in arguments if "=" not in part and part not in ("-s", "--set-b")]
        changed, plain = (json.loads(run_cli(*line, "--format", "json").out) for line in (arguments, command))
        assert "no-effect" not in [warning["code"] for warning in changed["warnings"]]
        assert changed["totals"] != plain["totals"]

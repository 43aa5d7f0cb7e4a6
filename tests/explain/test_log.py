"""Why a log lost its tokens: causes, worst groups, how much each setting binds, and what to try next."""

from __future__ import annotations

import csv
import json
import shlex
from pathlib import Path

import pytest

from tests.builders import put, refresh, take, write_log
from tests.conftest import SAMPLE
from tokenaudit.config.limits import Looser
from tokenaudit.contracts.errors import KeywordError
from tokenaudit.explain import trials
from tokenaudit.explain.session import LogExplanation, explain_log
from tokenaudit.explain.trials import figures_of
from tokenaudit.render.console import console_text
from tokenaudit.render.explain_data import log_plain
from tokenaudit.render.explain_log import log_blocks
from tokenaudit.replay.session import replay_log
from tokenaudit.simulate.session import simulate_workload

CONFIG = SAMPLE.parent / "config.toml"
BUFFER = Path(__file__).parent.parent / "golden" / "buffer_003"


@pytest.fixture(scope="module")
def sample() -> LogExplanation:
    return explain_log(SAMPLE, isolated=True)


def text_of(explanation: LogExplanation, command: str = "") -> str:
    return console_text(log_blocks(explanation, command))


def test_the_sample_is_bound_by_the_token_rule_of_code(sample: LogExplanation):
    worst = sample.causes[0]
    assert (worst.key.task, worst.key.metric.name, worst.loss.tokens) == ("code", "reset_tokens", 570_828)
    assert str(worst.setting) == "tasks.code.max_token_staleness = 1"
    (key, group), *_ = sample.groups
    assert (key, group.expired, group.tokens, group.longest, group.taken_at) == (
        ("code", 108), 19, 101_519, 5_569, None
    )  # fmt: skip
    assert sample.losing_groups == 174
    best = sample.trials.best
    assert best is not None
    assert best.override == "tasks.code.max_token_staleness=2"
    assert repr(sample) == "LogExplanation(rollouts.parquet: 14 causes; to try: tasks.code.max_token_staleness=2)"


def test_settings_are_loosened_one_by_one_in_a_simulation(sample: LogExplanation):
    tried = sample.trials
    assert (tried.is_simulated, tried.not_simulated, tried.possible) == (True, "", len(tried.trials))
    assert [trial.override for trial in tried.trials] == [
        f"tasks.code.max_token_staleness={value}" for value in ("2", "off")
    ] + [
        "tasks.code.max_staleness=4", "tasks.code.max_staleness=30",
        "tasks.math.max_staleness=4", "tasks.math.max_staleness=30",
        "tasks.math.max_token_staleness=3", "tasks.math.max_token_staleness=off",
    ] + [
        "tasks.math.tail_batch_trigger_size=5", "tasks.math.tail_batch_trigger_size=0",
    ]  # fmt: skip
    assert [trial.looser for trial in tried.trials[:2]] == [Looser.STEP, Looser.OFF]
    assert tried.base == figures_of(simulate_workload(SAMPLE, isolated=True).result)
    changed = simulate_workload(SAMPLE, isolated=True, overrides=[tried.trials[0].override]).result
    assert tried.trials[0].figures == figures_of(changed)


def test_the_next_command_runs_and_does_what_it_says(run_cli, tmp_path: Path):
    config = tmp_path / "six steps.toml"
    config.write_text(CONFIG.read_text().replace("steps = 30", "steps = 6"))
    options = ["-s", "tasks.math.max_staleness=4", "--isolated", "-q"]
    ran = run_cli("explain", SAMPLE, "-c", config, *options, "-o", "e.json", "-o", "e.csv", "-o", "e.md", "-o", "e.txt")
    assert (ran.code, ran.err) == (0, "")
    assert (tmp_path / "e.txt").read_text() == ran.out
    *_, claim, command = ran.out.splitlines()
    words = shlex.split(command)
    assert words[:2] == ["tokenaudit", "simulate"]
    assert words[2:] == [
        str(SAMPLE), "-c", str(config), "-s", "tasks.math.max_staleness=4", "-s", "tasks.code.max_token_staleness=2",
        "--isolated",
    ]  # fmt: skip
    shares = []
    assert words[-2] == "tasks.code.max_token_staleness=2"
    for arguments in (words[1:], [*words[1:-3], words[-1]]):
        totals = json.loads(run_cli(*arguments, "--format", "json", "-q").out)["totals"]
        shares.append(100 * totals["dropped_tokens"] / totals["produced_tokens"])
    assert claim == f"next, to drop {shares[0]:.1f} % instead of {shares[1]:.1f} %:"
    data = json.loads((tmp_path / "e.json").read_text())
    assert (data["kind"], data["next"]["override"]) == ("tokenaudit.explain.log", words[-2])
    rows = list(csv.DictReader((tmp_path / "e.csv").read_text().splitlines()))
    assert sum(int(row["tokens"]) for row in rows) == sum(cause["tokens"] for cause in data["causes"])
    document = (tmp_path / "e.md").read_text()
    assert document.startswith("## tokenaudit explain: rollouts.parquet\n")
    assert command.strip() in document


def test_without_times_the_log_is_replayed(run_cli):
    arguments = ("explain", BUFFER / "log.parquet", "-c", BUFFER / "config.toml", "-q")
    ran = run_cli(*arguments)
    assert (ran.code, ran.err) == (0, "")
    assert "no simulation: no put says how long its tokens took (generate_time_us)" in " ".join(ran.out.split())
    assert "counterfactual" in ran.out
    data = json.loads(run_cli(*arguments, "--format", "json").out)
    trial = data["trials"]["tried"][0]
    changed = replay_log(BUFFER / "log.parquet", config=BUFFER / "config.toml", overrides=[trial["override"]]).result
    assert trial["figures"]["dropped"] == changed.totals["dropped_tokens"]
    assert "\n  tokenaudit replay " in ran.out


def test_a_config_without_the_times_of_the_closed_loop_says_which(sample: LogExplanation):
    config = {"mode": "disaggregated", "timeline": {"train_batch_size": 24}, "policy": {"max_staleness": 1}}
    explanation = explain_log(SAMPLE, isolated=True, config=config)
    assert not explanation.trials.is_simulated
    assert explanation.trials.not_simulated == "; ".join(
        f"a disaggregated simulation needs timeline.{key}"
        for key in ("train_time_us", "sync_time_us", "poll_interval_us")
    )
    produced = sample.result.totals["produced_tokens"]
    assert explanation.trials.base.counterfactual_of >= produced


def test_the_work_is_bounded(sample: LogExplanation, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(trials, "MOST_RESPONSES", 1)
    monkeypatch.setattr(trials, "_MOST_GROWTH", 0)
    progress = []
    explanation = explain_log(SAMPLE, isolated=True, on_progress=lambda *report: progress.append(report))
    assert (len(explanation.trials.trials), explanation.trials.possible) == (2, sample.trials.possible)
    assert [trial.figures for trial in explanation.trials.trials] == [None, None]
    assert explanation.trials.trials[0].problem == "given up: it generates more than 0 times as much"
    assert explanation.trials.best is None
    text = text_of(explanation)
    assert "2 of 10 changes tried" in text
    assert "No change of one setting drops a smaller share." in text
    assert [report for report in progress if report[0].startswith("loosening")] == [
        ("loosening one setting at a time", done, 2) for done in (0, 1)
    ]


def test_a_run_that_loses_nothing_has_nothing_to_loosen(tmp_path: Path):
    path = write_log(tmp_path / "log.parquet", [put(1, 1), take(2)])
    explanation = explain_log(path, overrides=["policy.max_staleness=2"])
    assert (explanation.causes, explanation.groups, explanation.trials.possible) == ((), (), 0)
    assert text_of(explanation).endswith("No setting bound, so there is none to loosen.\n")


def test_a_log_without_a_token_lost_none(tmp_path: Path):
    text = text_of(explain_log(write_log(tmp_path / "log.parquet", [put(1, 1, tokens=0), take(2)]), isolated=True))
    assert "\nThe log produced no token, so none was lost.\n" in text


def test_what_to_try_next_names_what_it_changes():
    golden = BUFFER.parent / "disagg_021"
    explanation = explain_log(golden / "log.parquet", config=golden / "config.toml")
    assert "\nnext, to restart 0 tokens instead of 3,218:\n" in text_of(explanation)


def test_names_of_tasks_do_no_harm(tmp_path: Path):
    rows = [put(1, 1, task_name="=a|b\x1b[31m"), refresh(2, 9), take(3, 9, task_name="=a|b\x1b[31m")]
    explanation = explain_log(write_log(tmp_path / "log.parquet", rows))
    assert "\x1b" not in text_of(explanation)
    plain = log_plain(explanation)
    assert "\x1b" not in plain.csv()
    assert "'=a|b" in plain.csv()


def test_options_of_other_functions_are_refused():
    with pytest.raises(KeywordError, match="explain_log takes no option 'with_groups'"):
        explain_log(SAMPLE, with_groups=True)


def test_the_next_command_names_each_setting_once(run_cli):
    golden = BUFFER / "log.parquet"
    given = "tasks.math.max_staleness=0"
    ran = run_cli("explain", golden, "-c", BUFFER / "config.toml", "-s", given, "-s", "policy.max_staleness=0")
    words = shlex.split(ran.out.splitlines()[-1])
    assert words[2:5] == [str(golden), "-c", str(BUFFER / "config.toml")]
    assert words[5:] == ["-s", "policy.max_staleness=0", "-s", "tasks.math.max_staleness=1"]

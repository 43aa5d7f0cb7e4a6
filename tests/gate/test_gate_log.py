"""A log is judged in-process as on the command line, and the report is a message for a failing test."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.builders import two_steps, write_log
from tests.conftest import ROOT, SAMPLE
from tokenaudit import gate_log, replay_log
from tokenaudit.contracts.errors import KeywordError, RuleError, UsageError
from tokenaudit.render.gate import gate_data
from tokenaudit.replay.saved_result import result_to_json

CONFIG, WORSE = SAMPLE.parent / "config.toml", SAMPLE.parent / "worse.toml"
RULES = ["dropped_tokens <= +2%", "dropped_token_rate <= 20%", "warn: expired_groups <= 3"]


@pytest.fixture(scope="module")
def baseline(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("gate") / "baseline.json"
    path.write_text(result_to_json(replay_log(SAMPLE, config=CONFIG).result))
    return path


def test_the_report_is_that_of_the_command(baseline: Path, tmp_path: Path, run_cli: Callable[..., Any]):
    (tmp_path / "rules.toml").write_text("[gate]\nrules = ['shortfall_groups <= 0']\n")
    report = gate_log(SAMPLE, RULES, config=WORSE, baseline=baseline, rules_file="rules.toml", working_dir=tmp_path)
    arguments = [part for rule in RULES for part in ("--rule", rule)]
    command = ("gate", SAMPLE, "-c", WORSE, "--baseline", baseline, "--rules", "rules.toml", *arguments)
    ran = run_cli(*command, "--format", "json", "-o", "gate.json")
    from_python = gate_data(report)
    assert ran.code == from_python["exit_code"] == 1
    by_rule = {verdict["rule"]: verdict for verdict in from_python["verdicts"]}
    data = json.loads((tmp_path / "gate.json").read_text())
    # each names where a rule stands by what it was given: the command by its option, the function by its argument
    assert [verdict["source"] for verdict in data["verdicts"]].count("--rule") == len(RULES)
    for verdict in data["verdicts"]:
        verdict["source"] = verdict["source"].replace("--rule", "rules")
    assert {verdict.pop("rule"): verdict for verdict in data.pop("verdicts")} == {
        rule: {key: value for key, value in verdict.items() if key != "rule"} for rule, verdict in by_rule.items()
    }
    assert data == {key: value for key, value in from_python.items() if key != "verdicts"}


def test_its_text_says_what_failed_by_how_much_and_what_was_changed(baseline: Path):
    report = gate_log(SAMPLE, RULES, config=CONFIG, overrides={"tasks.code.max_token_staleness": 0}, baseline=baseline)
    assert not report.passed
    lines = str(report).splitlines()
    assert lines[:2] == [
        "rollouts.parquet against the baseline from rollouts.parquet",
        "settings changed since the baseline: tasks.code.max_token_staleness 1 → 0",
    ]
    assert re.fullmatch(
        r"failed: dropped_tokens <= \+2%: [\d,]+ is [\d,.]+ above the limit 1,239,960.96; baseline 1,215,648, .*",
        lines[2],
    )
    assert [line.split(":")[0] for line in lines[3:5]] == ["failed", "warning"]
    assert lines[-1] == "3 rules over 30 steps, 2 tasks: 2 failed, 1 warned"


def test_a_pass_is_a_pass_with_a_short_text(baseline: Path):
    report = gate_log(SAMPLE, config=CONFIG, baseline=baseline)
    assert report.passed
    assert str(report).splitlines()[-1] == "6 rules over 30 steps, 2 tasks: 6 passed"
    assert "passed: " not in str(report)


def test_what_could_not_be_judged_is_no_pass():
    report = gate_log(SAMPLE, "expired_groups{step>=99} <= 0", config=CONFIG)
    assert not report.passed
    assert "not judged: expired_groups{step>=99} <= 0: no step is in {step>=99}" in str(report)


def test_rules_of_the_config_count(tmp_path: Path):
    log = write_log(tmp_path / "log.parquet", two_steps())
    report = gate_log(log, config={"gate": {"rules": ["expired_groups <= 0"]}})
    assert [str(verdict.rule) for verdict in report.verdicts] == ["expired_groups <= 0"]
    assert not report.passed


def test_a_simulation_is_judged_where_that_is_asked_for():
    rules = ["put_groups >= 1", "taken_at_us{step} > 0"]
    assert gate_log(SAMPLE, rules, config=CONFIG, simulate=True, steps=2).passed
    assert not gate_log(SAMPLE, rules, config=CONFIG).passed


def test_what_does_not_fit_is_refused():
    with pytest.raises(RuleError, match="7 is no rule"):
        gate_log(SAMPLE, [7])  # pyright: ignore[reportArgumentType]
    with pytest.raises(KeywordError, match="gate_log takes no option 'steps'"):
        gate_log(SAMPLE, RULES, steps=2)
    with pytest.raises(UsageError, match="simulate is 'yes'"):
        gate_log(SAMPLE, RULES, simulate="yes")  # pyright: ignore[reportArgumentType]


def test_the_example_for_pytest_runs(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(ROOT)
    text = (ROOT / "tokenaudit" / "help" / "ci.md").read_text()
    (example,) = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    defined: dict[str, Any] = {}
    exec(example, defined)
    (test,) = (value for name, value in defined.items() if name.startswith("test_"))
    test()
    strict: dict[str, Any] = {}
    exec(example.replace("20%", "1%"), strict)
    with pytest.raises(AssertionError, match=r"failed: dropped_token_rate <= 1%: 18.43 % .* above the limit 1.00 %"):
        strict[test.__name__]()


def test_errors_name_the_argument_that_holds_the_rule():
    for rule in ("droped_tokens <= 0", "dropped_tokens <= +2%", "dropped_tokens{task=mat} <= 0"):
        with pytest.raises(RuleError) as raised:
            gate_log(SAMPLE, [rule], config=CONFIG)
        assert [str(problem.where).split(":")[0] for problem in raised.value.problems] == ["rules"]

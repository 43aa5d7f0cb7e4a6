"""Metrics, rates, settings and audit rules by name, and where they stand in a log."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.builders import put, take, write_log
from tests.conftest import SAMPLE
from tokenaudit.audit.checks import RULES
from tokenaudit.config.model import Config, dotted_items
from tokenaudit.contracts.metrics import METRICS, RATES
from tokenaudit.explain.names import ExplainedRun, explain_name, known_names, setting_keys
from tokenaudit.replay.session import load_log


@pytest.fixture(scope="module")
def run() -> ExplainedRun:
    return ExplainedRun.of(load_log(SAMPLE, isolated=True))


@pytest.mark.parametrize("name", ["M003", "m003", "mask-retracted"])
def test_a_rule_is_told_by_code_or_name(name: str, run_cli):
    ran = run_cli("explain", name)
    assert ran.code == 0
    assert ran.out.startswith("M003 mask-retracted (warning)\n  what: Fresh tokens")
    assert "needs: response_mask" in ran.out


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("mask-retractd", "mask-retracted"),
        ("droped_tokens", "dropped_tokens"),
        ("max_token_stalness", "max_token_staleness"),
        ("policy.max_stalenes", "policy.max_staleness"),
    ],
)
def test_an_unknown_name_suggests_the_nearest(name: str, nearest: str, run_cli):
    ran = run_cli("explain", name)
    assert (ran.code, ran.out) == (2, "")
    assert f"{name!r}: no file or folder, metric, rate, setting or audit rule" in ran.err
    assert f"did you mean {nearest!r}?" in ran.err


def test_where_no_name_is_near_the_hint_says_where_they_are_listed(run_cli):
    ran = run_cli("explain", "zzzz")
    assert ran.code == 2
    assert "hint: tokenaudit help metrics, tokenaudit help config and tokenaudit help rules list the names" in ran.err


def test_every_name_is_explained_with_and_without_a_log(run: ExplainedRun, run_cli):
    for name in known_names():
        assert explain_name(name) is not None, name
        assert explain_name(name, run) is not None, name
    every = run_cli("explain", *known_names(), *(rule.code for rule in RULES))
    assert (every.code, every.err) == (0, "")


def test_every_key_of_a_config_has_a_meaning():
    keys = setting_keys()
    assert set(dotted_items(Config())) <= set(keys)
    assert {"tasks.NAME.weight", "tasks.NAME.group_size", "tasks.NAME.max_staleness"} <= set(keys)
    assert all(meaning and allowed for meaning, allowed in keys.values())
    assert len(set(known_names())) == len(known_names()) > len(METRICS) + len(RATES) + len(keys)


def test_a_metric_stands_in_a_log_as_its_result_has_it(run: ExplainedRun):
    explained = explain_name("dropped_tokens", run)
    assert explained is not None
    facts = dict(explained.facts)
    assert facts["formula"] == "reset_tokens + discarded_stale_tokens + discarded_fresh_tokens + masked_stale_tokens"
    assert facts["moves with"] == "max_staleness, max_token_staleness, tail_batch_trigger_size"
    assert [(one.where, one.value, one.of) for one in explained.in_log] == [
        ("total", 1_215_648, 6_596_441),
        ("task math", 101_314, 3_384_783),
        ("task code", 1_114_334, 3_211_658),
        ("lowest, step 2", 0, None),
        ("highest, step 27", 79_172, None),
        ("by tasks.code.max_token_staleness = 1", 964_778, None),
        ("by tasks.code.max_staleness = 3", 149_556, None),
        ("by tasks.math.max_token_staleness = 2", 51_910, None),
        ("by tasks.math.max_staleness = 3", 49_404, None),
    ]


def test_a_rate_and_a_setting_stand_in_a_log(run: ExplainedRun):
    rate, setting = explain_name("masked_token_rate", run), explain_name("max_token_staleness", run)
    assert rate is not None
    assert setting is not None
    assert dict(rate.facts)["formula"] == "masked_stale_tokens / (trained_tokens + masked_stale_tokens)"
    total, *_ = rate.in_log
    assert (total.where, total.value, total.of) == ("total", 374_831, 374_831 + 4_427_730)
    assert setting.name == "policy.max_token_staleness"
    assert dict(setting.facts)["default"] == "off"
    assert [(one.where, one.value, one.origin, one.lost) for one in setting.in_log] == [
        ("task math", "2", "log metadata", 51_910),
        ("task code", "1", "log metadata", 964_778),
    ]


def test_names_and_a_log_go_together_in_every_format(run_cli, tmp_path: Path):
    text = run_cli("explain", SAMPLE, "dropped_token_rate", "weight", "--isolated", "-q", "-o", "e.json", "-o", "e.csv")
    assert "  total: 1,215,648 of 6,596,441, 18.4 %\n" in text.out
    assert "  task math: 2.0, from log metadata\n" in text.out
    data = json.loads((tmp_path / "e.json").read_text())
    assert (data["kind"], [one["name"] for one in data["names"]]) == (
        "tokenaudit.explain.names",
        ["dropped_token_rate", "tasks.NAME.weight"],
    )
    assert (tmp_path / "e.csv").read_text().splitlines()[:2] == [
        "name,kind,where,value,of,origin,lost",
        "dropped_token_rate,rate,total,1215648,6596441,,0",
    ]


def test_what_exists_is_a_log_even_if_it_has_the_name_of_a_metric(run_cli, tmp_path: Path):
    write_log(tmp_path / "log.parquet", [put(1, 7), take(2)])
    (tmp_path / "dropped_tokens").mkdir()
    (tmp_path / "log.parquet").rename(tmp_path / "dropped_tokens" / "log.parquet")
    ran = run_cli("explain", "dropped_tokens", "--group", "7")
    assert ran.code == 0
    assert "task default, group 7" in ran.out
    assert "note: dropped_tokens is a file or folder here, so it is read as a log" in ran.err


@pytest.mark.parametrize("path", ["runs/dropped_tokens", "lost.parquet", "runs*"])
def test_what_is_written_like_a_path_is_a_log(path: str, run_cli):
    ran = run_cli("explain", path)
    assert ran.code == 2
    assert "audit rule" not in ran.err

"""`tokenaudit diff` through its real entry point: what makes two sides, exit codes, streams and formats."""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Callable
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from tests.builders import numbered, put, take, two_steps, write_log
from tests.compare.results import made_result
from tests.conftest import SAMPLE
from tokenaudit.replay.saved_result import result_to_json

Run = Callable[..., Any]


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Two steps; the log's own config has max_staleness 1."""
    metadata = {"tokenaudit.config": json.dumps({"policy": {"max_staleness": 1}})}
    return write_log(tmp_path / "log.parquet", two_steps(), metadata=metadata)


@pytest.fixture(autouse=True)
def configs(tmp_path: Path) -> None:
    (tmp_path / "one.toml").write_text("[policy]\nmax_staleness = 1\n")
    (tmp_path / "zero.toml").write_text("[policy]\nmax_staleness = 0\n")


def data(ran: Any) -> dict[str, Any]:
    assert ran.code == 0, ran.err
    return json.loads(ran.out)


JSON = ("--format", "json", "-q")


def test_two_configs_on_a_log(log: Path, run_cli: Run):
    ran = run_cli("diff", "one.toml", "zero.toml", "--log", log)
    assert ran.code == 0
    assert ran.out.startswith("A: one.toml · log.parquet · 2 steps · recorded timeline\nB: zero.toml · ")
    assert "policy.max_staleness   1   0   one.toml → zero.toml" in ran.out
    assert "step 2, put of default/2: expired by sequence (staleness 1, limit 1) and is discarded" in ran.out
    assert "kept" not in ran.out
    assert "warning: A: " in ran.err


def test_a_config_compared_with_a_change_to_itself(log: Path, run_cli: Run):
    named = data(run_cli("diff", "one.toml", "--log", log, "--set-b", "policy.max_staleness=0", *JSON))
    assert named["settings"] == [
        {"key": "policy.max_staleness", "a": 1, "b": 0, "a_origin": "one.toml", "b_origin": "-s"}
    ]
    assert named["b"]["label"] == "one.toml -s policy.max_staleness=0"
    of_log = data(run_cli("diff", "--log", log, "--set-b", "policy.max_staleness=0", *JSON))
    assert of_log["settings"][0]["a_origin"] == "log metadata"
    assert of_log["totals"] == named["totals"]
    both = data(
        run_cli(
            "diff", "one.toml", "--log", log, "-s", "policy.max_staleness=3", "--set-b", "mode=disaggregated", *JSON
        )
    )
    assert [change["key"] for change in both["settings"]] == ["mode"]


def test_a_side_that_needs_missing_versions_decides_how_the_log_is_read(tmp_path: Path, run_cli: Run):
    log = write_log(tmp_path / "bare.parquet", numbered([put(group_id=1, model_step=None), take()]))
    ran = run_cli("diff", "one.toml", "--log", log, "--set-b", "timeline.stamp_missing=true", "-q")
    assert ran.code == 0


def test_saved_results(log: Path, tmp_path: Path, run_cli: Run):
    for name in ("one", "zero"):
        run_cli("replay", log, "-c", f"{name}.toml", "--groups", "-q", "-o", f"{name}.json")
        run_cli("replay", log, "-c", f"{name}.toml", "-q", "-o", f"{name}-bare.json")
    ran = run_cli("diff", "one.json", "zero.json", "-q")
    assert ran.code == 0
    assert "trained in A, discarded in B" in ran.out
    assert "saved results don't say why" in ran.out
    bare = run_cli("diff", "one-bare.json", "zero.json", "-q")
    assert "fates of groups: not available; A has no group ids: save with --groups" in bare.out
    mixed = data(run_cli("diff", "one.json", "zero.toml", "--log", log, *JSON))
    assert mixed["totals"] == data(run_cli("diff", "one.json", "zero.json", *JSON))["totals"]
    assert mixed["groups"]["changed"] == 1
    (tmp_path / "result").write_bytes((tmp_path / "one.json").read_bytes())
    assert run_cli("diff", "result", "one.json", "--exit-code", "-q").code == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "there are no two sides to compare"),
        (["one.json"], "there are no two sides to compare"),
        (["one.toml", "zero.toml"], "a config has no figures without a log"),
        (["one.toml", "--log", "log.parquet"], "A would be compared with itself"),
        (["--log", "log.parquet"], "A would be compared with itself"),
        (["one.json", "--log", "log.parquet"], "there is no B"),
        (["one.json", "one.json", "--log", "log.parquet"], "two saved results need no log"),
        (["one.toml", "one.json", "--log", "log.parquet", "--set-b", "a=1"], "--set-b can't change a saved result"),
        (["one.json", "one.json", "--set-b", "policy.max_staleness=1"], "--set-b would need a log"),
        (["one.json", "missing.json"], "No such file"),
        (["one.toml", "missing.toml", "--log", "log.parquet"], "there is no such config file"),
        (["one.toml", "zero.toml", "--log", "missing.parquet"], "there is no such file or folder"),
        (["one.toml", "--log", "log.parquet", "--set-b", "policy.max_stalenes=1"], "did you mean 'max_staleness'?"),
        (["one.json", "one.json", "--metrics", "droped_tokens"], "did you mean 'dropped_tokens'?"),
        (["one.json", "one.json", "--metrics", ","], "--metrics names none"),
        (["one.json", "one.json", "--top", "0"], "greater than or equal to 1"),
        (["one.json", "one.json", "-o", "x.parquet"], "extensions: .json, .csv, .jsonl, .md, .markdown, .txt"),
        (["one.json", "one.json", "-o", "one.json"], "overwrite what is being read"),
        (["one.json", "other.json"], "A and B come from different logs"),
        (["log.parquet", "one.toml"], "A is a log, where a config or a saved result is wanted\n  at: log.parquet\n"),
        (["log.parquet", "one.toml"], "hint: call it as `tokenaudit diff A.toml B.toml --log log.parquet`\n"),
        (["one.toml", "log.parquet", "--log", "log.parquet"], "B is a log"),
        (["one.toml", "log"], "B is a log"),
        ([".", "one.toml"], "A is a log"),
        (["one.toml", "zero.toml", "--log", "one.toml"], "a TOML file is no log\n  at: one.toml\n"),
    ],
)
def test_what_makes_no_two_sides_is_exit_code_2(
    arguments: list[str], message: str, log: Path, tmp_path: Path, run_cli: Run
):
    (tmp_path / "one.json").write_text(result_to_json(made_result([{}])))
    (tmp_path / "other.json").write_text(result_to_json(made_result([{}], content_hash="sha256:other")))
    (tmp_path / "log").write_bytes(log.read_bytes())
    ran = run_cli("diff", *arguments)
    assert (ran.code, ran.out) == (2, "")
    assert message in ran.err
    assert "Traceback" not in ran.err


def test_problems_of_both_sides_are_told_at_once(log: Path, tmp_path: Path, run_cli: Run):
    (tmp_path / "bad.toml").write_text("[policy]\nmax_stale = 1\n")
    ran = run_cli("diff", "bad.toml", "missing.toml", "--log", log)
    assert ran.code == 2
    assert ran.err.count("error: ") == 2


def test_results_of_different_logs_where_that_is_allowed(tmp_path: Path, run_cli: Run):
    (tmp_path / "a.json").write_text(result_to_json(made_result([{}])))
    other = replace(made_result([{}, {}], content_hash="sha256:other"), metric_definitions={})
    (tmp_path / "b.json").write_text(result_to_json(other))
    ran = run_cli("diff", "a.json", "b.json", "--allow-different-log")
    assert ran.code == 0
    assert "1 step only in B: 2" in ran.out
    assert "warning: A and B were made with different definitions of put_groups, " in ran.err


@pytest.mark.parametrize(
    ("b", "code"), [("policy.max_staleness=0", 1), ("policy.max_staleness=2", 1), ("policy.max_staleness=1", 0)]
)
def test_exit_code_tells_whether_anything_differs_settings_included(b: str, code: int, log: Path, run_cli: Run):
    assert run_cli("diff", "one.toml", "--log", log, "--set-b", b, "--exit-code", "-q").code == code
    assert run_cli("diff", "one.toml", "--log", log, "--set-b", b, "-q").code == 0


def test_metrics_top_and_groups(log: Path, run_cli: Run):
    narrowed = data(run_cli("diff", "one.toml", "zero.toml", "--log", log, "--metrics", "taken_groups", *JSON))
    assert list(narrowed["totals"]) == ["taken_groups"]
    assert narrowed["ranked_by"] == "taken_groups"
    shown = run_cli("diff", "one.toml", "zero.toml", "--log", log, "--metrics", "put_groups,taken_groups", "-q").out
    assert "put_groups     2   2        0" in shown
    listed = run_cli("diff", "one.toml", "zero.toml", "--log", log, "--groups", "-q").out
    assert "trained in A, discarded in B, default: 2" in listed


def test_formats_and_files(log: Path, tmp_path: Path, run_cli: Run):
    outputs = [part for name in ("d.json", "d.csv", "d.md", "d.txt") for part in ("-o", name)]
    ran = run_cli("diff", "one.toml", "zero.toml", "--log", log, *JSON, *outputs)
    assert json.loads(ran.out) == json.loads((tmp_path / "d.json").read_text())
    rows = list(csv.DictReader(StringIO((tmp_path / "d.csv").read_text())))
    assert {"row": "step", "train_step": "2", "metric": "expired_groups", "change": "1"}.items() <= {
        **next(row for row in rows if row["row"] == "step" and row["metric"] == "expired_groups")
    }.items()
    assert (tmp_path / "d.md").read_text().startswith("## tokenaudit diff")
    assert (tmp_path / "d.txt").read_text().startswith("A: one.toml")
    assert str(tmp_path) not in ran.out


def test_the_sample_and_its_worse_config(run_cli: Run):
    folder = SAMPLE.parent
    ran = run_cli("diff", folder / "config.toml", folder / "worse.toml", "--log", SAMPLE, "-q", "--top", "1")
    assert ran.code == 0
    lines = [" ".join(line.split()) for line in ran.out.splitlines()]
    assert "dropped_tokens 1,215,648 5,204,799 +3,989,151 +328.2 % worse" in lines
    assert "trained in A, discarded in B 96 649,699" in lines
    assert "684 of 828 groups changed fate" in lines
    assert "35.4 % of B's tokens, 0.0 % of A's tokens rest on counterfactual rules, --simulate decides" in lines


def test_a_pipe_is_no_side(tmp_path: Path, log: Path, run_cli: Run):
    os.mkfifo(tmp_path / "pipe")
    ran = run_cli("diff", "pipe", "--log", log, "--set-b", "policy.max_staleness=1")
    assert (ran.code, ran.out) == (2, "")
    assert "not a regular file" in ran.err

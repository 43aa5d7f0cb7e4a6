"""`tokenaudit gate` through its real entry point: exit codes, stdout and stderr apart, files, and hostile input."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable
from dataclasses import replace
from email.message import Message
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pyarrow.parquet as pq
import pytest

from tests.builders import numbered, put, refresh, take, two_steps, write_log
from tests.compare.results import made_result, with_closed_ledger
from tests.conftest import SAMPLE
from tests.render.report_checks import assert_validators_note_nothing
from tokenaudit.contracts.schema import META_LIMITS
from tokenaudit.render.github import SUMMARY_BYTES
from tokenaudit.replay.result import Result
from tokenaudit.replay.saved_result import result_to_json

Run = Callable[..., Any]
WORSE, GOOD = SAMPLE.parent / "worse.toml", SAMPLE.parent / "config.toml"


def saved(path: Path, result: Result) -> Path:
    path.write_text(result_to_json(with_closed_ledger(result)))
    return path


def step_values(dropped: int, produced: int = 1000, expired: int = 0, oldest: int | None = 2) -> dict[str, Any]:
    return {
        "dropped_tokens": dropped,
        "produced_tokens": produced,
        "expired_groups": expired,
        "seq_staleness_max": oldest,
    }


@pytest.fixture
def base(tmp_path: Path) -> Path:
    """A baseline: two steps, 100 of 3000 tokens dropped, one group expired."""
    steps = [{"math": step_values(40, 1500), "code": {}}, {"math": step_values(60, 1500, 1)}]
    return saved(tmp_path / "base.json", made_result(steps))


@pytest.fixture
def head(tmp_path: Path) -> Path:
    """A run: two steps, 110 of 2900 tokens dropped, two groups expired, oldest response older by one."""
    steps = [{"math": step_values(40, 1500, 1), "code": {}}, {"math": step_values(70, 1400, 1, 3)}]
    return saved(tmp_path / "head.json", made_result(steps))


# Every form of rule: one that holds for `head` against `base`, one that doesn't.
FORMS = [
    ("expired_groups <= 2", "expired_groups <= 1"),
    ("expired_groups < 3", "expired_groups < 2"),
    ("produced_tokens >= 2900", "produced_tokens >= 2901"),
    ("produced_tokens > 2899", "produced_tokens > 2900"),
    ("expired_groups == 2", "expired_groups == 1"),
    ("dropped_token_rate <= 3.8%", "dropped_token_rate <= 3.7%"),
    ("dropped_tokens <= +10%", "dropped_tokens <= +9.999%"),
    ("dropped_tokens <= +10", "dropped_tokens <= +9"),
    ("produced_tokens >= -4%", "produced_tokens >= -3%"),
    ("produced_tokens >= -100", "produced_tokens >= -99"),
    ("seq_staleness_max <= +1", "seq_staleness_max <= +0"),
    ("dropped_token_rate <= +14%", "dropped_token_rate <= +13%"),
    ("dropped_token_rate <= +0.5pp", "dropped_token_rate <= +0.4pp"),
    ("dropped_tokens <= +2% or +10", "dropped_tokens <= +2% or +9"),
    ("dropped_tokens <= +2% or 110", "dropped_tokens <= +2% or 109"),
    ("dropped_tokens{task=math} <= 110", "dropped_tokens{task=math} <= 109"),
    ("dropped_tokens{task=math} <= +10%", "dropped_tokens{task=math} <= +9%"),
    ("dropped_tokens{step} <= 70", "dropped_tokens{step} <= 69"),
    ("dropped_tokens{step} <= +10", "dropped_tokens{step} <= +9"),
    ("dropped_tokens{step>=2} <= 70", "dropped_tokens{step>=2} <= 69"),
    ("dropped_tokens{task=math,step<2} <= 40", "dropped_tokens{task=math,step<2} <= 39"),
]


@pytest.mark.parametrize(("holds", "breaks"), FORMS, ids=[form[0] for form in FORMS])
def test_every_form_of_rule_can_pass_and_fail(holds: str, breaks: str, head: Path, base: Path, run_cli: Run):
    passed = run_cli("gate", head, "--rule", holds, "--baseline", base, "-v")
    assert (passed.code, passed.err) == (0, "")
    assert f"passed      {holds}" in passed.out
    failed = run_cli("gate", head, "--rule", breaks, "--baseline", base)
    assert (failed.code, failed.err) == (1, "")
    assert f"failed      {breaks}" in failed.out
    assert run_cli("gate", head, "--rule", breaks, "--baseline", base, "--exit-zero").code == 0
    warned = run_cli("gate", head, "--rule", f"warn: {breaks}", "--baseline", base)
    assert warned.code == 0
    assert f"warning     warn: {breaks}" in warned.out


def test_without_rules_nothing_may_get_worse(head: Path, base: Path, run_cli: Run):
    same = run_cli("gate", base, "--baseline", base)
    assert (same.code, same.err) == (0, "")
    worse = run_cli("gate", head, "--baseline", base)
    assert worse.code == 1
    assert "failed      expired_group_rate <= +0pp" in worse.out
    better = run_cli("gate", base, "--baseline", head, "--rule", "dropped_tokens <= +0")
    assert better.code == 0
    assert "better than the baseline, which can be tightened: dropped_tokens 110 → 100" in better.out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "there is nothing to judge: no rule and no baseline"),
        (["--rule", "dropped_tokens <= +2%"], "needs a baseline"),
        (["--rule", "dropped_tokens <= +2%", "--baseline", "missing.json"], "No such file"),
        (["--rule", "droped_tokens <= 2"], "did you mean 'dropped_tokens'?"),
        (["--rule", "dropped_tokens{task=maths} <= 2"], "did you mean 'math'?"),
        (["--rule", "dropped_tokens = 2"], "character 16"),
        (["--rules", "missing.toml"], "there is no such config file"),
        (["--rule", "expired_groups <= 9", "--format", "xml"], "is not one of"),
        (["--rule", "expired_groups <= 9", "-o", "gate.csv"], "extensions: .json, .md, .markdown, .txt, .xml, .sarif"),
        (
            ["--rule", "expired_groups <= 9", "-o", "base.json", "--baseline", "base.json"],
            "overwrite what is being read",
        ),
        (["--rule", "expired_groups <= 9", "--summary"], "GITHUB_STEP_SUMMARY"),
        (["--rule", "expired_groups <= 9", "-c", "x.toml"], "would need the log"),
        (["--baseline", "base.json", "--write-baseline", "new.json"], "exclude each other"),
        (["--write-baseline", "new.txt"], "--write-baseline knows no format"),
        (["--write-baseline", "new.json", "-o", "new.json"], "--write-baseline would overwrite"),
        (["--write-baseline", "head.json"], "overwrite what is being read"),
    ],
)
def test_what_keeps_a_gate_from_judging_is_exit_code_2(
    arguments: list[str], message: str, head: Path, base: Path, run_cli: Run
):
    for extra in ([], ["--exit-zero"]):
        ran = run_cli("gate", head, *arguments, *extra)
        assert (ran.code, ran.out) == (2, "")
        assert message in ran.err
        assert "Traceback" not in ran.err


def test_nothing_judged_is_exit_code_2_with_a_report(tmp_path: Path, run_cli: Run):
    empty = saved(tmp_path / "empty.json", made_result([]))
    ran = run_cli("gate", empty, "--rule", "expired_groups <= 0", "--exit-zero")
    assert (ran.code, ran.err) == (2, "")
    assert "nothing was replayed" in ran.out


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kind": "tokenaudit.gate"}, "a tokenaudit.gate is no result"),
        ({"schema_version": 99}, "result schema version 99"),
        ({"timeline": "simulated"}, "follows a simulated timeline"),
        ({"selection": "1..2"}, "holds steps 1..2 only"),
        ({"inputs": [{"name": "x", "rows": 1, "content_hash": "sha256:1"}]}, "another log"),
        ({"totals": None}, "damaged result"),
        ({"steps": [{"train_step": "1", "tasks": {}}]}, "train_step is '1'"),
    ],
)
def test_a_baseline_that_does_not_suit_is_refused(
    change: dict[str, Any], message: str, head: Path, base: Path, run_cli: Run
):
    base.write_text(json.dumps(json.loads(base.read_text()) | change))
    ran = run_cli("gate", head, "--baseline", base)
    assert (ran.code, ran.out) == (2, "")
    assert message in ran.err
    assert str(base) in ran.err


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"\xff\xfe", b"[" * 100_000, b'{"kind": "tokenaudit.replay", "x": NaN}', b'"\\ud800"', b"null"],
)
def test_a_hostile_baseline_is_an_error_and_no_crash(content: bytes, head: Path, base: Path, run_cli: Run):
    base.write_bytes(content)
    ran = run_cli("gate", head, "--baseline", base)
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith("error: ")
    assert "internal error" not in ran.err


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[gate]\nrules = []\n", "there is no rule in it"),
        ("[gate]\nrule = ['expired_groups <= 0']\n", "did you mean 'rules'?"),
        ("rules = ['expired_groups <= 0']\n", "rules belongs to [gate]"),
        ("[gate]\nrules = ['expird_groups <= 0']\n", "rules.toml, line 2: "),
        ("[gate]\nrules = ['a', \n'b']\n", "rules.toml, line 3: "),
        ("x = " + "[" * 100_000, "not TOML"),
        ("#" * (2**20 + 1), "larger than 1 MiB"),
        ("[gate]\nrules = [" + "'expired_groups <= 0'," * 1001 + "]\n", "1001 rules"),
    ],
)
def test_a_rules_file_that_cannot_be_used(content: str, message: str, head: Path, tmp_path: Path, run_cli: Run):
    (tmp_path / "rules.toml").write_text(content)
    ran = run_cli("gate", head, "--rules", "rules.toml")
    assert (ran.code, ran.out) == (2, "")
    assert message in ran.err


# ---- a log


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return write_log(tmp_path / "log.parquet", two_steps())


def test_a_log_is_judged_by_the_rules_of_its_config(log: Path, tmp_path: Path, run_cli: Run):
    (tmp_path / "good.toml").write_text("[policy]\nmax_staleness = 1\n[gate]\nrules = ['expired_groups <= 0']\n")
    good = run_cli("gate", log, "-c", "good.toml", "-v")
    assert good.code == 0
    assert "passed      expired_groups <= 0  [good.toml, line 4]" in good.out
    bad = run_cli("gate", log, "-c", "good.toml", "-s", "policy.max_staleness=0")
    assert bad.code == 1
    assert "1 is 1 above the limit 0" in bad.out
    assert "worst step 2: 1; worst task there default: 1" in bad.out


def test_rules_of_a_config_that_is_found_count(log: Path, tmp_path: Path, run_cli: Run):
    (tmp_path / "tokenaudit.toml").write_text("[gate]\nrules = [\n  'expired_groups <= 0',\n]\n")
    ran = run_cli("gate", log, "-q")
    assert ran.code == 1
    assert "[tokenaudit.toml, line 3]" in ran.out
    assert run_cli("gate", log, "--isolated").code == 2
    assert run_cli("gate", log, "-s", "gate.rules=['expired_groups <= 1']").code == 0


def test_a_baseline_is_written_and_holds(log: Path, tmp_path: Path, run_cli: Run):
    wrote = run_cli("gate", log, "-s", "policy.max_staleness=1", "--write-baseline", "base.json")
    assert wrote.code == 0
    assert "note: baseline written to base.json: log.parquet, 2 steps, 1 task, config " in wrote.err
    assert "; dropped_token_rate 0.00 %, trained_token_rate 100.00 %, " in wrote.err
    assert wrote.out.splitlines()[-1] == "2 steps, 1 task; no absolute rule to check"
    again = (tmp_path / "base.json").read_bytes()
    run_cli("gate", log, "-s", "policy.max_staleness=1", "--write-baseline", "base.json", "--force", "-q")
    assert (tmp_path / "base.json").read_bytes() == again
    assert run_cli("gate", log, "-s", "policy.max_staleness=1", "--baseline", "base.json").code == 0
    assert run_cli("gate", log, "-s", "policy.max_staleness=0", "--baseline", "base.json").code == 1


def test_a_baseline_is_replaced_with_force_only(log: Path, tmp_path: Path, run_cli: Run):
    (tmp_path / "base.json").write_text("a baseline of value")
    refused = run_cli("gate", log, "--write-baseline", "base.json")
    assert (refused.code, refused.out) == (2, "")
    assert "--write-baseline names a file that is there\n  at: base.json\n  hint: --force replaces it" in refused.err
    assert (tmp_path / "base.json").read_text() == "a baseline of value"
    assert run_cli("gate", log, "--write-baseline", "base.json", "--force").code == 0
    assert run_cli("gate", log, "--baseline", "base.json").code == 0
    assert "--force is for --write-baseline" in run_cli("gate", log, "--rule", "expired_groups <= 9", "--force").err


def test_a_baseline_is_not_written_where_an_absolute_rule_fails(log: Path, tmp_path: Path, run_cli: Run):
    rules = ("--rule", "expired_groups <= 0", "--rule", "dropped_tokens <= +0")
    ran = run_cli("gate", log, *rules, "--write-baseline", "base.json")
    assert ran.code == 1
    assert "error: no baseline written: expired_groups <= 0 failed" in ran.err
    assert not (tmp_path / "base.json").exists()
    assert run_cli("gate", log, *rules, "--write-baseline", "base.json", "-s", "policy.max_staleness=1").code == 0
    assert (tmp_path / "base.json").exists()


def test_a_baseline_is_not_written_where_nothing_was_replayed(tmp_path: Path, run_cli: Run):
    log = write_log(tmp_path / "puts.parquet", numbered([put(group_id=1, train_step=9), refresh(train_step=9)]))
    ran = run_cli("gate", log, "--write-baseline", "base.json")
    assert ran.code == 2
    assert "no baseline written: nothing was replayed" in ran.err
    assert not (tmp_path / "base.json").exists()


def test_a_baseline_of_another_log_is_refused_unless_allowed(log: Path, tmp_path: Path, run_cli: Run):
    other = write_log(tmp_path / "other.parquet", numbered([put(group_id=1), take()]))
    run_cli("gate", other, "--write-baseline", "base.json")
    refused = run_cli("gate", log, "--baseline", "base.json", "--rule", "expired_groups <= +1")
    assert (refused.code, refused.out) == (2, "")
    assert "another log" in refused.err
    allowed = run_cli("gate", log, "--baseline", "base.json", "--rule", "expired_groups <= +1", "--allow-different-log")
    assert allowed.code == 0


# ---- outputs


def test_settings_that_changed_since_the_baseline_come_first_in_every_format(log: Path, run_cli: Run):
    run_cli("gate", log, "-s", "policy.max_staleness=1", "--write-baseline", "base.json")
    rules = ("--rule", "expired_groups <= 0", "--rule", "dropped_tokens <= +9%")

    def ran(name: str, *arguments: str) -> str:
        return run_cli("gate", log, "--baseline", "base.json", *rules, "--format", name, *arguments).out

    line = "settings changed since the baseline: policy.max_staleness 1 → 0"
    table = ran("table")
    assert table.index("policy.max_staleness   1          0") < table.index("failed      expired_groups <= 0")
    markdown = ran("markdown")
    assert markdown.index("| policy.max\\_staleness | 1        | 0        |") < markdown.index("**2 rules")
    data = json.loads(ran("json"))
    assert data["settings"] == [{"key": "policy.max_staleness", "baseline": 1, "run": 0}]
    assert list(data).index("settings") < list(data).index("exit_code")
    suite = ET.fromstring(ran("junit"))[0]
    assert suite[0].tag == "properties"
    assert suite[0][0].attrib == {"name": "policy.max_staleness", "value": "1 → 0"}
    (invocation,) = json.loads(ran("sarif"))["runs"][0]["invocations"]
    assert invocation["toolConfigurationNotifications"] == [{"level": "note", "message": {"text": f"{line}."}}]
    assert ran("github").splitlines()[0] == f"::notice title=tokenaudit gate::{line}"
    same = ("-s", "policy.max_staleness=1")
    assert "no setting changed since the baseline" in ran("table", *same)
    for name in ("junit", "sarif", "github"):
        assert "max_staleness" not in ran(name, *same)
    assert json.loads(ran("json", *same))["settings"] == []


def test_files_are_written_in_every_format(head: Path, base: Path, tmp_path: Path, run_cli: Run):
    names = ("gate.json", "gate.md", "gate.txt", "gate.junit.xml", "gate.sarif")
    outputs = [part for name in names for part in ("-o", name)]
    ran = run_cli("gate", head, "--baseline", base, "--format", "json", *outputs)
    assert ran.code == 1
    assert json.loads(ran.out) == json.loads((tmp_path / "gate.json").read_text())
    assert json.loads(ran.out)["exit_code"] == 1
    assert ET.parse(tmp_path / "gate.junit.xml").getroot().tag == "testsuites"
    assert json.loads((tmp_path / "gate.sarif").read_text())["version"] == "2.1.0"
    assert (tmp_path / "gate.md").read_text().startswith("## tokenaudit gate")
    assert (tmp_path / "gate.txt").read_text() == run_cli("gate", head, "--baseline", base).out


def test_where_a_file_cannot_be_written_none_is(head: Path, base: Path, tmp_path: Path, run_cli: Run, monkeypatch):
    summary = tmp_path / "summary.md"
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    before = {path.name for path in tmp_path.iterdir()}
    # A folder that is there, and takes no file.
    outputs = ("-o", "gate.json", "-o", "/proc/gate.md")
    for command in (
        ("gate", head, "--baseline", base, "--summary", *outputs),
        ("gate", head, "--rule", "expired_groups <= 9", "--write-baseline", "new.json", *outputs),
        ("diff", head, base, *outputs),
        ("audit", SAMPLE, *outputs),
        ("replay", head, *outputs),
        ("simulate", SAMPLE, "-s", "timeline.steps=1", "-o", "events.parquet", *outputs),
    ):
        ran = run_cli(*command, "-q")
        assert (ran.code, ran.out) == (2, ""), command
        assert "/proc/gate.md" in ran.err
        assert {path.name for path in tmp_path.iterdir()} == before, command


def test_a_summary_that_cannot_be_appended_to_is_told_before_anything_is_written(
    head: Path, base: Path, tmp_path: Path, run_cli: Run, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path))
    ran = run_cli("gate", head, "--baseline", base, "--summary", "-o", "gate.json")
    assert (ran.code, ran.out) == (2, "")
    assert not (tmp_path / "gate.json").exists()


@pytest.mark.parametrize("name", ["table", "json", "markdown", "junit", "sarif", "github"])
def test_standard_output_takes_every_format(name: str, head: Path, base: Path, run_cli: Run):
    ran = run_cli("gate", head, "--baseline", base, "--format", name)
    assert (ran.code, ran.err) == (1, "")
    assert ran.out.endswith("\n")
    again = run_cli("gate", head, "--baseline", base, "--format", name)
    assert again.out == ran.out


def test_the_text_of_a_run_holds_no_path(head: Path, base: Path, run_cli: Run, tmp_path: Path):
    for name in ("table", "json", "markdown", "junit"):
        assert str(tmp_path) not in run_cli("gate", head, "--baseline", base, "--format", name).out


def test_annotations_stand_at_the_rule(log: Path, tmp_path: Path, run_cli: Run):
    (tmp_path / "ci").mkdir()
    (tmp_path / "ci" / "gate.toml").write_text("[gate]\nrules = [\n  'expired_groups <= 0',\n]\n")
    ran = run_cli("gate", log, "--rules", "ci/gate.toml", "--format", "github")
    assert ran.code == 1
    assert ran.out.startswith("::error file=ci/gate.toml,line=3,title=expired_groups <= 0::1 is 1 above the limit 0")
    sarif = json.loads(run_cli("gate", log, "--rules", "ci/gate.toml", "--format", "sarif").out)
    (result,) = sarif["runs"][0]["results"]
    assert result["locations"][0]["physicalLocation"] == {
        "artifactLocation": {"uri": "ci/gate.toml", "uriBaseId": "%SRCROOT%"},
        "region": {"startLine": 3, "snippet": {"text": "  'expired_groups <= 0',"}},
        "contextRegion": {
            "startLine": 2, "endLine": 4, "snippet": {"text": "rules = [\n  'expired_groups <= 0',\n]"},
        },
    }  # fmt: skip


@pytest.mark.parametrize(
    ("text", "first", "around"),
    [
        ("gate.rules = ['expired_groups <= 0']", 1, []),
        ("gate.rules = ['expired_groups <= 0']\n\n", 1, ["gate.rules = ['expired_groups <= 0']", ""]),
        ("[gate]\nrules = ['expired_groups <= 0']", 1, ["[gate]", "rules = ['expired_groups <= 0']"]),
        (f"[gate]\nrules = ['expired_groups <= 0'] # {'x' * 1000}", 1, []),
    ],
    ids=["alone", "first", "last", "long"],
)
def test_the_lines_of_a_rule_are_shown(
    text: str, first: int, around: list[str], log: Path, tmp_path: Path, run_cli: Run
):
    (tmp_path / "gate.toml").write_text(text)
    sarif = json.loads(run_cli("gate", log, "--rules", "gate.toml", "--format", "sarif").out)
    place = sarif["runs"][0]["results"][0]["locations"][0]["physicalLocation"]
    context = {"startLine": first, "endLine": len(around), "snippet": {"text": "\n".join(around)}} if around else None
    assert place.get("contextRegion") == context
    line = next((line for line in around if "<=" in line), text if "x" * 1000 not in text else None)
    assert place["region"].get("snippet") == (None if line is None else {"text": line})


COMMIT = "0123456789abcdef" * 3
GITHUB = {"GITHUB_SERVER_URL": "https://git.example", "GITHUB_REPOSITORY": "me/it", "GITHUB_SHA": COMMIT[:40]}
GITLAB = {"CI_PROJECT_URL": "https://lab.example/me/it", "CI_COMMIT_SHA": COMMIT[:40]}


@pytest.mark.parametrize(
    ("variables", "found"),
    [
        ({}, None),
        (GITHUB, {"repositoryUri": "https://git.example/me/it"}),
        (GITHUB | {"GITHUB_REF_NAME": "7/merge", "GITHUB_REF_TYPE": ""}, {"repositoryUri": "https://git.example/me/it"}),
        (GITHUB | {"GITHUB_REF_NAME": "main", "GITHUB_REF_TYPE": "branch"},
         {"repositoryUri": "https://git.example/me/it", "branch": "main"}),
        (GITLAB, {"repositoryUri": "https://lab.example/me/it"}),
        (GITLAB | {"CI_COMMIT_BRANCH": "main"}, {"repositoryUri": "https://lab.example/me/it", "branch": "main"}),
        (GITHUB | {"GITHUB_SHA": "main"}, None),
        (GITLAB | {"CI_PROJECT_URL": "ssh://lab.example/me/it"}, None),
    ],
)  # fmt: skip
def test_sarif_says_which_commit_a_ci_job_runs_on(
    variables: dict[str, str], found: dict[str, str] | None, log: Path, run_cli: Run, monkeypatch: pytest.MonkeyPatch
):
    for name in (*GITHUB, *GITLAB, "GITHUB_REF_NAME", "GITHUB_REF_TYPE", "CI_COMMIT_BRANCH"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    root = {"revisionId": COMMIT[:40], "mappedTo": {"uriBaseId": "%SRCROOT%"}}
    for command in (("gate", log, "--rule", "expired_groups <= 0"), ("audit", log)):
        (run,) = json.loads(run_cli(*command, "--format", "sarif").out)["runs"]
        assert run.get("versionControlProvenance") == (None if found is None else [found | root])
        assert "%SRCROOT%" in run["originalUriBaseIds"] or found is None


def test_sarif_names_the_pages_that_the_package_names(log: Path, run_cli: Run, monkeypatch: pytest.MonkeyPatch):
    def driver() -> dict[str, Any]:
        ran = run_cli("gate", log, "--rule", "expired_groups <= 0", "--format", "sarif")
        return json.loads(ran.out)["runs"][0]["tool"]["driver"]

    about = Message()
    monkeypatch.setattr("tokenaudit.render.sarif.metadata", lambda name: about)
    assert "informationUri" not in driver()
    assert "helpUri" not in driver()["rules"][0]
    about["Project-URL"] = "Homepage, https://home.example"
    assert (driver()["informationUri"], driver()["rules"][0]["helpUri"]) == ("https://home.example",) * 2
    about["Project-URL"] = "Documentation, https://home.example/docs"
    assert (driver()["informationUri"], driver()["rules"][0]["helpUri"]) == (
        "https://home.example", "https://home.example/docs",
    )  # fmt: skip


@pytest.mark.parametrize("root", ["git", "variable", "none", "elsewhere"])
def test_places_are_named_from_the_root_of_the_repository(
    root: str, log: Path, tmp_path: Path, run_cli: Run, monkeypatch: pytest.MonkeyPatch
):
    folder = tmp_path / "trainer" / "ci"
    folder.mkdir(parents=True)
    (folder / "gate.toml").write_text("[gate]\nrules = [\n  'expired_groups <= 0',\n]\n")
    if root == "git":
        (tmp_path / ".git").write_text("gitdir: as in a worktree")
    elif root != "none":
        (tmp_path / "trainer" / "link").symlink_to(tmp_path, target_is_directory=True)
        monkeypatch.setenv("GITHUB_WORKSPACE", str(tmp_path / ("trainer/link" if root == "variable" else "other")))
    monkeypatch.chdir(tmp_path / "trainer")
    arguments = ("gate", log, "--rules", "ci/gate.toml", "--rule", "taken_groups <= 0")
    paths = {"gate.toml": (folder / "gate.toml").as_posix(), "log": log.as_posix()}
    if root in ("git", "variable"):
        paths = {name: path.removeprefix(f"{tmp_path}/") for name, path in paths.items()}
    elif root == "none":
        paths["gate.toml"] = "ci/gate.toml"
    assert f"::error file={paths['gate.toml']},line=3," in run_cli(*arguments, "--format", "github").out
    sarif = json.loads(run_cli(*arguments, "--format", "sarif").out)
    assert_validators_note_nothing(sarif)
    places = [result["locations"][0]["physicalLocation"] for result in sarif["runs"][0]["results"]]
    bases = {"%SRCROOT%": "", "FILESYSTEM": "/"}
    found = {
        bases[place["artifactLocation"]["uriBaseId"]] + place["artifactLocation"]["uri"]: place["region"]["startLine"]
        for place in places
    }
    assert found == {paths["gate.toml"]: 3, paths["log"]: 1}


@pytest.mark.parametrize("name", ["::error::x", "  ::error::x", "##vso[task.complete]x", "a ##[error]x"])
@pytest.mark.parametrize(
    "command",
    [
        ("replay", "--by-task"),
        ("replay", "--by-task", "--format", "json"),
        ("replay", "--by-task", "--format", "csv"),
        ("replay", "--by-task", "--format", "markdown"),
        ("inspect",),
        ("inspect", "--format", "json"),
        ("explain", "--step", "1"),
        ("gate", "--rule", "taken_groups{task=*} <= 0"),
        ("gate", "--rule", "taken_groups{task=?} <= 0"),
        ("audit", "--format", "csv"),
        ("audit", "--format", "jsonl"),
        ("audit", "--format", "junit"),
        ("audit", "--format", "sarif"),
        ("replay", "--by-task", "--format", "jsonl"),
        ("gate", "--rule", "taken_groups{task=*} <= 0", "--format", "junit"),
        ("gate", "--rule", "taken_groups{task=*} <= 0", "--format", "sarif"),
    ],
    ids=" ".join,
)
def test_no_name_becomes_a_command_of_a_ci_job(name: str, command: tuple[str, ...], tmp_path: Path, run_cli: Run):
    rows = [row | {"task_name": name} for row in two_steps()]
    ran = run_cli(command[0], write_log(tmp_path / "log.parquet", rows), *command[1:])
    lines = [*ran.out.splitlines(), *ran.err.splitlines()]
    assert [line for line in lines if line.lstrip().startswith("::") or re.search(r"##(vso)?\[", line)] == []
    if "json" in command:
        assert name in json.dumps(json.loads(ran.out), ensure_ascii=False)


def test_no_annotation_holds_another_command(tmp_path: Path, run_cli: Run):
    path = write_log(tmp_path / "log.parquet", [row | {"task_name": "##[error]x"} for row in two_steps()])
    ran = run_cli("audit", path, "--format", "github")
    assert "::task ## [error]x, group 1" in ran.out
    assert "##[" not in ran.out


@pytest.mark.parametrize("format_", ["json", "jsonl", "sarif"])
def test_no_name_becomes_a_command_of_a_terminal_in_json(format_: str, tmp_path: Path, run_cli: Run):
    """C1 controls, which terminals obey as escape sequences, and characters that turn text around or end lines."""
    name = "a\x9b31m\x7f\u202e\u2028\U000e0001 ö \U0001f600"
    rows = [row | {"task_name": name} for row in two_steps()]
    path = write_log(tmp_path / "log.parquet", rows)
    ran = run_cli("audit", path, "--format", format_)
    assert all(char.isprintable() or char == "\n" for char in ran.out)
    assert "ö \U0001f600" in ran.out
    if format_ != "sarif":
        texts = [ran.out] if format_ == "json" else ran.out.splitlines()
        assert name in json.dumps([json.loads(text) for text in texts], ensure_ascii=False).replace("\\u007f", "\x7f")


def test_the_job_summary_is_appended_to_and_stays_within_its_size(
    head: Path, base: Path, tmp_path: Path, run_cli: Run, monkeypatch: pytest.MonkeyPatch
):
    summary = tmp_path / "summary.md"
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    summary.write_text("before\n")
    for _ in range(2):
        assert run_cli("gate", head, "--baseline", base, "--summary").code == 1
    assert summary.read_text().startswith("before\n## tokenaudit gate")
    assert summary.read_text().count("## tokenaudit gate") == 2
    summary.write_text("x" * (SUMMARY_BYTES - 200))
    run_cli("gate", head, "--baseline", base, "--summary")
    assert summary.stat().st_size <= SUMMARY_BYTES
    assert "cut here" in summary.read_text()
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path))
    failed = run_cli("gate", head, "--baseline", base, "--summary")
    assert (failed.code, failed.out) == (2, "")
    assert "can't write the job summary" in failed.err


def test_a_result_of_selected_steps_is_not_judged(tmp_path: Path, run_cli: Run):
    part = saved(tmp_path / "part.json", replace(made_result([{}]), selection="1..1"))
    ran = run_cli("gate", part, "--rule", "expired_groups{step} <= 0")
    assert (ran.code, ran.out) == (2, "")
    assert "holds steps 1..1 only" in ran.err


# ---- the sample


def test_the_worse_config_fails_against_the_baseline_of_the_good_one(run_cli):
    wrote = run_cli("gate", SAMPLE, "-c", GOOD, "--write-baseline", "baseline.json")
    assert wrote.code == 0
    good = run_cli("gate", SAMPLE, "-c", GOOD, "--baseline", "baseline.json")
    assert good.code == 0
    assert good.out == (
        "rollouts.parquet against the baseline from rollouts.parquet\n\nno setting changed since the baseline\n\n"
        "6 rules over 30 steps, 2 tasks: 6 passed; -v lists what passed\n"
    )
    listed = run_cli("gate", SAMPLE, "-c", GOOD, "--baseline", "baseline.json", "-v").out
    assert listed.count("\npassed      ") == 6
    assert listed.endswith("6 passed\n")
    rules = ("--rule", "dropped_tokens <= +2%", "--rule", "trained_token_rate >= -1pp")
    bad = run_cli("gate", SAMPLE, "-c", WORSE, "--baseline", "baseline.json", *rules)
    assert bad.code == 1
    assert "5,204,799 is 3,964,838.04 above the limit 1,239,960.96" in bad.out
    assert "worst step 27: 304,335 (baseline 79,172); worst task there code: 238,503 (baseline 70,970)" in bad.out
    assert "warning: task math: max_token_staleness 1" in bad.err
    assert "dropped_tokens" not in bad.err
    assert bad.err.endswith(f"note: `tokenaudit explain {SAMPLE} -c {WORSE}` says why tokens were lost\n")
    assert "note:" not in run_cli("gate", SAMPLE, "-c", WORSE, "--baseline", "baseline.json", *rules, "-q").err


def test_a_task_that_is_gone_is_not_judged(tmp_path: Path, run_cli: Run):
    assert run_cli("gate", SAMPLE, "-c", GOOD, "--write-baseline", "base.json").code == 0
    only_math = tmp_path / "math.parquet"
    pq.write_table(pq.read_table(SAMPLE, filters=[("task_name", "=", "math")]), only_math)
    command = ("gate", only_math, "-c", GOOD, "--baseline", "base.json", "--allow-different-log", "--rule")
    gone = run_cli(*command, "expired_groups{task=code} <= +5%")
    assert gone.code == 2
    assert "not judged  expired_groups{task=code} <= +5%" in gone.out
    assert "the run has no data of task code; tasks: math" in gone.out
    accepted = run_cli(*command, "expired_groups{task=code,absent=ok} <= +5%")
    assert accepted.code == 0
    assert "the run has no data of task code, which the rule accepts" in accepted.out
    assert "better" not in accepted.out


def test_a_task_that_only_the_config_names_is_not_judged(tmp_path: Path, run_cli: Run):
    (tmp_path / "typo.toml").write_text(GOOD.read_text().replace("[tasks.code]", "[tasks.coed]"))
    ran = run_cli("gate", SAMPLE, "-c", "typo.toml", "--rule", "expired_groups{task=coed} <= 0")
    assert ran.code == 2
    assert "the run has no data of task coed; did you mean 'code'?" in ran.out


def test_a_run_that_crashed_is_not_judged_against_a_whole_one(tmp_path: Path, run_cli: Run):
    assert run_cli("gate", SAMPLE, "-c", GOOD, "--write-baseline", "base.json").code == 0
    crashed = tmp_path / "crashed.parquet"
    pq.write_table(pq.read_table(SAMPLE).slice(0, 1886), crashed)
    command = ("gate", crashed, "-c", GOOD, "--baseline", "base.json", "--allow-different-log")
    rule = ("--rule", "dropped_tokens{step} <= +0")
    ran = run_cli(*command, *rule)
    assert ran.code == 2
    assert "the run lacks 27 of the baseline's 30 steps (from 4 to 30); --allow-fewer-steps accepts that" in ran.out
    assert run_cli(*command, "-q").code == 2
    accepted = run_cli(*command, *rule, "--allow-fewer-steps", "--format", "json")
    assert accepted.code == 0
    assert "accepted with --allow-fewer-steps" in accepted.err
    assert "accepted with --allow-fewer-steps" in accepted.out


def test_the_pre_commit_hook_runs_the_gate():
    hooks = (SAMPLE.parent.parent / ".pre-commit-hooks.yaml").read_text()
    scripts = tomllib.loads((SAMPLE.parent.parent / "pyproject.toml").read_text())["project"]["scripts"]
    assert "entry: tokenaudit gate\n" in hooks
    (pattern,) = re.findall(r"files: (.*)\n", hooks)
    for name in ("async.toml", "runs/reference.parquet", "runs/baseline.json"):
        assert re.search(pattern, name)
    assert not re.search(pattern, "train.py")
    assert "tokenaudit" in scripts


def test_a_saved_result_whose_maximum_or_notices_were_edited_is_not_judged(tmp_path: Path, run_cli: Run):
    log, saved = tmp_path / "log.parquet", tmp_path / "saved.json"
    write_log(log, two_steps(), metadata={META_LIMITS: '["it has no rewards"]'})
    run_cli("replay", log, "--isolated", "-o", saved)
    arguments = ("gate", saved, "--rule", "seq_staleness_max <= 0")
    data = json.loads(saved.read_text())
    largest = data["totals"]["seq_staleness_max"]
    assert run_cli(*arguments).code == (1 if largest else 0)
    assert [notice["message"] for notice in data["warnings"]] == ["it has no rewards"]
    for edited in (data | {"totals": data["totals"] | {"seq_staleness_max": largest + 1}}, data | {"warnings": []}):
        saved.write_text(json.dumps(edited))
        ran = run_cli(*arguments)
        assert (ran.code, ran.out, "damaged result: " in ran.err) == (2, "", True)

"""The audit command: exit codes, selections, baselines, formats and hostile input."""

from __future__ import annotations

import csv
import json
import os
import re
from pathlib import Path
from urllib.parse import quote
from xml.etree import ElementTree as ET

import pytest

from tests.builders import put, refresh, take, write_log
from tests.conftest import SAMPLE
from tests.render.report_checks import assert_ant_would_write_it, assert_validators_note_nothing
from tokenaudit.audit.findings import MOST_MEMBERS, MOST_SINGLE
from tokenaudit.audit.rule import Fact
from tokenaudit.render.github import MOST_ANNOTATIONS

CONFIG = ("-s", "policy.max_staleness=3")


def broken(folder: Path, count: int = 3, name: str = "log.parquet") -> Path:
    """A log with an error and a warning per put."""
    rows = [put(n, n, tokens=3, response_mask=[0, 0]) for n in range(count)]
    return write_log(folder / name, rows)


def test_the_sample_passes(run_cli):
    ran = run_cli("audit", SAMPLE)
    assert (ran.code, ran.err) == (0, "")
    assert re.search(r"0 errors, 6 warnings, 1 info · (\d+) rules not run$", ran.out.splitlines()[-1])
    # The setting that bound is the one that explain names, and not max_staleness.
    by_setting = "by tasks.code.max_token_staleness = 1\n"
    dropped = "  task code: 34.7 % of produced tokens (1,114,334 of 3,211,658) were dropped as stale"
    assert f"{dropped}; 87 % of what was dropped is {by_setting}" in ran.out
    assert f"never trained; most was lost {by_setting}" in ran.out
    assert "raise max_staleness" not in ran.out
    assert "tokenaudit explain LOG" in ran.out
    assert re.search(r"not run: \d+ rules for want of columns, events or settings; -v lists them", ran.out)
    every = run_cli("audit", SAMPLE, "-v").out
    assert "not run: S015 S016 S017 S021 P006: needs logprobs or train_logprobs" in every
    assert re.search(r"not run: G001 G006 .*L002 .*T005.*: needs take rows with rollout_id", every)
    assert re.search(r"^M001 mask-length-mismatch +error +rows +3,087 +0$", every, re.MULTILINE)


def test_a_report_says_a_thing_once_the_most_costly_first(run_cli):
    titles = [line.split()[1] for line in run_cli("audit", SAMPLE).out.splitlines() if re.match(r"warning|info", line)]
    # tokens dropped: 1,114,334 of the task, among them those of one group 19 times, and of 17 groups in the queue
    assert titles == ["L013", "L011", "L003", "L021", "R002", "L020"]


def test_an_override_that_every_task_overrules_is_noted(run_cli):
    ran = run_cli("audit", SAMPLE, "-q", "-s", "policy.max_staleness=1")
    note = "-s policy.max_staleness changes nothing for tasks math, code, which set their own"
    assert f"note: {note}. Use -s tasks.math.max_staleness=1 -s tasks.code.max_staleness=1\n" in ran.out
    assert "changes nothing" not in run_cli("audit", SAMPLE, "-s", "tasks.code.max_staleness=1").out


def test_findings_share_the_list(run_cli, tmp_path: Path):
    rows = [put(n, n, tokens=3, response_mask=[0, 0], rollout_id=n) for n in range(9)]
    out = run_cli("audit", write_log(tmp_path / "log.parquet", rows), "--max-findings", 5).out
    assert out.count("  task default, group ") == 5
    for code in ("M001", "G002"):
        assert re.search(rf"{code} \S+ · 9 findings · \w+ checked: 9\n(  task default, group .*\n){{2,3}}  … ", out)


@pytest.mark.parametrize(("rows", "needs"), [
    ([put(1, 1), refresh(2), take(3)], [str(Fact.CONFIG)]),
    ([put(1, 1)], [str(Fact.CONFIG), str(Fact.TIMELINE)]),
])  # fmt: skip
def test_without_a_config_a_config_is_what_is_missing(rows: list[dict], needs: list[str], run_cli, tmp_path: Path):
    path = write_log(tmp_path / "log.parquet", rows)
    data = json.loads(run_cli("audit", path, "--format", "json").out)
    missing = {rule["code"]: rule["missing"] for rule in data["rules"]}
    assert missing["L002"] == [str(Fact.CONFIG), str(Fact.RECORDED_TAKES)]
    assert missing["L003"] == [str(Fact.CONFIG)]
    assert missing["L014"] == needs
    assert missing["L013"] == [str(Fact.CONFIG)]
    text = run_cli("audit", path).out
    assert re.search(r"not run: \d+ rules for want of a config: give one with -c FILE; `tokenaudit init LOG`", text)


def test_errors_fail_and_exit_zero_forgives_them(run_cli, tmp_path: Path):
    path = broken(tmp_path)
    assert run_cli("audit", path).code == 1
    assert run_cli("audit", path, "--exit-zero").code == 0


@pytest.mark.parametrize(
    ("options", "code", "names"),
    [
        (("--select", "M"), 1, {"mask-length-mismatch"}),
        (("--select", "m001"), 1, {"mask-length-mismatch"}),
        (("--select", "group-singleton"), 0, {"group-singleton"}),
        (("--ignore", "M001"), 0, {"group-singleton"}),
        (("--select", "M", "--select", "G", "--ignore", "G"), 1, {"mask-length-mismatch"}),
        (("--severity", "error"), 1, {"mask-length-mismatch"}),
    ],
)
def test_rules_are_selected_by_code_beginning_or_name(
    options: tuple[str, ...], code: int, names: set[str], run_cli, tmp_path: Path
):
    ran = run_cli("audit", broken(tmp_path), "--format", "json", *options)
    assert ran.code == code
    assert {finding["name"] for finding in json.loads(ran.out)["findings"]} == names


@pytest.mark.parametrize(
    ("options", "what"),
    [
        (("--select", "M999"), "no audit rule is called 'M999'"),
        (("--select", "Z"), "\n  hint: codes: "),
        (("--select", "v02"), "\n  hint: did you mean 'V012' or 'V002'? codes: "),
        (("--ignore", "mask-lenght"), "no audit rule is called 'mask-lenght'"),
        (("--select", "M001", "--ignore", "M"), "no rule is left"),
        (("--baseline", "absent.json"), "can't read the baseline"),
        (("-o", "report.pdf"), "knows no format"),
    ],
)
def test_what_can_not_be_done_is_a_usage_error(options: tuple[str, ...], what: str, run_cli, tmp_path: Path):
    ran = run_cli("audit", broken(tmp_path), *options)
    assert (ran.code, ran.out) == (2, "")
    assert what in ran.err


def test_only_findings_that_a_baseline_does_not_know_fail(run_cli, tmp_path: Path):
    known, more = broken(tmp_path, 3), broken(tmp_path, 4, "more.parquet")
    assert run_cli("audit", known, "-o", "known.json").code == 1
    same = run_cli("audit", known, "--baseline", "known.json")
    assert same.code == 0
    assert "0 new errors" in same.out
    assert "(known)" in same.out
    grown = run_cli("audit", more, "--baseline", "known.json", "--format", "json")
    assert grown.code == 1
    data = json.loads(grown.out)
    assert data["new_counts"]["error"] == 1
    assert [f["group_id"] for f in data["findings"] if f["is_new"] and f["severity"] == "error"] == [3]
    assert run_cli("audit", known, "--baseline", "known.json").code == 0


def test_a_second_equal_finding_is_new(run_cli, tmp_path: Path):
    once = write_log(tmp_path / "once.parquet", [put(1, 1, prior_len=9), put(2, 2)])
    twice = write_log(tmp_path / "twice.parquet", [put(1, 1, prior_len=9), put(1, 1, prior_len=9), put(2, 2)])
    assert run_cli("audit", once, "-o", "once.json").code == 1
    assert run_cli("audit", twice, "--baseline", "once.json").code == 1


def test_a_baseline_that_is_a_pipe_is_refused(run_cli, tmp_path: Path):
    os.mkfifo(tmp_path / "pipe.json")
    ran = run_cli("audit", broken(tmp_path), "--baseline", "pipe.json")
    assert (ran.code, ran.out) == (2, "")
    assert "can't read the baseline: not a regular file" in ran.err


@pytest.mark.parametrize("options", [(), ("--select", "V"), ("--ignore", "S001"), ("--severity", "warning")])
def test_a_log_without_puts_is_never_green_whatever_rules_are_asked_for(options: tuple[str, ...], run_cli, tmp_path):
    path = write_log(tmp_path / "takes.parquet", [take(n, n) for n in range(1, 4)])
    ran = run_cli("audit", path, *options)
    assert ran.code == 2
    assert "nothing was audited" in ran.out


def test_rules_that_had_nothing_to_look_at_are_no_verdict(run_cli, tmp_path: Path):
    path = write_log(tmp_path / "log.parquet", [put(1, 1), take(2, 1, rollout_id=1)])
    assert run_cli("audit", path, *CONFIG, "--select", "L005").code == 2
    assert run_cli("audit", path, *CONFIG, "--select", "L005", "--select", "L002").code == 0


@pytest.mark.parametrize("content", ["{", "[]", "{}", '{"kind": "tokenaudit.audit", "schema_version": 9}',
                                     '{"kind": "tokenaudit.audit", "schema_version": 2, "findings": [3]}',
                                     '{"kind": "tokenaudit.audit", "schema_version": 2, "findings": [], '
                                     '"rules": [{"name": "x", "counts": {"error": Infinity}}]}'])  # fmt: skip
def test_a_baseline_that_is_none_is_refused(content: str, run_cli, tmp_path: Path):
    (tmp_path / "base.json").write_text(content)
    ran = run_cli("audit", broken(tmp_path), "--baseline", "base.json")
    assert (ran.code, ran.out) == (2, "")
    assert "baseline" in ran.err


def test_findings_beyond_those_listed_are_counted(run_cli, tmp_path: Path):
    ran = run_cli("audit", broken(tmp_path, MOST_SINGLE), "--max-findings", "5")
    assert ran.out.count("  task default, group ") == 5
    hidden = [int(count) for count in re.findall(r"… (\d+) more findings not listed", ran.out)]
    assert sum(hidden) == 2 * MOST_SINGLE - 5
    none = run_cli("audit", broken(tmp_path, MOST_SINGLE), "--max-findings", "0").out
    assert none.count("  task default, group ") == 0


def test_when_every_row_is_faulty_it_is_one_finding_with_its_extent(run_cli, tmp_path: Path):
    path = broken(tmp_path, MOST_MEMBERS + 5)
    ran = run_cli("audit", path, "--select", "M001", "-o", "many.json")
    assert ran.code == 1
    told = "from put 1 on, the first, rollout 0: 2 mask values for 3 tokens; the last 1 have no verdict"
    assert f"  task default: {told}; 10,005 responses in 10,005 puts\n" in ran.out
    assert "which rows: `extent` of a finding in -o FILE.json" in ran.out
    data = json.loads((tmp_path / "many.json").read_text())
    (finding,) = data["findings"]
    members = finding["extent"].pop("members")
    assert (members[0], members[-1], len(members)) == (["default", 0], ["default", MOST_MEMBERS - 1], MOST_MEMBERS)
    assert finding["extent"] == {
        "first_put": 1, "last_put": 10_005, "first_event_id": 0, "last_event_id": 10_004, "count": 10_005,
    }  # fmt: skip
    for other in (path, broken(tmp_path, MOST_MEMBERS + 6, "more.parquet"), broken(tmp_path, 3, "fewer.parquet")):
        assert run_cli("audit", other, "--select", "M001", "--baseline", "many.json").code == 0


def test_findings_of_single_rows_name_them(run_cli, tmp_path: Path):
    assert "which rows: " not in run_cli("audit", broken(tmp_path, 3), "--select", "M001").out


def test_a_baseline_of_few_rows_does_not_know_many(run_cli, tmp_path: Path):
    run_cli("audit", broken(tmp_path), "--select", "M001", "-o", "few.json")
    many = broken(tmp_path, MOST_SINGLE + 1, "many.parquet")
    assert run_cli("audit", many, "--select", "M001", "--baseline", "few.json").code == 1


def test_a_baseline_of_an_older_version_is_refused_with_how_to_write_it_anew(run_cli, tmp_path: Path):
    run_cli("audit", broken(tmp_path), "-o", "base.json")
    data = json.loads((tmp_path / "base.json").read_text())
    (tmp_path / "base.json").write_text(json.dumps(data | {"schema_version": 1}))
    ran = run_cli("audit", broken(tmp_path), "--baseline", "base.json")
    assert (ran.code, ran.out) == (2, "")
    assert "baseline schema version 1, which knows findings by other identities" in ran.err
    assert "write it anew with `tokenaudit audit LOG -o FILE.json`" in ran.err


def test_a_rule_without_its_columns_is_not_run_and_never_passed(run_cli, tmp_path: Path):
    data = json.loads(run_cli("audit", broken(tmp_path), "--format", "json", *CONFIG).out)
    rules = {rule["name"]: rule for rule in data["rules"]}
    assert not rules["padding-trained"]["ran"]
    assert rules["padding-trained"]["missing"] == ["response_ids"]
    assert rules["mask-length-mismatch"]["checked"] == 3
    assert not rules["stale-token-trained"]["ran"]


def test_without_a_config_the_lifecycle_is_not_judged(run_cli, tmp_path: Path):
    path = write_log(tmp_path / "log.parquet", [put(1, 1), take(2)])
    ran = run_cli("audit", path, "--isolated")
    assert "rules for want of a config" in ran.out
    assert "want of a config" not in run_cli("audit", path, "--isolated", *CONFIG).out


def test_a_log_that_replay_refuses_is_audited_all_the_same(run_cli, tmp_path: Path):
    path = write_log(tmp_path / "log.parquet", [put(1, None) | {"event": "drop"}, put(2, 2, response_mask=[1])])
    ran = run_cli("audit", path, *CONFIG)
    assert ran.code == 1
    assert "S007 unknown-event · 1 finding · rows checked: 2\n  step 1, event 1: unknown event 'drop'\n" in ran.out
    assert "M001 mask-length-mismatch · 1 finding · rows checked: 1\n  task default, group 2" in ran.out
    assert "note: no replay: unknown event 'drop'" in ran.out


def test_what_the_findings_do_not_stand_on_is_told(run_cli, tmp_path: Path):
    folder = tmp_path / "log"
    folder.mkdir()
    write_log(folder / "0.parquet", [put(1, 1, response_mask=[1]), put(2, 2), take(3)])
    (folder / "1.parquet").write_bytes(b"PAR1")
    out = run_cli("audit", folder, *CONFIG).out
    assert "the replay leaves out 1 group with structural faults" in out
    assert "1 file could not be read, so groups and batches may only seem incomplete" in out


def test_csv_holds_every_finding(run_cli, tmp_path: Path):
    rows = list(csv.DictReader(run_cli("audit", broken(tmp_path), "--format", "csv").out.splitlines()))
    assert len(rows) == 6
    assert rows[0]["message"] == "2 mask values for 3 tokens; the last 1 have no verdict"


def test_markdown_tells_rules_and_findings(run_cli, tmp_path: Path):
    text = run_cli("audit", broken(tmp_path), "--format", "markdown").out
    assert "error M001 mask-length-mismatch · 3 findings · rows checked: 3" in text
    assert "- task default, group 0, rollout 0, put 1: 2 mask values for 3 tokens" in text
    assert "| M001 mask-length-mismatch" in run_cli("audit", broken(tmp_path), "-v", "--format", "markdown").out


def test_junit_has_a_case_per_rule(run_cli, tmp_path: Path):
    root = ET.fromstring(run_cli("audit", broken(tmp_path), "--format", "junit").out)
    cases = {case.attrib["name"].split()[1]: case for case in root.iter("testcase")}
    assert_ant_would_write_it(root)
    assert root[0].attrib["failures"] == "1"
    assert cases["mask-length-mismatch"].find("failure") is not None
    assert cases["padding-trained"].find("skipped") is not None
    assert len(cases["group-singleton"]) == len(cases["version-missing"]) == 0
    assert re.search(r"^\w+ group-singleton\nwarning: task default, group", root[0].findtext("system-out", ""), re.M)
    assert "version-missing" not in root[0].findtext("system-out", "")


def test_sarif_places_findings_at_the_log_and_knows_them_again(run_cli, tmp_path: Path):
    path = broken(tmp_path)
    (run,) = json.loads(run_cli("audit", path, "--format", "sarif").out)["runs"]
    rules = run["tool"]["driver"]["rules"]
    assert_validators_note_nothing({"runs": [run]})
    for result in run["results"]:
        assert rules[result["ruleIndex"]]["id"] == result["ruleId"]
        assert result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] == path.name
    prints = [result["partialFingerprints"]["finding/v1"] for result in run["results"]]
    assert len(set(prints)) == len(prints) == 6


def test_no_name_from_a_log_becomes_a_link_or_a_placeholder_in_sarif(run_cli, tmp_path: Path):
    path = write_log(tmp_path / "log.parquet", [put(1, 1, task_name="[a](b){0}", response_mask=[0])])
    (run,) = json.loads(run_cli("audit", path, "--format", "sarif").out)["runs"]
    texts = [result["message"]["text"] for result in run["results"] if "(b)" in result["message"]["text"]]
    assert texts
    assert all("\\[a\\](b){{0}}" in text for text in texts)


def test_a_log_whose_name_is_no_text_or_that_lies_outside_has_a_place_in_sarif(run_cli, tmp_path: Path, monkeypatch):
    (tmp_path / "run").mkdir()
    named = tmp_path / os.fsdecode(b"l\xffog 1%.parquet")
    broken(tmp_path).rename(named)
    monkeypatch.setenv("GITHUB_WORKSPACE", str(tmp_path / "run"))
    monkeypatch.chdir(tmp_path / "run")
    log = json.loads(run_cli("audit", f"../{named.name}", "--format", "sarif").out)
    assert_validators_note_nothing(log)
    (run,) = log["runs"]
    places = [result["locations"][0]["physicalLocation"]["artifactLocation"] for result in run["results"]]
    ((base, uri),) = {(place["uriBaseId"], place["uri"]) for place in places}
    assert list(run["originalUriBaseIds"]) == [base]
    assert run["originalUriBaseIds"][base]["uri"] + uri == f"file://{quote(str(tmp_path))}/l%FFog%201%25.parquet"


def test_github_annotations_are_few_and_say_how_many_more(run_cli, tmp_path: Path):
    lines = run_cli("audit", broken(tmp_path, 12), "--format", "github").out.splitlines()
    errors = [line for line in lines if line.startswith("::error")]
    assert len(errors) == MOST_ANNOTATIONS + 1
    assert errors[0].startswith("::error file=log.parquet,title=M001 mask-length-mismatch::task default")
    assert errors[-1] == "::error title=tokenaudit audit::3 more findings in the log of this step"


@pytest.mark.parametrize("format_", ["table", "json", "csv", "markdown", "junit", "sarif", "github"])
def test_names_from_a_log_are_shown_harmlessly(format_: str, run_cli, tmp_path: Path):
    evil = "a\x1b[31m|\n::error::<b>%"
    path = write_log(tmp_path / "log.parquet", [put(1, 1, task_name=evil, response_mask=[0])])
    ran = run_cli("audit", path, "--format", format_)
    assert ran.code == 1
    assert "\x1b" not in ran.out
    assert not any(line.lstrip().startswith("::error::<b>") for line in ran.out.splitlines())
    if format_ in ("json", "sarif"):
        json.loads(ran.out)


def test_all_files_are_written_at_once(run_cli, tmp_path: Path):
    names = ("a.json", "a.csv", "a.md", "a.txt", "a.xml", "a.sarif")
    run_cli("audit", broken(tmp_path), *(part for name in names for part in ("-o", name)))
    assert all((tmp_path / name).stat().st_size > 100 for name in names)


# ---- curves of the run

TRACKER = SAMPLE.parent / "tracker.jsonl"


def perturbed(folder: Path, step: int) -> Path:
    """The sample's curves, one of which differs from a step on."""
    lines = [json.loads(line) for line in TRACKER.read_text().splitlines()]
    for line in lines:
        if line["step"] >= step:
            line["async/aborted_samples"] += line["step"]
    path = folder / "tracker.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_curves_stand_in_the_report(run_cli):
    ran = run_cli("audit", SAMPLE, "--curves", TRACKER)
    assert ran.code == 0
    assert re.search(r"^async/completed_samples +leftover_completed +groups +30 +equal$", ran.out, re.MULTILINE)
    assert "not compared: 1 curve of names that aren't known; --map THEIRS=OURS says what one is\n" in ran.out
    document = run_cli("audit", SAMPLE, "--curves", TRACKER, "--format", "markdown").out
    row = r"^\| response/raw\\_rewards/mean +\| raw_reward_mean +\| reward +\| +30 +\| +equal +\|$"
    assert re.search(row, document, re.MULTILINE)


def test_a_curve_that_differs_fails_the_audit(run_cli, tmp_path: Path):
    curves = perturbed(tmp_path, 21)
    ran = run_cli("audit", SAMPLE, "--curves", curves)
    assert ran.code == 1
    assert re.search(r"^async/aborted_samples +leftover_aborted +groups +30 +differs$", ran.out, re.MULTILINE)
    assert "error C001 curve-differs · 1 finding · curves checked: 7\n" in ran.out
    assert (
        "  step 21: async/aborted_samples in tracker.jsonl, compared with leftover_aborted: differs from step 21 on"
        in (ran.out)
    )
    data = json.loads(run_cli("audit", SAMPLE, "--curves", curves, "--format", "json", "--exit-zero").out)
    (wrong,) = [entry for entry in data["parity"] if entry["verdict"] == "differs"]
    assert (wrong["curve"], wrong["first_step"], wrong["steps"], wrong["equal_steps"]) == (
        "async/aborted_samples", 21, 30, 20,
    )  # fmt: skip
    assert wrong["logged"] - wrong["recomputed"] == 21
    # what a baseline knows doesn't fail
    baseline = tmp_path / "known.json"
    run_cli("audit", SAMPLE, "--curves", curves, "-o", baseline)
    assert run_cli("audit", SAMPLE, "--curves", curves, "--baseline", baseline).code == 0
    assert run_cli("audit", SAMPLE, "--curves", perturbed(tmp_path, 11), "--baseline", baseline).code == 1


@pytest.mark.parametrize(("options", "what"), [
    (("--map", "a=trained_tokens"), "--map is for curves"),
    (("--curves", TRACKER, "--map", "nothing"), "--map 'nothing' is no pair"),
    (("--curves", TRACKER, "--map", "async/init_samples=waiting"), "'waiting' is no series of a log"),
    (("--curves", "absent.csv"), "there is no such file of curves"),
    (("--curves", SAMPLE.parent / "README.md"), "curves aren't read from .md"),
])  # fmt: skip
def test_curves_that_can_not_be_used_are_a_usage_error(options: tuple[object, ...], what: str, run_cli):
    ran = run_cli("audit", SAMPLE, *options)
    assert (ran.code, ran.out) == (2, "")
    assert what in ran.err


def test_a_mapped_curve_is_compared(run_cli):
    ran = run_cli("audit", SAMPLE, "--curves", TRACKER, "--map", "async/init_samples=waiting_groups", "--select", "C")
    assert re.search(r"^async/init_samples +waiting_groups +groups +30 +differs$", ran.out, re.MULTILINE)
    assert ran.code == 1

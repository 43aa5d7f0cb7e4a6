"""The command line as people and scripts meet it: streams, exit codes, formats, files, messages."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest

from tests.builders import put, take, write_log
from tests.conftest import ROOT, SAMPLE
from tokenaudit.contracts.metrics import METRICS, ROW_METRICS, SIMULATED_METRICS

CONFIG, WORSE = ROOT / "sample_data" / "config.toml", ROOT / "sample_data" / "worse.toml"


@pytest.fixture
def small_log(tmp_path: Path) -> Path:
    """Two groups put at step 1 by version 0, one of them taken."""
    rows = [
        put(event_id=1, group_id=1, rollout_id=10, tokens=4, model_step=0),
        put(event_id=2, group_id=2, rollout_id=20, tokens=6, model_step=0),
        take(event_id=3, train_step=1, batch_size=1),
    ]
    path = tmp_path / "small.parquet"
    write_log(path, rows)
    return path


def test_json_on_standard_output_is_the_result_and_nothing_else(run_cli):
    ran = run_cli("replay", SAMPLE, "--format", "json")
    assert ran.code == 0
    result = json.loads(ran.out)
    assert result["kind"] == "tokenaudit.replay"
    assert [row["train_step"] for row in result["steps"]] == list(range(1, 31))
    assert list(result["steps"][0]["tasks"]) == ["math", "code"]
    assert ran.err.startswith("warning: task code: tail_batch_trigger_size 0")


def test_quiet_keeps_warnings_in_the_result(run_cli):
    ran = run_cli("replay", SAMPLE, "--format", "json", "-q")
    assert ran.err == ""
    assert [warning["code"] for warning in json.loads(ran.out)["warnings"]] == ["tail-batch-zero"]


@pytest.mark.parametrize("name", ["json", "csv", "markdown", "table"])
def test_the_same_run_gives_the_same_bytes(name: str, run_cli):
    first, second = (run_cli("replay", SAMPLE, "--format", name).out for _ in range(2))
    assert first == second
    assert first.endswith("\n")


def test_csv_has_every_metric_and_its_counts_add_up_to_the_totals(run_cli):
    rows = list(csv.DictReader(io.StringIO(run_cli("replay", SAMPLE, "--format", "csv").out)))
    totals = json.loads(run_cli("replay", SAMPLE, "--format", "json").out)["totals"]
    assert [row["row"] for row in rows] == ["step"] * 30 + ["tail"]
    assert list(rows[0]) == ["row", "train_step", *(metric.name for metric in ROW_METRICS)]
    for name in ("produced_tokens", "dropped_tokens", "taken_groups", "seq_staleness_sum", "filtered_samples"):
        assert sum(int(row[name]) for row in rows) == totals[name]


def test_by_task_rows_add_up_to_the_rows_of_the_step(run_cli):
    rows = list(csv.DictReader(io.StringIO(run_cli("replay", SAMPLE, "--format", "csv", "--by-task").out)))
    whole = list(csv.DictReader(io.StringIO(run_cli("replay", SAMPLE, "--format", "csv").out)))
    assert [row["task"] for row in rows[:4]] == ["math", "code", "math", "code"]
    for index, row in enumerate(whole):
        assert int(row["produced_tokens"]) == sum(
            int(part["produced_tokens"]) for part in rows[2 * index : 2 * index + 2]
        )
        assert row["model_step"] == rows[2 * index]["model_step"]


def test_files_of_all_formats_in_one_run_hold_the_same_numbers(run_cli, tmp_path: Path):
    names = ["result.json", "steps.csv", "steps.parquet", "report.md", "report.txt"]
    ran = run_cli("replay", SAMPLE, "--groups", "--by-task", *(part for name in names for part in ("-o", name)))
    assert ran.code == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(names)
    frame = pl.read_parquet("steps.parquet")
    result = json.loads(Path("result.json").read_text())
    assert frame["trained_tokens"].sum() == result["totals"]["trained_tokens"]
    assert pl.read_csv("steps.csv")["trained_tokens"].sum() == result["totals"]["trained_tokens"]
    assert frame["taken_group_ids"][0].to_list() == result["steps"][0]["taken_group_ids"]["math"]
    assert f"{result['totals']['trained_tokens']:,}" in Path("report.md").read_text()
    assert Path("report.txt").read_text().count("\n") > 60


def test_groups_are_told_in_order(run_cli):
    expected = json.loads((ROOT / "tests" / "sample_expected.json").read_text())["expected"]
    result = json.loads(run_cli("replay", SAMPLE, "--format", "json", "--groups").out)
    assert [row["taken_group_ids"] for row in result["steps"]] == [row["taken_groups"] for row in expected]
    assert (
        sum(len(ids) for row in (*result["steps"], result["tail"]) for ids in row["expired_group_ids"].values())
        == (result["totals"]["expired_groups"])
    )
    assert "taken_group_ids step 1 math: 7 24 5 " in run_cli("replay", SAMPLE, "--groups").out


def test_a_saved_result_is_shown_again_byte_for_byte(run_cli):
    first = run_cli("replay", SAMPLE, "-o", "saved.json", "--format", "markdown")
    again = run_cli("replay", "saved.json", "--format", "markdown", "-o", "copy.json")
    assert (again.code, again.out, again.err) == (0, first.out, first.err)
    assert Path("copy.json").read_bytes() == Path("saved.json").read_bytes()


@pytest.mark.parametrize(
    "options", [["-s", "policy.max_staleness=1"], ["-c", "x.toml"], ["--timeline", "simulated"], ["--groups"]]
)
def test_a_saved_result_cannot_be_replayed(options: list[str], run_cli):
    run_cli("replay", SAMPLE, "-o", "saved.json")
    ran = run_cli("replay", "saved.json", *options)
    assert (ran.code, ran.out) == (2, "")
    assert "saved.json is a saved result, and --" in ran.err
    assert "hint: give the log instead" in ran.err


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "not valid JSON"),
        ("{", "not valid JSON"),
        ("[" * 100_000, "not valid JSON"),
        ("[]", "not a saved result of tokenaudit"),
        ('{"kind": "tokenaudit.inspect"}', "a tokenaudit.inspect is no result of a run"),
        ('{"kind": "tokenaudit.replay", "schema_version": 9}', "result schema version 9"),
        ('{"kind": "tokenaudit.replay", "schema_version": 1}', "damaged result: inputs: Field required"),
    ],
)
def test_a_damaged_saved_result_is_an_error(text: str, message: str, run_cli):
    Path("saved.json").write_text(text)
    ran = run_cli("replay", "saved.json")
    assert (ran.code, ran.out) == (2, "")
    assert f"error: {message}" in ran.err
    assert "at: saved.json" in ran.err


@pytest.mark.parametrize(("name", "value"), [("produced_tokens", "many"), ("trained_tokens", True), ("tasks", 3)])
def test_a_saved_result_with_a_wrong_value_is_an_error(name: str, value: object, run_cli):
    run_cli("replay", SAMPLE, "-o", "saved.json")
    data = json.loads(Path("saved.json").read_text())
    data["steps"][3][name] = value
    Path("saved.json").write_text(json.dumps(data))
    ran = run_cli("replay", "saved.json")
    assert (ran.code, ran.out) == (2, "")
    assert f"damaged result: steps: {name} is " in ran.err


def test_a_saved_result_may_lack_a_metric(run_cli):
    run_cli("replay", SAMPLE, "-o", "saved.json")
    data = json.loads(Path("saved.json").read_text())
    for row in (*data["steps"], data["tail"], data["totals"]):
        for part in (row, *row["tasks"].values()):
            del part["masked_stale_tokens"]
    Path("saved.json").write_text(json.dumps(data))
    for name in ("table", "csv", "markdown", "json"):
        assert run_cli("replay", "saved.json", "--format", name).code == 0


def test_steps_selects_rows_and_keeps_the_totals_of_the_run(run_cli):
    whole = json.loads(run_cli("replay", SAMPLE, "--format", "json").out)
    some = json.loads(run_cli("replay", SAMPLE, "--format", "json", "--steps", "10..12").out)
    assert some["steps"] == whole["steps"][9:12]
    assert some["totals"] == whole["totals"]
    assert (whole["selection"], some["selection"]) == (None, "10..12")
    one = run_cli("replay", SAMPLE, "--steps", "7").out.splitlines()
    assert [line.split()[0] for line in one[6:8]] == ["7", "whole"]


@pytest.mark.parametrize(("command", "option"), [("replay", "--steps"), ("simulate", "--show-steps")])
def test_of_selected_steps_every_block_says_what_it_shows(command: str, option: str, run_cli, tmp_path: Path):
    arguments = (command, SAMPLE, "-q", "-s", "tasks.code.max_token_staleness=2", "-o", "run.md")
    assert "whole run" not in run_cli(*arguments).out + (tmp_path / "run.md").read_text()
    text, document = run_cli(*arguments, option, "26..28").out, (tmp_path / "run.md").read_text()
    blocks = text.split("\n\n")
    assert [line.split()[0] for line in blocks[2].splitlines()[1:4]] == ["task", "(whole", "run)"]
    assert "| task (whole run) |" in document
    of_run = {
        "replay": "9.6 % of tokens (whole run) rest on counterfactual rules, simulate decides",
        "simulate": "whole run: 1,638.0 s simulated · ",
    }[command]
    for part in (text, document):
        lines = [line.lstrip("| *") for line in part.splitlines()]
        for begin in ("whole run ", "where the tokens went (whole run) ", "steps 26..28 · "):
            assert len([line for line in lines if line.startswith(begin)]) == 1, begin
        assert of_run in part


@pytest.mark.parametrize("text", ["", "a..b", "5..3", "1..", "..3", "-1..3", "1...3", "٣"])
def test_a_malformed_step_range_is_an_error(text: str, run_cli):
    ran = run_cli("replay", SAMPLE, f"--steps={text}")
    assert (ran.code, ran.out) == (2, "")
    assert "is no range" in ran.err


def test_steps_that_are_not_there_are_an_error_and_write_nothing(run_cli, tmp_path: Path):
    ran = run_cli("replay", SAMPLE, "--steps", "40..50", "-o", "x.json")
    assert (ran.code, ran.out) == (2, "")
    assert "the run has no such step" in ran.err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["replay"], "Missing argument 'LOG'"),
        (["replay", "no.parquet"], "there is no such file or folder"),
        (["replay", "{sample}", "-c", "no.toml"], "there is no such config file"),
        (["replay", "{sample}", "-s", "policy.max_stalness=1"], 'unknown key "max_stalness"'),
        (["replay", "{sample}", "-s", "policy.max_staleness"], "-s policy.max_staleness"),
        (["replay", "{sample}", "-s", "policy.max_staleness=-1"], "-s policy.max_staleness=-1"),
        (["replay", "{sample}", "--nope"], "No such option: --nope"),
        (["replay", "{sample}", "--format", "xml"], "xml"),
        (["replay", "{sample}", "--timeline", "real"], "real"),
        (["replay", "{sample}", "-o", "x.xls"], "-o knows no format by the extension '.xls'"),
        (["replay", "{sample}", "-o", "no/x.json"], "-o names a folder that isn't there"),
        (["replay", "{sample}", "-o", "."], "-o"),
        (["inspect", "no.parquet"], "there is no such file or folder"),
        (["lint", "no.toml"], "there is no such config file"),
        (["lint"], "Missing argument 'CONFIG'"),
        (["explode"], "No such command 'explode'"),
    ],
)
def test_faults_of_the_user_exit_with_2_and_short_lines(arguments: list[str], error: str, run_cli):
    ran = run_cli(*(argument.format(sample=SAMPLE) for argument in arguments))
    assert (ran.code, ran.out) == (2, "")
    assert error in ran.err
    lines = ran.err.splitlines()
    assert lines[0].startswith("error: ")
    assert all(line.startswith(("error: ", "  at: ", "  hint: ")) for line in lines)
    assert "Traceback" not in ran.err


def test_an_output_may_not_overwrite_the_log(small_log: Path, run_cli):
    before = small_log.read_bytes()
    for log in (small_log, small_log.parent, small_log.parent / "*.parquet"):
        ran = run_cli("replay", log, "-o", small_log)
        assert ran.code == 2
        assert "-o would overwrite what is being read" in ran.err
    assert small_log.read_bytes() == before
    inside = run_cli("replay", small_log.parent, "-o", small_log.parent / "steps.parquet")
    assert (inside.code, "-o would become part of the log being read" in inside.err) == (2, True)
    assert run_cli("replay", small_log.parent, "-o", small_log.parent / "steps.csv").code == 0


def test_a_crash_is_2_and_shows_its_traceback_only_when_asked(run_cli, monkeypatch: pytest.MonkeyPatch):
    def crash(*_: object, **__: object) -> None:
        raise ZeroDivisionError("boom")

    monkeypatch.setattr("tokenaudit.replay.session.load_log", crash)
    ran = run_cli("replay", SAMPLE)
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith("error: internal error: ZeroDivisionError: boom\n")
    assert "Traceback" in run_cli("replay", SAMPLE, "-v").err


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_while_commands_are_read_ends_without_a_traceback(
    number: signal.Signals, code: int, run_cli, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("tokenaudit.cli.app", lambda **_: signal.raise_signal(number))
    # a shell lets what runs in the background ignore it
    of_the_tests = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        assert run_cli("replay", SAMPLE) == (code, "", "")
    finally:
        signal.signal(signal.SIGINT, of_the_tests)


def test_a_missing_batch_size_is_named_with_what_to_type(small_log: Path, run_cli):
    ran = run_cli("replay", small_log, "--timeline", "simulated")
    assert (ran.code, ran.out) == (2, "")
    assert "timeline.train_batch_size" in ran.err
    assert "-s timeline.train_batch_size=" in ran.err


def test_a_recorded_timeline_of_a_log_of_puts_is_an_error(tmp_path: Path, run_cli):
    write_log(tmp_path / "puts.parquet", [put(event_id=1, group_id=1, rollout_id=1, tokens=1, model_step=0)])
    ran = run_cli("replay", "puts.parquet", "--timeline", "recorded")
    assert ran.code == 2
    assert "the log holds only puts" in ran.err
    simulated = run_cli("replay", "puts.parquet", "-s", "timeline.train_batch_size=3", "--format", "json")
    row = json.loads(simulated.out)["steps"][0]
    assert (row["taken_groups"], row["shortfall_groups"], row["model_step"]) == (1, 2, None)


def test_a_found_config_is_used_announced_and_ignored_when_isolated(small_log: Path, run_cli):
    (small_log.parent / "tokenaudit.toml").write_text("[policy]\nmax_staleness = 7\n")
    found = run_cli("replay", small_log, "--format", "json")
    assert json.loads(found.out)["config"]["policy"]["max_staleness"] == 7
    assert "note: config from tokenaudit.toml" in found.err
    isolated = run_cli("replay", small_log, "--format", "json", "--isolated")
    assert json.loads(isolated.out)["config"]["policy"]["max_staleness"] == 0
    assert "note:" not in isolated.err


def test_the_worse_config_is_visibly_worse(run_cli):
    good = json.loads(run_cli("replay", SAMPLE, "--format", "json").out)["totals"]
    worse = json.loads(run_cli("replay", SAMPLE, "-c", WORSE, "--format", "json").out)["totals"]
    assert worse["expired_groups"] > 2 * good["expired_groups"]
    assert worse["dropped_tokens"] > 4 * good["dropped_tokens"]
    assert (good["discarded_fresh_tokens"], worse["discarded_fresh_tokens"] > 800_000) == (0, True)


def test_quarantine_is_offered_and_counted(tmp_path: Path, run_cli):
    rows = [
        put(event_id=1, group_id=1, rollout_id=10, tokens=4, model_step=0),
        put(event_id=2, group_id=2, rollout_id=20, tokens=6, model_step=0, response_mask=[1, 1]),
        take(event_id=3, train_step=1, batch_size=2),
    ]
    write_log(tmp_path / "faulty.parquet", rows)
    refused = run_cli("replay", "faulty.parquet")
    assert (refused.code, refused.out) == (2, "")
    assert "error: 2 mask entries for 6 tokens\n  at: faulty.parquet, row 1, column response_mask\n" in refused.err
    assert "--quarantine to leave out the 1 group with such rows" in refused.err
    ran = run_cli("replay", "faulty.parquet", "--quarantine", "--format", "json")
    assert ran.code == 0
    result = json.loads(ran.out)
    assert (result["coverage"]["quarantined_groups"], result["coverage"]["quarantined_tokens"]) == (1, 6)
    assert result["totals"]["put_groups"] == 1
    assert "warning: 1 group with 6 new tokens left out" in ran.err
    looked = json.loads(run_cli("inspect", "faulty.parquet", "--format", "json").out)
    assert looked["faults"] == {"mask length differs from the response length": 1}


def test_inspect_tells_what_the_log_holds(run_cli):
    ran = run_cli("inspect", SAMPLE, "--format", "json")
    assert (ran.code, ran.err) == (0, "")
    view = json.loads(ran.out)
    assert view["events"] == {"put": 1905, "sample": 1077, "refresh": 60, "take": 60, "sync": 30}
    assert view["tasks"]["math"] == {"groups": 550, "puts": 1130, "responses": 9040, "tokens": 5953200}
    assert (view["rows"], view["groups"], view["tokens"], view["timeline"]) == (16467, 828, 12123645, "recorded")
    assert view["group_sizes"] == {"8": 1905}
    assert view["response_len"]["p50"] == 545
    assert view["model_steps"] == {"first": 0, "last": 29, "distinct": 30}
    assert "response_ids" in view["absent_columns"]
    text = run_cli("inspect", SAMPLE).out
    assert "train steps      1 to 31 (31 different)" in text


def test_lint_says_what_each_warning_costs(run_cli):
    ran = run_cli("lint", WORSE)
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.count("  cost: ") == int(ran.out.splitlines()[-1].split(": ")[1].split()[0]) >= 2
    assert run_cli("lint", WORSE, "-s", "policy.nope=1").code == 2


def test_version_names_the_log_schema(run_cli):
    ran = run_cli("--version")
    assert ran.code == 0
    assert ran.out.startswith("tokenaudit 0.1.0 (log schema 1, Python 3.")


def test_names_from_the_log_cannot_control_the_terminal(tmp_path: Path, run_cli):
    rows = [
        put(event_id=1, task_name="\x1b[31m[red]|x\n", group_id=1, rollout_id=1, tokens=2, model_step=0, train_step=1),
        take(event_id=2, task_name="\x1b[31m[red]|x\n", train_step=1, batch_size=1),
    ]
    write_log(tmp_path / "odd.parquet", rows)
    for arguments in (["replay", "--by-task"], ["replay", "--by-task", "--format", "markdown"], ["inspect"]):
        ran = run_cli(arguments[0], "odd.parquet", *arguments[1:])
        assert ran.code == 0
        assert "\x1b" not in ran.out + ran.err
        assert "\\x1b[31m[red]" in ran.out or "\\\\x1b" in ran.out
    data = json.loads(run_cli("replay", "odd.parquet", "--format", "json").out)
    assert list(data["totals"]["tasks"]) == ["\x1b[31m[red]|x\n"]


def test_a_closed_pipe_ends_quietly():
    command = f"{sys.executable} -m tokenaudit replay {SAMPLE} --format json -q; echo code $? >&2"
    ran = subprocess.run(["bash", "-c", f"({command}) | head -1"], capture_output=True, text=True)
    assert (ran.stdout, ran.stderr) == ("{\n", "code 0\n")


def test_a_pipe_gets_all_rows_and_columns_uncut(run_cli):
    out = run_cli("replay", SAMPLE).out
    assert "not shown" not in out
    assert "more column" not in out
    header = out.split("─")[0]
    for name in ("sequence", "shortfall", "aborted", "p95"):
        assert name in header


@pytest.mark.parametrize(
    "arguments",
    [
        ("replay", SAMPLE),
        ("diff", CONFIG, WORSE, "--log", SAMPLE, "--groups"),
        ("inspect", SAMPLE),
        ("lint", WORSE),
        ("audit", SAMPLE, "-v"),
        ("gate", SAMPLE, "--rule", "expired_groups <= 300"),
        ("import", "--list"),
    ],
    ids=lambda arguments: arguments[0],
)
def test_nothing_is_wider_than_a_narrow_terminal(arguments: tuple[object, ...], run_on_terminal):
    ran = run_on_terminal(*arguments, columns=60)
    assert ran.code == 0
    shown = ran.out.replace("\r", "").split("\n")
    plain = [re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", line) for line in shown]
    # what is one word, such as a digest of contents, stays whole; so does a command to copy, on a line of its own
    whole = [line for line in plain if not re.fullmatch(r" *`tokenaudit [^`]*`", line)]
    assert [line for line in whole if len(line) > 60 and len(line.split()) > 1 and "━" not in line] == []


def test_a_narrow_terminal_keeps_the_telling_columns_and_says_that_there_is_more(run_on_terminal):
    shown = run_on_terminal("replay", SAMPLE, "-q", columns=80).out
    lines = shown.split("\n")
    table = lines[: next(index for index, line in enumerate(lines) if "more column" in line)]
    bare = [line for line in table if "\x1b" not in line]
    assert max(map(len, bare)) <= 80
    assert "expired" in shown
    assert "dropped share" in shown
    assert "▁" in shown


def test_colour_only_on_a_terminal_and_never_with_no_color(run_cli, run_on_terminal, monkeypatch: pytest.MonkeyPatch):
    assert "\x1b[" in run_on_terminal("replay", SAMPLE, "-q").out
    assert "\x1b[" not in run_cli("replay", SAMPLE).out
    monkeypatch.setenv("FORCE_COLOR", "1")
    forced = run_cli("replay", SAMPLE).out
    assert "\x1b[" in forced
    assert "more column" not in forced
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[" not in run_cli("replay", SAMPLE).out


def test_an_ascii_terminal_gets_ascii():
    ran = subprocess.run(
        [sys.executable, "-m", "tokenaudit", "replay", str(SAMPLE)],
        capture_output=True,
        env=os.environ | {"PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"},
        check=True,
    )
    assert max(ran.stdout) < 128
    assert b"\\u" not in ran.stdout


def test_json_holds_every_metric_of_the_registry(run_cli):
    result = json.loads(run_cli("replay", SAMPLE, "--format", "json").out)
    in_rows = set(result["steps"][0]) | set(result["ledger"]["total"])
    assert set(METRICS) - {metric.name for metric in SIMULATED_METRICS} <= in_rows


@pytest.mark.parametrize(
    "command",
    [
        ["replay"],
        ["gate", "--rule", "expired_groups <= 0"],
        ["mask", "-o", "out.parquet"],
        ["explain", "--step", "1"],
        ["audit"],
        ["diff", "--set-b", "policy.max_staleness=1", "--log"],
    ],
    ids=lambda command: command[0],
)
def test_an_override_for_a_task_the_log_lacks_is_refused_and_in_a_config_only_told(command, tmp_path: Path, run_cli):
    log = write_log(tmp_path / "log.parquet", [put(1, 1, task_name="math"), take(2, task_name="math")])
    override = ("-s", "tasks.mth.max_staleness=3")
    ran = run_cli(*command, log, *override, "-q")
    assert (ran.code, ran.out) == (2, "")
    told = "error: -s tasks.mth: there is no task 'mth'\n  at: log.parquet\n  hint: did you mean 'math'? tasks: math\n"
    assert ran.err == told
    (tmp_path / "tokenaudit.toml").write_text("[tasks.mth]\nmax_staleness = 1\n")
    ran = run_cli(*command, log, *override)
    assert ran.code == 0, ran.err

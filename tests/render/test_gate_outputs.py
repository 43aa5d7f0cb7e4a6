"""Every format of `gate` and `diff`: as kept, as its standard wants it, and with hostile names, nothing or a lot."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from io import StringIO
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
import xmlschema

from tests.compare.results import made_result, totals_of
from tests.render.golden_outputs import DIFF_FORMATS, GATE_FORMATS, OUTPUTS, gate_report, many_steps, outputs
from tests.render.report_checks import assert_ant_would_write_it, assert_validators_note_nothing
from tokenaudit.compare.compare import Comparison, Side, compare
from tokenaudit.contracts.metrics import METRICS
from tokenaudit.gate.grammar import parse_rule
from tokenaudit.gate.judge import judge
from tokenaudit.gate.report import GateReport, LocatedRule, Origin
from tokenaudit.render.console import Terminal, console_text
from tokenaudit.render.diff import diff_blocks
from tokenaudit.render.gate import gate_blocks
from tokenaudit.render.github import MOST_ANNOTATIONS, gate_github, summary_part
from tokenaudit.render.junit import gate_junit
from tokenaudit.render.sarif import gate_sarif
from tokenaudit.replay.result import Result

SCHEMA = Path(__file__).parent.parent / "schemas" / "junit-10.xsd"
EMPTY = made_result([])


def located(*rules: str) -> list[LocatedRule]:
    return [LocatedRule(parse_rule(text, "test"), Origin("--rule")) for text in rules]


RULES = located("dropped_tokens <= +2%", "expired_groups <= 0")


def report_of_many_rules(count: int) -> GateReport:
    names = [name for name, metric in METRICS.items() if name in totals_of().totals and metric.unit == "tokens"]
    texts = [f"{level}{names[number % len(names)]} <= {number}" for number in range(count) for level in ("", "warn: ")]
    return judge(totals_of(**dict.fromkeys(names, 10**6)), located(*texts))


REPORTS: dict[str, Callable[[], GateReport]] = {
    "golden": gate_report,
    "empty": lambda: judge(EMPTY, RULES, EMPTY),
    "no rules": lambda: judge(EMPTY, [], EMPTY),
    "long": lambda: judge(many_steps(5000)[1], [*RULES, *located("dropped_tokens{step} <= +0")], many_steps(5000)[0]),
    "many rules": lambda: report_of_many_rules(50),
}
COMPARISONS: dict[str, Callable[[], tuple[Result, Result]]] = {
    "empty": lambda: (EMPTY, EMPTY),
    "empty and not": lambda: (EMPTY, totals_of()),
    "long": lambda: many_steps(5000),
}


@cache
def report(case: str) -> GateReport:
    return REPORTS[case]()


@cache
def comparison(case: str) -> Comparison:
    a, b = COMPARISONS[case]()
    return compare(Side("a", a), Side("b", b))


@pytest.mark.parametrize("name", sorted(GATE_FORMATS | DIFF_FORMATS))
def test_outputs_are_those_that_are_kept(name: str):
    assert outputs()[name] == (OUTPUTS / name).read_bytes(), "see tests/render/golden_outputs.py"


def test_every_kept_output_is_compared():
    assert {path.name for path in OUTPUTS.iterdir() if path.is_file()} == set(outputs())


@pytest.mark.parametrize("case", sorted(REPORTS))
@pytest.mark.parametrize("name", sorted(GATE_FORMATS))
def test_every_report_renders_in_every_format(case: str, name: str):
    text = GATE_FORMATS[name](report(case))
    assert text.endswith("\n")
    assert "\x1b" not in text


@pytest.mark.parametrize("case", sorted(COMPARISONS))
@pytest.mark.parametrize("name", sorted(DIFF_FORMATS))
def test_every_comparison_renders_in_every_format(case: str, name: str):
    text = DIFF_FORMATS[name](comparison(case))
    assert text.endswith("\n")
    if case == "long" and name in ("diff.json", "diff.csv"):
        assert text.count("dropped_tokens") > 4000


@pytest.mark.parametrize("case", sorted(REPORTS))
def test_junit_is_valid(case: str):
    text = gate_junit(report(case))
    xmlschema.validate(text, SCHEMA)
    root = ET.fromstring(text)
    assert_ant_would_write_it(root)
    suite = root[0]
    assert len(suite.findall("testcase")) == int(suite.get("tests", "")) == len(report(case).verdicts)
    for tag, attribute in (("failure", "failures"), ("error", "errors"), ("skipped", "skipped")):
        assert len(suite.findall(f"testcase/{tag}")) == int(suite.get(attribute, ""))


@pytest.mark.parametrize("case", sorted(REPORTS))
def test_sarif_has_what_the_standard_and_github_require(case: str):
    log = json.loads(gate_sarif(report(case), "log.parquet"))
    assert log["version"] == "2.1.0"
    (run,) = log["runs"]
    driver = run["tool"]["driver"]
    assert driver["name"]
    ids = [rule["id"] for rule in driver["rules"]]
    assert len(ids) == len(set(ids))
    for result in run["results"]:
        assert ids[result["ruleIndex"]] == result["ruleId"]
        assert result["message"]["text"]
        assert result["partialFingerprints"]["rule/v1"]
        assert (result["kind"], result["level"]) in {("fail", "error"), ("fail", "warning"), ("open", "none")}
    (invocation,) = run["invocations"]
    notes = invocation["toolExecutionNotifications"]
    assert len(notes) == sum(result["kind"] == "open" for result in run["results"])
    assert all(ids[note["associatedRule"]["index"]] == note["associatedRule"]["id"] for note in notes)
    assert invocation["executionSuccessful"] is not any(note["level"] == "error" for note in notes)


@pytest.mark.parametrize("path", ["runs/log.parquet", "/elsewhere/log.parquet"])
@pytest.mark.parametrize("case", sorted(REPORTS))
def test_validators_of_sarif_note_nothing(case: str, path: str):
    assert_validators_note_nothing(json.loads(gate_sarif(report(case), path)))


def test_sarif_stands_at_the_line_of_the_rule():
    log = json.loads(gate_sarif(gate_report(), "runs/my log.parquet"))
    places = {result["ruleId"]: result["locations"][0]["physicalLocation"] for result in log["runs"][0]["results"]}
    assert places["dropped_tokens <= +0.5%"] == {
        "artifactLocation": {"uri": "ci/gate%201%25.toml", "uriBaseId": "%SRCROOT%"},
        "region": {"startLine": 3},
    }
    assert places["trained_token_rate >= -1pp"]["artifactLocation"]["uri"] == "runs/my%20log.parquet"


@pytest.mark.parametrize(
    ("rules", "source"), [(RULES, "rule from --rule"), ([], "rule by default, as none was given")], ids=["given", "not"]
)
def test_junit_says_where_a_rule_is_from(rules: list[LocatedRule], source: str):
    texts = [text for text in ET.fromstring(gate_junit(judge(EMPTY, rules, EMPTY))).itertext() if text.strip()]
    assert texts
    assert {text.splitlines()[-1] for text in texts} == {source}


def test_github_shows_nine_of_each_level_and_how_many_more():
    commands = [line for line in gate_github(report_of_many_rules(50)).splitlines() if line.startswith("::")]
    for level in ("error", "warning"):
        shown = [line for line in commands if line.startswith(f"::{level} ")]
        assert len(shown) == MOST_ANNOTATIONS + 1
        assert shown[-1] == f"::{level} title=tokenaudit gate::41 more rules in the log of this step"


def test_no_name_from_a_file_becomes_a_command_of_the_job():
    name = "::error::x"
    run = made_result([{name: {"dropped_tokens": 1}}], tasks=(name,))
    run = replace(run, inputs=(replace(run.inputs[0], name="::set-output name=a::b ##[error]"),))
    lines = gate_github(judge(run, [RULES[1]])).splitlines()
    assert [line for line in lines if line.lstrip().startswith("::") or "##[" in line] == []


def test_csv_of_a_comparison_is_a_table():
    rows = list(csv.DictReader(StringIO(DIFF_FORMATS["diff.csv"](comparison("long")))))
    assert {row["row"] for row in rows} == {"total", "task", "step"}
    (total,) = [row for row in rows if row["row"] == "total" and row["metric"] == "produced_tokens"]
    assert (total["a"], total["change"], total["effect"]) == ("12997500", "0", "")


def test_colour_repeats_what_words_say():
    for blocks in (list(gate_blocks(gate_report())), list(diff_blocks(comparison("long")))):
        plain, coloured = console_text(blocks), console_text(blocks, Terminal(color=True))
        assert coloured != plain
        assert re.sub(r" +\n", "\n", re.sub("\x1b\\[[0-9;]*m", "", coloured)) == plain


@pytest.mark.parametrize("subject", ["gate", "diff"])
def test_ascii_terminals_get_ascii(subject: str):
    blocks = gate_blocks(report("long")) if subject == "gate" else diff_blocks(comparison("long"))
    assert console_text(blocks, Terminal(unicode=False)).isascii()


def test_a_summary_is_cut_at_a_line_and_says_so():
    text = "".join(f"line {number} é\n" for number in range(100))
    assert summary_part(text, len(text.encode())) == text
    cut = summary_part(text, 400)
    assert len(cut.encode()) <= 400
    assert "cut here" in cut
    assert cut.split("\n\n*cut")[0] in text
    assert summary_part(text, 0) == ""

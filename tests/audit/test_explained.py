"""What one cause makes wrong for several rules is one finding, and nothing is lost that it doesn't explain."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.audit.model import Run, changed, log_of
from tests.audit.test_contents import within_context
from tests.builders import Row, write_log
from tokenaudit.audit.checks import RULES
from tokenaudit.audit.explained import EXPLAINED_BY, explain
from tokenaudit.audit.findings import Finding, Findings, Subject
from tokenaudit.audit.rule import Severity
from tokenaudit.audit.session import audit_log
from tokenaudit.audit.table import LogTable

RUN = Run(steps=20)
HEALTHY = log_of(RUN)
LISTS = ("response_ids",)
BY_CODE = {rule.code: rule for rule in RULES}


def found(path: Path, rows: list[Row], run: Run = RUN, without: str = "") -> list[Finding]:
    rules = [
        rule for rule in RULES if rule.code in {*EXPLAINED_BY, *(by for by, _ in EXPLAINED_BY.values())} - {without}
    ]
    return [*audit_log([write_log(path, rows)], rules=rules, overrides=run.config, isolated=True).findings]


def of_step(row: Row) -> dict[str, Any]:
    return {"response_model_steps": [row["train_step"]] * row["response_len"]}


def test_versions_that_are_the_step_are_one_finding_with_all_their_rows(tmp_path: Path):
    rows = changed(HEALTHY, of_step)
    (finding,) = found(tmp_path / "log", rows)
    assert (finding.code, finding.severity) == ("V031", Severity.ERROR)
    for text in ("also V005 version-from-future, from put 1 on", "also V012 version-not-synced", "also V008"):
        assert text in finding.message
    assert finding.extent is not None
    assert finding.extent.count == len({row["rollout_id"] for row in rows if row["event"] == "put"})
    alone = found(tmp_path / "log", rows, without="V031")
    assert [one.code for one in alone] == ["V005", "V008", "V012"]


def test_what_other_rows_have_stays_a_finding_of_its_own(tmp_path: Path):
    rows = changed(HEALTHY, of_step)
    last = next(row for row in reversed(rows) if row["event"] == "put")
    last["response_model_steps"] = [last["train_step"] + 3] * last["response_len"]
    codes = {finding.code: finding for finding in found(tmp_path / "log", rows)}
    assert {"V031", "V005"} <= codes.keys()
    assert "also V005" not in codes["V031"].message


def test_masks_that_are_shifted_are_not_retracted_besides(tmp_path: Path):
    run = Run(steps=20, batch=8, group_size=8, tools=True)
    rows = changed(log_of(run), lambda row: {"response_mask": [*row["response_mask"][1:], 1]})
    (finding,) = found(tmp_path / "log", rows, run)
    assert finding.code == "P006"
    assert (
        "; also M003 mask-retracted 12 times, the first, group 7, rollout 705, put 2: 1 fresh token" in finding.message
    )


@pytest.mark.parametrize("mask", ["late", "early"])
def test_masks_that_are_shifted_put_the_mean_ratio_off(mask: str, tmp_path: Path):
    """The engine has 0 for tool output, and the trainer what it makes of it."""
    run, rng = Run(steps=24, batch=8, group_size=8, round_tokens=25, mean_tokens=40, tools=True), random.Random(1)

    def computed(row: Row) -> Row:
        sides = zip(row["train_logprobs"], row["response_mask"], strict=True)
        return {"train_logprobs": [value if flag else -rng.expovariate(0.5) for value, flag in sides]}

    def moved(row: Row) -> Row:
        flags = row["response_mask"]
        return {"response_mask": [0, *flags[:-1]] if mask == "late" else [*flags[1:], 1]}

    healthy = changed(log_of(run), computed)
    assert found(tmp_path / "healthy", healthy, run) == []
    shifted = changed(healthy, moved)
    (finding,) = found(tmp_path / "log", shifted, run)
    assert (finding.code, finding.severity) == ("P006", Severity.WARNING)
    assert "also P005 engine-ratio-off, from put 1 on" in finding.message
    # what is off besides is more than the zeros explain
    scaled = changed(shifted, lambda row: {"train_logprobs": [min(-1e-6, one - 0.3) for one in row["train_logprobs"]]})
    levels = {one.code: one.severity for one in found(tmp_path / "both", scaled, run)}
    assert levels["P005"] is Severity.ERROR


def test_a_limit_that_is_called_stop_is_one_finding_with_the_sum(tmp_path: Path):
    run = Run(steps=20, batch=8, group_size=8, mean_tokens=40, round_tokens=90, most_tokens=90)
    (finding,) = found(tmp_path / "log", within_context(100), run)
    assert finding.code == "E002"
    assert "also E003 limit-called-stop, from put 1 on, " in finding.message
    assert "have exactly 100 tokens with their prompt" in finding.message


@pytest.mark.parametrize("told", [("prior_len", "response_ids"), ("prior_len",)])
def test_what_goes_on_without_being_told_is_one_finding(told: tuple[str, ...], tmp_path: Path):
    """A recorder that thinks that responses begin again writes a prior_len of 0."""
    rows = changed(HEALTHY, lambda row: {"prior_len": 0} | {name: None for name in LISTS if name not in told})
    off = tuple(one.replace("partial_rollout=true", "partial_rollout=false") for one in RUN.config)
    rules = ["L034", "T003"]
    report = audit_log([write_log(tmp_path / "log", rows)], rules=rules, overrides=off, isolated=True)
    (finding,) = report.findings
    assert (finding.code, finding.severity) == ("L034", Severity.ERROR)
    assert "also T003 produced-token-double-count" in finding.message
    cut_off = {row["rollout_id"] for row in HEALTHY if row["event"] == "put" and row["status"] == "aborted"}
    went_on = {row["rollout_id"] for row in HEALTHY if row["event"] == "put" and row["prior_len"] > 0}
    assert finding.extent is not None
    named = {rollout_id for _, rollout_id in finding.extent.members}
    assert named == cut_off & went_on
    healthy = audit_log([tmp_path / "log"], rules=rules[:1], overrides=RUN.config, isolated=True)
    assert healthy.findings == ()


@pytest.mark.parametrize(
    ("level", "rows", "is_own"),
    [("error", [2, 3], False), ("warning", [2, 3], True), ("error", [3], False), ("error", [3, 5], True)],
)
def test_only_a_finding_as_bad_about_all_the_rows_explains(level: str, rows: list[int], is_own: bool):
    table = LogTable([])
    table.is_put = np.ones(9, dtype=np.bool_)
    explained, explaining = (Findings(BY_CODE[code], table) for code in ("V005", "V031"))
    explaining.add(Subject("math"), "filled in", Severity(level), rows=np.array([1, 2, 3, 4]))
    explained.add_rows(lambda row: Subject("math", 1, row), np.array(rows), lambda row: f"row {row}")
    explain({"V005": explained, "V031": explaining})
    (left,) = explaining.kept
    if is_own:
        assert left.message.startswith("filled in")
        assert explained.total >= 1
        assert [finding.message for finding in explained.kept][-1] == f"row {rows[-1]}"
    else:
        assert explained.total == len(explained.kept) == 0
        count = " 2 times, the first" if len(rows) == 2 else ""
        who = f"group 1, rollout {rows[0]}"
        assert left.message == f"filled in; also V005 version-from-future{count}, {who}: row {rows[0]}"
    assert explaining.total == 1

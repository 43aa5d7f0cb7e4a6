"""The model of a run that audit tests change is healthy itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.audit.audit_cases import audited
from tests.audit.model import Run, log_of
from tokenaudit.audit.rule import Severity

RUNS = {
    "plain": Run(),
    "large": Run(steps=20, batch=8, group_size=8),
    "no partial rollout": Run(partial=False),
    "tools": Run(tools=True),
    "nameless takes": Run(names_takes=False),
    "later": Run(first_step=40, first_group=300),
}


@pytest.mark.parametrize("name", RUNS)
def test_a_healthy_run_has_no_error_and_no_warning_but_of_its_settings(name: str, tmp_path: Path):
    run = RUNS[name]
    report = audited(tmp_path / "log", log_of(run), run.config)
    assert (report.why_no_replay, report.left_out_groups) == ("", 0)
    found = [finding.message for finding in report.findings if finding.severity is not Severity.INFO]
    assert [text for text in found if "without enable_partial_rollout" not in text] == []


def test_equal_runs_give_equal_rows_with_cut_off_responses_among_them():
    rows = log_of(Run())
    assert rows == log_of(Run())
    assert rows != log_of(Run(seed=2))
    puts = [row for row in rows if row["event"] == "put"]
    assert any(row["prior_len"] and len(set(row["response_model_steps"])) > 1 for row in puts)
    assert {row["status"] for row in puts} == {"completed", "aborted"}

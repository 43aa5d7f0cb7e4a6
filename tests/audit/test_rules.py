"""Every rule can find something, doesn't find it one step before, and says what."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.audit.audit_cases import CASES, Row, audited, findings_of
from tokenaudit.audit.checks import RULES
from tokenaudit.audit.findings import MOST_SINGLE
from tokenaudit.audit.rule import Severity


@pytest.mark.parametrize("name", CASES)
def test_a_rule_finds_its_smallest_case(name: str, tmp_path: Path):
    case = CASES[name]
    found = findings_of(audited(tmp_path / "log.parquet", case.found, case.config, **case.options), name)
    assert found
    assert {finding.severity for finding in found} >= {Severity(case.severity)}
    if case.message:
        assert case.message in [finding.message for finding in found]
    if case.subject:
        assert case.subject in [str(finding.subject) for finding in found]


@pytest.mark.parametrize("name", CASES)
def test_a_rule_passes_what_is_just_right(name: str, tmp_path: Path):
    case = CASES[name]
    config = case.config if case.clean_config is None else case.clean_config
    assert findings_of(audited(tmp_path / "log.parquet", case.clean, config, **case.options), name) == []


def over_and_over(rows: list[Row], times: int) -> list[Row]:
    """The rows again and again, each time with other ids, and with later steps and versions."""
    later = 1 + max((row["train_step"] for row in rows if row.get("train_step") is not None), default=0)
    events = 1 + max(row.get("event_id") or 0 for row in rows)
    by = {
        "train_step": later, "model_step": later, "start_model_step": later, "event_id": events,
        "group_id": 1_000, "rollout_id": 1_000,
    }  # fmt: skip
    again: list[Row] = []
    for n in range(times):
        for row in rows:
            moved = {name: row[name] + n * step for name, step in by.items() if row.get(name) is not None}
            versions = row.get("response_model_steps")
            if versions:
                moved["response_model_steps"] = [one if one < 0 else one + n * later for one in versions]
            again.append(row | moved)
    return again


OF_THE_RUN = {
    "nothing-audited", "structure-implausible", "length-pile-up", "version-unit-suspect", "version-restamped",
    "sync-interval-mismatch", "version-frozen", "engine-drifts", "group-zero-variance", "group-abandoned",
    "group-passed-over", "aged-in-queue", "fresh-tokens-lost", "silent-discard", "length-bias", "discard-rate",
    "batch-never-filled", "batch-shortfall", "dead-group-run", "staleness-convention", "setting-suspect",
    "cut-called-stop", "multi-update-batch",
}  # fmt: skip
"""Rules about a run, in which a fault that comes again is the same or none."""


@pytest.mark.parametrize("name", sorted(CASES.keys() - OF_THE_RUN))
def test_one_cause_makes_one_finding_however_often_it_comes(name: str, tmp_path: Path):
    case, times = CASES[name], MOST_SINGLE + 1
    rows = over_and_over(case.found, times)
    found = findings_of(audited(tmp_path / "log.parquet", rows, case.config, **case.options), name)
    assert 0 < len(found) == len({finding.identity for finding in found}) <= 2
    assert max(one.stands_for if one.extent is None else one.extent.count for one in found) >= times


def test_codes_and_names_are_unique_and_complete():
    assert len({rule.code for rule in RULES}) == len({rule.name for rule in RULES}) == len(RULES)
    assert all(callable(rule.check) for rule in RULES)
    assert {rule.code[0] for rule in RULES} <= set("SVMGLTPERC")
    assert all(re.fullmatch("[A-Z][0-9]{3}", rule.code) for rule in RULES)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_a_rule_explains_itself_in_sentences(rule):
    for text in (rule.meaning, rule.fix):
        assert text[0].isupper() or "_" in text.split()[0]
        assert text.endswith(".")

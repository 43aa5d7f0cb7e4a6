"""Every rule can find something, doesn't find it one step before, and says what."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.audit.audit_cases import CASES, audited, findings_of
from tokenaudit.audit.checks import RULES
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

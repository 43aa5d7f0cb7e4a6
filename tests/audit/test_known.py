"""A baseline knows findings again, also those of which it lists only some."""

from __future__ import annotations

import copy
import json
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenaudit.audit import findings as findings_module
from tokenaudit.audit.baseline import compared
from tokenaudit.audit.checks import RULES
from tokenaudit.audit.findings import MOST_SINGLE, Findings, Subject
from tokenaudit.audit.identities import BUCKETS
from tokenaudit.audit.report import AuditReport, RuleRun, report_data
from tokenaudit.audit.rule import Severity
from tokenaudit.contracts.errors import ResultError

RULE = next(rule for rule in RULES if rule.severity is Severity.ERROR)
KEPT = 5


@pytest.fixture(autouse=True)
def few_are_kept(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(findings_module, "MOST_KEPT", KEPT)


def report(groups: Sequence[int], *, one_by_one: bool = False) -> AuditReport:
    """An audit that found these groups, in order."""
    found = Findings(RULE)
    if one_by_one:
        for group in groups:
            found.add(Subject(group_id=group), "broken")
    else:
        where = np.ones(len(groups), dtype=np.bool_)
        found.add_rows(lambda row: Subject(group_id=groups[row]), where, lambda _: "broken")
    found.add_checked(100)
    run = RuleRun(RULE, found, (), dict(found.counts))
    return AuditReport("log", 1, 1, 100, 100, 100, None, "", 0, (run,), tuple(found.kept), ())


def saved(groups: Sequence[int]) -> dict[str, Any]:
    return json.loads(json.dumps(report_data(report(groups))))


def new_errors(groups: Sequence[int], baseline: dict[str, Any]) -> int:
    return compared(report(groups), baseline, "base.json").count(Severity.ERROR, only_new=True)


MANY = range(KEPT + 10)


@pytest.mark.parametrize(
    ("groups", "new"),
    [
        ([*MANY], 0),
        ([*reversed(MANY)], 0),
        ([*MANY[:-1], 99], 1),
        ([*MANY[1:], 99], 1),
        ([99, *MANY[1:]], 1),
        ([99, *MANY[:-1]], 1),
        ([*MANY[3:], 99], 1),
        ([*MANY, 98, 99], 2),
        ([*MANY, 14], 1),
        ([*MANY[1:]], 0),
        ([*MANY[:-1]], 0),
        ([*MANY[-3:]], 0),
        ([*MANY[-3:], 99], 1),
        ([], 0),
    ],
)
def test_what_a_baseline_does_not_know_is_new_whether_it_is_kept_or_not(groups: list[int], new: int):
    marked = compared(report(groups), saved(MANY), "base.json")
    assert marked.count(Severity.ERROR, only_new=True) == new
    assert marked.exit_code() == (1 if new else 0)
    if not new:
        assert not any(finding.is_new for finding in marked.findings)


def test_a_baseline_that_lists_all_its_findings_knows_those_that_are_only_counted_now():
    assert new_errors(MANY, saved(MANY[-KEPT:])) == len(MANY) - KEPT


@given(st.lists(st.integers(0, 40), max_size=30), st.lists(st.integers(0, 40), max_size=30))
def test_some_are_new_where_there_are_more_than_before(before: list[int], after: list[int]):
    new = (Counter(after) - Counter(before)).total()
    found = new_errors(after, saved(before))
    assert (found > 0) is (new > 0)
    assert found <= new
    assert new_errors(after, saved(after)) == 0


def test_a_baseline_that_counts_more_than_it_identifies_is_refused():
    damaged = saved(MANY)
    del damaged["rules"][0]["identities"]
    with pytest.raises(ResultError, match=f"{len(MANY)} findings of {RULE.name}, of which it identifies {KEPT}"):
        new_errors(MANY, damaged)


def test_findings_that_are_all_listed_are_saved_as_before():
    assert "identities" not in saved(MANY[:KEPT])["rules"][0]
    assert list(saved(MANY)["rules"][0]["identities"]) == ["error"]


def test_findings_are_counted_alike_however_they_are_added():
    assert report_data(report(MANY)) == report_data(report(MANY, one_by_one=True))


@pytest.mark.parametrize("wrong", [None, [], [0] * (BUCKETS - 1), [True] * BUCKETS, ["0"] * BUCKETS])
@pytest.mark.parametrize("name", ["counts", "sums"])
def test_damaged_identities_are_refused(name: str, wrong: object):
    baseline = copy.deepcopy(saved(MANY))
    baseline["rules"][0]["identities"]["error"][name] = wrong
    with pytest.raises(ResultError, match="damaged baseline"):
        new_errors(MANY, baseline)


def gaps(steps: Sequence[int], task: str | None) -> AuditReport:
    """An audit that found these steps, which have no rows."""
    found = Findings(RULE)
    found.add_listed([(Subject(task, train_step=step), "broken") for step in steps], "step")
    found.add_checked(100)
    run = RuleRun(RULE, found, (), dict(found.counts))
    return AuditReport("log", 1, 1, 100, 100, 100, None, "", 0, (run,), tuple(found.kept), ())


@pytest.mark.parametrize("task", [None, "math"])
@pytest.mark.parametrize(
    ("before", "after", "new"), [(30, 40, 0), (30, 3, 0), (3, 3, 0), (3, 4, 1), (MOST_SINGLE, MOST_SINGLE + 1, 1)]
)
def test_many_without_rows_are_one_that_a_baseline_knows(
    before: int, after: int, new: int, task: str | None, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(findings_module, "MOST_KEPT", 10_000)
    baseline = json.loads(json.dumps(report_data(gaps(range(before), task))))
    report = gaps(range(after), task)
    assert len(report.findings) == (after if after <= MOST_SINGLE else 1)
    assert report.findings[0].stands_for == (1 if after <= MOST_SINGLE else after)
    assert compared(report, baseline, "base.json").count(Severity.ERROR, only_new=True) == new


def losses_of(*losses: tuple[str, int]) -> AuditReport:
    """An audit of a log that lacks these."""
    found = Findings(RULE)
    for kind, size in losses:
        found.add(Subject(), f"{size} {kind} lost", lost=(kind, size))
    found.add_checked(1)
    run = RuleRun(RULE, found, (), dict(found.counts))
    return AuditReport("log", 1, 1, 100, 100, 100, None, "", 0, (run,), tuple(found.kept), ())


@pytest.mark.parametrize(
    ("losses", "known", "new"),
    [
        ([("events", 2)], [("events", 2)], []),
        ([("events", 1)], [("events", 2)], []),
        ([("events", 3)], [("events", 2)], ["3 events lost"]),
        ([("events", 2)], [("parts", 2)], ["2 events lost"]),
        ([("events", 2), ("parts", 5)], [("parts", 5), ("events", 2)], []),
        ([("events", 5), ("parts", 2)], [("parts", 5), ("events", 2)], ["5 events lost"]),
        ([("events", 2), ("parts", 1)], [("events", 2)], ["1 parts lost"]),
        ([("events", 2), ("events", 2)], [("events", 2)], ["2 events lost"]),
        ([("events", 1)], [], ["1 events lost"]),
        ([("parts", 1), ("parts", 5)], [("parts", 1), ("parts", 5)], []),
        ([("parts", 5), ("parts", 1)], [("parts", 1), ("parts", 5)], []),
        ([("parts", 1), ("parts", 5)], [("parts", 3), ("parts", 4)], ["5 parts lost"]),
    ],
)
def test_a_baseline_knows_a_loss_up_to_its_size(losses: list, known: list, new: list[str]):
    baseline = json.loads(json.dumps(report_data(losses_of(*known))))
    marked = compared(losses_of(*losses), baseline, "base.json")
    assert [finding.message for finding in marked.findings if finding.is_new] == new
    assert (marked.count(Severity.ERROR, only_new=True), marked.exit_code()) == (len(new), int(bool(new)))


@pytest.mark.parametrize("lost", [{}, {"kind": "events"}, {"kind": "events", "size": None}, 3, "lost"])
def test_a_loss_of_a_baseline_that_says_nothing_is_refused(lost: Any):
    baseline = report_data(losses_of(("events", 2)))
    baseline["findings"][0]["lost"] = lost
    with pytest.raises(ResultError, match="damaged baseline"):
        compared(losses_of(), baseline, "base.json")

"""Versions over a whole run: frozen, and filled in from what a put says; each once in the report."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.audit.audit_cases import audited, findings_of
from tests.audit.model import Run, changed, log_of
from tests.builders import Row
from tests.oracles.slow_standstills import slow_standstills
from tokenaudit.audit.findings import Finding
from tokenaudit.audit.version_steps import LEAST_IN_A_ROW, Standstill, filled, frozen, standstills, usual_interval

RUN = Run(steps=20)
HEALTHY = log_of(RUN)
TOKEN_COLUMNS = ("prior_len", "response_ids", "logprobs", "train_logprobs")


def found(path: Path, rows: list[Row], config: tuple[str, ...] = RUN.config) -> dict[str, list[Finding]]:
    """The findings of rules about versions, by rule."""
    path.mkdir(exist_ok=True)
    report = audited(path / "log", rows, config)
    named = {finding.name for finding in report.findings if finding.code.startswith("V")}
    return {name: findings_of(report, name) for name in named}


def filled_in(version: Callable[[Row], int], since: int = 0) -> Callable[[Row], dict[str, Any] | None]:
    def values(row: Row) -> dict[str, Any] | None:
        tokens = row["response_len"]
        return {"response_model_steps": [version(row)] * tokens} if row["train_step"] >= since else None

    return values


def without(rows: list[Row], names: tuple[str, ...]) -> list[Row]:
    return [{name: value for name, value in row.items() if name not in names} for row in rows]


def stopped(rows: list[Row], last: int, until: int = 10**6) -> list[Row]:
    """The rows of a run whose weights are those of `last` until the version `until`."""

    def at(version: int) -> int:
        return last if last <= version < until else version

    def values(row: Row) -> dict[str, Any]:
        versions = [at(version) for version in row["response_model_steps"]]
        return {"model_step": at(row["model_step"]), "start_model_step": at(row["start_model_step"]),
                "response_model_steps": versions}  # fmt: skip

    return [row for row in changed(rows, values) if row["event"] != "sync" or not last < row["model_step"] < until]


@pytest.mark.parametrize("left_out", [(), TOKEN_COLUMNS, (*TOKEN_COLUMNS, "model_step", "start_model_step")])
def test_weights_that_stop_moving_are_one_finding(left_out: tuple[str, ...], tmp_path: Path):
    rules = found(tmp_path, without(stopped(HEALTHY, 12), left_out))
    assert rules.keys() == {"version-frozen"}
    (finding,) = rules["version-frozen"]
    assert "the newest version stays 12 from step 13 to 20, though weights move every step" in finding.message
    late = {row["rollout_id"] for row in HEALTHY if row["event"] == "put" and row["train_step"] >= 14}
    assert finding.extent is not None
    assert {rollout for _, rollout in finding.extent.members} == late
    assert (finding.extent.count, finding.extent.lasts) == (len(late), True)


def test_weights_that_move_again_end_the_extent(tmp_path: Path):
    (finding,) = found(tmp_path, stopped(HEALTHY, 5, 12))["version-frozen"]
    assert "stays 5 from step 6 to 12" in finding.message
    assert finding.extent is not None
    assert not finding.extent.lasts


def test_a_long_sync_interval_is_no_standstill(tmp_path: Path):
    every_six = changed(
        HEALTHY, lambda row: {"model_step": row["model_step"] // 6 * 6, "start_model_step": row["model_step"] // 6 * 6,
                              "response_model_steps": [step // 6 * 6 for step in row["response_model_steps"]]},
    )  # fmt: skip
    rows = [row for row in every_six if row["event"] != "sync"]
    assert found(tmp_path, rows).keys() == {"sync-interval-mismatch"}


def test_a_log_of_one_version_without_a_config_is_not_judged(tmp_path: Path):
    rows = [row for row in stopped(HEALTHY, 0) if row["event"] != "sync"]
    assert "version-frozen" not in found(tmp_path, rows, ())
    assert "version-frozen" in found(tmp_path, rows)


@given(st.lists(st.tuples(st.integers(0, 12), st.integers(0, 9)), max_size=25))
def test_standstills_are_those_of_a_walk_over_steps(puts: list[tuple[int, int]]):
    steps, versions = (np.array([one[column] for one in puts], dtype=np.int64) for column in (0, 1))
    assert standstills(steps, versions) == [Standstill(*one) for one in slow_standstills(puts)]


def test_a_standstill_lasts_five_steps_and_three_intervals():
    def of(*firsts: int) -> list[Standstill]:
        return [Standstill(n, first, last - 1) for n, (first, last) in enumerate(pairwise(firsts))]

    assert frozen(of(1, 2, 3, 7), 1) == []
    assert [one.first for one in frozen(of(1, 2, 3, 8), 1)] == [3]
    assert (frozen(of(1, 4, 7, 15), 3), [one.first for one in frozen(of(1, 4, 7, 16), 3)]) == ([], [7])
    # queues that are full at the begin hold the first version for as long as it isn't too old
    assert [[one.first for one in frozen(of(*begins), 1, 8)] for begins in ((1, 9, 15), (1, 10, 12))] == [[9], [1]]
    assert [one.first for one in frozen(of(1, 7), 1, 8)] == [1]
    assert usual_interval(of(1, 4, 7, 16)) == 3
    assert usual_interval(of(1, 9)) == 1


FILLED = {
    "the step of the put - 1": lambda row: row["train_step"] - 1,
    "the version of the response's first put": lambda row: FIRST[row["rollout_id"]],
}
FIRST: dict[int, int] = {}
for put_row in HEALTHY:
    if put_row["event"] == "put":
        FIRST.setdefault(put_row["rollout_id"], put_row["model_step"])


@pytest.mark.parametrize(
    ("filler", "left_out"),
    [(filler, left_out) for filler in FILLED for left_out in [(), TOKEN_COLUMNS]]
    # Without model_step, only the versions themselves can say that weights moved.
    + [("the step of the put - 1", (*TOKEN_COLUMNS, "model_step", "start_model_step"))],
)
def test_versions_that_are_filled_in_are_one_finding(filler: str, left_out: tuple[str, ...], tmp_path: Path):
    assert found(tmp_path / "healthy", without(HEALTHY, left_out)) == {}
    rules = found(tmp_path / "faulty", without(changed(HEALTHY, filled_in(FILLED[filler])), left_out))
    assert rules.keys() == {"version-filled-in"}
    (finding,) = rules["version-filled-in"]
    assert f"continued over a sync end in a single version, {filler};" in finding.message
    mixed = {row["rollout_id"] for row in HEALTHY if len(set(row.get("response_model_steps") or ())) > 1}
    # What was complete before is put again with its group, under a later version where that of the put is filled in.
    again = {row["rollout_id"] for row in HEALTHY if row.get("prior_len") and row["prior_len"] == row["response_len"]}
    assert finding.extent is not None
    members = {rollout for _, rollout in finding.extent.members}
    assert members == (mixed | again if filler == "the step of the put - 1" else mixed)
    assert f"{len(mixed)} responses continued" in finding.message


def test_versions_of_puts_alone_are_filled_in_once(tmp_path: Path):
    """Kept tokens have another version at every put, which V009 leaves to this finding."""
    rules = found(tmp_path, without(HEALTHY, ("response_model_steps",)))
    assert rules.keys() == {"version-filled-in"}
    (finding,) = rules["version-filled-in"]
    assert "end in a single version, the step of the put - 1;" in finding.message


def test_responses_that_get_shorter_begin_anew_whatever_the_config_says(tmp_path: Path):
    run = replace(RUN, partial=False, mean_tokens=40, most_tokens=200)
    assert "version-filled-in" not in found(tmp_path, without(shortened(log_of(run)), TOKEN_COLUMNS))


def shortened(rows: list[Row]) -> list[Row]:
    """The rows of a run; every tenth response that is put again has fewer tokens than before."""
    before: dict[int, int] = {}

    def values(row: Row) -> dict[str, Any] | None:
        had, before[row["rollout_id"]] = before.get(row["rollout_id"], 0), row["response_len"]
        if had < 2 or row["rollout_id"] % 10 or row["status"] != "aborted":
            return None
        return {"response_len": had - 1, "response_model_steps": row["response_model_steps"][: had - 1]}

    return changed(rows, values)


def test_a_run_that_begins_to_fill_in_is_found_from_there(tmp_path: Path):
    run = replace(RUN, batch=8, steps=16)
    rows = changed(log_of(run), filled_in(lambda row: row["model_step"], since=8))
    (finding,) = found(tmp_path, rows)["version-filled-in"]
    assert finding.extent is not None
    first = min(row["event_id"] for row in rows if row["event"] == "put" and row["train_step"] == 8)
    assert finding.extent.first_event_id >= first
    assert finding.extent.lasts


def test_versions_that_are_the_step_itself_are_said_so(tmp_path: Path):
    """One put per response: nothing shows that a response went on."""
    rows = [row for row in HEALTHY if row["event"] != "sample" and row.get("status") != "aborted"]
    rows = without([row for row in rows if row["event"] != "sync"], (*TOKEN_COLUMNS, "start_model_step"))
    assert "version-filled-in" not in found(tmp_path / "healthy", rows)
    rules = found(tmp_path / "faulty", changed(rows, filled_in(lambda row: row["train_step"])))
    (finding,) = rules["version-filled-in"]
    assert "all versions are the step of the put, which no weights have yet" in finding.message


@pytest.mark.parametrize("told", [False, True])
def test_versions_as_new_as_can_be_are_suspicious_only_where_something_went_on(told: bool, tmp_path: Path):
    """Answers too short to be cut off by a sync have one version each, the newest."""
    run = Run(steps=20, batch=4, group_size=4, mean_tokens=5, most_tokens=8, in_flight=4)
    rows = [row for row in log_of(run) if row["event"] != "sample" and row.get("status") != "aborted"]
    one_put = [row for row in rows if row["event"] != "put" or row["prior_len"] == 0]
    one_put = changed(one_put, lambda row: {"prior_len": 2 if told and row["response_len"] > 3 else 0})
    rules = found(tmp_path / "log", changed(one_put, filled_in(lambda row: row["train_step"] - 1)), run.config)
    assert rules.keys() == ({"version-filled-in"} if told else set())
    if told:
        (finding,) = rules["version-filled-in"]
        assert finding.severity == "warning"


def test_responses_that_begin_anew_have_one_version(tmp_path: Path):
    run = replace(RUN, partial=False)
    assert found(tmp_path, without(log_of(run), TOKEN_COLUMNS), run.config) == {}


@given(st.lists(st.booleans(), max_size=90))
def test_filled_in_are_all_or_those_in_a_row(flags: list[bool]):
    got = filled(np.array(flags, dtype=np.bool_)).tolist()
    if len(flags) >= 10 and sum(flags) >= 0.99 * len(flags):
        assert got == flags
        return
    runs = "".join("x" if flag else " " for flag in flags).split(" ")
    text = " ".join(run if len(run) >= LEAST_IN_A_ROW else "-" * len(run) for run in runs)
    assert got == [letter == "x" for letter in text]

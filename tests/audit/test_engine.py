"""Faults between engine and trainer in the log of a modelled run: the rows they name, and the one reason."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from itertools import groupby, pairwise
from pathlib import Path

import numpy as np
import pytest

from tests.audit.audit_cases import audited, findings_of
from tests.audit.model import Run, changed, events_of, log_of, renumbered
from tests.builders import Row
from tokenaudit.audit.findings import Finding
from tokenaudit.audit.rule import Severity

RUN = Run(steps=24, batch=8, group_size=8, round_tokens=25, mean_tokens=40)
LOG = log_of(RUN)
TOOLS = log_of(Run(steps=24, batch=8, group_size=8, round_tokens=25, mean_tokens=40, tools=True))
Change = Callable[[Row], Row | None]


def found(path: Path, rows: list[Row], config: tuple[str, ...] = RUN.config) -> list[Finding]:
    """What the rules of probabilities find."""
    report = audited(path, rows, config)
    return [finding for finding in report.findings if finding.code[0] in "PS" and finding.severity is not Severity.INFO]


def stale(version: int) -> Change:
    """As if the weights after `version` were never sent."""
    rng = random.Random(5)

    def values(row: Row) -> Row:
        trained: list[float] = []
        for logprob, made in zip(row["logprobs"], row["response_model_steps"], strict=True):
            spread = 0.015 + 0.06 * (row["train_step"] - 1 - min(made, version))
            drift = rng.gauss(-spread * spread / 2, spread) if logprob < -0.25 else logprob * rng.gauss(0, 0.1)
            trained.append(min(logprob + drift, -1e-6))
        return {"train_logprobs": trained}

    return values


def only(change: Change, where: Callable[[Row], bool]) -> Change:
    return lambda row: change(row) if where(row) else None


def scaled(by: float) -> Change:
    """As if the engine had shared out the probability of the tokens that it left out."""
    return lambda row: {"logprobs": [min(logprob - math.log(by), -1e-6) for logprob in row["logprobs"]]}


def sure(rows: list[Row], share: float = 0.1) -> list[Row]:
    """The rows with stretches that both sides are sure of, which begin at a share of the tokens."""
    rng = random.Random(3)

    def values(row: Row) -> Row:
        ours, theirs = list(row["logprobs"]), list(row["train_logprobs"])
        for place in range(len(ours)):
            if rng.random() < share:
                ours[place : place + 4] = [0.0] * len(ours[place : place + 4])
                theirs[place : place + 4] = [rng.choice([0.0, -2e-6]) for _ in theirs[place : place + 4]]
        return {"logprobs": ours, "train_logprobs": theirs}

    return changed(rows, values)


def copied(row: Row) -> Row:
    return {"train_logprobs": row["logprobs"]}


def early(row: Row) -> Row:
    return {"train_logprobs": [*row["train_logprobs"][1:], -2.0]}


def late(row: Row) -> Row:
    return {"train_logprobs": [-2.0, *row["train_logprobs"][:-1]]}


def other_tokens(row: Row) -> Row:
    rng = random.Random(row["rollout_id"] + row["train_step"])
    return {"logprobs": [-rng.expovariate(0.3) for _ in row["logprobs"]]}


FAULTS: dict[str, tuple[str, Change, int, str]] = {
    "a copy": ("logprobs-copied", copied, 1, "a copy"),
    "a copy from step 12 on": ("logprobs-copied", copied, 12, "a copy"),
    "a token early": ("logprobs-shifted", early, 1, "the token behind"),
    "a token late, from step 12 on": ("logprobs-shifted", late, 12, "the token before"),
    "never sent": ("engine-drifts", stale(9), 11, "other weights"),
    "broken weights": ("engine-drifts", other_tokens, 14, "other weights"),
    "renormalised": ("engine-ratio-off", scaled(0.9), 1, "renormalised"),
    "renormalised from step 12 on": ("engine-drifts", scaled(0.9), 12, "renormalised"),
    "values of other tokens": ("engine-ratio-off", other_tokens, 1, "of other tokens"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_one_finding_that_names_its_rows_and_its_reason(name: str, tmp_path: Path):
    rule, change, step, reason = FAULTS[name]
    rows = changed(LOG, only(change, lambda row: row["train_step"] >= step))
    (finding,) = found(tmp_path / "log", rows)
    assert (finding.name, finding.severity) == (rule, Severity.ERROR)
    assert reason in finding.message
    assert finding.extent is not None
    named = {rollout_id for _, rollout_id in finding.extent.members}
    wrong = {row["rollout_id"] for row in LOG if row["event"] == "put" and row["train_step"] >= step}
    assert len(named - wrong) <= 0.02 * len(wrong)
    assert len(wrong - named) <= 0.08 * len(wrong)


@pytest.mark.parametrize("engines", [2, 4])
@pytest.mark.parametrize("change", [stale(9), early])
def test_rows_of_one_engine_are_named_with_what_they_share(change: Change, engines: int, tmp_path: Path):
    def is_off(row: Row) -> bool:
        return row["rollout_id"] % engines == 1 and row["train_step"] > 11

    (finding,) = found(tmp_path / "log", changed(LOG, only(change, is_off)))
    assert finding.name == "engine-rows-off"
    assert f"rollout_id modulo {engines} is 1" in finding.message
    assert ("shifted by one token" in finding.message) == (change is early)
    assert finding.extent is not None
    named = {rollout_id for _, rollout_id in finding.extent.members}
    assert {rollout_id % engines for rollout_id in named} == {1}
    wrong = {row["rollout_id"] for row in LOG if row["event"] == "put" and is_off(row)}
    assert len(wrong - named) <= 0.15 * len(wrong)


@pytest.mark.parametrize("engines", [3, 4, 5])
def test_a_drift_of_most_engines_is_one_finding(engines: int, tmp_path: Path):
    def is_off(row: Row) -> bool:
        return row["rollout_id"] % engines != 1 and row["train_step"] > 11

    (finding,) = found(tmp_path / "log", changed(LOG, only(stale(9), is_off)))
    assert finding.name == "engine-drifts"
    assert finding.extent is not None
    assert finding.extent.lasts


def computed_at_the_put(row: Row) -> Row:
    """By a trainer that computes just as the engine does, under the weights of the put."""
    sides = zip(row["logprobs"], row["train_logprobs"], row["response_model_steps"], strict=True)
    return {"train_logprobs": [ours if made == row["train_step"] - 1 else theirs for ours, theirs, made in sides]}


def test_a_trainer_that_computes_like_the_engine_is_no_copy(tmp_path: Path):
    assert found(tmp_path / "log", changed(LOG, computed_at_the_put)) == []


def test_a_copy_of_what_only_waited_is_a_warning(tmp_path: Path):
    run = Run(steps=24, batch=8, group_size=8, round_tokens=80, mean_tokens=40, in_flight=40, partial=False)
    events = events_of(log_of(run))
    at = {rows[0]["train_step"]: n for n, rows in enumerate(events) if rows[0]["event"] == "take"}
    # each step takes what was put two steps before
    late = [rows for rows in events if rows[0]["event"] != "take" or rows[0]["train_step"] > 2]
    for step in sorted(at)[2:]:
        batch = events[at[step - 2]]
        events[at[step]][:] = [row | {"train_step": step} for row in batch]
    (finding,) = found(tmp_path / "log", renumbered(changed_events(late, copied)), run.config)
    assert (finding.name, finding.severity) == ("logprobs-copied", Severity.WARNING)


def changed_events(events: list[list[Row]], change: Change) -> list[list[Row]]:
    return [changed(rows, change) for rows in events]


def test_short_answers_are_judged_too(tmp_path: Path):
    run = Run(steps=30, batch=16, in_flight=16, group_size=8, round_tokens=6, mean_tokens=4, most_tokens=6)
    rows = log_of(run)
    assert found(tmp_path / "healthy", rows, run.config) == []
    (finding,) = found(tmp_path / "log", changed(rows, stale(9)), run.config)
    assert finding.name == "engine-drifts"


def test_a_growing_share_of_prompts_that_the_model_is_unsure_of_is_no_drift(tmp_path: Path):
    def surer(row: Row) -> Row | None:
        is_sure = random.Random(row["group_id"]).random() < 0.7 - 0.02 * row["group_id"] / RUN.batch
        return (
            {side: [0.01 * value for value in row[side]] for side in ("logprobs", "train_logprobs")}
            if is_sure
            else None
        )

    assert found(tmp_path / "log", changed(LOG, surer)) == []


@pytest.mark.parametrize("rows", [LOG, TOOLS, sure(LOG)], ids=["plain", "tools", "sure"])
def test_a_healthy_run_has_no_finding(rows: list[Row], tmp_path: Path):
    assert found(tmp_path / "log", rows) == []


def test_a_task_is_judged_by_itself(tmp_path: Path):
    other = [row | {"task_name": "code"} for row in changed(LOG, early) if row["event"] == "put"]
    both = [*LOG, *[row | {"event_id": row["event_id"] + len(LOG)} for row in other]]
    report = audited(tmp_path / "log", both, RUN.config)
    (finding,) = (finding for finding in report.findings if finding.code[0] == "P")
    assert (finding.name, finding.subject.task) == ("logprobs-shifted", "code")


def test_fewer_than_10000_tokens_are_not_judged(tmp_path: Path):
    few = log_of(Run(steps=6))
    assert sum(row["response_len"] for row in few if row["event"] == "put") < 10_000
    assert found(tmp_path / "log", changed(few, early)) == []


def test_batches_and_files_change_no_finding(tmp_path: Path):
    rows = changed(LOG, only(stale(9), lambda row: row["rollout_id"] % 4 == 1))
    one = audited(tmp_path / "one", rows, RUN.config)
    many = audited(tmp_path / "many", rows, RUN.config, files=3, row_group_size=50)
    said = [[finding.message for finding in report.findings if finding.code[0] == "P"] for report in (one, many)]
    assert said[0] == said[1] != []
    assert [entry.data() for entry in one.evidence] == [entry.data() for entry in many.evidence]


@pytest.mark.parametrize(("mask", "place"), [("late", "before masked ones"), ("early", "behind masked ones")])
def test_a_mask_shifted_by_one_has_zeros_at_its_edges(mask: str, place: str, tmp_path: Path):
    def moved(row: Row) -> Row:
        flags = row["response_mask"]
        return {"response_mask": [0, *flags[:-1]] if mask == "late" else [*flags[1:], 1]}

    (finding,) = found(tmp_path / "log", changed(TOOLS, moved))
    assert (finding.name, finding.severity) == ("logprob-zero-by-place", Severity.WARNING)
    assert place in finding.message


def as_runs(row: Row) -> Row:
    """The versions and the mask of a row as runs."""
    pairs = zip(row["response_model_steps"], row["response_mask"], strict=True)
    runs = [(version, flag, len(list(group))) for (version, flag), group in groupby(pairs)]
    parts = [{"model_step": version, "tokens": n, "trainable": n * flag} for version, flag, n in runs]
    return {"response_version_runs": parts, "response_model_steps": None, "response_mask": None}


def test_masks_told_by_runs_are_as_good_as_lists(tmp_path: Path):
    assert found(tmp_path / "healthy", changed(TOOLS, as_runs)) == []
    moved = changed(TOOLS, lambda row: {"response_mask": [0, *row["response_mask"][:-1]]})
    lists, runs = (found(tmp_path / name, rows) for name, rows in (("lists", moved), ("runs", changed(moved, as_runs))))
    assert [one.message for one in lists] == [one.message for one in runs] != []
    # What only one side says isn't excused by the other.
    alone = [
        {name: value for name, value in row.items() if name != "train_logprobs"} for row in changed(TOOLS, as_runs)
    ]
    assert findings_of(audited(tmp_path / "alone", alone, RUN.config), "logprob-placeholder") == []


def test_end_tokens_that_were_appended_have_zeros_at_the_last_place(tmp_path: Path):
    def appended(row: Row) -> Row | None:
        return {"logprobs": [*row["logprobs"][:-1], 0.0]} if row["finish_reason"] == "stop" else None

    (finding,) = found(tmp_path / "log", changed(LOG, appended))
    assert (finding.name, finding.severity) == ("logprob-zero-by-place", Severity.WARNING)
    stopped = [row for row in LOG if row.get("finish_reason") == "stop"]
    expected = {row["rollout_id"] for row in stopped if row["train_logprobs"][-1] <= -0.001}
    assert finding.extent is not None
    assert {rollout_id for _, rollout_id in finding.extent.members} == expected


def test_end_tokens_that_were_appended_to_aborted_responses_have_zeros_there(tmp_path: Path):
    cuts: dict[int, set[int]] = {}

    def appended(row: Row) -> Row | None:
        own = cuts.setdefault(row["rollout_id"], set())
        if row["status"] == "aborted" and row["response_len"] > row["prior_len"]:
            own.add(row["response_len"] - 1)
        return {"logprobs": [0.0 if place in own else value for place, value in enumerate(row["logprobs"])]}

    (finding,) = found(tmp_path / "log", changed(LOG, appended))
    assert (finding.name, finding.severity) == ("logprob-zero-by-place", Severity.WARNING)
    assert "the last token of aborted responses" in finding.message


@pytest.mark.parametrize("place", ["end", "call"])
def test_what_a_model_is_sure_of_at_a_place_may_be_zero_on_both_sides(place: str, tmp_path: Path):
    rng = random.Random(4)

    def surely(row: Row) -> Row:
        flags = row["response_mask"]
        calls = {at for at, (now, behind) in enumerate(pairwise(flags)) if now > behind}
        places = {len(flags) - 1} if place == "end" else calls
        trained = [rng.choice([0.0, 0.0, -2e-6]) if at in places else v for at, v in enumerate(row["train_logprobs"])]
        return {
            "logprobs": [0.0 if at in places else value for at, value in enumerate(row["logprobs"])],
            "train_logprobs": trained,
        }

    assert found(tmp_path / "log", changed(TOOLS, surely)) == []


def test_sure_answers_of_one_token_are_no_stand_ins_where_some_are_nearly_zero(tmp_path: Path):
    rng = random.Random(4)

    def answer(row: Row) -> Row | None:
        if row["status"] != "completed" or row["prior_len"] or row["rollout_id"] % 5:
            return None
        value = rng.choice([0.0, 0.0, -1e-5])
        return {
            "response_ids": [7], "response_len": 1, "response_model_steps": row["response_model_steps"][:1],
            "logprobs": [value], "train_logprobs": [value],
        }  # fmt: skip

    assert [finding for finding in found(tmp_path / "log", changed(LOG, answer)) if finding.code[0] == "P"] == []


def test_genuine_answers_of_one_token_are_no_stand_ins(tmp_path: Path):
    answers = {"response_ids": [7], "response_len": 1, "response_model_steps": [0], "prior_len": 0}

    def short(row: Row, **sides: list[float]) -> Row | None:
        is_chosen = row["status"] == "completed" and row["prior_len"] == 0 and row["rollout_id"] % 5 == 0
        return answers | {"response_model_steps": row["response_model_steps"][:1], **sides} if is_chosen else None

    sides = {"logprobs": [0.0], "train_logprobs": [-1e-5]}
    genuine = changed(LOG, lambda row: short(row, **sides))
    assert [finding for finding in found(tmp_path / "sure", genuine) if finding.code[0] == "P"] == []
    stand_ins = changed(LOG, lambda row: short(row, logprobs=[0.0], train_logprobs=[-9.0]))
    names = [finding.name for finding in found(tmp_path / "log", stand_ins) if finding.code[0] == "P"]
    assert names == ["stand-in-rows"]


def test_stand_ins_of_several_ids_are_one_finding(tmp_path: Path):
    def stand_in(row: Row) -> Row | None:
        if row["status"] != "completed" or row["prior_len"] or row["rollout_id"] % 5:
            return None
        values = {"response_ids": [7 + row["group_id"] % 2], "response_len": 1, "logprobs": [0.0]}
        return values | {"response_model_steps": row["response_model_steps"][:1], "train_logprobs": [-9.0]}

    rows = changed(LOG, stand_in)
    (finding,) = findings_of(audited(tmp_path / "log", rows, RUN.config), "stand-in-rows")
    assert "with the one token of 2 ids (7, 8)" in finding.message
    assert finding.extent is not None
    expected = {row["rollout_id"] for row in rows if row["event"] == "put" and row["response_len"] == 1}
    assert {rollout_id for _, rollout_id in finding.extent.members} == expected


def test_correlations_are_those_of_numpy():
    from tokenaudit.audit.engine import _correlations

    rng = np.random.default_rng(1)
    x, y, x2, y2 = rng.normal(size=(4, 50)) + rng.normal(size=50)
    sums = np.array([[np.sum(one)] for one in (
        np.ones(50), x, y, x * x, y * y, x * y, x2, y2, x2 * x2, y2 * y2, x2 * y, x * y2,
    )])  # fmt: skip
    expected = [np.corrcoef(*pair)[0, 1] for pair in ((x, y), (x2, y), (x, y2))]
    assert [float(one[0]) for one in _correlations(sums)] == pytest.approx(expected)

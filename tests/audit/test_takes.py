"""What the run took, as take rows name it: kinds of faults in one place of a healthy run, and runs without any."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.audit.audit_cases import audited, findings_of
from tests.audit.model import Run, changed, events_of, log_of, renumbered, restarted
from tests.audit.test_random import GOLDEN_RUNS
from tests.builders import Row, read_json, read_rows, write_log
from tokenaudit.audit.checks import RULES
from tokenaudit.audit.findings import Finding
from tokenaudit.audit.rule import Fact, Severity
from tokenaudit.audit.session import audit_log
from tokenaudit.audit.taken_groups import TakenGroups, overtaking

RUN = Run(steps=14, batch=4, group_size=4, in_flight=10)
OF_TAKES = (
    "group-incomplete", "group-split", "take-short", "take-order", "group-passed-over", "takes-differ-from-replay",
)  # fmt: skip


def found(path: Path, rows: list[Row], run: Run = RUN, *, config: tuple[str, ...] = ()) -> dict[str, Finding]:
    """The errors and warnings about a log by rule, of which each has one; those about settings left out."""
    report = audited(path, rows, (*run.config, *config))
    listed = [one for one in report.findings if one.severity is not Severity.INFO and one.name != "setting-suspect"]
    assert len({one.name for one in listed}) == len(listed)
    return {one.name: one for one in listed}


def takes_changed(rows: list[Row], change: Callable[[int, list[Row]], list[Row]]) -> list[Row]:
    """The log with other rows in its takes, which are counted from 0."""
    events, count = [], 0
    for event in events_of(rows):
        if event[0]["event"] == "take":
            event = change(count, event)
            count += 1
        events.append(event)
    return renumbered(event for event in events if event)


def in_order(rows: list[Row], order: Callable[[list[int]], list[int]]) -> list[Row]:
    """The log with takes that take the groups that wait, oldest first, in another order."""
    waiting: list[int] = []
    members: dict[int, list[int]] = {}
    events: list[list[Row]] = []
    for event in events_of(rows):
        first = event[0]
        if first["event"] == "put" and all(row["status"] == "completed" for row in event):
            waiting.append(first["group_id"])
            members[first["group_id"]] = [row["rollout_id"] for row in event]
        elif first["event"] == "take":
            taken = order(waiting)[: first["batch_size"]]
            waiting = [group for group in waiting if group not in taken]
            event = [first | {"rollout_id": one} for group in taken for one in members[group]]
        events.append(event)
    return renumbered(events)


def test_a_batch_cut_inside_of_a_group_is_one_finding_with_those_groups(tmp_path: Path):
    rows = takes_changed(log_of(RUN), lambda count, event: event[:-2] if count % 2 else event)
    finding = found(tmp_path / "log", rows)["group-incomplete"]
    assert finding.severity is Severity.ERROR
    assert "taken at step 2 with 2 of 4 members; rollout" in finding.message
    assert finding.message.endswith("; 28 responses in 7 puts")
    assert finding.extent is not None
    cut = {row["rollout_id"] // 100 for event in events_of(log_of(RUN)) for row in event[-2:] if row["event"] == "take"
           and row["train_step"] % 2 == 0}  # fmt: skip
    assert {rollout // 100 for _, rollout in finding.extent.members} == cut
    assert finding.extent.count == 28


def test_without_a_group_size_what_was_put_says_how_many_there_are(tmp_path: Path):
    rows = takes_changed(log_of(RUN), lambda count, event: event[:-1] if count == 3 else event)
    report = audited(tmp_path / "log", rows, tuple(one for one in RUN.config if "group_size" not in one))
    (finding,) = findings_of(report, "group-incomplete")
    assert finding.severity is Severity.WARNING
    assert finding.message.startswith("taken at step 4 with 3 of 4 members")


def test_a_group_taken_in_two_halves_is_split_and_not_incomplete(tmp_path: Path):
    held: list[Row] = []

    def halved(count: int, event: list[Row]) -> list[Row]:
        late, held[:] = [row | {"train_step": event[0]["train_step"]} for row in held], event[-2:]
        return [*late, *event[:-2]]

    out = found(tmp_path / "log", takes_changed(log_of(RUN), halved))
    assert "taken in parts, the first, group" in out["group-split"].message
    assert out["group-split"].severity is Severity.ERROR
    extent = out["group-split"].extent
    assert extent is not None
    # the last take has no other behind it, so its last group is incomplete
    assert extent.count == 13 * 4
    assert out["group-incomplete"].message.startswith("taken at step 14 with 2 of 4 members")


@pytest.mark.parametrize("trained", [1, 2])
def test_takes_below_their_batch_size(trained: int, tmp_path: Path):
    rows = takes_changed(log_of(RUN), lambda count, event: event[: 4 * trained] if count in (5, 7) else event)
    out = found(tmp_path / "log", rows)
    short = 2 * (4 - trained)
    assert f"2 of 14 takes too short by {short} groups in all, the first, at step 6: {trained} of 4" in (
        out["take-short"].message
    )
    assert "group-incomplete" not in out
    # a recorder that writes what it got in place of what was asked for
    told = changed(rows, lambda row: {"batch_size": trained} if row["train_step"] in (6, 8) else None, "take")
    assert f"the first, at step 6: {trained} of 4" in found(tmp_path / "told", told)["take-short"].message


def test_the_newest_first_is_not_fifo_and_passes_groups_over(tmp_path: Path):
    out = found(tmp_path / "log", in_order(log_of(RUN), lambda waiting: waiting[::-1]))
    assert "while one that was completed before waited, though replay_policy is fifo" in out["take-order"].message
    assert "from step" in out["takes-differ-from-replay"].message
    rng = np.random.default_rng(3)
    shuffled = in_order(log_of(RUN), lambda waiting: rng.permutation(waiting).tolist())
    assert "take-order" in found(tmp_path / "shuffled", shuffled)
    # within a batch the order says nothing
    assert found(tmp_path / "within", in_order(log_of(RUN), lambda waiting: waiting[:4][::-1])) == {}


def test_a_completed_group_that_is_never_taken(tmp_path: Path):
    lost: list[int] = []

    def without_one(waiting: list[int]) -> list[int]:
        lost[:] = lost or waiting[:1]
        return [group for group in waiting if group not in lost]

    rows = in_order(log_of(RUN), without_one)
    finding = found(tmp_path / "log", rows)["group-passed-over"]
    assert f"1 completed group never taken, the first, group {lost[0]}, though" in finding.message
    assert finding.extent is not None
    assert [rollout // 100 for _, rollout in finding.extent.members] == lost * 4


def test_what_is_lost_at_a_restart_expires_in_the_replay_and_is_lost_still(tmp_path: Path):
    run = replace(RUN, mean_tokens=34)
    config = ("policy.max_staleness=9",)
    assert "group-abandoned" not in found(tmp_path / "twin", log_of(run), run, config=config)
    finding = found(tmp_path / "log", restarted(run, 0), run, config=config)["group-abandoned"]
    assert finding.severity is Severity.WARNING
    assert "put as aborted at step 14 and never again" in finding.message


@pytest.mark.parametrize("again", [0, 3])
def test_groups_in_flight_at_a_restart_are_lost(again: int, tmp_path: Path):
    run = replace(RUN, mean_tokens=34)
    rows = restarted(run, again)
    finding = found(tmp_path / "log", rows, run)["group-abandoned"]
    puts = [row for row in rows if row["event"] == "put"]
    groups = {row["group_id"] for row in puts if row["group_id"] < 1000 and row["train_step"] == run.steps}
    done = {row["group_id"] for row in puts if row["group_id"] in groups} - {
        row["group_id"] for row in puts if row["status"] == "aborted" and row["train_step"] == run.steps
    }
    assert finding.extent is not None
    assert {rollout // 100 for _, rollout in finding.extent.members} == groups - done
    assert "times the" in finding.message
    assert ("before a restart at step 14" in finding.message) is bool(again)


@pytest.mark.parametrize("drop", [(), ("prior_len",), ("prior_len", "response_ids")])
def test_a_run_that_goes_on_though_partial_rollout_is_off(drop: tuple[str, ...], tmp_path: Path):
    off = ("policy.enable_partial_rollout=false",)
    continued = [{name: value for name, value in row.items() if name not in drop} for row in log_of(RUN)]
    finding = found(tmp_path / "log", continued, config=off)["continued-though-off"]
    before: dict[int, Row] = {}
    kept, rollouts = 0, set[int]()
    for row in log_of(RUN):
        if row["event"] == "put":
            earlier = before.get(row["rollout_id"])
            if earlier is not None and earlier["status"] == "aborted" and earlier["response_len"]:
                kept += earlier["response_len"] - (earlier["prior_len"] or 0)
                rollouts.add(row["rollout_id"])
            before[row["rollout_id"]] = row
    assert finding.severity is Severity.ERROR
    assert f" {kept:,} tokens of versions 0 to " in finding.message
    assert finding.extent is not None
    assert {rollout for _, rollout in finding.extent.members} == rollouts
    begun_again = [
        {name: value for name, value in row.items() if name not in drop} for row in log_of(replace(RUN, partial=False))
    ]
    assert "continued-though-off" not in found(tmp_path / "twin", begun_again, replace(RUN, partial=False))


def test_off_by_default_is_a_warning(tmp_path: Path):
    config = tuple(one for one in RUN.config if "partial" not in one)
    (finding,) = findings_of(audited(tmp_path / "log", log_of(RUN), config), "continued-though-off")
    assert finding.severity is Severity.WARNING
    assert "is off by default;" in finding.message


def test_takes_without_names_say_nothing_about_what_was_taken(tmp_path: Path):
    run = replace(RUN, names_takes=False)
    report = audited(tmp_path / "log", log_of(run), run.config)
    rules = {run.rule.name: run for run in report.runs}
    others = ("unfinished-row-trained", "reward-missing", "group-zero-variance", "stale-group-taken",
              "step-without-trainable-tokens", "untrained-response-taken", "duplicate-consumption")  # fmt: skip
    for name in (*OF_TAKES, *others):
        assert rules[name].missing == (Fact.RECORDED_TAKES,)


def test_every_rule_that_replay_alone_decides_says_so():
    alone = ("aged-in-queue", "fresh-tokens-lost", "starved-group", "length-bias", "discard-rate",
             "agentic-exempt-stale")  # fmt: skip
    assert all(rule.meaning.startswith("In the replay, ") for rule in RULES if rule.name in alone)


@pytest.mark.parametrize("name", GOLDEN_RUNS[::9])
def test_takes_recorded_upstream_are_those_of_the_replay(name: str, tmp_path: Path):
    folder = Path(__file__).parent.parent / "golden" / name
    taken = {row["train_step"]: row["effective_masks"] for row in read_json(folder / "expected.json")["expected"]}
    rows: list[Row] = []
    for row in read_rows(folder / "log.parquet"):
        task = row["task_name"] or "default"
        named = [key.rpartition("/") for key in taken.get(row["train_step"], {})] if row["event"] == "take" else []
        own = [int(rollout) for of_task, _, rollout in named if of_task == task]
        rows += [row | {"rollout_id": rollout} for rollout in own] or [row]
    assert any(row["event"] == "take" and row["rollout_id"] is not None for row in rows)
    report = audit_log([write_log(tmp_path / "log", rows)], config_path=folder / "config.toml", isolated=True)
    assert report.why_no_replay == ""
    wrong = [one for one in report.findings if one.name in OF_TAKES and one.name != "take-short"]
    assert [(one.name, one.message) for one in wrong] == []


def test_a_group_that_waits_behind_more_than_two_batches_is_passed_over_and_no_order(tmp_path: Path):
    held: dict[int, int] = {}

    def late(waiting: list[int]) -> list[int]:
        for group in waiting:
            held.setdefault(group, 0)
            held[group] += 1
        return [group for group in waiting if group % 20 != 7 or held[group] > 5]

    run = replace(RUN, steps=40)
    out = found(tmp_path / "log", in_order(log_of(run), late), run)
    assert "take-order" not in out
    text = out["group-passed-over"].message
    assert "completed groups taken late, the first, group 7 at step" in text
    extent = out["group-passed-over"].extent
    assert extent is not None
    assert {rollout // 100 for _, rollout in extent.members} == {group for group in held if group % 20 == 7}


def test_the_newest_first_is_found_where_the_others_are_never_taken(tmp_path: Path):
    """More groups are put than taken, so what is overtaken stays behind for good."""
    run = replace(RUN, steps=20, batch=8, group_size=1, in_flight=30)
    rows = in_order(changed(log_of(run), lambda _: {"batch_size": 4}, "take"), lambda waiting: waiting[::-1])
    config = (*run.config, "timeline.train_batch_size=4")
    assert "replay_policy is fifo" in found(tmp_path / "log", rows, run, config=config)["take-order"].message


def test_what_a_restart_loses_is_passed_over_and_no_order(tmp_path: Path):
    run = replace(RUN, steps=24)
    lost: list[int] = []

    def without(waiting: list[int]) -> list[int]:
        if not lost and len(held) > 10:
            lost[:] = waiting[:3]
        held.append(1)
        return [group for group in waiting if group not in lost]

    held: list[int] = []
    out = found(tmp_path / "log", in_order(log_of(run), without), run)
    assert "take-order" not in out
    assert "3 completed groups never taken" in out["group-passed-over"].message


@pytest.mark.parametrize("named", [lambda count: count % 2 == 0, lambda count: count >= 7])
def test_what_takes_without_names_took_is_not_missed(named: Callable[[int], bool], tmp_path: Path):
    rows = takes_changed(log_of(RUN), lambda count, event: event if named(count) else [event[0] | {"rollout_id": None}])
    assert found(tmp_path / "log", rows) == {}


@given(st.data())
def test_overtaking_is_what_a_look_at_every_pair_says(data: st.DataObject):
    count = data.draw(st.integers(1, 12))
    takes = sorted(data.draw(st.lists(st.integers(0, 4), min_size=count, max_size=count)))
    numbers = st.lists(st.integers(0, 9), min_size=count, max_size=count)
    task, key = data.draw(st.lists(st.integers(0, 1), min_size=count, max_size=count)), data.draw(numbers)
    ready = [min(one, 10 * take + 9) for one, take in zip(
        data.draw(st.permutations(range(count))), takes, strict=True)]  # fmt: skip
    columns = (np.array(one, dtype=np.int64) for one in (ready, range(count), task, takes))
    rows, owner, tasks, take = columns
    left = data.draw(st.integers(1, count))
    steps = np.ones(left, dtype=np.int64)
    taken = TakenGroups(rows[:left], owner[:left], tasks[:left], take[:left], 10 * take[:left] + 10, steps, steps)
    pairs = [
        (i, j)
        for i in range(left)
        for j in range(count)
        if task[j] == task[i]
        and key[j] < key[i]
        and ready[j] < 10 * takes[i] + 10
        and (j >= left or takes[j] > takes[i])
    ]
    overtook, overtaken = overtaking(taken, tasks, np.array(key), rows)
    assert np.flatnonzero(overtook).tolist() == sorted({i for i, _ in pairs})
    assert np.flatnonzero(overtaken).tolist() == sorted({j for _, j in pairs})

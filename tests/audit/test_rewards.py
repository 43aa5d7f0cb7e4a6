"""Rewards that no longer teach, rewards of other rows, and baselines moved by members that train nothing."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.audit.audit_cases import audited, findings_of
from tests.audit.model import Run, changed, log_of
from tests.builders import Row
from tests.oracles.slow_baselines import slow_turned
from tokenaudit.audit.findings import Finding
from tokenaudit.audit.rewards import explaining_shift, flat, flat_stretches, likeness, moved_baselines
from tokenaudit.audit.taken_groups import TakenGroups

RUN = Run(steps=20)
HEALTHY = log_of(RUN)


def found(path: Path, rows: list[Row]) -> dict[str, list[Finding]]:
    report = audited(path, rows, RUN.config)
    return {name: findings_of(report, name) for name in {one.name for one in report.findings if one.code[0] == "R"}}


def filtered_flat(rows: list[Row]) -> list[Row]:
    """The rows of a run that filters groups without spread and doesn't take them."""
    rewards: dict[int, set[float]] = {}
    for row in rows:
        if row.get("reward") is not None:
            rewards.setdefault(row["group_id"], set()).add(row["reward"])
    flat_groups = {group for group, own in rewards.items() if len(own) == 1}
    kept = [row for row in rows if row["event"] != "take" or row["rollout_id"] // 100 not in flat_groups]
    return changed(kept, lambda row: {"status": "filtered"} if row["group_id"] in flat_groups and scored(row) else None)


def scored(row: Row) -> bool:
    return row["event"] == "put" and row["reward"] is not None


def shifted(rows: list[Row], by: int, since: int = 0) -> list[Row]:
    """The rows, each scored one from a step on with the reward of the one `by` before it."""
    places = [place for place, row in enumerate(rows) if scored(row)]
    rewards = [rows[place]["reward"] for place in places]
    moved = [dict(row) for row in rows]
    for number, place in enumerate(places):
        if rows[place]["train_step"] >= since:
            moved[place]["reward"] = rewards[(number - by) % len(rewards)]
    return moved


@pytest.mark.parametrize("names_takes", [True, False])
def test_a_scorer_that_always_gives_0_is_found_from_there(names_takes: bool, tmp_path: Path):
    rows = log_of(Run(steps=20, names_takes=names_takes))
    broken = changed(rows, lambda row: {"reward": 0.0} if scored(row) and row["train_step"] >= 12 else None)
    assert found(tmp_path / "healthy", rows) == {}
    (finding,) = found(tmp_path / "faulty", broken)["rewards-without-spread"]
    assert "(all rewards are 0)" in finding.message
    assert finding.extent is not None
    assert finding.extent.lasts
    scores = {row["rollout_id"]: row["reward"] for row in broken if scored(row)}
    assert {scores[rollout] for _, rollout in finding.extent.members} == {0.0}


@pytest.mark.parametrize(
    ("by", "text"),
    [(4, "of 1 group before"), (-8, "of 2 groups behind"), (1, "of 1 row before"), (-3, "of 3 rows behind")],
)
def test_rewards_of_other_rows_are_found_with_how_far_away_they_are(by: int, text: str, tmp_path: Path):
    rows = filtered_flat(HEALTHY)
    assert "rewards-of-other-rows" not in found(tmp_path / "healthy", rows)
    (finding,) = found(tmp_path / "faulty", shifted(rows, by))["rewards-of-other-rows"]
    assert f"they are those {text};" in finding.message
    assert finding.severity == "error"


def test_rewards_that_come_apart_in_the_middle_are_found_from_there(tmp_path: Path):
    (finding,) = found(tmp_path / "log", shifted(filtered_flat(HEALTHY), 4, since=10))["rewards-of-other-rows"]
    assert "up to there, the filter took out those without spread and no others" in finding.message
    assert finding.extent is not None
    assert finding.extent.first_event_id >= min(row["event_id"] for row in HEALTHY if row.get("train_step") == 10)


def test_responses_alone_are_judged_by_the_spread_of_a_take(tmp_path: Path):
    run = Run(steps=20, group_size=1, batch=12)
    rows = log_of(run)
    broken = changed(rows, lambda row: {"reward": 0.0} if scored(row) and row["train_step"] >= 12 else None)
    assert found(tmp_path / "healthy", rows) == {}
    (finding,) = found(tmp_path / "faulty", broken)["rewards-without-spread"]
    assert "no take of" in finding.message
    assert "has a spread of rewards (all rewards are 0)" in finding.message
    scores = {row["rollout_id"]: row["reward"] for row in broken if scored(row)}
    assert finding.extent is not None
    assert {scores[rollout] for _, rollout in finding.extent.members} == {0.0}


def test_rewards_of_a_batch_before_are_found_however_many_rows_away(tmp_path: Path):
    run = Run(steps=20, group_size=8, batch=8)
    (finding,) = found(tmp_path / "log", shifted(filtered_flat(log_of(run)), 8 * 20))["rewards-of-other-rows"]
    assert "they are those of 20 groups before;" in finding.message


def test_a_filter_the_wrong_way_round(tmp_path: Path):
    spread = {row["group_id"] for row in filtered_flat(HEALTHY) if row.get("status") == "completed" and scored(row)}
    rows = changed(HEALTHY, lambda row: {"status": "filtered"} if row["group_id"] in spread and scored(row) else None)
    rows = [row for row in rows if row["event"] != "take" or row["rollout_id"] // 100 not in spread]
    (finding,) = found(tmp_path / "log", rows)["rewards-of-other-rows"]
    assert "the filter takes out those with a spread, and keeps those without;" in finding.message
    assert finding.severity == "error"


@pytest.mark.parametrize(("since", "level"), [(0, "warning"), (12, "error")])
def test_rewards_shuffled_among_the_rows_of_batches(since: int, level: str, tmp_path: Path):
    """No group is without spread then, though the filter took some out."""
    rows = filtered_flat(log_of(Run(steps=40, group_size=8, seed=3)))
    assert "rewards-of-other-rows" not in found(tmp_path / "healthy", rows)
    rng = np.random.default_rng(1)
    places = [place for place, row in enumerate(rows) if scored(row) and row["train_step"] >= since]
    moved = [dict(row) for row in rows]
    for first in range(0, len(places), 64):
        own = places[first : first + 64]
        for place, other in zip(own, rng.permutation(own).tolist(), strict=True):
            moved[place]["reward"] = rows[other]["reward"]
    (finding,) = found(tmp_path / "faulty", moved)["rewards-of-other-rows"]
    assert finding.severity == level
    if not since:
        assert "rewards are no more alike inside of groups than across them" in finding.message


def test_likeness_is_the_variance_between_groups_over_that_within():
    rewards, starts = np.array([1.0, 2, 3, 5, 6, 10]), np.array([0, 3])
    assert likeness(rewards, starts) == pytest.approx((7 - 2) ** 2 / (1 / 3 + 1 / 3) / ((2 + 14) / 4))
    assert np.isnan(likeness(np.array([1.0, 1, 2, 2]), np.array([0, 2])))


def test_a_member_that_the_trainer_masked_moves_the_baseline(tmp_path: Path):
    """Its own mask trains it; only the one that the trainer recorded doesn't."""
    one = next(row for row in HEALTHY if row["event"] == "take" and row["train_step"] == 5)["rollout_id"]
    group = [row for row in HEALTHY if row["event"] == "put" and row["group_id"] == one // 100 and scored(row)]

    def values(row: Row) -> dict[str, Any]:
        is_own, is_one = row["group_id"] == one // 100 and scored(row), row["rollout_id"] == one
        mask = {"trained_mask": [int(not (is_own and is_one))] * row["response_len"]}
        return mask | {"reward": float(is_one)} if is_own else mask

    rows = changed(HEALTHY, values)
    (finding,) = found(tmp_path / "log", rows)["baseline-moved"]
    assert f"with 1 such member (reward 1), +0 without; {len(group) - 1} responses" in finding.message


def test_a_filter_of_something_else_is_no_fault(tmp_path: Path):
    """It took out every seventh group, whatever its rewards."""
    kept = [row for row in HEALTHY if row["event"] != "take" or row["rollout_id"] // 100 % 7]
    rows = changed(kept, lambda row: {"status": "filtered"} if scored(row) and row["group_id"] % 7 == 0 else None)
    assert found(tmp_path / "log", rows) == {}


def test_few_flat_takes_are_chance_where_flat_groups_are_common():
    def stretches(text: str, per_block: int = 1) -> list[tuple[int, int]]:
        return flat_stretches(np.array([one == "-" for one in text]), np.arange(len(text)) // per_block)

    assert stretches("x-" * 20 + "---") == []
    assert stretches("x-" * 20 + "-" * 16) == [(39, 56)]
    assert stretches("x" * 40 + "---") == [(40, 43)]
    assert stretches("x" * 40 + "--") == []
    assert stretches("x" * 40 + "-" * 9 + "x" * 3, 3) == []
    assert stretches("x" * 42 + "-" * 9 + "x" * 3, 3) == [(42, 51)]
    assert stretches("-" * 50) == []
    assert stretches("") == []


@given(st.integers(-20, 20).filter(bool), st.integers(0, 1_000))
def test_a_shift_is_found_whatever_it_is(by: int, seed: int):
    rng = np.random.default_rng(seed)
    sizes = rng.integers(2, 6, size=60)
    starts = np.cumsum(sizes) - sizes
    rewards = rng.random(int(sizes.sum())).round(2)
    for group in rng.choice(60, size=20, replace=False):
        rewards[starts[group] : starts[group] + sizes[group]] = rng.random()
    is_filtered = flat(rewards, starts)
    assert explaining_shift(rewards, starts, is_filtered) is None
    assert explaining_shift(np.roll(rewards, by), starts, is_filtered) == by


MEMBERS = st.tuples(st.none() | st.sampled_from([-3.0, 0.0, 0.25, 0.5, 1.0]), st.booleans())


@given(st.lists(st.lists(MEMBERS, min_size=1, max_size=5), max_size=6))
def test_turned_advantages_are_those_of_a_walk_over_members(groups: list[list[tuple[float | None, bool]]]):
    owner = np.array([number for number, group in enumerate(groups) for _ in group], dtype=np.int64)
    members: list[Any] = [member for group in groups for member in group]
    places = [(number, place) for number, group in enumerate(groups) for place in range(len(group))]
    nothing = np.zeros(len(groups), dtype=np.int64)
    taken = TakenGroups(np.arange(len(owner)), owner, *[nothing] * 5)

    class Table(SimpleNamespace):
        def __getitem__(self, name: str) -> Any:
            return np.array([np.nan if reward is None else reward for reward, _ in members], dtype=np.float64)

    table = cast("Any", Table(segment=np.zeros(len(owner), dtype=np.int64)))
    moved = moved_baselines(table, taken, np.array([trains for _, trains in members], dtype=np.bool_))
    assert [places[row] for row in moved.rows.tolist()] == slow_turned(groups)

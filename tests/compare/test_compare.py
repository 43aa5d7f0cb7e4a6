"""Two runs, compared: every difference is told, nothing else is, and the reason is the real one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.builders import Row, make_digest, numbered, put, refresh, sample, take, write_log
from tests.compare.results import made_result, totals_of
from tests.conftest import examples
from tests.strategies import configs, logs
from tokenaudit.compare.compare import Comparison, Effect, FigureChange, Side, compare
from tokenaudit.compare.group_events import GroupEvents, Kind
from tokenaudit.compare.group_outcomes import compare_outcomes, outcomes_of_run
from tokenaudit.compare.metric_values import FIGURES, Missing, figures_named
from tokenaudit.config.loading import load_settings
from tokenaudit.config.model import parse_config
from tokenaudit.contracts.errors import ConfigError, TokenauditError, UsageError
from tokenaudit.contracts.metrics import (
    DISCARDED_FRESH_TOKENS,
    DROPPED_TOKENS,
    MASKED_STALE_TOKENS,
    RESET_TOKENS,
    TRAINED_TOKENS,
    Better,
)
from tokenaudit.log.files import open_log
from tokenaudit.render.diff import change_cells, divergence_lines, step_lines
from tokenaudit.replay.ledger import combined, count
from tokenaudit.replay.open_loop import replay, run_tasks
from tokenaudit.replay.request import RunRequest
from tokenaudit.replay.result import select_steps
from tokenaudit.replay.session import LoadedLog, digest_for, replay_loaded


def sides(tmp_path: Path, rows: list[Row], a: dict[str, Any], b: dict[str, Any]) -> tuple[Side, Side]:
    """Both configs, replayed on one log; rows with an event id of their own keep it."""
    rows = [row if row["event_id"] else row | {"event_id": number} for number, row in enumerate(rows, start=1)]
    log = open_log([write_log(tmp_path / "log.parquet", rows)])
    both = [
        load_settings(config_path=None, working_dir=tmp_path, isolated=True, log_config=config) for config in (a, b)
    ]
    request = RunRequest(with_groups=True)
    digest = digest_for(log, both, request)
    made: list[Side] = []
    for label, one in zip("ab", both, strict=True):
        tape = GroupEvents()
        result = replay_loaded(LoadedLog(log, digest, one, request), tape.add)
        made.append(Side(label, result, {}, tape))
    return made[0], made[1]


def changes(comparison: Comparison) -> dict[str, tuple[int, int | None, dict[str, list[int]]]]:
    assert comparison.groups is not None
    return {one.change: (one.groups, one.tokens, one.ids) for one in comparison.groups.changes}


POLICY = {"max_staleness": 5, "enable_partial_rollout": True}

# Group 1 has a stale member (version 0) and a fresh one (version 2); group 2 is fresh.
STALE_MATE = [
    refresh(train_step=3),
    put(group_id=1, rollout_id=1, train_step=3, model_step=0, tokens=10),
    put(group_id=2, rollout_id=3, train_step=3, model_step=2, tokens=8),
    take(train_step=3, batch_size=2),
    sample(group_id=1, status="expired"),
    put(group_id=1, rollout_id=1, train_step=4, model_step=3, tokens=6),
    take(train_step=4, batch_size=1),
]


def test_groups_that_changed_fate_and_the_first_difference(tmp_path: Path):
    a, b = sides(
        tmp_path,
        STALE_MATE,
        {"policy": POLICY},
        {"policy": POLICY | {"max_token_staleness": 0, "tail_batch_trigger_size": -1}},
    )
    compared = compare(a, b, with_ids=True)
    assert compared.groups is not None
    assert compared.groups.missing == ""
    assert changes(compared) == {
        "trained later in B": (1, 6, {"default": [1]}),
        "expired more often in B": (1, None, {"default": [1]}),
    }
    assert compared.divergence is not None
    assert compared.divergence.train_step == 3
    assert compared.divergence.why == (
        "step 3, put of default/1: expired by token (staleness 2, limit 1) and is discarded (10 tokens lost) under B, "
        "taken with 10 tokens trained and 0 masked as stale under A",
        "settings behind it: max_token_staleness of default off → 0",
    )


def test_what_arrived_expired_has_no_staleness_that_struck(tmp_path: Path):
    rows = [put(group_id=3, rollout_id=1, train_step=1, tokens=6, status="expired"), take(train_step=1)]
    a, b = sides(
        tmp_path,
        rows,
        {"policy": POLICY | {"tail_batch_trigger_size": 1}},
        {"policy": POLICY | {"tail_batch_trigger_size": -1}},
    )
    divergence = compare(a, b).divergence
    assert divergence is not None
    assert divergence.why[0] == (
        "step 1, put of default/3: expired as put and is discarded (6 tokens lost) under B, "
        "expired as put and is generated again (6 tokens lost) under A"
    )


FRESH_MATE = [
    put(5, group_id=7, rollout_id=1, train_step=3, model_step=0, tokens=10),
    put(5, group_id=7, rollout_id=2, train_step=3, model_step=2, tokens=4),
]


def test_fresh_members_lost_and_groups_lost(tmp_path: Path):
    rows = [*FRESH_MATE, take(9, train_step=3), take(10, train_step=4)]
    a, b = sides(
        tmp_path,
        rows,
        {"policy": {"max_staleness": 1, "tail_batch_trigger_size": 1}},
        {"policy": {"max_staleness": 1, "tail_batch_trigger_size": -1}},
    )
    compared = compare(a, b, with_ids=True)
    assert changes(compared) == {
        "still waiting at the end in A, discarded in B": (1, None, {"default": [7]}),
        "fresh members lost, more tokens in B": (1, 4, {"default": [7]}),
        "rolled again, fewer tokens in B": (1, 10, {"default": [7]}),
    }
    assert compared.divergence is not None
    assert compared.divergence.why == (
        "step 3, put of default/7: expired by sequence (staleness 2, limit 2) and is discarded (14 tokens lost, "
        "4 of them fresh) under B, expired by sequence (staleness 2, limit 2) and is generated again (10 tokens lost) "
        "under A",
        "settings behind it: tail_batch_trigger_size of default 1 → -1",
    )


def test_masks_are_told_apart(tmp_path: Path):
    rows = [
        put(group_id=1, train_step=3, tokens=5, response_model_steps=[0, 0, 2, 2, 2], model_step=None),
        take(train_step=3),
    ]
    a, b = sides(tmp_path, rows, {"policy": POLICY}, {"policy": POLICY | {"max_token_staleness": 0}})
    compared = compare(a, b, with_ids=True)
    assert changes(compared) == {"masked more in B": (1, 2, {"default": [1]})}
    assert compared.divergence is not None
    assert compared.divergence.why[0] == (
        "step 3, take of default/1: taken with 3 tokens trained and 2 masked as stale under B, "
        "taken with 5 tokens trained and 0 masked as stale under A"
    )


def test_an_order_that_differs_names_the_policy(tmp_path: Path):
    rows = [
        put(group_id=1, train_step=3, model_step=2),
        put(group_id=2, train_step=3, model_step=0),
        take(train_step=3, batch_size=1),
        take(train_step=4, batch_size=1),
    ]
    a, b = sides(tmp_path, rows, {"policy": POLICY}, {"policy": POLICY, "buffer": {"replay_policy": "fifo"}})
    compared = compare(a, b, with_ids=True)
    assert changes(compared) == {
        "trained later in B": (1, 4, {"default": [2]}),
        "trained earlier in B": (1, 4, {"default": [1]}),
    }
    assert compared.divergence is not None
    assert compared.divergence.why[1] == "settings behind it: replay_policy staleness → fifo"


def test_equal_configs_do_not_differ(tmp_path: Path):
    compared = compare(*sides(tmp_path, STALE_MATE, {"policy": POLICY}, {"policy": POLICY}))
    assert not compared.differs
    assert compared.divergence is None
    assert divergence_lines(compared) == ["no step differs"]
    assert changes(compared) == {}


def test_a_difference_behind_the_last_step_is_the_first_difference(tmp_path: Path):
    rows = [take(train_step=3), put(group_id=1, train_step=4, model_step=0)]
    a, b = sides(tmp_path, rows, {"policy": POLICY}, {"policy": {"max_staleness": 0}})
    compared = compare(a, b)
    assert compared.divergence is not None
    assert compared.divergence.train_step is None
    assert compared.divergence.why[0].startswith("after the last step, put of default/1: expired by sequence")
    assert compared.steps == ()


@examples(0.6)
@given(logs(), configs(), configs())
def test_groups_add_up_to_the_totals_and_a_run_equals_itself(log: list[Row], a: Row, b: Row):
    digest = make_digest(log)
    tapes: list[GroupEvents] = []
    totals: list[dict[str, int]] = []
    for config in (a, b):
        parsed = parse_config(config, "random")
        tape = GroupEvents()
        try:
            events = list(replay(digest, parsed))
        except TokenauditError:
            return
        for event in events:
            tape.add(event)
        account = combined(count(events, run_tasks(digest, parsed)).totals.values())
        totals.append(
            {
                metric.name: int(account.value(metric) or 0)
                for metric in (TRAINED_TOKENS, MASKED_STALE_TOKENS, RESET_TOKENS, DISCARDED_FRESH_TOKENS)
            }
        )
        tapes.append(tape)
    for tape, total in zip(tapes, totals, strict=True):
        fates = outcomes_of_run(tape)
        assert list(total.values()) == [int(fates[name].sum()) for name in ("trained", "masked", "reset", "fresh_lost")]
        same = compare_outcomes(fates, fates, from_ids=False, with_ids=True)
        assert (same.changed, same.changes) == (0, ())
    both = compare_outcomes(*map(outcomes_of_run, tapes), from_ids=False, with_ids=True)
    assert all(sum(map(len, change.ids.values())) == change.groups for change in both.changes)
    assert max((change.groups for change in both.changes), default=0) <= both.changed <= both.compared


def test_a_tape_is_small():
    tape = GroupEvents()
    rows = numbered([put(group_id=number) for number in range(1000)] + [take(batch_size=1000)])
    for event in replay(make_digest(rows), parse_config({"policy": {"max_staleness": 9}}, "test")):
        tape.add(event)
    frame = tape.frame()
    assert frame.height == 2000
    assert frame.estimated_size() / frame.height < 64
    assert set(frame["kind"]) == {Kind.PUT, Kind.TAKEN}
    assert isinstance(frame, pl.DataFrame)


# ---- figures


def change(a: Any, b: Any, name: str = "dropped_tokens") -> FigureChange:
    (figure,) = figures_named([name])
    return FigureChange(figure, a, b)


@pytest.mark.parametrize(
    ("a", "b", "cells", "effect"),
    [
        (100, 102, ("100", "102", "+2", "+2.0 %"), Effect.WORSE),
        (102, 100, ("102", "100", "-2", "-2.0 %"), Effect.BETTER),
        (7, 7, ("7", "7", "0", "0.0 %"), Effect.NONE),
        (0, 0, ("0", "0", "0", "0.0 %"), Effect.NONE),
        (0, 5, ("0", "5", "+5", "from 0"), Effect.WORSE),
        (-100, -98, ("-100", "-98", "+2", "+2.0 %"), Effect.WORSE),
        (-100, -102, ("-100", "-102", "-2", "-2.0 %"), Effect.BETTER),
        (-4, 4, ("-4", "4", "+8", "+200.0 %"), Effect.WORSE),
        (10**6, 10**6 + 1, ("1,000,000", "1,000,001", "+1", "+<0.1 %"), Effect.WORSE),
        (None, None, ("–", "–", "0", "–"), Effect.NONE),
        (None, 3, ("–", "3", "–", "–"), Effect.NONE),
        (3, None, ("3", "–", "–", "–"), Effect.NONE),
        (Missing.ABSENT, 3, ("absent", "3", "–", "–"), Effect.NONE),
        (Missing.ABSENT, None, ("absent", "–", "–", "–"), Effect.NONE),
    ],
)
def test_changes_of_a_figure(a: Any, b: Any, cells: tuple[str, ...], effect: Effect):
    one = change(a, b)
    assert change_cells(one) == (*cells, str(effect))
    assert one.differs is (a != b)


@given(st.integers(-(10**12), 10**12), st.integers(-(10**12), 10**12))
def test_the_relative_change_has_the_sign_of_the_change(a: int, b: int):
    relative = change(a, b).relative
    if a == 0:
        assert relative is None
    else:
        assert relative is not None
        assert (relative > 0, relative < 0) == (b > a, b < a)
        assert a + relative * abs(a) == b


def test_the_effect_follows_the_better_direction():
    assert change(1, 2, "trained_tokens").effect is Effect.BETTER
    assert change(1, 2, "put_groups").effect is Effect.NONE


def test_only_what_is_a_gain_whatever_else_happens_has_a_direction():
    directed = {figure.name: figure.better for figure in FIGURES if figure.better is not Better.NEUTRAL}
    assert directed == {
        "failed_samples": Better.LOWER,
        "expired_groups": Better.LOWER,
        "trained_tokens": Better.HIGHER,
        "dropped_tokens": Better.LOWER,
        "shortfall_groups": Better.LOWER,
        "wall_time_us": Better.LOWER,
        "dropped_token_rate": Better.LOWER,
        "expired_group_rate": Better.LOWER,
        "masked_token_rate": Better.LOWER,
        "trained_token_rate": Better.HIGHER,
        "tokens_per_trained_token": Better.LOWER,
    }


def test_a_figure_absent_on_one_side_differs_and_one_absent_on_both_is_left_out():
    a, b = totals_of(), totals_of()
    del a.totals["expired_groups"], b.totals["expired_groups"], b.totals["failed_tokens"]
    totals = {one.figure.name: one for one in compare(Side("a", a), Side("b", b)).totals}
    assert "expired_groups" not in totals
    assert totals["failed_tokens"].b is Missing.ABSENT
    assert totals["failed_tokens"].differs


def test_steps_that_one_side_lacks_are_told():
    a = made_result([{}, {"math": {"dropped_tokens": 5}}, {}])
    b = made_result([{}, {"math": {"dropped_tokens": 9}}])
    compared = compare(Side("a", a), Side("b", b))
    assert (compared.only_a, compared.only_b) == ((3,), ())
    assert compared.divergence is not None
    assert compared.divergence.train_step == 2
    shorter = compare(Side("b", made_result([{}])), Side("a", a))
    assert shorter.only_b == (2, 3)
    assert shorter.divergence is not None
    assert shorter.divergence.why == ("only B has this step",)


def test_steps_that_a_selection_leaves_out_are_not_lacking():
    a = made_result([{}, {"math": {"dropped_tokens": 5}}, {"math": {"dropped_tokens": 7}}])
    b = made_result([{"math": {"dropped_tokens": 3}}, {"math": {"dropped_tokens": 5}}])
    compared = compare(Side("a", select_steps(a, 2, 3)), Side("b", b))
    assert (compared.only_a, compared.only_b) == ((3,), ())
    assert compared.divergence is not None
    assert compared.divergence.train_step == 3
    assert step_lines(compared) == ["1 step only in A: 3", "of the steps, only 2..3 are compared"]
    turned = compare(Side("b", b), Side("a", select_steps(a, 2, 3)))
    assert (turned.only_a, turned.only_b) == ((), (3,))
    assert step_lines(compare(Side("a", a), Side("b", b))) == ["1 step only in A: 3"]


def test_a_step_that_comes_twice_is_compared_row_by_row():
    def run(first: int, second: int) -> Side:
        made = made_result([{"math": {"dropped_tokens": first}}, {"math": {"dropped_tokens": second}}])
        return Side("x", replace(made, steps=[row | {"train_step": 1} for row in made.steps]))

    assert [step.train_step for step in compare(run(1, 1), run(1, 2)).steps] == [1]
    assert [step.train_step for step in compare(run(1, 1), run(2, 2)).steps] == [1, 1]
    assert compare(run(1, 1), Side("y", made_result([{"math": {"dropped_tokens": 1}}]))).only_a == (1,)


def test_steps_are_ranked_by_the_size_of_the_change():
    def run(*dropped: int) -> Side:
        return Side("x", made_result([{"math": {"dropped_tokens": value}} for value in dropped]))

    compared = compare(run(5, 5, 5, 5), run(5, 0, 9, 20), top=2)
    assert compared.ranked_by is DROPPED_TOKENS
    assert [step.train_step for step in compared.largest] == [4, 2]


def test_steps_are_ranked_by_the_first_figure_that_was_asked_for_and_moves():
    a = made_result([{"math": {"dropped_tokens": 1, "expired_groups": 1, "taken_groups": 1}}])
    b = made_result([{"math": {"dropped_tokens": 9, "expired_groups": 2, "taken_groups": 1}}])
    asked = figures_named(["taken_groups", "expired_groups", "dropped_tokens"])
    ranked_by = compare(Side("a", a), Side("b", b), figures=asked).ranked_by
    assert ranked_by is not None
    assert ranked_by.name == "expired_groups"


def test_only_the_figures_asked_for_are_compared():
    a, b = totals_of(dropped_tokens=1, expired_groups=1), totals_of(dropped_tokens=2, expired_groups=1)
    compared = compare(Side("a", a), Side("b", b), figures=figures_named(["expired_groups"]))
    assert not compared.differs
    assert [one.figure.name for one in compared.totals] == ["expired_groups"]


def test_settings_that_differ_with_their_origins():
    a = replace(made_result([{}]), config={"policy": {"max_staleness": 2}, "gate": {"rules": ["expired_groups <= 0"]}})
    b = replace(made_result([{}]), config={"policy": {"max_staleness": 3}, "tasks": {"math": {"weight": 2.0}}})
    compared = compare(Side("a", a, {"policy.max_staleness": "a.toml"}), Side("b", b))
    assert [(one.key, one.a, one.b, one.a_origin, one.b_origin) for one in compared.settings] == [
        ("policy.max_staleness", 2, 3, "a.toml", "saved result"),
        ("tasks.math.weight", None, 2.0, "", "saved result"),
    ]
    assert compared.differs


def test_a_saved_config_that_cannot_be_read_is_an_error():
    broken = replace(made_result([{}]), config={"policy": {"max_stale": 2}})
    with pytest.raises(ConfigError, match="unknown key"):
        compare(Side("a", broken), Side("b", made_result([{}])))


def test_without_group_ids_the_fates_are_not_available():
    compared = compare(Side("a", made_result([{}])), Side("b", made_result([{}])))
    assert compared.groups is None
    assert compared.groups_missing.startswith("A and B have no group ids: save with --groups")


def test_saved_ids_tell_as_much_as_they_can(tmp_path: Path):
    a, b = sides(
        tmp_path,
        STALE_MATE,
        {"policy": POLICY},
        {"policy": POLICY | {"max_token_staleness": 0, "tail_batch_trigger_size": -1}},
    )
    compared = compare(replace(a, tape=None), replace(b, tape=None), with_ids=True)
    assert changes(compared) == {
        "trained later in B": (1, None, {"default": [1]}),
        "expired more often in B": (1, None, {"default": [1]}),
    }
    assert compared.groups is not None
    assert compared.groups.missing


def test_unknown_figures_are_named_with_the_nearest():
    with pytest.raises(UsageError) as raised:
        figures_named(["dropped_token", "expired_groups", "trained_rate"])
    assert [problem.hint for problem in raised.value.problems] == [
        "did you mean 'dropped_tokens'?",
        "did you mean 'trained_token_rate'?",
    ]


def test_both_sides_of_a_comparison_never_read_alike():
    sides = [Side("", totals_of(dropped_tokens=dropped, produced_tokens=10_000_000)) for dropped in (50_000, 50_001)]
    change = next(one for one in compare(*sides).totals if one.figure.name == "dropped_token_rate")
    assert change_cells(change)[:3] == ("0.50000 %", "0.50001 %", "+0.00001 pp")


@pytest.mark.parametrize(("train_step", "version", "members"), [(3_000_000, 0, 800), (1, 2**31 - 1, 2)])
def test_staleness_of_a_whole_group_needs_more_than_32_bits(
    tmp_path: Path, train_step: int, version: int, members: int
):
    rows = [put(1, 1, rollout, tokens=1, train_step=train_step, model_step=version) for rollout in range(members)]
    a, b = ({"policy": {"max_staleness": most}} for most in (4_000_000, 4_000_001))
    made = sides(tmp_path, [*rows, take(2, train_step)], a, b)
    assert made[0].tape is not None
    ages = made[0].tape.frame().filter(pl.col("kind") == int(Kind.TAKEN))["age"].to_list()
    assert ages == [members * (train_step - 1 - version)]

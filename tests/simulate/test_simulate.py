"""Runs small enough to follow by hand, limits, ties, and runs that can't go on."""

from __future__ import annotations

import random
from typing import Any

import pytest

from tests.simulate.simulated import config, prompts, ran, response, result_of, workload
from tokenaudit.config.model import parse_config
from tokenaudit.contracts import metrics as m
from tokenaudit.contracts.errors import ConfigError
from tokenaudit.lifecycle.types import Response, Status
from tokenaudit.simulate import scheduling
from tokenaudit.simulate.disaggregated import Producer, Trainer, next_poll
from tokenaudit.simulate.engine import Engine, Flight, Generation, Meter
from tokenaudit.simulate.entries import CannotGoOnError, StuckReason
from tokenaudit.simulate.settings import DisaggregatedTimes
from tokenaudit.simulate.workload import PromptPasses
from tokenaudit.simulate.world import ProducerStatus, World

SIMULATED = [metric.name for metric in m.SIMULATED_METRICS]


def facts(rows: list[dict[str, Any]], **options: Any) -> list[dict[str, int]]:
    """What only simulated rows hold, of every step; zeros left out."""
    result = result_of(rows, options.pop("run_config"), **options)
    return [{name: row[name] for name in SIMULATED if row.get(name)} for row in result.steps]


def puts(run: Any) -> list[tuple[int, int, list[tuple[str, int]]]]:
    """(time, group, [(status, tokens) of each member]) of every put."""
    return [
        (entry[0], entry[5], [(member[1], sum(tokens for _, tokens, _ in member[2])) for member in entry[6]])
        for entry in run.entries
        if entry[1] == "put"
    ]


# ---- the figures of a step


def test_a_disaggregated_run_by_hand():
    """Batches of one; train 20, sync 5, poll 3; nothing may be generated ahead.

    Group 0 ends at 10, the trainer polls at 12 and trains until 32; the sync ends at 37. The producer stopped at 10,
    so it wakes at 40 (at 37 the sync was still on), group 1 ends at 50, and the trainer takes it at 52 (37 + 5 · 3).
    """
    first = {
        "taken_at_us": 12,
        "wall_time_us": 12,
        "trainer_wait_us": 12,
        "rollout_idle_us": 2,
        "rollout_busy_us": 10,
        "producer_paused_us": 2,
        "expired_batch": 1,
    }
    later = {
        "wall_time_us": 40,
        "trainer_wait_us": 15,
        "trainer_busy_us": 20,
        "rollout_idle_us": 30,
        "rollout_busy_us": 10,
        "producer_paused_us": 22,
        "expired_batch": 1,
    }
    assert facts(prompts(10, 10, 10), run_config=config(steps=3)) == [
        first,
        {"taken_at_us": 52} | later,
        {"taken_at_us": 92} | later,
    ]


def test_totals_and_ratios_of_that_run():
    totals = result_of(prompts(10, 10, 10), config(steps=3)).totals
    assert totals["wall_time_us"] == 92
    assert totals["expired_batch"] == 3
    assert "taken_at_us" not in totals
    assert totals["ratios"] == {
        "tokens_per_trained_token": {"numerator": 30, "denominator": 30},
        "trainer_utilization": {"numerator": 40, "denominator": 92},
        "rollout_utilization": {"numerator": 30, "denominator": 92},
    }


def test_aborted_groups_in_flight_and_tail_batches():
    """Group 1 is oversampled, cut off by the sync at 32 and too old: it expires, and a tail batch of one begins."""
    run_config = config(steps=2, over_sample_threshold=1.0, tail_batch_trigger_size=1)
    rows = facts(prompts(10, 100, 10), run_config=run_config)
    assert [row.get("in_flight_groups", 0) for row in rows] == [1, 0]
    assert [row.get("aborted_groups", 0) for row in rows] == [0, 1]
    assert [row.get("tail_batch_rounds", 0) for row in rows] == [0, 1]
    run = ran(prompts(10, 100, 10), run_config)
    assert puts(run) == [(10, 0, [("completed", 10)]), (32, 1, [("aborted", 32)]), (140, 1, [("completed", 100)])]


def test_recycled_prompts_have_new_ids():
    rows = [response(3, 7, tokens=4), response(5, 9, tokens=4)]
    run = ran(rows, config("colocated", steps=5))
    assert [entry[5] for entry in run.entries if entry[1] == "put"] == [3, 5, 9, 11, 15]
    assert [entry[6][0][0] for entry in run.entries if entry[1] == "put"] == [7, 9, 17, 19, 27]
    result = result_of(rows, config("colocated", steps=5))
    assert [row["recycled_prompts"] for row in result.steps] == [0, 0, 1, 1, 1]
    assert result.totals["recycled_prompts"] == 3


def test_a_colocated_window_waits_for_its_slowest_batch():
    """Two tasks side by side; the window closes at 30, when b has its group; a has put one and leaves one unclaimed."""
    rows = prompts(10, 20, 20, task_name="a") + prompts(30, task_name="b")
    run_config = config("colocated", steps=1, batch=2, tasks={"a": {"over_sample_threshold": 1.0}, "b": {}})
    run = ran(rows, run_config)
    assert puts(run) == [(10, 0, [("completed", 10)]), (30, 0, [("completed", 30)]), (30, 1, [("completed", 20)])]
    row = result_of(rows, run_config).steps[0]
    assert (row["taken_at_us"], row["trainer_wait_us"], row["rollout_idle_us"]) == (30, 30, 0)
    assert row["tasks"]["a"]["leftover_completed"] == 1


def test_an_empty_batch_belongs_to_the_step_that_waits():
    """K = 2: the producer may run to step 2 and stops at 20. Step 2 begins at 32, without a sync after step 1.

    Its batch is there, but version 1 is due, so nothing is taken before the sync that ends at 37.
    """
    run_config = config(steps=2, sync_weights_interval=2)
    run = ran(prompts(*[10] * 8), run_config)
    assert [entry[:4] for entry in run.entries if entry[1] in ("sync", "take")] == [
        (12, "take", 1, "default"),
        (37, "sync", 2, 1),
        (37, "take", 2, "default"),
    ]
    rows = facts(prompts(*[10] * 8), run_config=run_config)
    assert rows[1] == {
        "taken_at_us": 37,
        "wall_time_us": 25,
        "trainer_busy_us": 20,
        "rollout_idle_us": 17,
        "rollout_busy_us": 8,
        "producer_paused_us": 12,
    }


# ---- what a response comes to


def rounds_of_group_1(*, partial: bool) -> list[tuple[str, int, int]]:
    """(status, tokens, prior_len) of every put of a response of 100 tokens that every sync cuts off."""
    run_config = config(steps=9, over_sample_threshold=1.0, max_staleness=9, enable_partial_rollout=partial)
    run = ran(prompts(10, 100, *[5] * 60), run_config)
    members = [entry[6][0] for entry in run.entries if entry[1] == "put" and entry[5] == 1]
    return [(member[1], sum(tokens for _, tokens, _ in member[2]), member[3]) for member in members]


def test_with_partial_rollout_an_aborted_response_continues():
    rounds = rounds_of_group_1(partial=True)
    assert [status for status, _, _ in rounds] == ["aborted"] * (len(rounds) - 1) + ["completed"]
    assert [tokens for _, tokens, _ in rounds][-1] == 100
    assert [prior for _, _, prior in rounds] == [0, *(tokens for _, tokens, _ in rounds[:-1])]


def test_without_partial_rollout_it_starts_from_none():
    rounds = rounds_of_group_1(partial=False)
    assert len(rounds) > 3
    assert {(status, prior) for status, _, prior in rounds} == {("aborted", 0)}
    assert max(tokens for _, tokens, _ in rounds) == 32


def test_a_failed_response_takes_its_time_and_has_no_tokens():
    rows = [
        response(0, 0, tokens=8, failed=True),
        response(0, 1, tokens=3, agentic=True, reward=1.0),
        response(1, 2, tokens=5),
    ]
    run = ran(rows, config("colocated", steps=1))
    time, _, members = puts(run)[0]
    assert (time, members) == (8, [("failed", 0), ("completed", 3)])
    result = result_of(rows, config("colocated", steps=1))
    assert (result.totals["failed_samples"], result.totals["failed_tokens"]) == (2, 3)
    assert result.totals["taken_groups"] == 1


def test_a_failed_response_that_is_cut_off_earlier_is_an_ordinary_aborted_one():
    rows = [*prompts(10), response(1, 1, tokens=100, failed=True), response(2, 2)]
    run = ran(rows, config(steps=2, over_sample_threshold=1.0))
    assert (32, 1, [("aborted", 32)]) in puts(run)


def test_a_group_with_a_filtered_response_is_put_as_filtered_once_completed():
    rows = [response(0, 0, filtered=True), response(0, 1, tokens=4, reward=2.0), response(1, 2)]
    result = result_of(rows, config("colocated", steps=1))
    assert (result.totals["filtered_samples"], result.totals["filtered_tokens"]) == (2, 14)
    assert result.totals["raw_rewards_sum"] == 2.0


def test_agentic_and_reward_exist_from_completion_on():
    rows = [
        response(0, 0, tokens=10),
        response(1, 1, tokens=100, agentic=True, reward=1.0),
        response(1, 2, tokens=10, agentic=True, reward=0.5),
    ]
    run = ran(rows, config(steps=2, over_sample_threshold=1.0, max_staleness=5))
    cut_off = next(entry for entry in run.entries if entry[1] == "put" and entry[5] == 1)
    assert [(member[1], member[4], member[5]) for member in cut_off[6]] == [
        ("aborted", False, None),
        ("completed", True, 0.5),
    ]


def test_segments_of_a_rollout_stay_rows_of_their_own():
    rows = [response(0, 4, tokens=6), response(0, 4, tokens=2), response(1, 5)]
    given = workload(rows)
    generation = Generation(given.tasks["default"], partial_rollout=False)
    flight = generation.flight(0, PromptPasses("default", given.tasks["default"]).take(), ())
    flight.start = [0, 0]
    landing = generation.land(flight, 0, 6)
    assert [(r.rollout_id, r.segment, r.tokens) for r in landing.responses] == [(4, 0, 6), (4, 1, 2)]


def test_a_landing_counts_what_its_members_did_not_continue_from():
    given = workload([response(0, 0, tokens=10, failed=True), response(0, 1, tokens=10)])
    held = (
        Response(0, Status.ABORTED, ((0, 4, 4),)),
        Response(1, Status.ABORTED, ((0, 7, 7),)),
    )
    for partial, restarted in ((True, 4), (False, 11)):
        generation = Generation(given.tasks["default"], partial_rollout=partial)
        flight = generation.flight(0, PromptPasses("default", given.tasks["default"]).take(), held)
        flight.start = [0, 0]
        assert generation.land(flight, 1, 10).restarted_tokens == restarted


# ---- one instant


def test_a_group_that_ends_when_it_is_cut_off_has_finished():
    run = ran(prompts(10, 32, 10), config(steps=2, over_sample_threshold=1.0, max_staleness=5))
    assert (32, 1, [("completed", 32)]) in puts(run)


def test_a_group_that_ends_at_a_poll_of_the_trainer_is_in_its_batch():
    assert result_of(prompts(12), config(steps=1)).steps[0]["taken_at_us"] == 12


def test_ends_of_one_instant_come_in_order_of_spawning_however_they_were_pushed():
    ends = [(random.Random(seed).randint(1, 3), seed) for seed in range(40)]
    engine = Engine()
    spawned: list[Flight] = []
    for time, group_id in ends:
        given = workload([response(group_id, group_id, tokens=time)])
        generation = Generation(given.tasks["default"], partial_rollout=False)
        flight = generation.flight(0, PromptPasses("default", given.tasks["default"]).take(), ())
        engine.spawn(flight, 0)
        spawned.append(flight)
    popped = []
    while engine.next_end is not None:
        popped.append((engine.next_end, engine.pop_end()))
    expected = sorted(zip((time for time, _ in ends), range(40), strict=True))
    assert [(time, flight.prompt.group_id) for time, flight in popped if flight] == expected


def test_the_order_of_files_rows_of_other_tasks_does_not_matter():
    rows = prompts(10, 7, 9, [4, 4], task_name="a") + prompts(6, [5, 8], 10, task_name="b")
    run_config = config(batch=2, steps=4, tasks={"a": {}, "b": {"over_sample_threshold": 1.0}})
    expected = ran(rows, run_config).entries
    of_a = [row for row in rows if row["task_name"] == "a"]
    of_b = [row for row in rows if row["task_name"] == "b"]
    for seed in range(5):
        order = ["a"] * len(of_a) + ["b"] * len(of_b)
        random.Random(seed).shuffle(order)
        queues = {"a": iter(of_a), "b": iter(of_b)}
        assert ran([next(queues[name]) for name in order], run_config).entries == expected


@pytest.mark.parametrize(
    ("base", "interval", "now", "may_be_now", "expected"),
    [
        (10, 3, 10, False, 13),
        (10, 3, 12, False, 13),
        (10, 3, 13, False, 16),
        (10, 3, 13, True, 13),
        (10, 3, 10, True, 13),
    ],
)
def test_the_next_poll(base: int, interval: int, now: int, may_be_now: bool, expected: int):
    assert next_poll(base, interval, now, may_be_now=may_be_now) == expected


def test_a_meter_adds_up_and_laps():
    meter = Meter()
    meter.set(True, 5)
    assert meter.lap(8) == 3
    meter.set(True, 9)
    meter.set(False, 10)
    meter.set(False, 20)
    assert (meter.lap(30), meter.lap(31)) == (2, 0)


# ---- concurrency


@pytest.mark.parametrize(("limit", "ends"), [(None, [5, 10]), (3, [10, 10]), (2, [10, 15]), (1, [20, 30])])
def test_max_concurrency_serves_who_was_spawned_first(limit: int | None, ends: list[int]):
    rows = prompts([10, 10], [5, 5])
    run = ran(rows, config("colocated", steps=1, batch=2), limit)
    assert sorted(entry[0] for entry in run.entries if entry[1] == "put") == ends


def test_a_response_that_never_began_is_cut_off_without_tokens():
    run = ran(prompts(10, 100, 10), config(steps=2, over_sample_threshold=2.0), 1)
    cut_off = {group: members for time, group, members in puts(run) if time == 32}
    assert cut_off == {1: [("aborted", 22)], 2: [("aborted", 0)]}


def test_a_limit_that_never_binds_changes_nothing():
    rows = prompts(10, [7, 9], [4, 4], 20)
    assert ran(rows, config(batch=2), 8).entries == ran(rows, config(batch=2)).entries


# ---- runs that can't begin


@pytest.mark.parametrize(
    ("rows", "run_config", "told"),
    [
        (prompts(5), config(tasks={"other": {}}, batch=2), "task other has no prompt in the workload"),
        (prompts(5, failed=True), config(), "every group of task default is marked as failed or filtered"),
        (prompts([5, 5], filtered=True), config(), "every group of task default is marked as failed or filtered"),
        (prompts(5), config(over_sample_threshold=1e308), "task default would begin more than 200,000 groups at once"),
        (prompts(5), config(batch=2_000_000), "task default would begin more than 200,000 groups at once"),
        (prompts(5), config(steps=2_000_000), "a simulation of 2000000 steps"),
        (prompts(5), parse_config({"timeline": {"train_batch_size": 1}}, ""), "needs timeline.steps"),
    ],
)  # fmt: skip
def test_runs_that_cannot_begin(rows: list[dict[str, Any]], run_config: Any, told: str):
    with pytest.raises(ConfigError, match=told.replace("(", r"\(")):
        ran(rows, run_config)


def test_everything_that_is_missing_is_told_at_once():
    bare = parse_config({"mode": "disaggregated"}, "")
    with pytest.raises(ConfigError) as caught:
        ran(prompts(5), bare)
    told = [problem.where for problem in caught.value.problems]
    keys = ("steps", "train_batch_size", "train_time_us", "sync_time_us", "poll_interval_us")
    assert told == [f"timeline.{key}" for key in keys]


# ---- runs that can't go on


def test_a_whole_pass_without_a_completed_group_ends_the_run():
    """While step 1 trains, puts are compared with step 2: tokens of version 0 are stale and take their group along."""
    run_config = config(max_staleness=3, max_token_staleness=0, train_time_us=10**15)
    run = ran(prompts(5, 6, 7), run_config)
    assert run.stuck is not None
    assert run.stuck.train_step == 2
    (task,) = run.stuck.tasks
    assert (task.task_name, task.reason) == ("default", StuckReason.NO_COMPLETED_GROUP)
    assert "a whole pass over its 3 prompts ended without one" in task.message
    assert [row.train_step for row in run.ledger.rows] == [1]


def test_enough_prompts_get_that_run_over_the_training():
    run_config = config(max_staleness=3, max_token_staleness=0, train_time_us=20)
    assert ran(prompts(*[5] * 10), run_config).stuck is None


def test_a_trainer_that_waits_for_a_stopped_producer_says_so():
    run_config = config(batch=3)
    world = World(workload(prompts(5)), run_config, {"default": 3}, None)
    producer = Producer(world, [1], 3)
    trainer = Trainer(world, producer, 3, 1, DisaggregatedTimes(20, 5, 3))
    world.set_status(ProducerStatus.EXPIRED)
    with pytest.raises(CannotGoOnError) as caught:
        trainer.act()
    (report,) = caught.value.reports
    assert report.reason is StuckReason.PRODUCER_STOPPED
    assert report.message.startswith("step 1 waits for 3 completed groups of task default and has 0; the producer has")


def test_a_producer_that_runs_away_ends_the_run(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(scheduling, "MAX_GROUPS_PER_STEP", 50)
    run = ran(prompts(1, 1), config(max_staleness=2**31 - 1, train_time_us=10**15))
    assert run.stuck is not None
    assert [task.reason for task in run.stuck.tasks] == [StuckReason.TOO_MANY_GROUPS]


def test_ids_that_run_out_end_the_run():
    rows = [response(2**62, 1)]
    run = ran(rows, config("colocated", steps=3))
    assert run.stuck is not None
    assert [task.reason for task in run.stuck.tasks] == [StuckReason.IDS_RUN_OUT]
    assert len(run.ledger.rows) == 1


def test_a_clock_that_runs_out_ends_the_run():
    run = ran(prompts(2**31 - 1, time=2**40), config("colocated", steps=3))
    assert run.stuck is not None
    assert [task.reason for task in run.stuck.tasks] == [StuckReason.CLOCK_RUNS_OUT]
    run = ran(prompts(5), config(train_time_us=2**62, steps=3))
    assert run.stuck is not None


def test_a_stuck_run_has_its_rows_and_its_reason_in_the_result():
    result = result_of(prompts(5, 6, 7), config(max_staleness=3, max_token_staleness=0, train_time_us=10**15))
    assert [row["train_step"] for row in result.steps] == [1]
    assert result.tail["discarded_groups"] == 3
    assert result.simulation is not None
    assert [(task.task, task.reason) for task in result.simulation.stuck] == [("default", "no_completed_group")]


# ---- configs that ask for trouble


@pytest.mark.parametrize(
    "others",
    [
        {"poll_interval_us": 1, "train_time_us": 10**12, "sync_time_us": 10**12},
        {"poll_interval_us": 2**60},
        {"train_time_us": 0, "sync_time_us": 0, "poll_interval_us": 1},
        {"over_sample_threshold": 500.0},
        {"over_sample_threshold": 500.0, "tail_batch_trigger_size": 0, "max_token_staleness": 0},
        {"sync_weights_interval": 2**31 - 1},
        {"enable_partial_rollout": True, "over_sample_threshold": 40.0, "max_staleness": 1},
    ],
)
@pytest.mark.parametrize("lengths", [[1], [0], [0, 1, 0], [1000, 1], [10**6]])
def test_nasty_runs_end(others: dict[str, Any], lengths: list[int], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(scheduling, "MAX_GROUPS_PER_STEP", 20_000)
    run = ran(prompts(*lengths), config(steps=4, **others))
    assert run.stuck is not None or len(run.ledger.rows) == 4


def test_equal_inputs_give_equal_results():
    rows = prompts(10, [7, 9], [4, 4], 20, reward=0.1)
    assert result_of(rows, config(batch=2)) == result_of(rows, config(batch=2))

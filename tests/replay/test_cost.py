"""GPU-hours and money: by hand, on golden cases, and saved; `tests/simulate` compares them with simulations."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from tests.builders import Row, numbered, put, refresh, sync, take, write_log
from tests.conftest import SAMPLE
from tokenaudit import load_log, replay_log
from tokenaudit.config.model import parse_config
from tokenaudit.contracts import metrics as m
from tokenaudit.contracts.errors import ResultError
from tokenaudit.contracts.schema import META_CONFIG
from tokenaudit.log import batches
from tokenaudit.replay.cost import RunCost, held_gpus
from tokenaudit.replay.result import Result
from tokenaudit.replay.saved_result import result_from_json, result_to_json

GOLDEN = Path(__file__).parent.parent / "golden"
GPUS = ("cost.rollout_gpus=64", "cost.train_gpus=32", "cost.usd_per_gpu_hour=2.5")
HOUR = 3_600_000_000
NAMES = ("failed_tokens", "filtered_tokens", "restarted_tokens")


def at(time: int, row: Row) -> Row:
    return row | {"time_us": time}


def costed(folder: Path, rows: Sequence[Row], *overrides: str, config: dict[str, Any] | None = None) -> RunCost:
    path = write_log(folder / "log.parquet", numbered(rows))
    cost = replay_log(path, config=config, isolated=True, overrides=(*GPUS, *overrides)).result.cost
    assert cost is not None
    return cost


def disaggregated(*, interval: int = 1) -> dict[str, Any]:
    return {"mode": "disaggregated", "timeline": {"sync_weights_interval": interval, "sync_time_us": 5}}


RUN = [
    at(0, refresh(train_step=1)),
    at(10, put(group_id=1, tokens=6)),
    at(11, put(group_id=2, tokens=2, status="failed")),
    at(12, take(train_step=1)),  # waited 12
    at(12, refresh(train_step=2)),
    at(40, sync(train_step=1)),
    at(50, put(group_id=3, train_step=2, tokens=4, model_step=0)),
    at(55, put(group_id=4, train_step=2, tokens=8, model_step=1)),
    at(60, take(train_step=2)),  # waited 20
    at(100, sync(train_step=2, model_step=2)),
]


def test_waste_is_the_share_of_tokens_of_the_time_and_the_price_of_both(tmp_path: Path):
    rows = [row | {"time_us": row["time_us"] * HOUR} for row in RUN]
    cost = costed(tmp_path, rows, config=disaggregated())
    # group 2 failed, group 3 is one step too old at its put
    assert (cost.untrained_tokens, cost.tokens) == (6, 20)
    assert (cost.rollout_us, cost.wait_us) == (100 * HOUR, 32 * HOUR)
    assert cost.amounts == {
        "rollout_gpu_hours": 6400,
        "untrained_gpu_hours": 6400 * Fraction(6, 20),
        "untrained_usd": 6400 * Fraction(6, 20) * Fraction(5, 2),
        "wait_gpu_hours": 32 * 32,
        "wait_usd": 32 * 32 * Fraction(5, 2),
    }
    assert (cost.rollout_missing, cost.wait_missing) == ("", "")


def test_prices_are_what_the_config_spells(tmp_path: Path):
    cost = costed(tmp_path, RUN, "cost.usd_per_gpu_hour=0.1", config=disaggregated())
    assert cost.usd(Fraction(7)) == Fraction(7, 10)


@pytest.mark.parametrize("case", sorted(GOLDEN.iterdir()), ids=lambda path: path.name)
def test_never_trained_are_the_ends_of_the_ledger_that_are_no_other(case: Path):
    """With what was trained, masked by the log, held or in flight, they are all tokens that came in."""
    result = replay_log(case / "log.parquet", config=case / "config.toml", overrides=GPUS).result
    account, cost = result.ledger["total"], result.cost
    assert cost is not None
    dropped = result.totals["dropped_tokens"]
    assert cost.untrained_tokens == dropped + sum(account[name] for name in NAMES)
    others = (m.TRAINED_TOKENS, m.MASKED_SEMANTIC_TOKENS, m.HELD_TOKENS, m.IN_FLIGHT_TOKENS)
    assert cost.untrained_tokens + sum(account[metric.name] for metric in others) == cost.tokens
    assert cost.tokens == result.totals["produced_tokens"] + result.totals["carried_in_tokens"]


WITHOUT_SYNC = [
    at(0, refresh(train_step=1)),
    at(10, put(group_id=1)),
    at(12, take(train_step=1)),
    at(12, refresh(train_step=2)),
    at(30, refresh(train_step=2)),
]
"""The first step of a run whose weights aren't synced behind it."""


def test_steps_without_a_sync_begin_with_their_second_refresh(tmp_path: Path):
    rows = [
        *WITHOUT_SYNC,
        at(50, put(group_id=2, train_step=2)),
        at(51, take(train_step=2)),
    ]
    assert costed(tmp_path, rows, config=disaggregated(interval=2)).wait_us == 12 + 21
    del rows[4]
    cost = costed(tmp_path, rows, config=disaggregated(interval=2))
    assert cost.wait_us is None
    missing = "a sync or a second refresh behind its take, with time_us"
    assert cost.wait_missing == f"nothing says when the training of step 1 ended: {missing}"


def test_nobody_waits_while_the_weights_of_an_empty_batch_move(tmp_path: Path):
    rows = [
        *WITHOUT_SYNC,
        at(45, sync(train_step=2, model_step=1)),
        at(50, put(group_id=2, train_step=2)),
        at(51, take(train_step=2)),
    ]
    assert costed(tmp_path, rows, config=disaggregated(interval=2)).wait_us == 12 + (45 - 5 - 30) + (51 - 45)
    cost = costed(tmp_path, rows, config={"mode": "disaggregated"})
    assert cost.wait_missing == "step 2 had an empty batch, and the config has no timeline.sync_time_us"
    rows[5] = sync(train_step=2, model_step=1)
    missing = costed(tmp_path, rows, config=disaggregated(interval=2)).wait_missing
    assert missing == "step 2 had an empty batch, and its sync has no time_us"


def test_the_batch_is_there_with_the_last_take_of_its_tasks(tmp_path: Path):
    rows = [at(0, put(group_id=1)), at(2, take(train_step=1)), at(9, take(train_step=1, task_name="other"))]
    assert costed(tmp_path, rows, config=disaggregated()).wait_us == 9


def test_colocated_only_the_windows_of_rollouts_count(tmp_path: Path):
    """Between a take and the next refresh the GPUs train."""
    rows = [
        at(3, refresh(train_step=1)),
        at(10, put(group_id=1)),
        at(11, refresh(train_step=1)),
        at(12, take(train_step=1)),
        at(40, sync(train_step=1)),
        at(41, refresh(train_step=2)),
        at(50, put(group_id=2, train_step=2, tokens=4, model_step=1)),
        at(60, take(train_step=2)),
    ]
    cost = costed(tmp_path, rows)
    assert (cost.rollout_us, cost.wait_us) == (9 + 19, None)
    assert cost.wait_missing == "training and rollouts take turns on the same GPUs"
    cost = costed(tmp_path, rows[1:2] + rows[3:])
    what = "nothing says when the rollouts of step 1 began: a refresh or a sync before their puts, with time_us"
    assert (cost.rollout_gpu_hours, cost.rollout_missing) == (None, what)


@pytest.mark.parametrize(
    ("rows", "rollout", "wait"),
    [
        ([put(group_id=1), take()], "the log has no time_us", "the log has no time_us"),
        ([at(1, put(group_id=1)), take()], "", "no take of the log has time_us"),
        ([put(group_id=1), at(1, take())], "no put of the log has time_us", ""),
        ([at(1, put(group_id=1)), put(group_id=2), at(3, take())], "1 of 2 puts have no time_us", ""),
        ([at(1, put(group_id=1)), at(2, take()), take(train_step=2)], "", "1 of 2 takes have no time_us"),
        ([at(1, put(group_id=1)), at(2, sync(train_step=0))], "", "the log records no take"),
        ([at(1, put(group_id=1)), at(9, take()), at(5, sync())], "", "time_us goes back at step 1"),
        (
            [at(-1, put(group_id=1)), at(2**62, take())],
            "time_us is negative or above 2^62 in 2 events",
            "time_us is negative or above 2^62 in 2 events",
        ),
    ],
)
def test_what_is_missing_is_named(tmp_path: Path, rows: list[Row], rollout: str, wait: str):
    cost = costed(tmp_path, rows, config=disaggregated())
    assert (cost.rollout_missing, cost.wait_missing) == (rollout, wait)
    assert (cost.rollout_gpu_hours is None, cost.wait_gpu_hours is None) == (bool(rollout), bool(wait))


def test_keys_that_are_missing_are_named_with_the_times(tmp_path: Path):
    path = write_log(tmp_path / "log.parquet", numbered([put(group_id=1), take()]))
    options = {"config": {"mode": "disaggregated", "cost": {"usd_per_gpu_hour": 2}}, "isolated": True}
    cost = replay_log(path, **options).result.cost
    assert cost is not None
    assert cost.rollout_missing == "the config has no cost.rollout_gpus; the log has no time_us"
    assert cost.wait_missing == "the config has no cost.train_gpus; the log has no time_us"


def test_a_log_run_by_another_config_is_for_a_simulation(tmp_path: Path):
    own = {"mode": "disaggregated", "policy": {"max_staleness": 3}}
    rows = numbered(RUN)
    path = write_log(tmp_path / "log.parquet", rows, metadata={META_CONFIG: json.dumps(own)})

    def is_for_simulation(path: Path, *overrides: str) -> bool:
        cost = replay_log(path, isolated=True, overrides=(*GPUS, *overrides)).result.cost
        assert cost is not None
        return cost.is_for_simulation

    assert not is_for_simulation(path)
    assert not is_for_simulation(path, "timeline.train_time_us=3", "gate.rules=[]", "tasks.default.group_size=1")
    assert is_for_simulation(path, "policy.max_staleness=2")
    assert is_for_simulation(path, "mode=colocated")
    # without a config of the log, tokens that rest on counterfactual rules show it
    again = [put(group_id=1, status="aborted"), refresh(train_step=2), put(group_id=1, train_step=2, prior_len=4)]
    bare = write_log(tmp_path / "bare.parquet", numbered([*again, take(train_step=2)]))
    assert not is_for_simulation(bare, "policy.enable_partial_rollout=true", "policy.max_staleness=3")
    assert is_for_simulation(bare, "policy.enable_partial_rollout=true", "policy.max_staleness=0")


def test_without_a_cost_nothing_is_read_and_nothing_is_saved(monkeypatch: pytest.MonkeyPatch):
    path = SAMPLE
    loaded = load_log(path)
    with_cost = load_log(path, overrides=GPUS)
    costly = with_cost.replay(overrides=(*GPUS, "tasks.code.max_token_staleness=2"))

    def refused(*arguments: object) -> None:
        raise AssertionError(arguments)

    monkeypatch.setattr(batches, "_parts", refused)
    result = loaded.replay()
    assert result.cost is None
    saved = json.loads(result_to_json(result))
    assert "cost" not in saved
    assert "cost" not in saved["config"]
    # times that were read serve every replay of the log
    assert with_cost.replay(overrides=(*GPUS, "tasks.code.max_token_staleness=2")) == costly
    assert costly.cost is not None
    assert costly.cost.rollout_us == 1_650_771_588
    with pytest.raises(AssertionError):
        loaded.replay(overrides=GPUS)


@pytest.fixture(scope="module")
def result() -> Result:
    return replay_log(SAMPLE, overrides=GPUS).result


def test_a_saved_cost_reads_as_it_was(result: Result):
    text = result_to_json(result)
    assert result_from_json(text, "saved.json") == result
    saved = json.loads(text)["cost"]
    assert result.cost is not None
    assert result.cost.untrained_gpu_hours is not None
    assert saved["untrained_gpu_hours"] == float(result.cost.untrained_gpu_hours)
    assert saved["wait_usd"] is None


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"untrained_tokens": 1}, "untrained_tokens is 1, and the ledger's are 1596955"),
        ({"tokens": 5}, "tokens is 5, and the ledger's are 6596441"),
        ({"rollout_gpus": 0}, "GPUs or a price that no config can have"),
        ({"usd_per_gpu_hour": 1e300}, "GPUs or a price that no config can have"),
        ({"rollout_us": -1}, "rollout_us is -1"),
        ({"wait_us": 2**63}, "wait_us is 9223372036854775808"),
        ({"rollout_gpus": "64"}, "Input should be a valid integer"),
    ],
)
def test_a_damaged_cost_is_refused(result: Result, change: dict[str, Any], fault: str):
    data = json.loads(result_to_json(result))
    data["cost"] |= change
    with pytest.raises(ResultError, match=fault):
        result_from_json(json.dumps(data), "saved.json")


def test_a_colocated_run_holds_the_gpus_that_generate():
    data = {"mode": "disaggregated", "cost": {"rollout_gpus": 8, "train_gpus": 4}}
    assert held_gpus(parse_config(data, "test")) == 12
    assert held_gpus(parse_config(data | {"mode": "colocated"}, "test")) == 8
    assert held_gpus(parse_config({}, "test")) is None


def test_no_token_and_no_time_cost_nothing():
    cost = RunCost(64, 32, None, 0, 0, 0, 0)
    assert list(cost.amounts.values()) == [0, 0, None, 0, None]
    assert replace(cost, rollout_us=HOUR).rollout_gpu_hours == 64

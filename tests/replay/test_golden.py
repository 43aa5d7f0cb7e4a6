"""Replay gives the rows that upstream's own replay buffer and managers gave."""

import tomllib
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from tests.builders import Row, make_digest, read_json, read_rows
from tests.oracles.slow_replay import slow_replay
from tokenaudit.config.model import Config, parse_config
from tokenaudit.contracts import metrics as m
from tokenaudit.log.digest import Digest
from tokenaudit.log.files import open_log
from tokenaudit.log.reading import read_digest
from tokenaudit.replay.ledger import Ledger, combined, count
from tokenaudit.replay.open_loop import replay, run_tasks

TESTS = Path(__file__).parent.parent
CASES = sorted(path.name for path in (TESTS / "golden").iterdir())
SAMPLE = "sample"
BY_MANAGERS = [name for name in CASES if not name.startswith("buffer_")] + [SAMPLE]
# Only a simulation knows when a batch was taken; nothing waits as `init` in an open loop.
NOT_METRICS = {"train_step", "taken_groups", "effective_masks", "leftover_init", "taken_at_us", "expired_batch"}


def paths(case: str) -> tuple[Path, Path, Path]:
    """Log, config and expected rows of a case."""
    if case == SAMPLE:
        folder = TESTS.parent / "sample_data"
        return folder / "rollouts.parquet", folder / "config.toml", TESTS / "sample_expected.json"
    folder = TESTS / "golden" / case
    return folder / "log.parquet", folder / "config.toml", folder / "expected.json"


@cache
def config_of(case: str) -> Config:
    return parse_config(tomllib.loads(paths(case)[1].read_text()), "config.toml")


@cache
def expected_rows(case: str) -> list[Row]:
    return read_json(paths(case)[2])["expected"]


@cache
def digest_of(case: str) -> Digest:
    return read_digest(open_log([paths(case)[0]]))


@cache
def log_of(case: str) -> list[Row]:
    return read_rows(paths(case)[0])


def replayed(digest: Digest, case: str) -> Ledger:
    return count(replay(digest, config_of(case)), run_tasks(digest, config_of(case)))


def rows_like(ledger: Ledger, expected: list[Row]) -> list[Row]:
    """The rows of a replay, with the keys of the expected ones."""

    def value(row: Any, key: str) -> Any:
        if key == "train_step":
            return row.train_step
        if key == "taken_groups":
            return {task: ids for task, ids in row.taken_group_ids.items() if ids}
        metric = m.METRICS[key]
        if metric is m.MODEL_STEP:
            return row.model_step
        made = combined(row.accounts.values()).value(metric)
        return pytest.approx(made, abs=1e-6) if metric is m.RAW_REWARDS_SUM else made

    assert len(ledger.rows) == len(expected)
    return [
        {key: value(row, key) for key in keys}
        for row, keys in zip(ledger.rows, map(compared_keys, expected), strict=True)
    ]


def compared_keys(row: Row) -> list[str]:
    return [key for key in row if key not in NOT_METRICS or key in ("train_step", "taken_groups")]


def compared(expected: list[Row]) -> list[Row]:
    rows = [{key: row[key] for key in compared_keys(row)} for row in expected]
    for row in rows:
        row["taken_groups"] = {task: ids for task, ids in row["taken_groups"].items() if ids}
    return rows


@pytest.mark.parametrize("case", [*CASES, SAMPLE])
def test_replay_gives_the_recorded_rows(case):
    expected = compared(expected_rows(case))
    assert rows_like(replayed(digest_of(case), case), expected) == expected


@pytest.mark.parametrize("case", CASES)
def test_as_many_tokens_are_trained_as_the_recorded_masks_have_ones(case):
    ones = [sum(mask.count("1") for mask in row["effective_masks"].values()) for row in expected_rows(case)]
    trained = [combined(row.accounts.values()).value(m.TRAINED_TOKENS) for row in replayed(digest_of(case), case).rows]
    assert trained == ones


@pytest.mark.parametrize(
    ("case", "versions"), [*product(CASES, ("complete", "stamped", "runs")), pytest.param(SAMPLE, "runs")]
)
def test_spelling_versions_otherwise_changes_nothing(case, versions):
    # All puts of these logs have prior_len and model_step, so nothing is lost either way.
    respelled = make_digest(log_of(case), versions=versions)
    assert respelled.content_hash() == digest_of(case).content_hash()
    expected = compared(expected_rows(case))
    assert rows_like(replayed(respelled, case), expected) == expected


@pytest.mark.parametrize("case", BY_MANAGERS)
def test_nothing_is_counterfactual_under_the_config_that_recorded_the_log(case):
    ledger = replayed(digest_of(case), case)
    assert {task: account.value(m.COUNTERFACTUAL_TOKENS) for task, account in ledger.totals.items()} == dict.fromkeys(
        ledger.tasks, 0
    )


@pytest.mark.parametrize("case", CASES)
def test_the_slow_replay_gives_the_recorded_masks(case):
    # The oracle of the other tests is held to the recorded cases too, down to every token.
    config = tomllib.loads(paths(case)[1].read_text())
    masks = [row["effective_masks"] for row in slow_replay(log_of(case), config)["steps"]]
    assert masks == [row["effective_masks"] for row in expected_rows(case)]

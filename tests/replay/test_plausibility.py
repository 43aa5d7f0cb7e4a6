"""Logs whose structure can't be meant: what replay and simulate say of them, and that a gate doesn't judge them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pytest

from tests.builders import put, sync, take, write_log
from tests.conftest import SAMPLE
from tokenaudit import gate_result, replay_log, simulate_workload
from tokenaudit.contracts.errors import Notice, NoticeLevel, ResultError

Row = dict[str, Any]
RULE = "dropped_token_rate <= 100%"


def errors(path: Path, **options: Any) -> list[Notice]:
    result = replay_log(path, isolated=True, **options).result
    return [notice for notice in result.warnings if notice.level is NoticeLevel.ERROR]


def steps(count: int, first_step: int = 1, **columns: Any) -> list[Row]:
    """One put of two responses and one take a step, recorded as they should be."""
    rows = []
    for step in range(first_step, first_step + count):
        common = {"train_step": step, "model_step": step - 1} | columns
        rows += [put(2 * step, step, 2 * step + member, **common) for member in (0, 1)]
        rows.append(take(2 * step + 1, step))
    return rows


def each_its_event(rows: list[Row]) -> list[Row]:
    return [row | {"event_id": number} for number, row in enumerate(rows)]


def ahead(rows: list[Row], by: int) -> list[Row]:
    return [row | {"model_step": row["train_step"] - 1 + by} if row["event"] == "put" else row for row in rows]


@pytest.mark.parametrize(
    ("rows", "code", "message", "fix"),
    [
        (
            each_its_event(steps(4)), "put-per-row",
            "each of 8 puts has one row, though 4 of 4 groups have several rollouts", "give them the same event_id",
        ),
        (
            steps(4, tokens=0), "no-tokens", "none of 8 responses has a token", "Record response_len",
        ),
        (
            steps(5, train_step=1, model_step=0), "constant-train-step",
            "every put has train_step 1, though 3 of 5 come after takes of later steps",
            "t + 1 after the take of step t",
        ),
        (
            ahead(steps(4), 1), "versions-from-future",
            "32 tokens have a version that the trainer had not made when they were put, 32 have any",
            "tokens put at train_step t have at most t - 1. Steps count from 1.",
        ),
        (
            ahead(steps(4), 1000), "versions-from-future",
            "32 tokens have a version that the trainer had not made when they were put, 32 have any", "at most t - 1",
        ),
    ],
)  # fmt: skip
def test_a_structure_that_cannot_be_meant_is_an_error_and_no_verdict(
    rows: list[Row], code: str, message: str, fix: str, tmp_path: Path, run_cli: Any
):
    path = write_log(tmp_path / "log.parquet", rows)
    (notice,) = errors(path)
    assert (notice.code, notice.message) == (code, message)
    assert fix in notice.cost
    ran = run_cli("replay", path, "--isolated", "-q")
    assert ran.code == 0
    assert ran.err.startswith(f"error: {message}\n  {notice.cost}\n")
    ran = run_cli("gate", path, "--isolated", "--rule", RULE, "--allow-lost-events")
    assert (ran.code, ran.out) == (2, "")
    assert f"error: {message}\n  at: log.parquet\n  hint: {notice.cost}\n" in ran.err
    with pytest.raises(ResultError, match="hint: "):
        gate_result(replay_log(path, isolated=True), [RULE])
    assert run_cli("gate", path, "--isolated", "--rule", RULE, "--write-baseline", "baseline.json").code == 2
    assert not Path("baseline.json").exists()


@pytest.mark.parametrize(
    "rows",
    [
        steps(5),
        ahead(steps(5, first_step=2), -1),
        # a group of one response is put again under the same rollout
        each_its_event([put(1, step, step, train_step=step, model_step=step - 1) for step in (1, 2, 2)] + [take(9, 2)]),
        # half of the groups have one rollout
        each_its_event([put(1, group, rollout) for group, rollout in ((1, 1), (1, 2), (2, 3))] + [take(9)]),
        # one put of several has two rows
        [*each_its_event(steps(4)), put(90, 9, 90, train_step=5), put(90, 9, 91, train_step=5)],
        # a buffer filled before training began
        [*(put(step, step, step) for step in range(1, 5)), *(take(4 + step, step) for step in range(1, 5))],
        # an aborted put without tokens
        [put(1, 1, 1, tokens=0, status="aborted"), put(2, 1, 1, tokens=3), take(3)],
        [put(1, 1, 1, tokens=0, status="failed"), take(2)],
        # half of the tokens
        [put(1, 1, 1, model_step=1), put(2, 2, 2), take(3)],
        # at step 0 nothing was trained
        each_its_event([put(1, 7, 7, train_step=0), sync(3, 0, 0), put(1, 8, 8), take(9)]),
    ],
)  # fmt: skip
def test_what_can_be_meant_is_no_error(rows: list[Row], tmp_path: Path):
    path = write_log(tmp_path / "log.parquet", rows)
    assert errors(path) == []


@pytest.mark.parametrize(("sizes", "is_error"), [((3, 3), True), ((3, 2), False), ((2, 2), False)])
def test_no_put_of_the_group_size_is_an_error(sizes: tuple[int, int], is_error: bool, tmp_path: Path):
    rows = [put(group, group, 10 * group + member) for group, size in enumerate(sizes) for member in range(size)]
    path = write_log(tmp_path / "log.parquet", [*rows, take(9)])
    told = errors(path, overrides=["tasks.default.group_size=2"])
    message = "task default: 2 of 2 puts don't have 2 responses (group_size)"
    assert [notice.message for notice in told] == ([message] if is_error else [])


def test_the_sample_with_an_event_for_every_row_is_no_basis(tmp_path: Path):
    """Simulations of it neither; the sample as it is has no such notice."""
    assert errors(SAMPLE) == []
    path = tmp_path / "log.parquet"
    frame = pl.read_parquet(SAMPLE).head(4000)
    frame.with_columns(event_id=pl.arange(len(frame))).write_parquet(path)
    (notice,) = errors(path)
    assert notice.code == "put-per-row"
    options = {"config": SAMPLE.parent / "config.toml", "steps": 1}
    assert notice in simulate_workload(path, **options).result.warnings

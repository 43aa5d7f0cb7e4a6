"""Random runs: against the slow simulator, and through an event log and replay."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from hypothesis import given

from tests.conftest import examples
from tests.oracles.slow_simulate import slow_entries
from tests.simulate.simulated import Case, cases, config, prompts, ran, replayed_part, result_of
from tokenaudit.config.model import Cost
from tokenaudit.contracts.errors import LogError
from tokenaudit.replay.result import Result
from tokenaudit.replay.saved_result import result_from_json, result_to_json
from tokenaudit.replay.session import replay_log
from tokenaudit.simulate.session import simulate_workload

GOLDEN = Path(__file__).parent.parent / "golden"
MANAGER_CASES = sorted(path.parent for path in GOLDEN.glob("*/workload.parquet"))


GPUS = {"rollout_gpus": 64, "train_gpus": 32, "usd_per_gpu_hour": 2.5}


def assert_same_run(simulated: Result, replayed: Result) -> None:
    """What replay tells is the same, to the byte; so is where every token went, and what it cost in vain."""
    assert replayed_part(simulated) == replayed_part(replayed)
    assert simulated.ledger == replayed.ledger
    assert simulated.cost is not None
    assert simulated.simulation is not None
    assert simulated.cost.rollout_us == simulated.totals["wall_time_us"]
    if simulated.config["mode"] == "disaggregated":
        assert simulated.cost.wait_us == simulated.totals["trainer_wait_us"]
    # the log of a run that can't go on ends before the run does
    if not simulated.simulation.stuck:
        assert simulated.cost == replayed.cost


@examples(3)
@given(cases(least_tokens=0))
def test_the_slow_simulator_agrees(case: Case):
    run = ran(case.rows, case.config, case.max_concurrency)
    slow, is_done = slow_entries(case.rows, case.config, case.max_concurrency, run.ended_at)
    assert run.entries == slow[: len(run.entries)]
    assert is_done == (run.stuck is None)
    if is_done:
        assert run.entries == slow


@examples(1.5)
@given(cases(least_tokens=0))
def test_a_run_is_replayed_from_its_event_log(case: Case):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "sim.parquet"
        options = {"max_concurrency": case.max_concurrency, "with_groups": True}
        priced = case.config.model_copy(update={"cost": Cost(**GPUS)})
        simulated = result_of(case.rows, priced, event_log=path, **options)
        replayed = replay_log(path, isolated=True, with_groups=True).result
    assert_same_run(simulated, replayed)
    assert result_from_json(result_to_json(simulated), "saved") == simulated


def test_an_event_log_is_written_in_pieces(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    rows = prompts([10, 20], [5, 70], 30, 8, response_mask=None)
    rows[1]["response_mask"] = [1, 0] * 10
    run_config = config(steps=4, over_sample_threshold=2.0, max_staleness=3, enable_partial_rollout=True)
    whole, pieces = tmp_path / "whole.parquet", tmp_path / "pieces.parquet"
    result_of(rows, run_config, event_log=whole)
    monkeypatch.setattr("tokenaudit.simulate.event_log._WRITTEN_ROWS", 3)
    monkeypatch.setattr("tokenaudit.simulate.event_log._WRITTEN_TOKENS", 10)
    result_of(rows, run_config, event_log=pieces)
    assert pq.ParquetFile(pieces).num_row_groups > 5
    assert pq.read_table(pieces).equals(pq.read_table(whole))


def test_a_response_too_long_for_an_event_log_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setattr("tokenaudit.simulate.event_log.MAX_ROW_ELEMENTS", 30)
    run_config = config(steps=3, over_sample_threshold=1.0, max_staleness=3, enable_partial_rollout=True)
    with pytest.raises(LogError, match="a response has 32 tokens of older versions"):
        result_of(prompts(10, 100, 10), run_config, event_log=tmp_path / "sim.parquet")


@pytest.mark.parametrize("case", MANAGER_CASES, ids=lambda path: path.name)
def test_a_golden_run_is_replayed_from_its_event_log(case: Path, tmp_path: Path):
    log = tmp_path / "sim.parquet"
    overrides = {"cost": GPUS}
    options = {"config_path": case / "config.toml", "overrides": overrides, "isolated": True, "with_groups": True}
    simulated = simulate_workload(case / "workload.parquet", event_log=log, **options).result
    assert_same_run(simulated, replay_log(log, **options).result)

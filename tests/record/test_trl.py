"""A run of TRL's asynchronous GRPO trainer is recorded, and replay counts what the trainer did."""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.record.stand_ins.trl import AsyncGRPOTrainer, RolloutSample
from tokenaudit import Recorder, audit_log, replay_log
from tokenaudit.record.trl import attach_trl


def run(trainer: AsyncGRPOTrainer, folder: Path, **options: Any) -> None:
    args = trainer.args
    config = {
        "timeline": {"sync_weights_interval": args.weight_sync_steps},
        "policy": {"max_staleness": args.max_staleness},
        "buffer": {"replay_policy": "fifo"},
    }
    with Recorder(folder, config, **options) as recorder:
        detach = attach_trl(trainer, recorder)
        trainer.train()
        detach()
        detach()


def length(sample: Any) -> int:
    ids, mask = fields(sample)
    return len(ids) - mask.index(1)


def fields(sample: Any) -> tuple[list[int], list[int]]:
    if isinstance(sample, RolloutSample):
        return sample.input_ids, sample.completion_mask
    return sample["input_ids"], sample["completion_mask"]


def lengths(samples: Iterable[Any]) -> int:
    return sum(map(length, samples))


def trained(trainer: AsyncGRPOTrainer) -> dict[int, list[Any]]:
    steps: dict[int, list[Any]] = defaultdict(list)
    for name, *values in trainer.journal:
        if name == "trained":
            steps[values[0]] += values[1]
    return steps


@pytest.mark.parametrize("interval", [1, 2])
@pytest.mark.parametrize("budget", [0, 13])
@pytest.mark.parametrize("max_staleness", [0, 1, 3])
def test_replay_counts_what_the_trainer_did(interval: int, budget: int, max_staleness: int, tmp_path: Path):
    args = {"weight_sync_steps": interval, "token_budget": budget, "max_staleness": max_staleness}
    trainer = AsyncGRPOTrainer(max_staleness, 12, **args)
    run(trainer, tmp_path)
    result = replay_log(tmp_path, isolated=True).result
    by_step = trained(trainer)
    assert [row["train_step"] for row in result.steps] == [*by_step] == [*range(1, 13)]
    for row in result.steps:
        samples = by_step[row["train_step"]]
        assert row["taken_tokens"] == lengths(samples)
        assert row["trained_tokens"] == sum(sum(fields(sample)[1]) for sample in samples)
        assert (row["shortfall_groups"], row["leftover_completed"]) == (0, 0)
        assert row["model_step"] == (row["train_step"] - 1) // interval * interval
    stale, too_long = ([event[1] for event in trainer.journal if event[0] == name] for name in ("stale", "too long"))
    assert bool(too_long) == bool(budget)
    assert stale or max_staleness == 3
    totals = result.totals
    assert totals["discarded_stale_tokens"] == lengths(stale)
    assert totals["expired_at_refresh"] == 0
    assert totals["filtered_tokens"] == lengths(too_long)
    assert totals["avoided_tokens"] == totals["restarted_tokens"] == 0
    came = lengths([*stale, *too_long, *(sample for samples in by_step.values() for sample in samples)])
    assert totals["produced_tokens"] == came + result.ledger["total"]["held_tokens"]
    errors = {finding.code for finding in audit_log(tmp_path, isolated=True).findings if finding.severity == "error"}
    # some rewards are not a number; what is batched ahead may be trained a step after its versions were judged
    assert errors <= {"G008", "L002"}


def rows_of(folder: Path, event: str) -> list[dict[str, Any]]:
    return [row for row in pq.read_table(folder).to_pylist() if row["event"] == event]


def test_samples_have_what_the_worker_sent(tmp_path: Path):
    trainer = AsyncGRPOTrainer(5, 6)
    run(trainer, tmp_path, token_columns=True)
    by_ids = {tuple(row["response_ids"]): row for row in rows_of(tmp_path, "put") if row["response_len"] > 4}
    checked = 0
    for samples in trained(trainer).values():
        for sample in samples:
            ids, mask = fields(sample)
            first = mask.index(1)
            row = by_ids.get(tuple(ids[first:]))
            if row is None:
                continue
            checked += 1
            assert (row["prompt_len"], row["response_mask"], row["status"]) == (first, mask[first:], "completed")
            assert row["logprobs"] == sample["old_log_probs"][first:]
            reward = sample["metrics"]["reward"]
            assert row["reward"] == (None if math.isnan(reward) else reward)
            assert row["advantage"] == sample["advantage"]
            # the version that was live when the group began, and the newest there was when the sample came
            assert row["version_precision"] == ("exact" if row["model_step_end"] is None else "start")
            assert row["model_step_end"] is None or row["model_step_end"] > row["model_step"]
    assert checked > 30
    assert {row["version_precision"] for row in by_ids.values()} == {"exact", "start"}


def test_a_group_that_is_trained_in_parts_is_a_group_for_each_part(tmp_path: Path):
    trainer = AsyncGRPOTrainer(5, 6)
    run(trainer, tmp_path)
    puts = rows_of(tmp_path, "put")
    assert len({row["rollout_id"] for row in puts}) == len(puts)
    parts = sum(len({sample["group_id"] for sample in samples}) for samples in trained(trainer).values())
    taken = rows_of(tmp_path, "take")
    # parts of a step whose versions were compared before and behind a sync are groups of their own, too
    assert parts <= len({row["group_id"] for row in taken}) <= 2 * parts
    assert sum(map(len, trained(trainer).values())) == len(taken)


def test_detaching_leaves_the_trainer_as_it_was(tmp_path: Path):
    trainer = AsyncGRPOTrainer(5, 2)
    run(trainer, tmp_path)
    assert "training_step" not in vars(trainer)
    assert "get_train_dataloader" not in vars(trainer)
    assert "get" not in vars(trainer.rollout_queue)
    assert "update_model_version" not in vars(trainer.rollout_worker)


def test_what_cannot_be_recorded_never_reaches_the_trainer(tmp_path: Path):
    trainer = AsyncGRPOTrainer(5, 3)
    with Recorder(tmp_path) as recorder:
        attach_trl(trainer, recorder)
        # versions that are pushed past the recorder
        del trainer.rollout_worker.update_model_version
        with pytest.warns(RuntimeWarning, match="not recorded: KeyError") as told:
            trainer.train()
    assert len(told) == 1
    assert recorder.rejected_events > 20
    assert [*trained(trainer)] == [1, 2, 3]


@pytest.mark.parametrize("budget", [0, 40])
def test_a_sample_that_cannot_be_recorded_is_left_out_alone(budget: int, tmp_path: Path):
    trainer = AsyncGRPOTrainer(5, 6, token_budget=budget)
    put, count = trainer.rollout_queue.put_nowait, itertools.count()

    def put_odd(sample: RolloutSample) -> None:
        if next(count) % 5 == 0:
            sample.old_log_probs = 7  # type: ignore[assignment]
        put(sample)

    trainer.rollout_queue.put_nowait = put_odd  # type: ignore[method-assign]
    with pytest.warns(RuntimeWarning, match="not recorded: TypeError"):
        run(trainer, tmp_path)
    takes = rows_of(tmp_path, "take")
    for step, samples in trained(trainer).items():
        good = [sample for sample in samples if sample["old_log_probs"] != 7]
        assert len(good) > 0
        assert len([row for row in takes if row["train_step"] == step]) == len(good)


def test_another_process_than_the_main_one_is_refused(tmp_path: Path):
    trainer = AsyncGRPOTrainer(5, 1)
    trainer.rollout_queue = trainer.rollout_worker = None  # type: ignore[assignment]
    with Recorder(tmp_path) as recorder, pytest.raises(TypeError, match="NoneType has no method update_model_version"):
        attach_trl(trainer, recorder)
    assert "training_step" not in vars(trainer)

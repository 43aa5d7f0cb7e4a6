"""A run of SkyRL's fully asynchronous trainer is recorded, and replay counts what the trainer did."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.record.stand_ins.skyrl import BatchMetadata, FullyAsyncTrainer, GeneratedOutputGroup, TrajectoryID
from tokenaudit import Recorder, audit_log, replay_log
from tokenaudit.record.skyrl import attach_skyrl

CONFIG = {"policy": {"max_staleness": 1000}, "buffer": {"replay_policy": "fifo"}}


def run(trainer: FullyAsyncTrainer, folder: Path, **options: Any) -> None:
    with Recorder(folder, CONFIG, **options) as recorder:
        detach = attach_skyrl(trainer, recorder)
        asyncio.run(trainer.train())
        detach()


def tokens_of(group: Any) -> int:
    return sum(map(len, group.generator_output["response_ids"]))


def rows_of(folder: Path) -> list[dict[str, Any]]:
    return pq.read_table(folder).to_pylist()


@pytest.mark.parametrize("sample_full_batch", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_replay_counts_what_the_trainer_did(sample_full_batch: bool, seed: int, tmp_path: Path):
    prompts = 12 if not sample_full_batch else 14
    trainer = FullyAsyncTrainer(prompts, 3, 4, sample_full_batch=sample_full_batch, seed=seed)
    run(trainer, tmp_path)
    result = replay_log(tmp_path, isolated=True).result
    trained = {event[1]: event[2] for event in trainer.journal if event[0] == "trained"}
    assert [row["train_step"] for row in result.steps] == list(trained)
    for row in result.steps:
        groups = trained[row["train_step"]]
        assert row["taken_groups"] == len(groups) == 4
        assert row["taken_tokens"] == sum(map(tokens_of, groups))
        assert row["trained_tokens"] == sum(sum(map(sum, group.generator_output["loss_masks"])) for group in groups)
        assert row["shortfall_groups"] == 0
        assert row["model_step"] == row["train_step"] - 1
    # the weights that a run begins with are no push
    assert [row["model_step"] for row in rows_of(tmp_path) if row["event"] == "sync"] == [*trained]
    finished = [event[1] for event in trainer.journal if event[0] == "finished"]
    dropped = [group for event in trainer.journal if event[0] == "dropped" for group in event[1]]
    assert len(finished) == 3 * prompts
    assert bool(dropped) == sample_full_batch
    totals = result.totals
    assert totals["put_groups"] == len(finished)
    assert totals["produced_tokens"] == sum(map(tokens_of, finished))
    assert totals["filtered_tokens"] == sum(map(tokens_of, dropped))
    assert totals["filtered_samples"] == 3 * len(dropped)
    assert (totals["avoided_tokens"], totals["expired_groups"], totals["failed_samples"]) == (0, 0, 0)
    findings = audit_log(tmp_path, isolated=True).findings
    assert [finding.code for finding in findings if finding.severity == "error"] == []


def test_a_resumed_run_that_generates_the_same_prompts_makes_other_groups(tmp_path: Path):
    first = FullyAsyncTrainer(12, 1, 4, sample_full_batch=False, seed=1)
    run(first, tmp_path)
    second = FullyAsyncTrainer(12, 1, 4, sample_full_batch=False, seed=2)
    second.global_step = first.global_step - 1
    run(second, tmp_path, append=True)
    result = replay_log(tmp_path, isolated=True).result
    finished = [event[1] for trainer in (first, second) for event in trainer.journal if event[0] == "finished"]
    assert (result.totals["put_groups"], result.totals["avoided_tokens"]) == (24, 0)
    assert result.totals["taken_tokens"] == result.totals["produced_tokens"] == sum(map(tokens_of, finished))
    assert [row["train_step"] for row in result.steps] == [*range(1, 7)]
    assert [row["model_step"] for row in result.steps] == [*range(6)]


def test_a_group_that_waits_is_left_over(tmp_path: Path):
    trainer = FullyAsyncTrainer(16, 1, 4, sample_full_batch=False, seed=0)
    run(trainer, tmp_path)
    result = replay_log(tmp_path, isolated=True).result
    waiting, left = 0, []
    for name, *values in trainer.journal:
        waiting += 1 if name == "finished" else -len(values[1])
        if name == "trained":
            left.append(waiting)
    # what finishes while a batch is handed over is put before or behind its take
    assert all(row["leftover_completed"] <= most for row, most in zip(result.steps, left, strict=True))
    assert result.steps[-1]["leftover_completed"] == 0
    assert max(row["leftover_completed"] for row in result.steps) > 0


def test_responses_have_what_the_generator_returned(tmp_path: Path):
    trainer = FullyAsyncTrainer(4, 1, 4, sample_full_batch=False, seed=1)
    run(trainer, tmp_path, token_columns=True)
    rows = rows_of(tmp_path)
    (group,) = [event[1] for event in trainer.journal if event[0] == "finished" and event[1].uid == "2"]
    puts = [row for row in rows if row["event"] == "put" and row["group_id"] == 2]
    output = group.generator_output
    assert [row["response_ids"] for row in puts] == output["response_ids"]
    assert [row["response_mask"] for row in puts] == output["loss_masks"]
    assert [row["logprobs"] for row in puts] == output["rollout_logprobs"]
    assert [row["reward"] for row in puts] == output["rewards"]
    for row in puts:
        assert (row["task_name"], row["finish_reason"], row["prompt_len"]) == ("math", "stop", 3)
        assert (row["generate_time_us"], row["status"]) == (250_000, "completed")
        assert (row["model_step"], row["version_precision"], row["model_step_end"]) == (0, "exact", None)
    take = [row for row in rows if row["event"] == "take"]
    assert {row["group_id"] for row in take} == {0, 1, 2, 3}
    assert {row["rollout_id"] for row in take} == {row["rollout_id"] for row in rows if row["event"] == "put"}


def generate(trainer: FullyAsyncTrainer, recorder: Recorder, output: dict[str, Any], phase: str = "train") -> None:
    async def fixed(input_batch: dict[str, Any]) -> dict[str, Any]:
        return output

    trainer.generator.generate = fixed  # type: ignore[method-assign,assignment]
    detach = attach_skyrl(trainer, recorder)
    request = {"trajectory_ids": output["trajectory_ids"], "batch_metadata": BatchMetadata(1, phase)}
    asyncio.run(trainer.generator.generate(request))
    detach()


def test_steps_of_a_trajectory_are_segments_with_the_reward_of_the_last(tmp_path: Path):
    trainer = FullyAsyncTrainer(4, 1, 4, sample_full_batch=False, seed=1)
    output = {
        "prompt_token_ids": [[1], [1, 5, 6], [1]],
        "response_ids": [[5], [7, 8], [9]],
        "rewards": [[0.0], [0.0, 1.0], [0.5]],
        "loss_masks": [[1], [1, 1], [0]],
        "trajectory_ids": [TrajectoryID("a", 0), TrajectoryID("a", 0), TrajectoryID("a", 1)],
        "is_last_step": [False, True, True],
    }
    with Recorder(tmp_path) as recorder:
        generate(trainer, recorder, output)
        generate(trainer, recorder, output, phase="eval")
    first, second, other = rows_of(tmp_path)
    assert first["rollout_id"] == second["rollout_id"] != other["rollout_id"]
    assert [row["reward"] for row in (first, second, other)] == [1.0, 1.0, 0.5]
    assert [row["agentic"] for row in (first, second, other)] == [True, True, False]


def test_a_group_that_an_update_overtook_has_a_span(tmp_path: Path):
    async def overtaken() -> None:
        trainer.init_weight_sync_state()
        request = {"trajectory_ids": [TrajectoryID("7", 0)], "batch_metadata": BatchMetadata(1, "train")}
        generating = asyncio.create_task(trainer.generator.generate(request))
        await asyncio.sleep(0)
        trainer.global_step = 1
        await trainer.dispatch.save_weights_for_sampler()
        await generating

    trainer = FullyAsyncTrainer(4, 1, 4, sample_full_batch=False, seed=3)
    with Recorder(tmp_path) as recorder:
        attach_skyrl(trainer, recorder)
        asyncio.run(overtaken())
    sync, put = rows_of(tmp_path)
    assert (sync["event"], sync["model_step"], put["version_precision"]) == ("sync", 1, "span")
    assert (put["model_step"], put["model_step_end"]) == (0, 1)


def test_a_group_that_is_finished_behind_a_take_is_put_for_the_next_step(tmp_path: Path):
    trainer = FullyAsyncTrainer(4, 1, 4, sample_full_batch=False, seed=3)
    request = {"trajectory_ids": [TrajectoryID("7", 0)], "batch_metadata": BatchMetadata(1, "train")}
    with Recorder(tmp_path) as recorder:
        attach_skyrl(trainer, recorder)
        trainer.global_step = 1
        output = asyncio.run(trainer.generator.generate(request))
        trainer.convert_generation_group_mini_batch_to_training_input([GeneratedOutputGroup(output, "7", 1)])
        asyncio.run(trainer.generator.generate(request))
    assert [(row["event"], row["train_step"]) for row in rows_of(tmp_path)] == [("put", 1), ("take", 1), ("put", 2)]


def test_what_cannot_be_recorded_never_reaches_the_trainer(tmp_path: Path):
    trainer = FullyAsyncTrainer(8, 1, 4, sample_full_batch=False, seed=1)
    good = trainer.generator.generate

    async def odd(input_batch: dict[str, Any], disable_tqdm: bool = False) -> dict[str, Any]:
        return {**await good(input_batch), "loss_masks": None}

    trainer.generator.generate = odd  # type: ignore[method-assign]
    with Recorder(tmp_path, CONFIG) as recorder:
        attach_skyrl(trainer, recorder)
        with pytest.warns(RuntimeWarning, match="not recorded: TypeError") as told:
            asyncio.run(trainer.train())
    assert (len(told), recorder.rejected_events) == (1, 8)
    assert [event[0] for event in trainer.journal].count("trained") == 2


def test_a_trainer_without_the_methods_is_refused_and_left_as_it_was(tmp_path: Path):
    class Older(FullyAsyncTrainer):
        convert_generation_group_mini_batch_to_training_input = None  # type: ignore[assignment]

    trainer = Older(4, 1, 4, sample_full_batch=False, seed=1)
    with Recorder(tmp_path) as recorder, pytest.raises(TypeError, match="has no method convert_generation"):
        attach_skyrl(trainer, recorder)
    assert "init_weight_sync_state" not in vars(trainer)

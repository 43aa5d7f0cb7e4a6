"""Hooks for NeMo-RL's buffers: what a small asynchronous run put, took and let expire is what the log's replay says."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch

from tests.record.stand_ins import nemo_rl
from tokenaudit import Recorder, load_log, replay_log
from tokenaudit.record.limits import Lack
from tokenaudit.record.nemo_rl import attach_nemo_rl, attach_nemo_rl_controller, recorded_replay_buffer

MAX_AGE = 2
CONFIG = {"mode": "disaggregated", "buffer": {"replay_policy": "fifo"}, "policy": {"max_staleness": MAX_AGE}}


def message_log(random_: random.Random) -> list[dict[str, Any]]:
    """A prompt, and one or two answers with what a tool wrote between them."""

    def message(role: str, tokens: int) -> dict[str, Any]:
        made = {"role": role, "content": "", "token_ids": torch.arange(tokens)}
        return made | ({"generation_logprobs": torch.full((tokens,), -0.5)} if role == "assistant" else {})

    log = [message("user", random_.randint(1, 4)), message("assistant", random_.randint(1, 9))]
    if random_.random() < 0.3:
        log += [message("environment", random_.randint(1, 4)), message("assistant", random_.randint(1, 4))]
    return log


def counted(logs: list[list[dict[str, Any]]]) -> Counter[str]:
    """Tokens of responses, and those that are trained, one after the other."""
    count: Counter[str] = Counter(groups=1)
    for log in logs:
        for message in log[1:]:
            count["tokens"] += len(message["token_ids"])
            count["trained"] += len(message["token_ids"]) if message["role"] == "assistant" else 0
    return count


class Run:
    """What happened in a run, counted by hand."""

    def __init__(self) -> None:
        self.put: Counter[str] = Counter()
        self.taken: dict[int, Counter[str]] = {}
        self.expired = 0

    def check(self, folder: Path) -> None:
        result = replay_log(folder, isolated=True, config=CONFIG).result
        totals = result.totals
        assert (totals["put_groups"], totals["produced_tokens"]) == (self.put["groups"], self.put["tokens"])
        steps = {
            step["train_step"]: Counter(
                groups=step["taken_groups"], tokens=step["taken_tokens"], trained=step["trained_tokens"]
            )
            for step in result.steps
            if step["taken_groups"]
        }
        assert steps == self.taken
        assert (totals["expired_groups"], totals["shortfall_groups"]) == (self.expired, 0)


def trajectory(random_: random.Random) -> dict[str, Any]:
    logs = [message_log(random_) for _ in range(3)]
    batch = {"message_log": logs, "total_reward": torch.rand(3), "truncated": torch.tensor([True, False, False])}
    return {"batch": batch | {"task_name": ["math"] * 3}, "rollout_metrics": {}, "timestamp": 0.0}


def drive_grpo(buffer: Any, steps: int, seed: int) -> Run:
    """Groups come at any time, most of them meant for the next step; some of them are too old for the window."""
    random_, run = random.Random(seed), Run()
    for weights in range(steps):
        made, sampled = 0, None
        while sampled is None:
            if random_.random() < 0.3 and weights > MAX_AGE:
                group, start, target = trajectory(random_), weights - MAX_AGE - 1, weights - 1
                run.expired += 1
            else:
                group, start, target = trajectory(random_), max(0, weights - random_.randint(0, MAX_AGE)), weights
                made += 1
            assert buffer.add(group, start, target_weight_version=target) == "success"
            run.put += counted(group["batch"]["message_log"])
            sampled = buffer.sample(num_prompt_groups=4, current_weight_version=weights, max_age_steps=MAX_AGE)
        assert made == len(sampled["trajectories"]) == 4
        taken = sum((counted(group["batch"]["message_log"]) for group in sampled["trajectories"]), Counter[str]())
        run.taken[weights + 1] = taken
    return run


def attached(recorder: Recorder) -> nemo_rl.ReplayBufferImpl:
    buffer = nemo_rl.ReplayBufferImpl(max_size=50, drop_incomplete_targets_on_restore=False)
    attach_nemo_rl(buffer, recorder)
    return buffer


def made_by_the_class(recorder: Recorder) -> nemo_rl.ReplayBufferImpl:
    recorded = recorded_replay_buffer(nemo_rl.ReplayBufferImpl, lambda: recorder)
    return recorded(max_size=50, drop_incomplete_targets_on_restore=False)


@pytest.mark.parametrize("token_columns", [False, True])
@pytest.mark.parametrize("make", [attached, made_by_the_class])
def test_a_run_of_grpo_is_replayed_as_it_was(
    make: Callable[[Recorder], nemo_rl.ReplayBufferImpl], token_columns: bool, tmp_path: Path
):
    with Recorder(tmp_path, CONFIG, token_columns=token_columns) as recorder:
        run = drive_grpo(make(recorder), steps=8, seed=1)
    assert run.expired > 0
    run.check(tmp_path)
    assert load_log(tmp_path, isolated=True).log.limits == (Lack.STARTS,)


def rows_of(folder: Path) -> list[dict[str, Any]]:
    return [row for part in sorted(folder.glob("*.parquet")) for row in pq.read_table(part).to_pylist()]


def test_a_group_of_grpo_has_its_rewards_masks_and_versions(tmp_path: Path):
    group = trajectory(random.Random(7))
    group["batch"]["message_log"][1] = [
        {"role": "user", "token_ids": torch.tensor([1, 2])},
        {"role": "assistant", "token_ids": torch.tensor([3, 4]), "generation_logprobs": torch.tensor([-0.25, -0.5])},
        {"role": "environment", "token_ids": torch.tensor([5])},
        {"role": "assistant", "token_ids": torch.tensor([6]), "generation_logprobs": torch.tensor([-1.0])},
    ]
    group["batch"]["total_reward"] = torch.tensor([0.0, 1.0, 0.5])
    with Recorder(tmp_path, token_columns=True) as recorder:
        buffer = attached(recorder)
        buffer.add(group, 2, 4)
        buffer.max_size = 1
        assert buffer.add(group, 2, 4) == "full"
        buffer.sample(1, 3, 5)
        buffer.sample(1, 4, 5)
    rows = rows_of(tmp_path)
    assert [row["event"] for row in rows] == [*["sync", "put", "put", "put"], *["sync", "refresh"] * 2, *["take"] * 3]
    assert [(row["train_step"], row["model_step"]) for row in rows if row["event"] == "sync"] == [
        (2, 2),
        (3, 3),
        (4, 4),
    ]
    put = rows[2]
    assert (put["response_ids"], put["response_mask"]) == ([3, 4, 5, 6], [1, 1, 0, 1])
    assert put["logprobs"] == [-0.25, -0.5, 0.0, -1.0]
    assert (put["prompt_len"], put["reward"], put["agentic"], put["task_name"]) == (2, 1.0, True, "math")
    versions = (put["model_step"], put["model_step_end"], put["version_precision"], put["train_step"])
    assert versions == (2, 4, "start", 1)
    assert [row["finish_reason"] for row in rows[1:4]] == ["length", None, None]
    assert [row["rollout_id"] for row in rows[-3:]] == [row["rollout_id"] for row in rows[1:4]]
    assert {(row["group_id"], row["train_step"], row["batch_size"]) for row in rows[-3:]} == {(put["group_id"], 5, 1)}


def test_what_a_checkpoint_brought_back_is_put_before_it_is_taken(tmp_path: Path):
    with Recorder(tmp_path) as recorder:
        buffer = attached(recorder)
        group = trajectory(random.Random(1))
        buffer.trajectories, buffer.trajectory_versions, buffer.target_weight_versions = [group], [1], [1]
        assert buffer.sample(1, 1, 2) is not None
    assert [row["event"] for row in rows_of(tmp_path)] == ["sync", *["put"] * 3, "refresh", *["take"] * 3]
    with Recorder(tmp_path, append=True) as recorder:
        buffer = attached(recorder)
        buffer.trajectories, buffer.trajectory_versions, buffer.target_weight_versions = [group], [1], [1]
        assert buffer.sample(1, 1, 2) is not None
    groups = {row["group_id"] for row in rows_of(tmp_path) if row["event"] == "put"}
    assert len(groups) == 2
    assert "groups that a checkpoint" in load_log(tmp_path, isolated=True).log.limits[-1]


def test_an_odd_group_is_counted_and_the_run_goes_on(tmp_path: Path):
    with Recorder(tmp_path) as recorder:
        buffer = attached(recorder)
        with pytest.warns(RuntimeWarning, match="not recorded: KeyError: 'batch'"):
            assert buffer.add({"odd": 1}, 0, 0) == "success"
        buffer.add(trajectory(random.Random(1)), 0, 1)
        sampled = buffer.sample(1, 0, 1)
        assert sampled is not None
        assert sampled["trajectories"] == [{"odd": 1}]
        assert buffer.sample(1, 1, 1) is not None
        assert recorder.rejected_events == 1
    assert Counter(row["event"] for row in rows_of(tmp_path)) == {"put": 3, "refresh": 2, "sync": 1, "take": 3}


def record_of(random_: random.Random) -> nemo_rl.PromptGroupRecord:
    completions = [nemo_rl.Completion(message_log(random_), None, False, random_.random()) for _ in range(2)]
    return nemo_rl.PromptGroupRecord(0, [], None, {"task_name": "code"}, completions, {})


async def drive_controller(buffer: Any, sampler: Any, steps: int, seed: int) -> Run:
    """Rollouts run beside a trainer that takes what is ready, in parts; some rollouts are dropped, some end too old.

    They end in the order in which they began, as replay takes groups in the order in which they were put.
    """
    random_, run = random.Random(seed), Run()
    weights = 0
    counts: dict[str, Counter[str]] = {}
    turn = asyncio.Lock()

    async def rollout() -> None:
        while weights < steps:
            start, record = weights, record_of(random_)
            group_id = buffer.reserve(weight_version=start)
            async with turn:
                for _ in range(random_.randint(1, 6)):
                    await asyncio.sleep(0)
                if random_.random() < 0.1:
                    await buffer.remove_group(group_id)
                    continue
                await buffer.commit(group_id, record, start, end_weight_version=weights)
            counts[group_id] = counted([completion.message_log for completion in record.completions])
            run.put.update(counts[group_id])

    rollouts = [asyncio.create_task(rollout()) for _ in range(12)]
    for step in range(1, steps + 1):
        taken: Counter[str] = Counter()
        while taken["groups"] < 5:
            await asyncio.sleep(0)
            run.expired += await sampler.evict(current_train_weight=weights)
            meta, size = await sampler.select(
                current_train_weight=weights, min_prompt_groups=1, max_prompt_groups=5 - taken["groups"]
            )
            if meta is not None:
                names = dict.fromkeys(name.rpartition("_g")[0] for name in meta.sample_ids)
                assert size == len(names)
                for name in names:
                    taken.update(counts[name])
        run.taken[step] = taken
        for _ in range(10):
            await asyncio.sleep(0)
        weights += 1
    await asyncio.gather(*rollouts)
    return run


def test_a_run_of_the_single_controller_is_replayed_as_it_was(tmp_path: Path):
    buffer = nemo_rl.TQReplayBuffer(None, "rollouts", pad_value_dict={})
    sampler = nemo_rl.WindowedSampler(buffer, max_staleness_versions=MAX_AGE)
    with Recorder(tmp_path, CONFIG) as recorder:
        attach_nemo_rl_controller(buffer, sampler, recorder)
        run = asyncio.run(drive_controller(buffer, sampler, steps=12, seed=3))
        assert recorder.rejected_events == 0
    assert run.expired > 0
    run.check(tmp_path)
    rows = rows_of(tmp_path)
    assert {row["task_name"] for row in rows if row["event"] in ("put", "take")} == {"code"}
    spans = {(row["version_precision"], row["model_step_end"] is None) for row in rows if row["event"] == "put"}
    assert spans == {("exact", True), ("span", False)}
    syncs = [(row["train_step"], row["model_step"]) for row in rows if row["event"] == "sync"]
    assert syncs == [(version, version) for version in range(1, 12)]
    assert load_log(tmp_path, isolated=True).log.limits == (Lack.SPANS,)


def test_a_controller_is_detached_whole_or_not_attached(tmp_path: Path):
    buffer = nemo_rl.TQReplayBuffer(None, "rollouts", pad_value_dict={})
    sampler = nemo_rl.WindowedSampler(buffer, max_staleness_versions=1)
    with Recorder(tmp_path) as recorder:
        with pytest.raises(TypeError, match="dict has no method select, evict"):
            attach_nemo_rl_controller(buffer, {}, recorder)
        assert "commit" not in vars(buffer)
        detach = attach_nemo_rl_controller(buffer, sampler, recorder)
        with pytest.raises(TypeError, match="attached to this buffer already"):
            attach_nemo_rl_controller(buffer, sampler, recorder)
        detach()
        asyncio.run(drive_controller(buffer, sampler, steps=2, seed=1))
    assert rows_of(tmp_path) == []


def test_a_step_that_found_fewer_groups_is_taken_when_the_next_begins_or_at_the_end(tmp_path: Path):
    buffer = nemo_rl.TQReplayBuffer(None, "rollouts", pad_value_dict={})
    sampler = nemo_rl.WindowedSampler(buffer, max_staleness_versions=9)

    async def step(weights: int) -> None:
        await buffer.commit(buffer.reserve(weight_version=0), record_of(random.Random(weights)), 0, 0)
        _, size = await sampler.select(current_train_weight=weights, min_prompt_groups=1, max_prompt_groups=3)
        assert size == 1

    with Recorder(tmp_path) as recorder:
        detach = attach_nemo_rl_controller(buffer, sampler, recorder)
        asyncio.run(step(0))
        asyncio.run(step(1))
        detach()
    # each group has two responses
    takes = [(row["train_step"], row["batch_size"]) for row in rows_of(tmp_path) if row["event"] == "take"]
    assert takes == [(1, 1), (1, 1), (2, 1), (2, 1)]


def test_a_recorder_that_cannot_be_made_keeps_no_actor_from_starting(tmp_path: Path):
    with Recorder(tmp_path) as recorder:
        recorder.refresh(1)

    kind = recorded_replay_buffer(nemo_rl.ReplayBufferImpl, lambda: Recorder(tmp_path))
    with pytest.warns(RuntimeWarning, match="not recorded: ") as told:
        buffer = kind(9, False)
    assert len(told) == 1
    assert buffer.add(trajectory(random.Random(1)), 0, 0) == "success"
    assert buffer.sample(1, 0, 1)["avg_trajectory_age"] == 0

"""The log function for slime and miles: what a small asynchronous run trained is what the log's replay says."""

from __future__ import annotations

import random
from argparse import Namespace
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.record.stand_ins.slime import Sample, WeightVersionSpan, WeightVersionsPerCall, log_rollout_data
from tokenaudit import Recorder, load_log, replay_log
from tokenaudit.record.limits import Lack
from tokenaudit.record.slime import NOT_COMPLETED, SEVERAL_REWARDS, log_function

CONFIG = {"mode": "disaggregated", "buffer": {"replay_policy": "fifo"}, "policy": {"max_staleness": 9}}


def rows_of(folder: Path) -> list[dict[str, Any]]:
    return [row for part in sorted(folder.glob("*.parquet")) for row in pq.read_table(part).to_pylist()]


def recorded(folder: Path, batches: dict[int, list[Sample]], **arguments: Any) -> list[dict[str, Any]]:
    """The rows that batches by rollout leave in a log."""
    recorder = Recorder(folder, CONFIG, token_columns=True)
    args = Namespace(custom_rollout_log_function=log_function(lambda: recorder), reward_key=None, **arguments)
    with recorder:
        for rollout_id, samples in batches.items():
            assert log_rollout_data(rollout_id, args, samples, {}, 1.5)
    return rows_of(folder)


def sample(**values: Any) -> Sample:
    usual: dict[str, Any] = {"group_index": 3, "index": 12, "tokens": [9, 8, 7, 1, 2], "response_length": 2}
    usual |= {"reward": 1.0, "weight_versions": ["1"], "status": Sample.Status.COMPLETED}
    return Sample(**(usual | values))


@pytest.mark.parametrize("interval", [1, 2])
def test_a_run_is_replayed_as_it_was_trained(interval: int, tmp_path: Path):
    """The next batch is generated while one is trained, and weights are pushed every `interval` steps."""
    random_ = random.Random(5)
    expected: dict[int, Counter[str]] = {}
    batches: dict[int, list[Sample]] = {}
    pushes = 1
    index = 0
    for rollout_id in range(6):
        count, samples = Counter(groups=4), []
        # batch `rollout_id` was generated before step `rollout_id` was trained
        pushed = 1 + max(0, rollout_id - 1) // interval
        for group in range(4):
            for _ in range(3):
                tokens, is_removed = random_.randint(1, 20), random_.random() < 0.1
                mask = [int(random_.random() < 0.8) for _ in range(tokens)] if random_.random() < 0.5 else None
                oldest = max(1, pushed - random_.randint(0, 1))
                values: dict[str, Any] = {"tokens": list(range(tokens + 3)), "response_length": tokens}
                values |= {"loss_mask": mask, "remove_sample": is_removed, "index": index}
                versions = [str(oldest), str(pushed)]
                samples.append(sample(group_index=4 * rollout_id + group, weight_versions=versions, **values))
                index += 1
                count["tokens"] += tokens
                count["trained"] += 0 if is_removed else tokens if mask is None else sum(mask)
                steps = rollout_id - (oldest - 1) * interval
                count["staleness"] += steps
        random_.shuffle(samples)
        batches[rollout_id], expected[rollout_id + 1] = samples, count
        pushes = max(pushes, pushed)
    rows = recorded(tmp_path, batches, update_weights_interval=interval)
    result = replay_log(tmp_path, isolated=True, config=CONFIG).result
    steps = {
        step["train_step"]: Counter(
            groups=step["taken_groups"],
            tokens=step["taken_tokens"],
            trained=step["trained_tokens"],
            staleness=step["seq_staleness_sum"],
        )
        for step in result.steps
    }
    assert steps == {step: +count for step, count in expected.items()}
    assert (result.totals["expired_groups"], result.totals["shortfall_groups"]) == (0, 0)
    syncs = [(row["train_step"], row["model_step"]) for row in rows if row["event"] == "sync"]
    assert syncs == [(interval * push, interval * push) for push in range(1, pushes)]
    assert {row["version_precision"] for row in rows if row["event"] == "put"} == {"segment", "span"}
    assert load_log(tmp_path, isolated=True).log.limits == (Lack.DROPPED, Lack.RESUME, Lack.SPANS)


def test_a_sample_has_its_values(tmp_path: Path):
    logprobs = [-0.5, -1.0]
    odd = sample(index=13, status=Sample.Status.FAILED, reward=True, loss_mask=[1, 0], rollout_log_probs=logprobs)
    removed = sample(index=14, status=Sample.Status.TRUNCATED, reward={"a": 1, "b": 2}, remove_sample=True)
    first, second, third, *takes = recorded(tmp_path, {4: [sample(), odd, removed]})
    assert (first["event"], first["group_id"], first["rollout_id"], first["train_step"]) == ("put", 3, 12, 5)
    assert (first["response_ids"], first["prompt_len"], first["response_mask"]) == ([1, 2], 3, None)
    # a run that goes on from step 4 counts its pushes from 1 again
    assert (first["model_step"], first["version_precision"], first["status"]) == (4, "segment", "completed")
    assert (second["reward"], second["response_mask"], second["logprobs"]) == (1.0, [1, 0], [-0.5, -1.0])
    assert (second["agentic"], second["finish_reason"], second["status"]) == (True, "error", "completed")
    assert (third["reward"], third["response_mask"], third["finish_reason"]) == (None, [0, 0], "length")
    assert third["agentic"] is False
    assert [(row["event"], row["rollout_id"], row["batch_size"]) for row in takes] == [
        ("take", rollout, 1) for rollout in (12, 13, 14)
    ]
    assert {NOT_COMPLETED, SEVERAL_REWARDS} < set(load_log(tmp_path, isolated=True).log.limits)


def test_versions_of_calls_are_placed_where_the_trace_has_their_lengths(tmp_path: Path):
    placed = sample(tokens=[0, 1, 2, 3, 4], response_length=4, weight_versions=["1", "2"], loss_mask=[1, 0, 1, 1])
    spans = [{"name": "sglang_generate", "attrs": {"completion_tokens": tokens}} for tokens in (1, 2)]
    placed.trace = {"events": [{"name": "reward"}, *spans]}  # type: ignore[attr-defined]
    rows = recorded(tmp_path, {0: [placed, sample(index=13, weight_versions=["default"])]})
    _, put, unknown, *_ = rows
    assert (put["response_model_steps"], put["version_precision"]) == ([0, 0, 1, 1], "segment")
    assert (unknown["model_step"], unknown["version_precision"]) == (None, "none")


def test_spans_of_newer_miles_give_every_token_its_version(tmp_path: Path):
    spanned = sample(tokens=[0, 1, 2, 3, 4], response_length=3)
    spans = [WeightVersionSpan("1", 2, 3), WeightVersionSpan("2", 3, 5)]
    spanned.weight_versions = [WeightVersionsPerCall(spans)]  # type: ignore[list-item]
    sync, put, _ = recorded(tmp_path, {0: [spanned]})
    assert (put["response_model_steps"], put["version_precision"]) == ([0, 1, 1], "exact")
    assert (sync["event"], sync["model_step"]) == ("sync", 1)


def test_pushes_of_a_resumed_run_come_where_the_interval_says(tmp_path: Path):
    batches = {rollout: [sample(weight_versions=[str(version)])] for rollout, version in ((5, 1), (6, 2), (8, 3))}
    rows = recorded(tmp_path, batches, update_weights_interval=2)
    # the checkpoint is that of step 5; pushes come behind steps 6 and 8
    assert [row["model_step"] for row in rows if row["event"] == "put"] == [5, 6, 8]
    assert [row["train_step"] for row in rows if row["event"] == "sync"] == [6, 8]


def test_samples_without_a_group_are_one_each(tmp_path: Path):
    samples = [sample(group_index=None, index=None) for _ in range(2)]
    rows = recorded(tmp_path, {0: samples, 1: samples})
    assert len({row["group_id"] for row in rows if row["event"] == "put"}) == 4
    assert len({row["rollout_id"] for row in rows if row["event"] == "put"}) == 4


def test_tasks_and_rewards_are_what_the_trainer_says(tmp_path: Path):
    with Recorder(tmp_path) as recorder:
        log = log_function(lambda: recorder, task_of=lambda sample: sample.metadata["task"], sync_interval=3)
        args = Namespace(update_weights_interval=1, reward_key="b")
        samples = [
            sample(
                group_index=group, index=group, metadata={"task": task}, reward={"a": 1, "b": 2}, weight_versions=[3]
            )
            for group, task in enumerate(["math", "code", "math"])
        ]
        assert log(0, args, samples, None, 0.0) is False
    rows = rows_of(tmp_path)
    puts = [(row["task_name"], row["reward"], row["model_step"]) for row in rows if row["event"] == "put"]
    assert puts == [("math", 2.0, 6), ("code", 2.0, 6), ("math", 2.0, 6)]
    takes = [(row["task_name"], row["batch_size"]) for row in rows if row["event"] == "take"]
    assert takes == [("math", 2), ("math", 2), ("code", 1)]


def no_recorder() -> Recorder:
    raise OSError("no space")


@pytest.mark.parametrize("make", [no_recorder, None])
def test_no_batch_keeps_the_trainer_from_going_on(make: Callable[[], Recorder] | None, tmp_path: Path):
    with Recorder(tmp_path) as recorder:
        log = log_function(make or (lambda: recorder))
        with pytest.warns(RuntimeWarning, match="not recorded: "):
            assert log(0, Namespace(), [sample(), sample(group_index=4, loss_mask=[1])], {}, 0.0) is False
        assert log(1, None, [object()], {}, 0.0) is False
        assert recorder.rejected_events == (0 if make else 2)
    assert Counter(row["event"] for row in rows_of(tmp_path)) == ({} if make else {"put": 1, "take": 1})


def test_an_odd_sample_leaves_the_rest_of_its_batch_in_the_log(tmp_path: Path):
    odd = [object(), sample(group_index=True), sample(group_index=5, reward="much"), sample(group_index=6, tokens=None)]
    odd += [sample(group_index=7, weight_versions=[WeightVersionsPerCall([None])])]  # type: ignore[list-item]
    samples = [*odd, sample(), sample(group_index=8, metadata=None), sample(group_index=9)]
    with Recorder(tmp_path) as recorder:
        log = log_function(lambda: recorder, task_of=lambda of: of.metadata.get("task", "default"))
        with pytest.warns(RuntimeWarning, match="not recorded: ") as told:
            log(0, Namespace(), samples, {}, 0.0)
    assert len(told) == 1
    assert [(row["event"], row["group_id"]) for row in rows_of(tmp_path)] == [
        ("put", 3),
        ("put", 9),
        ("take", 3),
        ("take", 9),
    ]


def test_a_sample_may_have_no_versions_at_all_and_fewer_tokens_than_its_response(tmp_path: Path):
    rows = recorded(tmp_path, {0: [sample(weight_versions=None), sample(group_index=4, tokens=[1])]})
    puts = [(row["version_precision"], row["response_len"], row["response_ids"]) for row in rows[:2]]
    assert puts == [("none", 2, [1, 2]), ("segment", 2, None)]


def test_versions_that_count_no_pushes_stop_nothing(tmp_path: Path):
    """Such as the time of a checkpoint."""
    with Recorder(tmp_path) as recorder:
        log = log_function(lambda: recorder)
        with pytest.warns(RuntimeWarning, match="not recorded: "):
            log(0, Namespace(), [sample(weight_versions=["202512011053591234"])], {}, 0.0)
        log(1, Namespace(), [sample(group_index=4, weight_versions=["20251201"])], {}, 0.0)
    rows = rows_of(tmp_path)
    assert Counter(row["event"] for row in rows) == {"sync": 1000, "put": 1, "take": 1}
    assert {row["group_id"] for row in rows if row["event"] == "put"} == {4}
